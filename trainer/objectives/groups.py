"""Group statistics shared by every group-relative advantage.

Everything here runs in float64 whatever the dtype of the rewards. In float32 the mean of equal
values is off by one ulp; for rewards near 10 that is as large as the usual epsilon of 1e-6, so a
group without any signal gets advantages of up to 0.65, all of one sign
(reported for verl in pull requests 4597 and 4598, for NeMo-RL in pull request 4161).
Constant groups are therefore recognised and forced to exactly 0 instead of being divided.

Axis letters: M turns (rows), P pool members, G groups.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Singleton = Literal["zero", "raw"]

CONSTANT_TOLERANCE = 1e-8


class GroupError(ValueError):
    """Raised when ids do not form the groups that a group objective needs."""


@dataclass(frozen=True, slots=True)
class GroupStats:
    """Statistics of each group's pool, float64, all of shape (G,).

    Attributes:
        count: int64, members of the pool.
        mean: 0 for an empty pool.
        std: with the requested ddof; 0 where the pool is constant or has one member.
        constant: bool, max - min < 1e-8 * max(1, max |x|) (true for pools of at most one).
    """

    count: Tensor
    mean: Tensor
    std: Tensor
    constant: Tensor


def dense_ids(keys: Sequence[Hashable]) -> Tensor:
    """Number hashable keys 0, 1, 2, ... in order of first appearance.

    Args:
        keys: any hashable values, e.g. task-group names or `(uid, tid)` pairs.

    Returns:
        int64 (len(keys),); equal keys get equal numbers.
    """
    numbers: dict[Hashable, int] = {}
    return torch.tensor([numbers.setdefault(key, len(numbers)) for key in keys], dtype=torch.int64)


def check_vectors(**tensors: Tensor) -> None:
    """Raise ValueError unless all tensors are one-dimensional and of one length."""
    shapes = {name: tuple(value.shape) for name, value in tensors.items()}
    if any(len(shape) != 1 for shape in shapes.values()) or len(set(shapes.values())) > 1:
        raise ValueError(f"Expected one-dimensional tensors of equal length, found {shapes}.")


def check_groups(uid_M: Tensor, tid_M: Tensor) -> None:
    """Refuse a training batch that contains no group at all.

    A fresh id per sample (or per trajectory) leaves every trajectory without a baseline, and a
    group objective then teaches nothing or, in some trainers, the raw rewards.

    Args:
        uid_M: int64 (M,), task-group id of each turn.
        tid_M: int64 (M,), trajectory id of each turn.

    Raises:
        GroupError: the batch is not empty and no group has two trajectories, or one trajectory
            id occurs in two groups.
    """
    check_vectors(uid_M=uid_M, tid_M=tid_M)
    if not uid_M.numel():
        return
    group_N = trajectory_groups(uid_M, tid_M)[1]
    if int(torch.bincount(group_N).max()) < 2:
        raise GroupError(
            f"All {group_N.numel()} trajectories have a group id of their own, so none has a "
            "baseline. Give the rollouts of one task the same uid and use at least two of them."
        )


def trajectory_groups(uid_M: Tensor, tid_M: Tensor) -> tuple[Tensor, Tensor]:
    """Dense trajectory number of each turn, and dense group number of each trajectory.

    Args:
        uid_M: int64 (M,), task-group id of each turn.
        tid_M: int64 (M,), trajectory id of each turn, unique over the whole batch.

    Returns:
        `(trajectory_M, group_N)`, int64 (M,) and (N,), N the number of trajectories. Groups are
        numbered by increasing uid, as `torch.unique` does.

    Raises:
        GroupError: one trajectory id occurs in two groups.
    """
    check_vectors(uid_M=uid_M, tid_M=tid_M)
    tids, trajectory_M = torch.unique(tid_M, return_inverse=True)
    group_M = torch.unique(uid_M, return_inverse=True)[1]
    group_N = torch.zeros(tids.numel(), dtype=torch.int64, device=uid_M.device)
    group_N[trajectory_M] = group_M
    clash = (group_N[trajectory_M] != group_M).nonzero()
    if clash.numel():
        row = int(clash[0, 0])
        raise GroupError(
            f"Trajectory id {int(tid_M[row])} occurs in more than one group (one of them is uid "
            f"{int(uid_M[row])}). Use trajectory ids that are unique over the whole batch."
        )
    return trajectory_M, group_N


def group_stats(value_P: Tensor, group_P: Tensor, n_groups: int, ddof: int = 1) -> GroupStats:
    """Mean and standard deviation of each group's pool.

    Args:
        value_P: (P,), any float dtype; computed in float64.
        group_P: int64 (P,), dense group numbers below `n_groups`.
        n_groups: G.
        ddof: 1 divides the squared deviations by n - 1 (field standard), 0 by n.

    Returns:
        GroupStats. Two passes (mean first, then deviations), so values far from 0 lose nothing.
    """
    check_vectors(value_P=value_P, group_P=group_P)
    if ddof not in (0, 1):
        raise ValueError(f"ddof must be 0 or 1, found {ddof}.")
    value = value_P.detach().double()
    zeros = value.new_zeros(n_groups)
    count = torch.bincount(group_P, minlength=n_groups)
    mean = zeros.index_add(0, group_P, value) / count.clamp(min=1)
    squares = zeros.index_add(0, group_P, (value - mean[group_P]).square())
    std = (squares / (count - ddof).clamp(min=1)).sqrt()
    highest = zeros.scatter_reduce(0, group_P, value, "amax", include_self=False)
    lowest = zeros.scatter_reduce(0, group_P, value, "amin", include_self=False)
    scale = torch.maximum(highest.abs(), lowest.abs()).clamp(min=1.0)
    constant = (highest - lowest) < CONSTANT_TOLERANCE * scale
    return GroupStats(count, mean, std.masked_fill(constant, 0.0), constant)


def normalise(
    score_M: Tensor,
    group_M: Tensor,
    stats: GroupStats,
    *,
    use_std: bool = True,
    eps: float = 1e-6,
    singleton: Singleton = "zero",
) -> Tensor:
    """(score - mean) / (std + eps) within groups, with the two guarded cases.

    Args:
        score_M: (M,).
        group_M: int64 (M,), dense group numbers that index `stats`.
        stats: of the pools; a row need not belong to its group's pool.
        use_std: False subtracts the mean only.
        eps: added to the standard deviation.
        singleton: what a pool of one member gives. "zero": 0. "raw": mean 0 and standard
            deviation 1, i.e. the score itself, as public code does.

    Returns:
        float64 (M,), detached. Exactly 0 wherever the pool is constant, also for a row outside
        the pool whose own score differs: dividing by eps alone would give it 1e5.
    """
    check_vectors(score_M=score_M, group_M=group_M)
    if singleton not in ("zero", "raw"):
        raise ValueError(f"singleton must be 'zero' or 'raw', found {singleton!r}.")
    if not eps > 0:
        raise ValueError(f"eps must be positive, found {eps}.")
    score = score_M.detach().double()
    centred = score - stats.mean[group_M]
    advantage = centred / (stats.std[group_M] + eps) if use_std else centred
    advantage = advantage.masked_fill(stats.constant[group_M], 0.0)
    if singleton == "raw":
        raw = score / (1.0 + eps) if use_std else score
        advantage = torch.where(stats.count[group_M] == 1, raw, advantage)
    return advantage
