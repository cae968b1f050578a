"""From recorded turns to what an optimiser step needs. Pure: turns in, tensors and indices out.

Everything is computed from the turns' own fields, so turns read back from a file give the same
numbers as those of the running rollout.

Axis letters: M turns, N trajectories.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from trainer.config import ObjectiveConfig
from trainer.models.packing import cut_groups
from trainer.objectives import dense_ids
from trainer.rollouts.data import CUT_OFF, Segment, Turn

__all__ = [
    "constant_groups",
    "group_ids",
    "partition",
    "partition_whole",
    "trained_turns",
    "training_rewards",
    "trajectory_sizes",
    "untrained",
    "with_logprobs",
]


def training_rewards(
    turns: Sequence[Turn], success_reward: float, kind: Literal["success", "env"] = "success"
) -> Tensor:
    """Base reward of each turn, float64 (M,).

    With the kind `success` it is `success_reward` on the turn that wins, else 0: in WebShop
    only a score of exactly 1 pays, as in the published runs (verl-agent; GiGPO, arXiv:2505.10978).
    With `env` it is the environment's own reward times `success_reward`: a purchase pays its score.

    A trajectory that ends by running out of steps is no success, whatever else is true of it.
    The penalty for a malformed reply is the advantage's business (see `grpo_advantages`).
    """
    shares = [turn.reward if kind == "env" else float(turn.done and turn.success) for turn in turns]
    return success_reward * torch.tensor(shares, dtype=torch.float64)


def group_ids(turns: Sequence[Turn]) -> tuple[Tensor, Tensor]:
    """Dense int64 (M,) ids of each turn's group and trajectory."""
    return dense_ids([t.uid for t in turns]), dense_ids([(t.uid, t.tid) for t in turns])


def constant_groups(
    turns: Sequence[Turn], kind: Literal["success", "env"] = "success"
) -> frozenset[str]:
    """Groups whose trajectories all had the same outcome: they teach nothing about the task.

    The outcome is the sum of a trajectory's `training_rewards`; format penalties, which may still
    differ, are left out.
    """
    outcomes: dict[str, dict[str, float]] = {}
    for turn, reward in zip(turns, training_rewards(turns, 1.0, kind).tolist(), strict=True):
        group = outcomes.setdefault(turn.uid, {})
        group[turn.tid] = group.get(turn.tid, 0.0) + reward
    return frozenset(uid for uid, group in outcomes.items() if len(set(group.values())) == 1)


def trained_turns(turns: Sequence[Turn], objective: ObjectiveConfig) -> list[bool]:
    """Which turns take part in the base loss.

    All of them, or with `mask_truncated` only those of trajectories that the environment ended:
    not those that ran out of steps or of context.
    """
    if not objective.mask_truncated:
        return [True] * len(turns)
    ended = {(t.uid, t.tid): t.stop_reason for t in turns if t.done}
    reasons = [ended.get((t.uid, t.tid)) for t in turns]
    return [reason is not None and reason not in CUT_OFF for reason in reasons]


def partition(n: int, parts: int, generator: np.random.Generator) -> list[list[int]]:
    """Shuffles 0..n-1 and cuts it into `parts` parts whose sizes differ by at most one.

    Parts may be empty where n < parts. Each part is sorted: what matters is who is in it.
    """
    order = generator.permutation(n)
    return [sorted(int(i) for i in part) for part in np.array_split(order, parts)]


def trajectory_sizes(turns: Sequence[Turn]) -> list[int]:
    """Number of turns of each trajectory, in the order of the turns; sums to M."""
    return [len(list(run)) for _, run in groupby(turns, lambda turn: (turn.uid, turn.tid))]


def partition_whole(
    sizes: Sequence[int], parts: int, generator: np.random.Generator
) -> list[list[int]]:
    """`partition` of the turns of trajectories of these sizes, which are shuffled and not cut.

    In a conversation one pass runs all turns of a trajectory that are in the same optimiser step.
    Parts differ by less than the longest trajectory.
    """
    ends = np.cumsum(sizes, dtype=np.int64)
    order = generator.permutation(len(sizes))
    groups = [range(int(ends[i]) - sizes[i], int(ends[i])) for i in order]
    return cut_groups(groups, parts)


def untrained(segment: Segment) -> Segment:
    """The segment with nothing to learn from."""
    size = len(segment.ids)
    return replace(
        segment, loss_mask=(False,) * size, token_turn=(-1,) * size, logprobs=(0.0,) * size
    )


def with_logprobs(segment: Segment, values: Sequence[float]) -> Segment:
    """The segment with these behaviour log-probs at its trained tokens."""
    fresh = iter(values)
    return replace(
        segment, logprobs=tuple(next(fresh) if keep else 0.0 for keep in segment.loss_mask)
    )
