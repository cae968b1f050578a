"""The critic's clipped value loss and its explained variance.

Source: PPO with value clipping as in public code (specification of the base objectives,
section 6), after Schulman et al. 2017 (arXiv:1707.06347).

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
from trainer.objectives.gae import check_finite
from trainer.objectives.groups import CONSTANT_TOLERANCE


@dataclass(frozen=True, slots=True)
class ValueStats:
    """Sums over trained tokens, so that the parts of a step can be added.

    Attributes (float64 scalars, detached):
        tokens: trained tokens.
        clipped: tokens where the clipped term is the larger, i.e. the gradient is 0.
        squared_error: sum of (v - R)^2, unclipped.
    """

    tokens: Tensor
    clipped: Tensor
    squared_error: Tensor

    def __add__(self, other: ValueStats) -> ValueStats:
        """Statistics of two disjoint sets of tokens."""
        return ValueStats(
            self.tokens + other.tokens,
            self.clipped + other.clipped,
            self.squared_error + other.squared_error,
        )

    def metrics(self) -> dict[str, float]:
        """Means over trained tokens: value_clipfrac, value_error. 0.0 without tokens."""
        tokens = max(float(self.tokens), 1.0)
        return {
            "value_clipfrac": float(self.clipped) / tokens,
            "value_error": float(self.squared_error) / tokens,
        }


def value_loss(
    value_B_T: Tensor,
    old_value_B_T: Tensor,
    return_B_T: Tensor,
    mask_B_T: Tensor,
    *,
    clip: float | None = 0.5,
    aggregation: Aggregation = "token-mean",
    denominators: Denominators | None = None,
) -> tuple[Tensor, ValueStats]:
    """Clipped value loss of one (micro-)batch.

        v_c = old + clip(v - old, -clip, clip)
        L   = max((v - R)^2, (v_c - R)^2)

    There is no factor 1/2. The clip stops a token once its value has moved by `clip` towards its
    return, and never one that moved away from it.

    Args:
        value_B_T: float (B, T), values of the current critic, with gradient.
        old_value_B_T: float (B, T), values at the time of the advantages; a constant.
        return_B_T: float (B, T), targets, not whitened; a constant.
        mask_B_T: bool or 0/1 (B, T), 1 on trained tokens.
        clip: largest rewarded distance from the old value, or None for the plain squared error.
        aggregation, denominators: see `trainer.objectives.aggregate`; the losses of a step's
            micro-batches add up.

    Returns:
        Scalar loss in the dtype of `value_B_T`, and statistics. With nothing to train the loss is
        exactly 0.0, `backward()` works, and the gradient is exactly 0.

    Raises:
        ValueError: shapes differ, clip is not positive, or the aggregation is unknown.
    """
    check_matrices(
        value_B_T=value_B_T,
        old_value_B_T=old_value_B_T,
        return_B_T=return_B_T,
        mask_B_T=mask_B_T,
    )
    if clip is not None and not clip > 0.0:
        raise ValueError(f"clip must be positive (or None), found {clip}.")
    mask = as_mask(mask_B_T)
    # Masked entries become 0 first, so nothing they hold can reach the square.
    value = value_B_T.masked_fill(~mask, 0.0)
    old = old_value_B_T.detach().to(value.dtype).masked_fill(~mask, 0.0)
    target = return_B_T.detach().to(value.dtype).masked_fill(~mask, 0.0)

    plain = (value - target).square()
    loss, limited, moved = plain, plain, mask
    if clip is not None:
        moved = (value - old).abs() > clip
        limited = (old + (value - old).clamp(-clip, clip) - target).square()
        loss = torch.maximum(plain, limited)
    with torch.no_grad():
        stats = ValueStats(
            tokens=mask.sum().double(),
            # Within the clip the two differ by rounding alone, and that is no clipping.
            clipped=((limited > plain) & moved).sum().double(),
            squared_error=plain.double().sum(),
        )
    return aggregate(loss, mask, aggregation, denominators), stats


def explained_variance(value_B_T: Tensor, return_B_T: Tensor, mask_B_T: Tensor) -> float | None:
    """Share of the returns' variance that the critic explains.

        1 - Var(R - V) / Var(R)          over the trained tokens

    1 is perfect, 0 no better than any constant, below 0 worse than one. A constant error costs
    nothing here; `ValueStats.metrics()["value_error"]` shows it.

    Args:
        value_B_T: float (B, T), values the advantages were made from.
        return_B_T: float (B, T), their returns.
        mask_B_T: bool or 0/1 (B, T), 1 on trained tokens.

    Returns:
        The share, computed in float64. None where the returns have no variance (constant up to
        rounding, or fewer than two tokens): there is nothing to explain.

    Raises:
        ValueError: shapes differ, or an entry of a trained token is not finite.
    """
    check_matrices(value_B_T=value_B_T, return_B_T=return_B_T, mask_B_T=mask_B_T)
    mask = as_mask(mask_B_T)
    value = value_B_T.detach().double()[mask]
    target = return_B_T.detach().double()[mask]
    check_finite(value_B_T=value, return_B_T=target)
    if target.numel() < 2:
        return None
    if target.max() - target.min() < CONSTANT_TOLERANCE * target.abs().max().clamp(min=1.0):
        return None
    # Both variances have the same divisor, so it does not matter which.
    return float(1.0 - (target - value).var() / target.var())
