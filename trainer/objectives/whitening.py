"""Whitening over the trained tokens of a batch, shared by PPO and REINFORCE++.

Like the group statistics (see `trainer.objectives.groups`) this runs in float64 and recognises
constant values instead of dividing their rounding residue by a small number.

Axis letters: B rows (segments), T tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.objectives.aggregate import as_mask, check_matrices
from trainer.objectives.groups import CONSTANT_TOLERANCE


def whiten(
    value_B_T: Tensor, mask_B_T: Tensor, *, shift_mean: bool = True, eps: float = 1e-8
) -> Tensor:
    """Zero mean and unit variance over the valid tokens.

        w = (x - mean) / sqrt(var + eps)              (shift_mean)
        w = (x - mean) / sqrt(var + eps) + mean       (shift_mean=False: scales, keeps the mean)

    with mean and var (divisor n - 1) over all n entries inside the mask. Note that eps is added to
    the variance. The statistics are those of the tensor given: whiten a whole optimiser step at
    once, before it is cut into micro-batches.

    Edge cases: if max - min < 1e-8 * max(1, max |x|), the first term is exactly 0. That covers a
    single valid token, whose variance is undefined, and no valid token at all.

    Args:
        value_B_T: float (B, T); computed in float64.
        mask_B_T: bool or 0/1 (B, T), 1 on valid tokens.
        shift_mean: False adds the mean back.
        eps: added to the variance.

    Returns:
        float64 (B, T), detached; exactly 0 outside the mask whatever the values hold there.

    Raises:
        ValueError: shapes differ, the mask holds other values than 0 and 1, eps is not positive,
            or a valid value is not finite.

    Source: REINFORCE++, Hu 2025 (arXiv:2501.03262); the eps and divisor of public PPO code.
    """
    check_matrices(value_B_T=value_B_T, mask_B_T=mask_B_T)
    if not eps > 0:
        raise ValueError(f"eps must be positive, found {eps}.")
    mask = as_mask(mask_B_T)
    valid = value_B_T.detach().double()[mask]
    if not bool(torch.isfinite(valid).all()):
        raise ValueError(
            "value_B_T has a NaN or infinite entry inside the mask, which would spread to every "
            "token; drop that row first."
        )
    whitened = torch.zeros(mask.shape, dtype=torch.float64, device=valid.device)
    if valid.numel() == 0:
        return whitened
    mean = valid.mean()
    if valid.max() - valid.min() < CONSTANT_TOLERANCE * valid.abs().max().clamp(min=1.0):
        scaled = torch.zeros_like(valid)
    else:
        scaled = (valid - mean) * torch.rsqrt(valid.var(correction=1) + eps)
    whitened[mask] = scaled if shift_mean else scaled + mean
    return whitened
