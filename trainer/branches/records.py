"""What is known of SERO's roots, as values, as metrics and as records on disk."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from oracles.branch import Branch
from trainer.auxiliary.depth_schedule import max_depth
from trainer.auxiliary.sero_weighting import Weighting, decay_of
from trainer.auxiliary.sero_weights import effective_depth
from trainer.config import ConfigError, SeroConfig
from trainer.metrics import mean_or_none
from trainer.rollouts.data import Segment
from trainer.rollouts.rollout import Trajectory

__all__ = [
    "GrownRoot",
    "RootChoice",
    "branch_metrics",
    "depth_at",
    "root_record",
    "weighting",
]


@dataclass(frozen=True, slots=True)
class RootChoice:
    """A chosen pre-action state: turn `t` of trajectory `index` in the iteration's list."""

    index: int
    t: int


@dataclass(frozen=True, slots=True)
class GrownRoot:
    """A root with its branch.

    Attributes:
        choice, branch: where from, and what the oracle did.
        valid: v_r; `reasons` says why not.
        G_pi, G_O: returns of the policy and the oracle over the same remaining steps.
        gate: g_r.
        rows: loss segment of each branch state; empty where the gate is 0.
        z_rows: the same sequences with only the command trained, for z.
        logz: log z of each row under the behaviour policy; empty until `score`.
    """

    choice: RootChoice
    branch: Branch
    valid: bool
    reasons: tuple[str, ...]
    G_pi: float
    G_O: float
    gate: float
    rows: tuple[Segment, ...] = ()
    z_rows: tuple[Segment, ...] = ()
    logz: tuple[float, ...] = ()

    @property
    def gate_reason(self) -> str:
        """`active`, `invalid`, `oracle_worse` or `oracle_not_better`."""
        if not self.valid:
            return "invalid"
        if self.gate > 0:
            return "active"
        return "oracle_worse" if self.G_pi > self.G_O else "oracle_not_better"


def weighting(
    roots: Sequence[GrownRoot], config: SeroConfig, depth: int | None = None
) -> Weighting:
    """How these roots, all of one iteration, are weighted.

    Args:
        depth: rows of each branch that the schedule trains; None: all.
    """
    bank = [root.logz for root in roots if root.gate > 0]
    delta = decay_of(config.delta, bank)
    return Weighting(config.rule, delta, config.decay, depth, config.depth_direction)


def depth_at(config: SeroConfig, horizon: int, iteration: int) -> int | None:
    """Rows of each branch that an iteration trains; None: all, there is no schedule.

    Args:
        horizon: longest branch, unless `max_depth` is shorter.
    """
    if config.depth_iterations == 0:
        return None
    final = horizon if config.max_depth is None else min(config.max_depth, horizon)
    if config.depth_start > final:
        raise ConfigError(
            f"auxiliary.sero.depth_start={config.depth_start} exceeds the longest branch, {final} "
            "steps (auxiliary.sero.max_depth, env.max_steps)."
        )
    return max_depth(
        iteration, growth_updates=config.depth_iterations, final=final, start=config.depth_start
    )


def branch_metrics(
    roots: Sequence[GrownRoot], config: SeroConfig, groups: int, depth: int | None = None
) -> dict[str, Any]:
    """Figures of one iteration's branches; `None` where there was nothing to measure.

    - sero/eligible_share: roots over `groups`, those that roots were looked for in.
    - sero/gate_mean, gate_zero_share: over selected roots; gate_reasons counts them by outcome.
    - sero/z, z_root: mean z over the states (the roots) of open branches.
    - sero/effective_depth: mean sum of weights of open branches, in rows.
    - sero/pruned_mass: gate times weight of the rows that `w_min` drops.
    - sero/delta: decay of rule `depth`; sero/depth: rows of a branch that the schedule trains.
    """
    active = [root for root in roots if root.gate > 0]
    scheme = weighting(roots, config, depth)
    weights = [scheme.weights(root.logz) for root in active]
    valid = [root for root in roots if root.valid]
    n = len(roots)
    return {
        "sero/roots": n,
        "sero/eligible_share": n / groups if groups else None,
        "sero/gate_mean": mean_or_none(root.gate for root in roots),
        "sero/gate_zero_share": (n - len(active)) / n if n else None,
        "sero/gate_reasons": dict(Counter(root.gate_reason for root in roots)),
        "sero/invalid_reasons": dict(Counter(r for root in roots for r in root.reasons)),
        "sero/oracle_success": mean_or_none(float(root.branch.success) for root in valid),
        "sero/branch_steps": mean_or_none(len(root.branch.steps) for root in active),
        "sero/root_step": mean_or_none(root.choice.t for root in roots),
        "sero/z": mean_or_none(math.exp(value) for root in active for value in root.logz),
        "sero/z_root": mean_or_none(math.exp(root.logz[0]) for root in active),
        "sero/effective_depth": mean_or_none(effective_depth(row) for row in weights),
        "sero/rows": sum(w > config.w_min for row in weights for w in row),
        "sero/pruned_mass": math.fsum(
            root.gate * w
            for root, row in zip(active, weights, strict=True)
            for w in row
            if w <= config.w_min
        ),
        "sero/delta": scheme.delta if config.rule == "depth" else None,
        "sero/depth": depth,
        "sero/restore_s": math.fsum(root.branch.restore_s for root in roots),
        "sero/oracle_s": math.fsum(root.branch.oracle_s for root in roots),
        "sero/env_s": math.fsum(root.branch.env_s for root in roots),
    }


def root_record(
    root: GrownRoot, trajectory: Trajectory, scheme: Weighting, texts: bool
) -> dict[str, Any]:
    """One root as plain data. Student-visible facts only: never `Branch.detail`.

    Args:
        scheme: how this iteration's roots are weighted.
        texts: also the student's episode and the branch with their observations.
    """
    branch = root.branch
    record: dict[str, Any] = {
        "task_id": trajectory.episode.task_id,
        "task_type": trajectory.task_type,
        "tid": trajectory.episode.tid,
        "root": root.choice.t,
        "gate": root.gate,
        "gate_reason": root.gate_reason,
        "reasons": list(root.reasons),
        "actions": [step.action for step in branch.steps],
        "success": branch.success,
        "z": [math.exp(value) for value in root.logz],
        "weights": scheme.weights(root.logz),
    }
    if texts:
        record |= {
            "goal": branch.goal,
            "student_success": trajectory.success,
            "student_steps": [
                [turn.observation, turn.command, turn.command_valid] for turn in trajectory.turns
            ],
            "branch_steps": [
                [step.observation, step.action, step.command_valid] for step in branch.steps
            ],
        }
    return record
