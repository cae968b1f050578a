"""LUFFY: oracle trajectories inside the group, with a shaped importance weight.

Off-policy (oracle) trajectories join the group of the policy's own rollouts, so they take part in
its mean and standard deviation: compute the advantages over both together. Their tokens then use

    f(p) = p / (p + gamma),    p = pi_theta(token),    gamma = 0.1

in place of the clipped ratio. f rises steeply at small p, so that unlikely oracle tokens are
learned, and has slope gamma * p / (p + gamma)^2 in log p.

The group statistics are thereby moved by data that the policy did not produce, which SERO avoids;
this is a comparator.

Source: Yan et al. 2025 (arXiv:2504.14945).

Axis letters: B rows, T tokens.
"""

from __future__ import annotations

import math

from torch import Tensor

from trainer.objectives.aggregate import (
    Aggregation,
    Denominators,
    aggregate,
    as_mask,
    check_matrices,
)


def luffy_shape(logp_B_T: Tensor, *, gamma: float = 0.1) -> Tensor:
    """f(p) = p / (p + gamma), computed as sigmoid(log p - log gamma).

    Args:
        logp_B_T: float (any shape), log p of each token, with gradient; -inf gives 0 with zero
            gradient.
        gamma: positive.

    Returns:
        The shape of `logp_B_T`, in [0, 1).

    Raises:
        ValueError: gamma is not positive and finite.
    """
    if not (math.isfinite(gamma) and gamma > 0.0):
        raise ValueError(f"gamma must be positive and finite, found {gamma}.")
    return (logp_B_T - math.log(gamma)).sigmoid()


def luffy_loss(
    logp_B_T: Tensor,
    adv_B_T: Tensor,
    mask_B_T: Tensor,
    *,
    gamma: float = 0.1,
    aggregation: Aggregation = "token-mean",
    denominators: Denominators | None = None,
) -> Tensor:
    """Loss of the off-policy tokens: -f(p) * A, without a clip, aggregated.

    The policy's own rollouts keep the clipped policy loss; give both parts the `denominators` of
    the whole step and add them.

    Args:
        logp_B_T: float (B, T), log-probs of the oracle's tokens under the trained policy, with
            gradient.
        adv_B_T: float (B, T), advantages; a constant.
        mask_B_T: bool or 0/1 (B, T).
        gamma: see `luffy_shape`.
        aggregation, denominators: see `trainer.objectives.aggregate`.

    Returns:
        Scalar; exactly 0 with exactly zero gradient for an empty mask.
    """
    check_matrices(logp_B_T=logp_B_T, adv_B_T=adv_B_T, mask_B_T=mask_B_T)
    outside = ~as_mask(mask_B_T)
    adv = adv_B_T.detach().to(logp_B_T.dtype).masked_fill(outside, 0.0)
    shaped = luffy_shape(logp_B_T.masked_fill(outside, 0.0), gamma=gamma)
    return aggregate(-shaped * adv, mask_B_T, aggregation, denominators)
