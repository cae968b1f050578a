"""An iteration's figures of all ranks as one. Pure but for the exchange.

Sums are added, means are weighted by what they are means of, times are those of the slowest rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainer.parallel.context import Group

__all__ = ["joined_metrics", "merged"]

_SUMS = frozenset(
    {
        "context_overflows", "turns", "response_tokens", "prompt_tokens", "sero/roots",
        "sero/rows", "sero/pruned_mass", "sero/restore_s", "sero/oracle_s", "sero/env_s",
        "perf/tokens_per_s", "perf/rollout_tokens_per_s", "perf/update_tokens_per_s",
        "perf/model_flops",
    }
)  # fmt: skip
_SUM_ENDINGS = ("/rows", "/pairs", "/roots", "/asked", "/data_rows", "/oracle_s")
_LARGEST = frozenset({"iteration_s", "sero/branch_s", "context_overflow_longest"})
# Already of all ranks where the learner returns them, or the same everywhere.
_COMMON = (
    "loss/", "grad/", "lr", "clip_fraction", "dual_clip_fraction", "kl_old", "advantage_abs_mean",
    "optimizer_steps", "skipped_", "nonfinite_", "iteration", "critic/", "dynamic/",
)  # fmt: skip
_PER_TURN = frozenset(
    {"command_valid_share", "invalid_action_rate", "format_valid_share", "invalid_format_rate"}
)
_PER_TRAJECTORY = frozenset(
    {"success_rate", "score_mean", "episode_steps", "context_overflow_share"}
)
_PER_GROUP = frozenset({"frac_degenerate_groups", "mixed_group_share"})
_PER_TOKEN = frozenset({"entropy", "kl_reward"})


def joined_metrics(
    metrics: Mapping[str, Any], trajectories: int, groups: int, kept: int, group: Group
) -> dict[str, Any]:
    """The figures of one rank, and how much it has of what they are means of, as those of all.

    Args:
        trajectories: that this rank played.
        groups: that they are of.
        kept: groups that this rank learnt from.
    """
    if group.alone:
        return dict(metrics)
    found = merged(group.gather([dict(metrics), trajectories, groups, kept]))
    seconds = found.get("iteration_s")
    if seconds and "tokens_per_s" in found:
        found["tokens_per_s"] = (found["prompt_tokens"] + found["response_tokens"]) / seconds
    return found


def merged(parts: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """One dict of several (metrics, trajectories, groups, kept groups), one a rank.

    A figure that is in none of the lists above is a mean over roots (`sero/`, see `_roots`), else
    over the ranks that have it. `None` has no weight; tables of counts are added.
    """
    keys = list(dict.fromkeys(key for metrics, *_ in parts for key in metrics))
    return {key: _merged(key, parts) for key in keys}


def _merged(key: str, parts: Sequence[Sequence[Any]]) -> Any:
    pairs = [
        (metrics[key], _weight(key, metrics, *had))
        for metrics, *had in parts
        if metrics.get(key) is not None
    ]
    values = [value for value, _ in pairs]
    if not values:
        return None
    if isinstance(values[0], Mapping):
        names = sorted({name for value in values for name in value})
        return {name: sum(value.get(name, 0) for value in values) for name in names}
    if not all(isinstance(value, int | float) for value in values):
        return values[0]
    if key in _SUMS or key.endswith(_SUM_ENDINGS):
        return sum(values)
    if key in _LARGEST or key.startswith("time/"):
        return max(values)
    if key.startswith(_COMMON):
        return values[0]
    total = sum(weight for _, weight in pairs)
    return sum(value * weight for value, weight in pairs) / total if total else values[0]


def _weight(
    key: str, metrics: Mapping[str, Any], trajectories: int, groups: int, kept: int
) -> float:
    if key in _PER_TURN:
        return float(metrics["turns"])
    if key in _PER_TRAJECTORY:
        return float(trajectories)
    if key in _PER_GROUP:
        return float(groups)
    if key == "sero/eligible_share":
        return float(kept)
    if key in _PER_TOKEN:
        return float(metrics["response_tokens"])
    return _roots(key, metrics) if key.startswith("sero/") else 1.0


def _roots(key: str, metrics: Mapping[str, Any]) -> float:
    """Roots, open branches or their states: what a figure of `branch_metrics` is a mean over."""
    roots = float(metrics.get("sero/roots") or 0)
    opened = roots * (1.0 - float(metrics.get("sero/gate_zero_share") or 0.0))
    if key == "sero/z":
        return opened * float(metrics.get("sero/branch_steps") or 0.0)
    if key in ("sero/z_root", "sero/effective_depth", "sero/branch_steps"):
        return opened
    if key == "sero/oracle_success":
        return roots - float((metrics.get("sero/gate_reasons") or {}).get("invalid", 0))
    return roots
