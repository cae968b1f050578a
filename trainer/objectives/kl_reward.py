"""KL to a reference as a part of the reward.

Sources: RLHF with PPO, Ouyang et al. 2022 (arXiv:2203.02155); REINFORCE++, Hu 2025
(arXiv:2501.03262), both with k1. The estimators are those of `trainer.objectives.kl`; here they
have no gradient, so k1 is sound (in the loss it is refused).

Estimators with token rewards take `kl_token_rewards`; all others, which know one reward a turn,
take `kl_turn_rewards`. The shaped rewards are for advantages only: success and reported returns
stay those of the environment.

Axis letters: M turns, B rows (segments), T tokens.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trainer.objectives.aggregate import as_mask, check_matrices
from trainer.objectives.gae import check_finite
from trainer.objectives.kl import KLKind, kl_per_token


def kl_token_rewards(
    reward_B_T: Tensor,
    logprob_B_T: Tensor,
    ref_B_T: Tensor,
    mask_B_T: Tensor,
    *,
    coef: float,
    kind: KLKind = "k1",
    clamp: float | None = 10.0,
) -> Tensor:
    """Token rewards minus coef times the KL estimate of that token.

        r'_t = r_t - coef * kl_t

    Args:
        reward_B_T: float (B, T), rewards before; zeros where only the penalty is wanted.
        logprob_B_T: float (B, T), log-probs of the policy that drew the tokens, at the sampling
            temperature; no gradient flows.
        ref_B_T: float (B, T), log-probs of the reference, at the same temperature.
        mask_B_T: bool or 0/1 (B, T), 1 on trained tokens.
        coef: weight of the KL, 0 or more.
        kind, clamp: see `trainer.objectives.kl.kl_per_token`.

    Returns:
        float64 (B, T), detached, exactly 0 outside the mask whatever the inputs hold there.

    Raises:
        ValueError: shapes differ, the estimator is unknown, coef is negative or not finite, or a
            reward or estimate of a trained token is not finite.
    """
    check_matrices(reward_B_T=reward_B_T, mask_B_T=mask_B_T)
    mask = as_mask(mask_B_T)
    reward = reward_B_T.detach().double().masked_fill(~mask, 0.0)
    check_finite(reward_B_T=reward)
    return reward - coef * _estimate(logprob_B_T, ref_B_T, mask, coef, kind, clamp)


def kl_turn_rewards(
    step_rewards_M: Tensor,
    logprob_B_T: Tensor,
    ref_B_T: Tensor,
    mask_B_T: Tensor,
    turn_B_T: Tensor,
    *,
    coef: float,
    kind: KLKind = "k1",
    clamp: float | None = 10.0,
) -> Tensor:
    """Turn rewards minus coef times the summed KL estimate of the turn's trained tokens.

        r'_m = r_m - coef * (sum of kl_t over the trained tokens of turn m)

    The sum over a turn estimates the KL of the whole reply, so long replies cost more.

    Args:
        step_rewards_M: float (M,), reward of each turn.
        turn_B_T: int64 (B, T), index of each trained token's turn; a turn may be spread over
            rows and a row may hold several turns. Ignored outside the mask.
        logprob_B_T, ref_B_T, mask_B_T, coef, kind, clamp: see `kl_token_rewards`.

    Returns:
        float64 (M,), detached. Turns without trained tokens keep their reward.

    Raises:
        ValueError: as in `kl_token_rewards`, or a trained token belongs to no turn.
    """
    check_matrices(mask_B_T=mask_B_T, turn_B_T=turn_B_T)
    if step_rewards_M.dim() != 1:
        raise ValueError(
            f"Expected one reward per turn, (M,), found shape {tuple(step_rewards_M.shape)}."
        )
    mask = as_mask(mask_B_T)
    rewards_M = step_rewards_M.detach().double()
    check_finite(step_rewards_M=rewards_M)
    estimate_B_T = _estimate(logprob_B_T, ref_B_T, mask, coef, kind, clamp)
    turn_K = turn_B_T[mask]
    n_turns = rewards_M.numel()
    if bool(((turn_K < 0) | (turn_K >= n_turns)).any()):
        raise ValueError(
            f"A trained token belongs to no turn: turn_B_T must lie in 0..{n_turns - 1} inside "
            "the mask."
        )
    kl_M = torch.zeros_like(rewards_M).index_add(0, turn_K, estimate_B_T[mask])
    return rewards_M - coef * kl_M


def _estimate(
    logprob_B_T: Tensor,
    ref_B_T: Tensor,
    mask: Tensor,
    coef: float,
    kind: KLKind,
    clamp: float | None,
) -> Tensor:
    """KL estimate of each token, float64 (B, T), detached, 0 outside the mask."""
    if not 0.0 <= coef < math.inf:
        raise ValueError(f"coef must be finite and not negative, found {coef}.")
    # float64 before the difference: log-probs of long replies are summed.
    estimate = kl_per_token(
        logprob_B_T.detach().double(), ref_B_T.detach().double(), mask, kind=kind, clamp=clamp
    )
    if not bool(torch.isfinite(estimate).all()):
        raise ValueError(
            "The KL estimate of a trained token is not finite: logprob_B_T or ref_B_T has a NaN "
            "or infinite entry there."
        )
    return estimate
