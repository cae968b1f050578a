"""REINFORCE leave-one-out advantages over multi-turn trajectories.

Sources: RLOO, Ahmadian et al. 2024 (arXiv:2402.14740), after Kool et al. 2019. The turn-level
flavours follow the public behaviour of verl-agent. The update that goes with them there is the
clipped policy loss, not plain REINFORCE.

Axis letters: M turns (rows), N trajectories, G groups.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.objectives.groups import Singleton, trajectory_groups
from trainer.objectives.grpo import Flavor, grpo_advantages


def rloo_advantages(
    step_rewards_M: Tensor,
    format_valid_M: Tensor,
    uid_M: Tensor,
    tid_M: Tensor,
    t_M: Tensor | None = None,
    *,
    flavor: Flavor = "paper",
    penalty: float = 0.1,
    singleton: Singleton = "zero",
) -> Tensor:
    """Leave-one-out advantage, one number per turn.

        A_i = s_i - mean of s_j over the other members j != i of the pool
            = n / (n - 1) * (s_i - mean_G)

    The second form is computed. The score s and the pool of n members behind mean_G are those of
    `grpo_advantages`:

    - "paper": one score per trajectory, penalties of all its turns included; n trajectories.
    - "code": each turn has a score of its own, and the pool is all n turns of the group. That
      leaves out one *turn*: the siblings of the same trajectory stay in the baseline, and for
      large n the factor is close to 1, i.e. this is Dr. GRPO.
    - "code_traj": scores as in "code"; the pool is the first turn of each trajectory. A later
      turn whose own score differs is not in the pool, and takes the second form as it stands.

    Edge cases: a constant pool and a pool of one give exactly 0. `singleton="raw"` returns the
    score s itself for a pool of one, as public code does, and exists for comparison only.

    Args:
        step_rewards_M, format_valid_M, uid_M, tid_M, t_M, penalty, singleton: see
            `grpo_advantages`.
        flavor: as above.

    Returns:
        float64 (M,), detached, in the order of the input rows.

    Raises:
        ValueError, GroupError: as `grpo_advantages`.
    """
    centred_M = grpo_advantages(
        step_rewards_M,
        format_valid_M,
        uid_M,
        tid_M,
        t_M,
        flavor=flavor,
        use_std=False,
        penalty=penalty,
        singleton=singleton,
    )
    trajectory_M, group_N = trajectory_groups(uid_M, tid_M)
    group_M = group_N[trajectory_M]
    count_G = torch.bincount(group_M if flavor == "code" else group_N).double()
    # A pool of one has been settled already (0 or the raw score); its factor is 1.
    factor_G = count_G / (count_G - 1).clamp(min=1.0)
    return centred_M * factor_G[group_M]
