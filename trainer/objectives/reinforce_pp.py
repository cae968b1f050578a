"""REINFORCE++ advantages, without and with a group baseline.

Source: REINFORCE++, Hu et al. 2025 (arXiv:2501.03262); scores and pools of turns follow the
public behaviour of verl-agent. Both normalise over the whole batch instead of within groups.

Axis letters: M turns (rows), T tokens of a reply, N trajectories.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trainer.objectives.aggregate import as_mask, check_matrices
from trainer.objectives.groups import Singleton, check_vectors
from trainer.objectives.grpo import Flavor, grpo_advantages
from trainer.objectives.whitening import whiten, whiten_rows


def reinforce_pp_advantages(
    step_rewards_M: Tensor,
    format_valid_M: Tensor,
    tid_M: Tensor,
    mask_M_T: Tensor,
    *,
    penalty: float = 0.1,
    gamma: float = 1.0,
    kl_M_T: Tensor | None = None,
    kl_coef: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Whitened return-to-go, one number per token.

        s_m     = R - penalty * [this reply is malformed],   R = sum of the trajectory's rewards
        r_{m,t} = s_m * [t is the last valid token] - kl_coef * kl_{m,t}
        G_{m,t} = r_{m,t} + gamma * G_{m,next valid t}
        A       = whiten(G) over all valid tokens of the batch

    Each row is an episode of its own: nothing is passed from turn to turn but R. Tokens outside
    the mask do not exist for the recursion, wherever they stand, so a hole in the mask neither
    resets the return nor discounts it (verl issue 7278).

    The paper puts the k1 estimate of the KL to the reference into the reward, which `kl_M_T` and
    `kl_coef` do; published multi-turn recipes leave it out.

    Args:
        step_rewards_M: float (M,), undiscounted environment reward of each turn.
        format_valid_M: bool (M,), False where the reply broke the format.
        tid_M: int64 (M,), trajectory id, unique over the batch.
        mask_M_T: bool or 0/1 (M, T), 1 on the reply's tokens.
        penalty: subtracted from the score of a malformed reply.
        gamma: discount per valid token, in [0, 1].
        kl_M_T: float (M, T), KL estimate per token, e.g. `kl_per_token(kind="k1")`; a constant.
        kl_coef: its factor, >= 0; needs `kl_M_T` unless 0.

    Returns:
        `(A, G)`, float64 (M, T), detached, exactly 0 outside the mask. A is exactly 0 where all
        returns of the batch are equal.

    Raises:
        ValueError: shapes differ, an option is out of range, a reward is not finite, or
            `kl_coef` comes without `kl_M_T`.
    """
    check_vectors(step_rewards_M=step_rewards_M, format_valid_M=format_valid_M, tid_M=tid_M)
    mask = as_mask(mask_M_T)
    if len(mask) != len(step_rewards_M):
        raise ValueError(f"Expected a mask of {len(step_rewards_M)} rows, found {len(mask)}.")
    if not 0.0 <= gamma <= 1.0:
        raise ValueError(f"gamma must lie in [0, 1], found {gamma}.")
    if not (math.isfinite(kl_coef) and kl_coef >= 0.0):
        raise ValueError(f"kl_coef must be finite and >= 0, found {kl_coef}.")
    rewards = step_rewards_M.detach().double()
    if not bool(torch.isfinite(rewards).all()):
        raise ValueError("step_rewards_M has a NaN or infinite entry; drop that trajectory first.")

    tids, trajectory_M = torch.unique(tid_M, return_inverse=True)
    return_N = rewards.new_zeros(tids.numel()).index_add(0, trajectory_M, rewards)
    score_M = return_N[trajectory_M] - penalty * (~format_valid_M.bool()).double()

    # The score is what follows the last valid token, so it enters as the start of the recursion;
    # undiscounted, because that token itself receives it.
    cost_T_M = None
    if kl_coef > 0.0:
        if kl_M_T is None:
            raise ValueError(f"kl_coef={kl_coef} needs kl_M_T, the KL estimate of each token.")
        check_matrices(kl_M_T=kl_M_T, mask_M_T=mask)
        cost_T_M = (kl_coef * kl_M_T.detach().double()).T
    returns = _returns_to_go(score_M, mask.T.contiguous(), cost_T_M, gamma).T
    return whiten(returns, mask), returns


def _returns_to_go(
    score_M: Tensor, mask_T_M: Tensor, cost_T_M: Tensor | None, gamma: float
) -> Tensor:
    """Return of each valid token, float64 (T, M); exactly 0 outside the mask."""
    returns_T_M = score_M.new_zeros(mask_T_M.shape)
    ahead_M = score_M
    factor_M = torch.ones_like(score_M)
    for t in reversed(range(mask_T_M.shape[0])):
        here_M = factor_M * ahead_M
        if cost_T_M is not None:
            here_M = here_M - cost_T_M[t]
        ahead_M = torch.where(mask_T_M[t], here_M, ahead_M)
        factor_M = factor_M.masked_fill(mask_T_M[t], gamma)
        returns_T_M[t] = here_M.masked_fill(~mask_T_M[t], 0.0)
    return returns_T_M


def reinforce_pp_baseline_advantages(
    step_rewards_M: Tensor,
    format_valid_M: Tensor,
    uid_M: Tensor,
    tid_M: Tensor,
    tokens_M: Tensor,
    t_M: Tensor | None = None,
    *,
    flavor: Flavor = "paper",
    penalty: float = 0.1,
    singleton: Singleton = "zero",
    zero_constant: bool = True,
) -> Tensor:
    """REINFORCE++-baseline: group mean subtracted, then whitened over the batch's tokens.

        A = whiten(s - mean_G), a turn counting once per token of its reply

    The score s and the pool behind mean_G are those of `grpo_advantages`: trajectories under
    "paper", all turns of the group under "code" (what public code does), the first turn of each
    trajectory under "code_traj". Every token of a turn has the same value.

    Edge cases: in a constant group s = mean_G, and so in a group of one, but whitening then
    subtracts the mean of the *batch*. That mean is not 0 where replies differ in length, nor
    under "paper" where trajectories do (it is negative if failures are long), so such a group
    would be pushed although it teaches nothing. Its turns are therefore set to exactly 0 after
    whitening; they do count in the batch's mean and variance. `zero_constant=False` leaves the
    offset in, and `singleton="raw"` lets a pool of one keep its score before whitening. Both are
    what public code does and exist for comparison only.

    Args:
        step_rewards_M, format_valid_M, uid_M, tid_M, t_M, flavor, penalty, singleton: see
            `grpo_advantages`.
        tokens_M: int64 (M,), tokens of each reply.
        zero_constant: as above.

    Returns:
        float64 (M,), detached; exactly 0 for a turn without tokens.

    Raises:
        ValueError, GroupError: as `grpo_advantages`; or a token count is negative.
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
    adv_M = whiten_rows(centred_M, tokens_M)
    if zero_constant and adv_M.numel():
        # A constant pool has s - mean_G exactly 0 in all its turns; any other has a turn without.
        uids, group_M = torch.unique(uid_M, return_inverse=True)
        spread_G = adv_M.new_zeros(uids.numel()).scatter_reduce(0, group_M, centred_M.abs(), "amax")
        adv_M = adv_M.masked_fill(spread_G[group_M] == 0, 0.0)
    return adv_M
