"""The clipped policy-gradient loss.

Sources: PPO, Schulman et al. 2017 (arXiv:1707.06347); dual clip, Ye et al. 2020
(arXiv:1912.09729); separate lower and upper clip ("clip higher"), DAPO, Yu et al. 2025
(arXiv:2503.14476).

Axis letters: B rows (segments), T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.objectives.aggregate import (
    Aggregation,
    Denominators,
    aggregate,
    as_mask,
    check_matrices,
)

LOG_RATIO_LIMIT = 20.0


@dataclass(frozen=True, slots=True)
class PolicyStats:
    """Sums over trained tokens, so that the parts of a step can be added.

    Attributes (float64 scalars, detached):
        tokens: trained tokens.
        clipped: tokens where the clipped term is the larger, i.e. the clip acts.
        dual_clipped: tokens where the dual clip caps the loss.
        kl_old: sum of rho - 1 - log rho, an estimate of KL(old || new) that is never negative.
    """

    tokens: Tensor
    clipped: Tensor
    dual_clipped: Tensor
    kl_old: Tensor

    def __add__(self, other: PolicyStats) -> PolicyStats:
        """Statistics of two disjoint sets of tokens."""
        return PolicyStats(
            self.tokens + other.tokens,
            self.clipped + other.clipped,
            self.dual_clipped + other.dual_clipped,
            self.kl_old + other.kl_old,
        )

    def metrics(self) -> dict[str, float]:
        """Means over trained tokens: clipfrac, dual_clipfrac, kl_old. 0.0 without tokens."""
        tokens = max(float(self.tokens), 1.0)
        return {
            "clipfrac": float(self.clipped) / tokens,
            "dual_clipfrac": float(self.dual_clipped) / tokens,
            "kl_old": float(self.kl_old) / tokens,
        }


def clipped_surrogate(
    new_B_T: Tensor,
    old_B_T: Tensor,
    adv_B_T: Tensor,
    mask_B_T: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = 3.0,
) -> tuple[Tensor, PolicyStats]:
    """Per-token clipped loss.

        rho = exp(new - old)
        L   = max(-A * rho, -A * clip(rho, 1 - clip_low, 1 + clip_high))
        L   = min(L, -dual_clip * A)          where A < 0, if dual_clip is set

    The exponent is limited to +-20, with zero gradient beyond: past that rho is useless as a
    weight, and exp overflowing to inf would turn the gradient of a clipped token into NaN.

    Args:
        new_B_T: float (B, T), log-probs of the current policy, with gradient.
        old_B_T: float (B, T), log-probs of the behaviour policy; a constant.
        adv_B_T: float (B, T), advantages; a constant.
        mask_B_T: bool or 0/1 (B, T), 1 on trained tokens.
        clip_low, clip_high: distances of the clip from 1; clip_low below 1.
        dual_clip: above 1, or None for no dual clip.

    Returns:
        (B, T) losses in the dtype of `new_B_T`, exactly 0 outside the mask whatever the inputs
        hold there, and the statistics.
    """
    check_matrices(new_B_T=new_B_T, old_B_T=old_B_T, adv_B_T=adv_B_T, mask_B_T=mask_B_T)
    if not 0.0 <= clip_low < 1.0 or not clip_high >= 0.0:
        raise ValueError(
            f"Need 0 <= clip_low < 1 and clip_high >= 0, found {clip_low} and {clip_high}."
        )
    if dual_clip is not None and not dual_clip > 1.0:
        raise ValueError(f"dual_clip must be above 1 (or None), found {dual_clip}.")
    mask = as_mask(mask_B_T)
    # Masked entries become new = old, A = 0 first, so nothing they hold can reach exp().
    new = new_B_T.masked_fill(~mask, 0.0)
    old = old_B_T.detach().to(new.dtype).masked_fill(~mask, 0.0)
    adv = adv_B_T.detach().to(new.dtype).masked_fill(~mask, 0.0)

    log_ratio = (new - old).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio = log_ratio.exp()
    plain = -adv * ratio
    clipped = -adv * ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = torch.maximum(plain, clipped)
    capped = torch.zeros_like(mask)
    if dual_clip is not None:
        cap = -dual_clip * adv
        capped = (adv < 0) & (loss > cap)
        loss = torch.where(adv < 0, torch.minimum(loss, cap), loss)
    loss = loss.masked_fill(~mask, 0.0)

    with torch.no_grad():
        stats = PolicyStats(
            tokens=mask.sum().double(),
            clipped=(mask & (clipped > plain)).sum().double(),
            dual_clipped=(mask & capped).sum().double(),
            kl_old=(ratio - 1.0 - log_ratio).masked_fill(~mask, 0.0).double().sum(),
        )
    return loss, stats


def policy_loss(
    new_B_T: Tensor,
    old_B_T: Tensor,
    adv_B_T: Tensor,
    mask_B_T: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = 3.0,
    aggregation: Aggregation = "token-mean",
    denominators: Denominators | None = None,
) -> tuple[Tensor, PolicyStats]:
    """Clipped policy loss of one (micro-)batch.

    `clipped_surrogate` gives the formula per token, `aggregation_coefficients` the reduction.

    Args:
        new_B_T, old_B_T, adv_B_T, mask_B_T, clip_low, clip_high, dual_clip: see
            `clipped_surrogate`.
        aggregation: reduction mode.
        denominators: counts of the whole optimiser step; the losses of its micro-batches then add
            up (do not divide by their number). None: this batch is the whole step.

    Returns:
        Scalar loss in the dtype of `new_B_T`, and statistics. With nothing to train the loss is
        exactly 0.0, `backward()` works, and the gradient is exactly 0.
    """
    per_token, stats = clipped_surrogate(
        new_B_T,
        old_B_T,
        adv_B_T,
        mask_B_T,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
    )
    return aggregate(per_token, mask_B_T, aggregation, denominators), stats
