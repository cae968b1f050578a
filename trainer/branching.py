"""SERO's branches: choose roots, let the oracle continue, and make what the policy is trained on.

Promises (tests/trainer/test_branching.py, test_no_leak.py):

1. Roots are drawn from a stream of their own; with SERO on or off the rollouts are the same.
2. A branch runs in an environment that no rollout uses, from a snapshot whose restored
   observation and admissible commands were compared with the record.
3. The prompt at branch state k is what the student would have seen there: its own history up to
   the root, then the branch's observations with the oracle's commands. The privileged view goes
   to the oracle and nowhere else.
4. The target is `<think></think><action>COMMAND</action>` and the end token. The loss covers
   command, closing tag and end token; z covers the command alone.

Of the training loop, only this module, `trainer.branch_records`, `trainer.methods.oracle_rows` and
`trainer.oracle_registry` import `oracles`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gymnasium
from torch import nn

from oracles.base import HistoryItem, Oracle
from oracles.branch import Branch, RootRecord
from oracles.branch import run as run_branch
from trainer import rng
from trainer.auxiliary.sero import count_roots, row_coefficients
from trainer.auxiliary.sero_weights import (
    Rollout,
    choose_root,
    gate,
    log_z,
    reach_weights,
    success_return,
)
from trainer.branch_records import GrownRoot, RootChoice, branch_metrics, root_record
from trainer.config import Config, SeroConfig
from trainer.data import Segment
from trainer.methods.oracle_rows import branch_rows
from trainer.methods.protocol import PassLimits
from trainer.oracle_registry import make_oracle
from trainer.rollout import Student, Trajectory
from trainer.update import AuxiliaryRow, score_segments

__all__ = [
    "Brancher",
    "GrownRoot",
    "RootChoice",
    "grow",
    "score",
    "select_roots",
    "step_rows",
]


def select_roots(
    trajectories: Sequence[Trajectory], config: SeroConfig, seed: int, iteration: int
) -> list[RootChoice]:
    """At most one root per group, in order of first appearance of the groups.

    Each group's two uniforms come from the stream (seed, iteration, group, "root").
    """
    groups: dict[str, list[int]] = {}
    for index, trajectory in enumerate(trajectories):
        groups.setdefault(trajectory.episode.uid, []).append(index)
    roots = []
    for uid, members in groups.items():
        u1, u2 = rng.stream(seed, iteration, uid, purpose=rng.ROOT).random(2)
        summary = [Rollout(trajectories[i].success, len(trajectories[i].turns)) for i in members]
        root = choose_root(summary, float(u1), float(u2), pool=config.pool)
        if root is not None:
            roots.append(RootChoice(members[root.rollout], root.step))
    return roots


def grow(
    choice: RootChoice,
    trajectory: Trajectory,
    env: gymnasium.Env[str, str],
    oracle: Oracle[Any],
    student: Student,
    config: SeroConfig,
    max_target_tokens: int,
) -> GrownRoot:
    """Runs one branch in `env`, gates it, and makes its rows if the gate is open."""
    turn = trajectory.turns[choice.t]
    history = trajectory.history_before(choice.t)
    branch = run_branch(
        env,
        trajectory.snapshots[choice.t],
        oracle,
        config.max_depth,
        history=tuple(HistoryItem(*item) for item in history.items),
        expected=RootRecord(turn.observation, turn.admissible),
        root_step=choice.t,
    )
    reasons = list(branch.reasons)
    G_pi, G_O = _returns(branch, trajectory, config)
    g = gate(G_pi, G_O, config.return_scale, branch.valid)
    rows: list[Segment] = []
    z_rows: list[Segment] = []
    if g > 0:
        found, unfit = branch_rows(branch, student, max_target_tokens)
        reasons += unfit
        rows = [row.segment() for row in found]
        z_rows = [row.command_segment() for row in found]
    valid = not reasons
    if not valid:
        g, rows, z_rows = 0.0, [], []
    return GrownRoot(
        choice,
        branch,
        valid,
        tuple(dict.fromkeys(reasons)),
        G_pi,
        G_O,
        g,
        tuple(rows),
        tuple(z_rows),
    )


def _returns(branch: Branch, trajectory: Trajectory, config: SeroConfig) -> tuple[float, float]:
    """(G_pi, G_O) over the steps that both had left at the root; raw env figures only."""
    if config.target == "score":
        return trajectory.score, branch.score
    start = branch.root_step
    end = math.inf if branch.steps_left is None else start + branch.steps_left
    horizon = int(end) if math.isfinite(end) else max(len(trajectory.turns), start) + 10**9
    return (
        success_return(trajectory.success, len(trajectory.turns), horizon),
        success_return(branch.success, start + len(branch.steps), horizon),
    )


def score(roots: Sequence[GrownRoot], model: nn.Module, limits: PassLimits) -> list[GrownRoot]:
    """Fills `logz` of open branches under the frozen behaviour policy, in one batch.

    Once per iteration, before its first optimiser step, in eval mode and at temperature 1.
    """
    rows = [row for root in roots for row in root.z_rows]
    values = iter([log_z(row) for row in score_segments(model, rows, limits)])
    return [replace(root, logz=tuple(next(values) for _ in root.z_rows)) for root in roots]


def step_rows(roots: Sequence[GrownRoot], config: SeroConfig) -> list[AuxiliaryRow]:
    """Rows of one optimiser step with their coefficients; N_root counts this step's roots."""
    gates = [root.gate for root in roots]
    weights = [reach_weights(root.logz, config.rule, config.delta) for root in roots]
    counts = [[row.trained for row in root.rows] for root in roots]
    coefficients = row_coefficients(
        gates,
        weights,
        counts,
        n_root=count_roots(gates, [root.valid for root in roots], config.normaliser),
        w_min=config.w_min,
        branch_norm=config.branch_norm,
    )
    return [
        AuxiliaryRow(row, coefficient)
        for root, of_root in zip(roots, coefficients, strict=True)
        for row, coefficient in zip(root.rows, of_root, strict=True)
        if coefficient > 0.0
    ]


class Brancher:
    """Everything SERO needs besides the rollouts: its environment, oracle and settings."""

    def __init__(
        self, config: Config, section: SeroConfig, env: gymnasium.Env[str, str], student: Student
    ) -> None:
        self.config = config
        self.section = section
        self.env = env
        self.student = student
        self.oracle = make_oracle(section.oracle, section.oracle_budget_s, config.env.id)

    def branch(
        self, iteration: int, trajectories: Sequence[Trajectory], model: nn.Module
    ) -> list[GrownRoot]:
        """Selects, grows and scores the roots of one iteration. `model` is not changed."""
        c = self.config
        choices = select_roots(trajectories, self.section, c.run.seed, iteration)
        roots = [
            grow(
                choice,
                trajectories[choice.index],
                self.env,
                self.oracle,
                self.student,
                self.section,
                c.rollout.max_new_tokens,
            )
            for choice in choices
        ]
        limits = PassLimits(
            c.optim.micro_batch_tokens, self.student.pad_id, c.run.dtype == "bfloat16"
        )
        return score(roots, model, limits)

    def metrics(self, roots: Sequence[GrownRoot]) -> dict[str, Any]:
        """See `trainer.branch_records.branch_metrics`."""
        return branch_metrics(roots, self.section, self.config.rollout.tasks)

    def records(
        self, roots: Sequence[GrownRoot], trajectories: Sequence[Trajectory]
    ) -> list[dict[str, Any]]:
        """One record a root for `roots.jsonl`; the first open one with all its texts."""
        first = next((i for i, root in enumerate(roots) if root.gate > 0), None)
        return [
            root_record(root, trajectories[root.choice.index], self.section, i == first)
            for i, root in enumerate(roots)
        ]
