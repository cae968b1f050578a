"""HGPO advantages: turns compared at several depths of shared history.

Source: HGPO (arXiv:2602.22817). The flavours "code" and "code_traj" follow the public behaviour of
its recipe for verl-agent.

Axis letters: M turns (rows), K + 1 levels, L rows that have a level.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict, Unpack

import torch
from torch import Tensor

from trainer.objectives.anchors import pair_ids, step_returns, time_order
from trainer.objectives.gigpo import NormMode, check_mode
from trainer.objectives.groups import (
    CONSTANT_TOLERANCE,
    check_vectors,
    group_stats,
    normalise,
    trajectory_groups,
)
from trainer.objectives.grpo import Flavor, grpo_advantages

_WEIGHT_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class HGPOTerms:
    """What `hgpo_terms` returns, detached, in the order of the input rows.

    Attributes:
        advantage: float64 (M,).
        level: float64 (K + 1, M), A_k; 0 where the turn has no level k.
        group_size: int64 (K + 1, M), turns with the same history of depth k, this one included;
            0 where the turn has no level k.
        episode: float64 (M,), value of the base group; 0 without one.
        step_return: float64 (M,), R_t.
    """

    advantage: Tensor
    level: Tensor
    group_size: Tensor
    episode: Tensor
    step_return: Tensor


class HGPOOptions(TypedDict, total=False):
    """Options of `hgpo_terms`, which names their meaning and defaults."""

    flavor: Flavor
    mode: NormMode
    depth: int
    alpha: float
    base_group: bool
    gamma: float
    eps: float
    penalty: float


def hgpo_advantages(
    step_rewards_M: Tensor,
    format_valid_M: Tensor,
    uid_M: Tensor,
    tid_M: Tensor,
    t_M: Tensor | None,
    anchor_M: Tensor,
    **options: Unpack[HGPOOptions],
) -> Tensor:
    """The advantage of `hgpo_terms` alone, float64 (M,); same arguments, options and errors.

    Source: HGPO (arXiv:2602.22817).
    """
    return hgpo_terms(
        step_rewards_M, format_valid_M, uid_M, tid_M, t_M, anchor_M, **options
    ).advantage


def hgpo_terms(
    step_rewards_M: Tensor,
    format_valid_M: Tensor,
    uid_M: Tensor,
    tid_M: Tensor,
    t_M: Tensor | None,
    anchor_M: Tensor,
    *,
    flavor: Flavor = "paper",
    mode: NormMode = "mean_std_norm",
    depth: int = 2,
    alpha: float = 1.0,
    base_group: bool = False,
    gamma: float = 0.95,
    eps: float = 1e-6,
    penalty: float = 0.1,
) -> HGPOTerms:
    """Hierarchy-of-groups advantage, one number per turn, with its levels.

    Level k = 0 .. K (K = `depth`) exists for a turn with at least k turns before it. Its pool is
    every turn of the task group, of any trajectory and step, that has the same k + 1 last states
    (s_{t-k}, ..., s_t) in this order. With R_t as in GiGPO (`step_returns`), discounted first and
    normalised after,

        A_k = (R_t - mean_k) / (std_k + eps)                    mode "mean_std_norm"
        A_k = R_t - mean_k                                      mode "mean_norm"

    where std_k divides by n. The levels are then averaged:

        A = sum_k w_k A_k / sum_k w_k             w_k = (k + 1)^alpha        "paper"
        A = sum_k w_k A_k / (sum_k w_k + 1e-6)    w_k = (k + 2)^alpha        code

    "paper" sums over the levels that the turn has; a pool of one contributes 0 and keeps its
    weight. "code" and "code_traj" leave out pools of one and levels with A_k = 0, weight included,
    and give 0 where none is left.

    `base_group` adds the task group as one more level, with weight 1 and the value of
    `grpo_advantages` in the same flavour and mode ("code_traj" differs from "code" only there).
    The code flavours leave it out where it is 0. Published runs do not use it.

    Edge cases: a constant pool gives exactly 0. A return that equals the mean of its pool up to
    rounding counts as equal, so rounding never decides whether a level is left out. There is no
    episode term: a state that occurs once in its task group has advantage 0.

    Args:
        step_rewards_M: float (M,), undiscounted environment reward of each turn.
        format_valid_M: bool (M,), False where the reply broke the format.
        uid_M: int64 (M,), task-group id.
        tid_M: int64 (M,), trajectory id, unique over the batch.
        t_M: int64 (M,), step within the trajectory; None means that the rows of each trajectory
            come in time order. Row order is irrelevant otherwise.
        anchor_M: int64 (M,), state before the turn (`anchor_ids`); compared within a uid only.
        flavor, mode, alpha, base_group, eps: as above.
        depth: K, how many earlier states count at most; published: the window of the prompt.
        gamma: discount of R_t, in [0, 1].
        penalty: of a malformed reply.

    Returns:
        HGPOTerms.

    Raises:
        ValueError: shapes differ, an option is unknown or out of range, a reward is not finite,
            or a trajectory has two turns of one step.
        GroupError: a trajectory id occurs in two groups.

    Source: HGPO (arXiv:2602.22817).
    """
    check_mode(mode)
    if depth < 0:
        raise ValueError(f"depth must be at least 0, found {depth}.")
    check_vectors(uid_M=uid_M, anchor_M=anchor_M)
    return_M = step_returns(
        step_rewards_M, format_valid_M, tid_M, t_M, flavor=flavor, gamma=gamma, penalty=penalty
    )
    trajectory_groups(uid_M, tid_M)  # refuses a trajectory in two groups
    paper, use_std = flavor == "paper", mode == "mean_std_norm"
    first_weight = 1 if paper else 2

    level_KM = return_M.new_zeros(depth + 1, return_M.numel())
    size_KM = torch.zeros_like(level_KM, dtype=torch.int64)
    episode_M, weighted_M, weight_M = (torch.zeros_like(return_M) for _ in range(3))
    for k, (row_L, pool_L) in enumerate(
        _levels(uid_M, anchor_M, time_order(tid_M, t_M), tid_M, depth)
    ):
        value_L, size_L = _level_values(return_M[row_L], pool_L, use_std, eps)
        kept_L = torch.ones_like(value_L) if paper else (value_L != 0).double()
        share_L = (k + first_weight) ** alpha * kept_L
        level_KM[k, row_L], size_KM[k, row_L] = value_L, size_L
        weighted_M[row_L] += share_L * value_L
        weight_M[row_L] += share_L
    if base_group:
        episode_M = grpo_advantages(
            step_rewards_M,
            format_valid_M,
            uid_M,
            tid_M,
            t_M,
            flavor=flavor,
            use_std=use_std,
            eps=eps,
            penalty=penalty,
        )
        episode_M = episode_M.masked_fill(episode_M.abs() < CONSTANT_TOLERANCE, 0.0)
        weighted_M += episode_M
        weight_M += torch.ones_like(episode_M) if paper else (episode_M != 0).double()
    advantage_M = weighted_M / (weight_M if paper else weight_M + _WEIGHT_EPS)
    return HGPOTerms(advantage_M, level_KM, size_KM, episode_M, return_M)


def _levels(
    uid_M: Tensor, anchor_M: Tensor, order_M: Tensor, tid_M: Tensor, depth: int
) -> list[tuple[Tensor, Tensor]]:
    """Of each level its rows and their dense pool numbers, both int64 (L,).

    The number of level k is made of the number of level k - 1 and the state k turns back, so no
    history is ever spelled out.
    """
    same = tid_M[order_M[1:]] == tid_M[order_M[:-1]]
    previous_M = torch.full_like(order_M, -1)
    previous_M[order_M[1:][same]] = order_M[:-1][same]
    row_L = torch.arange(order_M.numel(), device=order_M.device)
    back_L, pool_L = row_L, pair_ids(uid_M, anchor_M)
    levels = [(row_L, pool_L)]
    for _ in range(depth):
        back_L = previous_M[back_L]
        there = back_L >= 0
        row_L, back_L = row_L[there], back_L[there]
        pool_L = pair_ids(pool_L[there], anchor_M[back_L])
        levels.append((row_L, pool_L))
    return levels


def _level_values(
    return_L: Tensor, pool_L: Tensor, use_std: bool, eps: float
) -> tuple[Tensor, Tensor]:
    """A_k and the size of the pool, both (L,); A_k is exactly 0 at the mean of the pool."""
    n_pools = int(pool_L.max()) + 1 if pool_L.numel() else 0
    stats = group_stats(return_L, pool_L, n_pools, ddof=0)
    value_L = normalise(return_L, pool_L, stats, use_std=use_std, eps=eps)
    # "A_k = 0" leaves a level out, so the residue of the mean must not hide it.
    scale_L = (stats.mean.abs() + stats.std).clamp(min=1.0)[pool_L]
    at_mean = (return_L - stats.mean[pool_L]).abs() < CONSTANT_TOLERANCE * scale_L
    return value_L.masked_fill(at_mean, 0.0), stats.count[pool_L]
