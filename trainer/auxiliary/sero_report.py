"""Figures that tell whether oracle branches are worth their cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trainer.auxiliary.sero_weights import gate


class BranchOutcome(NamedTuple):
    """One selected root: validity v_r, returns of policy and oracle, oracle steps K, gate scale."""

    valid: bool
    G_pi: float
    G_O: float
    n_steps: int
    c_R: float = 1.0


@dataclass(frozen=True, slots=True)
class OracleReport:
    """Gate statistics and cost shares of one update.

    Attributes:
        n_root: selected roots.
        gate_zero_ratio: share of selected roots with gate 0.
        reasons: count of roots by outcome: "invalid", "oracle_not_better" (equal returns),
            "oracle_worse", "active".
        gate_mean: mean gate over selected roots.
        dG_mean: mean G_O - G_pi over valid roots.
        oracle_success: share of valid roots with G_O >= c_R.
        env_overhead: time in restores and oracle steps over the time of an iteration.
        token_overhead: auxiliary tokens over base tokens.
    """

    n_root: int
    gate_zero_ratio: float
    reasons: dict[str, int]
    gate_mean: float
    dG_mean: float
    oracle_success: float
    env_overhead: float
    token_overhead: float


def oracle_report(
    branches: Sequence[BranchOutcome],
    *,
    t_restore_ms: float,
    t_oracle_step_ms: float,
    t_iter_ms: float,
    aux_tokens: int,
    base_tokens: int,
) -> OracleReport:
    """Summarise the branches of one update.

        env_overhead = (N * t_restore + sum K * t_oracle_step) / t_iter

    A root is invalid if v_r = 0, a return is not finite, or the oracle took no step. Shares over
    an empty set, and over a time or token count of 0, are 0.0.

    Args:
        branches: every selected root.
        t_restore_ms, t_oracle_step_ms: mean time of one restore and of one oracle step
            (environment and oracle together), milliseconds.
        t_iter_ms: time of the whole iteration, milliseconds.
        aux_tokens, base_tokens: tokens trained by the auxiliary and the base objective.
    """
    reasons = {"invalid": 0, "oracle_not_better": 0, "oracle_worse": 0, "active": 0}
    gaps: list[float] = []
    gates: list[float] = []
    wins = 0
    for valid, own, oracle, n_steps, c_R in branches:
        usable = bool(valid) and math.isfinite(own) and math.isfinite(oracle) and n_steps > 0
        gates.append(gate(own, oracle, c_R, usable))
        if not usable:
            reasons["invalid"] += 1
            continue
        gaps.append(oracle - own)
        wins += oracle >= c_R
        if gates[-1] > 0:
            reasons["active"] += 1
        elif gaps[-1] < 0:
            reasons["oracle_worse"] += 1
        else:
            reasons["oracle_not_better"] += 1
    steps = sum(branch.n_steps for branch in branches)
    env_ms = len(branches) * t_restore_ms + steps * t_oracle_step_ms
    return OracleReport(
        n_root=len(branches),
        gate_zero_ratio=_share(len(branches) - reasons["active"], len(branches)),
        reasons=reasons,
        gate_mean=_share(math.fsum(gates), len(gates)),
        dG_mean=_share(math.fsum(gaps), len(gaps)),
        oracle_success=_share(wins, len(gaps)),
        env_overhead=_share(env_ms, t_iter_ms),
        token_overhead=_share(aux_tokens, base_tokens),
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
