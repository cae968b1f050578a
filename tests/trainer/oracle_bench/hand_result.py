"""A whole result of `sero bench oracle` as it might come of a trained run, written by hand."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

HOSTILE = "<script>alert('&\x1b[2J')</script>"


def _times(p50: float) -> dict[str, float]:
    return {"p50": p50, "p95": 1.8 * p50}


def _share(wins: int, n: int, count: str) -> dict[str, Any]:
    share = wins / n if n else None
    low, high = max(0.0, (share or 0) - 0.15), min(1.0, (share or 1) + 0.1)
    return {count: n, "wins": wins, "share": share, "low": low, "high": high}


_DEPTHS = ((0, 0), (1, 1), (2, 3), (4, 7), (8, 15), (16, 31), (32, 49))
_RESULT: dict[str, Any] = {
    "format": 1,
    "env": "somebody.game:make",
    "policy": "run@60",
    "oracle": "somebody.oracle:Oracle",
    "roots": 256,
    "seed": 0,
    "target": "success",
    "verdict": "NO-GO",
    "reasons": [
        "255 of 256 restored roots (99.61 %) were exact, 100 % are needed.",
        "Restores alone take 31 % of an iteration of 60 s (measured).",
    ],
    "reason_codes": ["restore_not_exact", "restore_too_slow"],
    "restore_fidelity": 255 / 256,
    "oracle_success": 0.93,
    "policy_success": 0.21,
    "gate_zero_share": 0.32,
    "mean_gate": 0.68,
    "effective_depth": 2.7,
    "overhead_share": 0.44,
    "restore": {
        "share": 255 / 256,
        "roots": 256,
        "exact": 255,
        "suffixes_replayed": 256,
        "failures": [{"task_id": HOSTILE, "t": 7, "what": f"reward {HOSTILE}"}],
        "by_depth": [
            {
                "from": low,
                "to": high,
                "roots": 36,
                "snapshot_us": _times(8.0),
                "restore_us": _times(150.0 + 90 * high),
                "bytes": {"mean": 700.0 + 40 * high, "max": 4000},
            }
            for low, high in _DEPTHS
        ]
        + [{"from": 50, "to": 63, "roots": 1, "snapshot_us": None, "restore_us": None,
            "bytes": None}],
        "restores_per_s": 410.0,
    },
    "oracle_figures": {
        "from_reset": _share(31, 32, "tasks"),
        "by_depth": [
            {"from": i / 10, "to": (i + 1) / 10, **_share(max(0, 26 - 2 * i), 26, "roots")}
            for i in range(10)
        ],
        "by_steps_left": [
            {"from": low, "to": high, **_share(min(30, 4 * i), 30, "roots")}
            for i, (low, high) in enumerate(_DEPTHS)
        ],
        "steps": {"mean": 7.3, "p95": 14.0, "max": 22},
        "decision_us": {"mean": 412.0, "p50": 350.0, "p95": 1300.0, "max": 9000.0},
        "statuses": {"found": 1700, "over_budget": 40, "timeout": 2},
        "inadmissible_share": 0.00004,
        "timeouts": 2,
        "deterministic": True,
        "repeated": 32,
    },
    "gate": {
        "roots": 256,
        "eligible_share": 0.79,
        "by_reason": {"invalid": 42, "oracle_not_better": 30, "oracle_worse": 10, "active": 174},
        "invalid_by_reason": {"oracle_over_budget": 40, HOSTILE: 2},
        "mean_gate": 0.68,
        "zero_share": 0.32,
        "gap": {"mean": 0.61, "low": 0.52, "high": 0.7, "level": 0.95},
        "gap_histogram": [
            {"from": -1.05 + 0.1 * i, "to": -0.95 + 0.1 * i, "n": n}
            for i, n in enumerate(
                [2, 0, 0, 1, 1, 2, 0, 4, 0, 0, 72, 3, 5, 8, 13, 9, 4, 7, 12, 19, 94]
            )
        ],
        "oracle_success": 0.93,
    },
    "cost": {
        "restore_s": 1.17,
        "oracle_s": 0.2,
        "env_s": 0.06,
        "branch_steps": 6.8,
        "groups": 16,
        "rollouts": 8,
        "iteration_s": 60.0,
        "iteration_from": "measured",
        "restore_share": 0.31,
        "oracle_share": 0.053,
        "env_share": 0.016,
        "token_share": 0.09,
        "model_share": 0.061,
        "overhead_share": 0.44,
    },
    "leaks": {
        "commands": 1700,
        "leaked": 204,
        "share": 0.12,
        "by_kind": {"unseen_container": 150, "unseen_destination": 54},
        "examples": [
            {"task_id": "train/3", "k": 2, "command": f"open {HOSTILE}", "why": "it was not seen"}
        ],
    },
    "reach": {
        "branches": 174,
        "z_by_depth": [
            {"depth": d, "n": 174 // (1 + i), "p10": 0.1, "p50": 0.6 - 0.05 * i,
             "p90": 0.95, "mean": 0.55 - 0.04 * i}
            for i, d in enumerate((0, 1, 2, 4, 8, 16))
        ],
        "weights": [0.6**k for k in range(22)],
        "effective_depth": 2.7,
        "ess": 3.4,
        "beyond_root_share": 0.6,
        "underflow_share": 0.0,
        "pruned_share": 0.21,
        "agreement_corr": 0.62,
        "agreement_share": 0.4,
    },
    "scale": {
        "base_norm": 0.8,
        "oracle_norm": 2.4,
        "cosine": -0.08,
        "weights": [
            {"weight": w, "ratio": 3 * w, "cosine_total": 1 - w / 2}
            for w in (0.05, 0.1, 0.2, 0.5, 1.0)
        ],
        "suggested": [0.05, 0.1, 0.2],
        "rules": {"sero": 2.4, "flat": 4.4, "root": 1.9, "mass": 1.8},
    },
    "format_drift": {
        "steps": 20,
        "episodes": 32,
        "before": {"replies": 300, "think_first": 0.99, "format_valid": 0.97,
                   "command_valid": None},
        "after": {"replies": 310, "think_first": 0.5, "format_valid": 0.96, "command_valid": 0.6},
    },
    "sweep": {
        "iterations": 20,
        "seeds": [0, 1],
        "rows": [
            {"weight": w, "split": split, "n": 80, "wins": wins, "success": wins / 80,
             "low": wins / 80 - 0.08, "high": wins / 80 + 0.1}
            for split in ("valid_seen", "valid_unseen")
            for w, wins in ((0.0, 12), (0.05, 18), (0.1, 25), (0.2, 30), (0.5, 22), (1.0, 9))
        ],
    },
    "not_measured": {},
}  # fmt: skip


def result(**changes: Any) -> dict[str, Any]:
    """A fresh copy of the result, some of its top-level values replaced."""
    return deepcopy(_RESULT) | changes
