"""Which roots an iteration branches at, and what a branch starts from."""

from __future__ import annotations

from collections.abc import Sequence

from oracles.bank_format import PolicyEnd
from oracles.base import HistoryItem
from oracles.branch import RootRecord
from oracles.branches import BranchRequest
from trainer import rng
from trainer.auxiliary.sero_weights import Rollout, choose_root
from trainer.branches.records import RootChoice
from trainer.config import SeroConfig
from trainer.rollouts.rollout import Trajectory

__all__ = ["branch_request", "policy_end", "select_roots"]


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
        root = choose_root(summary, float(u1), float(u2), config.pool, config.scheme)
        if root is not None:
            roots.append(RootChoice(members[root.rollout], root.step))
    return roots


def branch_request(choice: RootChoice, trajectory: Trajectory) -> BranchRequest:
    """What the branch of a root starts from."""
    turn = trajectory.turns[choice.t]
    history = trajectory.history_before(choice.t)
    return BranchRequest(
        trajectory.snapshots[choice.t],
        tuple(HistoryItem(*item) for item in history.items),
        RootRecord(turn.observation, turn.admissible),
        choice.t,
    )


def policy_end(choice: RootChoice, trajectory: Trajectory) -> PolicyEnd:
    """What the policy did from a root to the end of its episode."""
    return PolicyEnd(
        tuple(turn.command for turn in trajectory.turns[choice.t :]),
        tuple(turn.reward for turn in trajectory.turns[choice.t :]),
        trajectory.success,
        trajectory.score,
    )
