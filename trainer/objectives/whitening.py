"""Whitening over the trained tokens of a batch, shared by PPO and REINFORCE++.

Like the group statistics (see `trainer.objectives.groups`) this runs in float64 and recognises
constant values instead of dividing their rounding residue by a small number.

The statistics are those of the tensors given: whiten a whole optimiser step at once, before it is
cut into micro-batches.

Axis letters: B rows (segments), T tokens, M turns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.objectives.aggregate import as_mask, check_matrices
from trainer.objectives.groups import CONSTANT_TOLERANCE, check_vectors


def whiten(
    value_B_T: Tensor, mask_B_T: Tensor, *, shift_mean: bool = True, eps: float = 1e-8
) -> Tensor:
    """Zero mean and unit variance over the valid tokens.

        w = (x - mean) / sqrt(var + eps)              (shift_mean)
        w = (x - mean) / sqrt(var + eps) + mean       (shift_mean=False: scales, keeps the mean)

    with mean and var (divisor n - 1) over all n entries inside the mask; eps is added to the
    variance, not to the standard deviation.

    Edge cases: if max - min < 1e-8 * max(1, max |x|), the first term is exactly 0. That covers a
    single valid token, whose variance is undefined.

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

    Source: base objectives, sections 6 and 7; REINFORCE++, Hu 2025 (arXiv:2501.03262).
    """
    check_matrices(value_B_T=value_B_T, mask_B_T=mask_B_T)
    counts = as_mask(mask_B_T).flatten().long()
    flat = whiten_rows(value_B_T.flatten(), counts, shift_mean=shift_mean, eps=eps)
    return flat.view(value_B_T.shape)


def whiten_rows(
    value_M: Tensor, tokens_M: Tensor, *, shift_mean: bool = True, eps: float = 1e-8
) -> Tensor:
    """`whiten` for values that are constant within a row, without spreading them over tokens.

    A row counts once per token. The result is that of writing each value on all of its row's
    tokens and whitening those.

    Args:
        value_M: float (M,); computed in float64.
        tokens_M: int (M,), valid tokens of each row.
        shift_mean, eps: see `whiten`.

    Returns:
        float64 (M,), detached; exactly 0 for rows without tokens whatever their values are.

    Raises:
        ValueError: shapes differ, a count is negative, eps is not positive, or the value of a row
            with tokens is not finite.
    """
    check_vectors(value_M=value_M, tokens_M=tokens_M)
    if not eps > 0:
        raise ValueError(f"eps must be positive, found {eps}.")
    if bool((tokens_M < 0).any()):
        raise ValueError(f"Token counts must be >= 0, found {int(tokens_M.min())}.")
    unused = tokens_M == 0
    value = value_M.detach().double().masked_fill(unused, 0.0)
    if not bool(torch.isfinite(value).all()):
        raise ValueError(
            "A value to be whitened is NaN or infinite and would spread to every token; drop that "
            "row first."
        )
    weight = tokens_M.double()
    total = weight.sum()
    if total == 0:
        return torch.zeros_like(value)
    mean = (weight * value).sum() / total
    centred = value - mean
    highest = value.masked_fill(unused, -torch.inf).amax()
    lowest = value.masked_fill(unused, torch.inf).amin()
    if highest - lowest < CONSTANT_TOLERANCE * value.abs().amax().clamp(min=1.0):
        whitened = torch.zeros_like(value)
    else:
        variance = (weight * centred.square()).sum() / (total - 1.0)
        whitened = centred * torch.rsqrt(variance + eps)
    if not shift_mean:
        whitened = whitened + mean
    return whitened.masked_fill(unused, 0.0)
