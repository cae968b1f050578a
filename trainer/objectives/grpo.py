"""GRPO and Dr. GRPO advantages over multi-turn trajectories.

Sources: GRPO, Shao et al. 2024 (arXiv:2402.03300); Dr. GRPO, Liu et al. 2025 (arXiv:2503.20783).
The turn-level flavours follow the public behaviour of verl-agent.

Axis letters: M turns (rows), N trajectories, G groups.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from trainer.objectives.groups import (
    Singleton,
    check_vectors,
    group_stats,
    normalise,
    trajectory_groups,
)

Flavor = Literal["paper", "code", "code_traj"]

FLAVORS = ("paper", "code", "code_traj")


def grpo_advantages(
    step_rewards_M: Tensor,
    format_valid_M: Tensor,
    uid_M: Tensor,
    tid_M: Tensor,
    t_M: Tensor | None = None,
    *,
    flavor: Flavor = "paper",
    use_std: bool = True,
    ddof: int = 1,
    eps: float = 1e-6,
    penalty: float = 0.1,
    singleton: Singleton = "zero",
) -> Tensor:
    """Group-relative advantage, one number per turn.

        A = (s - mean_G) / (std_G + eps)          (use_std)
        A = s - mean_G                            (Dr. GRPO: use_std=False)

    With R = sum of a trajectory's rewards, the flavours differ in s and in the pool behind
    mean_G and std_G:

    - "paper": s = R - penalty * (number of malformed replies), one per trajectory, broadcast to
      its turns; the pool is the trajectories of the group.
    - "code": s = R - penalty * [this reply is malformed]; the pool is all turns of the group, so
      a trajectory counts once per step.
    - "code_traj": s as in "code"; the pool is the first turn of each trajectory.

    The flavours are different objectives. With many short wins and long failures "code" sums to
    zero over turns, while "paper" pushes much harder against long failures. Public multi-turn
    recipes use "code"; the formula as published is "paper".

    Edge cases: a constant pool gives exactly 0 (see `trainer.objectives.groups`). A pool of one
    gives 0; `singleton="raw"` reproduces the raw score s / (1 + eps) that public code returns
    there, and exists for comparison only. The pool counts turns in "code", so a lone trajectory
    of three turns is a constant pool there but a pool of one in "code_traj".

    Args:
        step_rewards_M: float (M,), undiscounted environment reward of each turn.
        format_valid_M: bool (M,), False where the reply broke the format.
        uid_M: int64 (M,), task-group id.
        tid_M: int64 (M,), trajectory id, unique over the batch.
        t_M: int64 (M,), step within the trajectory. Only "code_traj" reads it; None means that
            the rows of each trajectory come in time order. Row order is irrelevant otherwise.
        flavor, use_std, ddof, eps, singleton: as above.
        penalty: subtracted per malformed reply.

    Returns:
        float64 (M,), detached, in the order of the input rows.

    Raises:
        ValueError: shapes differ, an option is unknown, a reward is not finite, or
            `singleton="raw"` is combined with "paper", which defines a lone trajectory as 0.
        GroupError: a trajectory id occurs in two groups.
    """
    check_vectors(
        step_rewards_M=step_rewards_M, format_valid_M=format_valid_M, uid_M=uid_M, tid_M=tid_M
    )
    if flavor not in FLAVORS:
        raise ValueError(f"flavor must be one of {FLAVORS}, found {flavor!r}.")
    if flavor == "paper" and singleton == "raw":
        raise ValueError(
            "singleton='raw' reproduces public code and belongs to the flavours 'code' and "
            "'code_traj'; under 'paper' a lone trajectory has advantage 0."
        )
    rewards = step_rewards_M.detach().double()
    if not bool(torch.isfinite(rewards).all()):
        raise ValueError("step_rewards_M has a NaN or infinite entry; drop that trajectory first.")

    trajectory_M, group_N = trajectory_groups(uid_M, tid_M)
    n_trajectories = group_N.numel()
    n_groups = int(group_N.max()) + 1 if n_trajectories else 0
    malformed_M = (~format_valid_M.bool()).double()
    return_N = rewards.new_zeros(n_trajectories).index_add(0, trajectory_M, rewards)
    group_M = group_N[trajectory_M]

    if flavor == "paper":
        malformed_N = rewards.new_zeros(n_trajectories).index_add(0, trajectory_M, malformed_M)
        score_N = return_N - penalty * malformed_N
        score_M, pool_score, pool_group = score_N[trajectory_M], score_N, group_N
    else:
        score_M = return_N[trajectory_M] - penalty * malformed_M
        pool_score, pool_group = score_M, group_M
        if flavor == "code_traj":
            first_N = _first_rows(trajectory_M, n_trajectories, t_M)
            pool_score, pool_group = score_M[first_N], group_N

    stats = group_stats(pool_score, pool_group, n_groups, ddof)
    return normalise(score_M, group_M, stats, use_std=use_std, eps=eps, singleton=singleton)


def _first_rows(trajectory_M: Tensor, n_trajectories: int, t_M: Tensor | None) -> Tensor:
    """Row index of each trajectory's first turn, int64 (N,)."""
    rows_M = torch.arange(trajectory_M.numel(), device=trajectory_M.device)
    if t_M is not None:
        check_vectors(trajectory_M=trajectory_M, t_M=t_M)
        order_M = torch.argsort(t_M, stable=True)
    else:
        order_M = rows_M
    # Lowest rank in time order wins; ranks are distinct, so one row is left per trajectory.
    rank_M = torch.empty_like(rows_M)
    rank_M[order_M] = rows_M
    start = torch.full((n_trajectories,), rows_M.numel(), device=rows_M.device)
    lowest_N = start.scatter_reduce(0, trajectory_M, rank_M, "amin")
    return order_M[lowest_N]
