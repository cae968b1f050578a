"""Generalised advantage estimation over the trained tokens of a row.

Source: Schulman et al. 2015 (arXiv:1506.02438).

A masked token is not a transition: what the critic said there is never bootstrapped from, and no
discount is paid for stepping over it. Public code shifts the mask of the values by one, so the
first padded slot keeps its value and the last trained token gains gamma * (1 - lambda) * V_pad
(verl issues 50 and 2337).

Axis letters: B rows, T tokens, K steps of all episodes in a line, E episodes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.objectives.aggregate import as_mask, check_matrices


def check_unit_interval(**options: float) -> None:
    """Raise ValueError unless all options lie in [0, 1]."""
    for name, value in options.items():
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"{name} must lie in [0, 1], found {value}.")


def check_finite(**tensors: Tensor) -> None:
    """Raise ValueError if a tensor has a NaN or infinite entry."""
    for name, value in tensors.items():
        if not bool(torch.isfinite(value).all()):
            raise ValueError(f"{name} has a NaN or infinite entry; drop that trajectory first.")


def gae(
    reward_B_T: Tensor,
    value_B_T: Tensor,
    mask_B_T: Tensor,
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
    bootstrap_B: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Advantages and returns of each row's trained tokens, the row being one episode.

        delta_t = r_t + gamma * V_{t+1} - V_t
        A_t     = delta_t + gamma * lam * A_{t+1}
        R_t     = A_t + V_t

    where t + 1 is the row's next *trained* token. After the last one stand A = 0 and
    V = bootstrap_B, 0 for an episode that has ended. lam=0 is the TD error, lam=1 the discounted
    sum of rewards minus the value.

    Args:
        reward_B_T: float (B, T). Rewards outside the mask are ignored: put an episode's reward on
            its last trained token (`trainer.objectives.ppo` does).
        value_B_T: float (B, T), the critic's value before each token.
        mask_B_T: bool or 0/1 (B, T), 1 on trained tokens; holes are allowed.
        gamma: discount per trained token.
        lam: decay of the TD errors.
        bootstrap_B: float (B,), value of the state after each row, for episodes that were cut
            off. None: all have ended.

    Returns:
        `(advantage_B_T, return_B_T)`, float64, detached, exactly 0 outside the mask whatever the
        inputs hold there.

    Raises:
        ValueError: shapes differ, gamma or lam lie outside [0, 1], or a reward or value of a
            trained token, or a bootstrap value, is not finite.
    """
    check_matrices(reward_B_T=reward_B_T, value_B_T=value_B_T, mask_B_T=mask_B_T)
    check_unit_interval(gamma=gamma, lam=lam)
    mask = as_mask(mask_B_T)
    row_K = mask.nonzero()[:, 0]
    value_K = value_B_T.detach().double()[mask]
    final_K = torch.zeros_like(value_K)
    if bootstrap_B is not None:
        if tuple(bootstrap_B.shape) != (mask.shape[0],):
            raise ValueError(
                f"Expected one bootstrap value per row, ({mask.shape[0]},), found "
                f"{tuple(bootstrap_B.shape)}."
            )
        final_K = bootstrap_B.detach().double()[row_K]
    reward_K = reward_B_T.detach().double()[mask]
    check_finite(reward_B_T=reward_K, value_B_T=value_K, bootstrap_B=final_K)
    advantage_K = episode_gae(
        reward_K,
        value_K,
        episode_K=row_K,
        final_K=final_K,
        gamma_K=torch.full_like(value_K, gamma),
        lam_K=torch.full_like(value_K, lam),
    )
    advantage_B_T = value_K.new_zeros(mask.shape).masked_scatter(mask, advantage_K)
    return advantage_B_T, advantage_B_T.masked_scatter(mask, advantage_K + value_K)


def episode_gae(
    reward_K: Tensor,
    value_K: Tensor,
    *,
    episode_K: Tensor,
    final_K: Tensor,
    gamma_K: Tensor,
    lam_K: Tensor,
) -> Tensor:
    """The recursion of `gae` along episodes that lie one after another, each in time order.

    Args:
        reward_K, value_K: float64 (K,), of each step.
        episode_K: int64 (K,), not decreasing: the steps of one number are one episode.
        final_K: float64 (K,), value after an episode, read at its last step.
        gamma_K, lam_K: float64 (K,), discount and decay from each step to the next.

    Returns:
        Advantages, float64 (K,).
    """
    if not reward_K.numel():
        return torch.zeros_like(reward_K)
    index_K, length_E = torch.unique_consecutive(
        episode_K, return_inverse=True, return_counts=True
    )[1:]
    end_E = length_E.cumsum(0)
    left_K = end_E[index_K] - 1 - torch.arange(reward_K.numel(), device=reward_K.device)
    next_value_K = torch.where(left_K == 0, final_K, value_K.roll(-1))
    delta_K = reward_K + gamma_K * next_value_K - value_K
    # Laid out by steps left to the end, all episodes finish together and one loop serves them.
    shape = (int(length_E.max()), length_E.numel())
    advantage = delta_K.new_zeros(shape)
    decay = delta_K.new_zeros(shape)
    advantage[left_K, index_K] = delta_K
    decay[left_K, index_K] = gamma_K * lam_K
    steps, decays = advantage.unbind(), decay.unbind()
    for left in range(1, len(steps)):
        steps[left].addcmul_(decays[left], steps[left - 1])
    return advantage[left_K, index_K]
