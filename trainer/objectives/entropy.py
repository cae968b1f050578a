"""Entropy of a policy's next-token distributions, and its bonus.

Source: the entropy bonus of PPO, Schulman et al. 2017 (arXiv:1707.06347).

Axis letters: B rows (segments), T tokens, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.objectives.aggregate import Aggregation, Denominators, aggregate


def token_entropy(logits_X_V: Tensor) -> Tensor:
    """Entropy of each distribution, in nats.

        H = -sum_v p_v * log p_v,   p = softmax(logits)

    Logits of -inf (tokens that cannot be drawn) contribute 0, also to the gradient.

    Args:
        logits_X_V: float (..., V), already divided by the sampling temperature, with gradient.

    Returns:
        (...), dtype of the logits; 0 <= H <= log V.
    """
    logp = logits_X_V.log_softmax(dim=-1)
    # Not logsumexp - sum(p * logit): that subtracts two large numbers where logits are large.
    # 0 * -inf is NaN, forward and backward, so such tokens are taken out first.
    finite = logp.masked_fill(logits_X_V == -torch.inf, 0.0)
    return -(logp.exp() * finite).sum(dim=-1)


def entropy_loss(
    entropy_B_T: Tensor,
    mask_B_T: Tensor,
    *,
    aggregation: Aggregation = "token-mean",
    denominators: Denominators | None = None,
) -> Tensor:
    """Minus the aggregated entropy of one (micro-)batch, before its coefficient.

    Minimising it raises the entropy: L = L_policy + entropy_coef * entropy_loss.

    Args:
        entropy_B_T: float (B, T), entropy at each token, with gradient.
        mask_B_T: bool or 0/1 (B, T), 1 on trained tokens.
        aggregation, denominators: see `trainer.objectives.aggregate`.

    Returns:
        Scalar; exactly 0 with exactly zero gradient for an empty mask.
    """
    return -aggregate(entropy_B_T, mask_B_T, aggregation, denominators)
