"""From per-token values to one loss, in a way that no split of the batch can change.

Every reduction mode is written as a coefficient per row:

    loss = sum_b c_b * sum_t value[b, t] * mask[b, t]

with c_b made from counts of the *whole optimiser step*. A micro-batch then computes its own part
of that sum, and the parts add up to the same loss and gradient however the rows are cut. Dividing
each micro-batch by its own token count and averaging, as several trainers do, is another number
(verl issues 906, 5625, 7321).

Axis letters: B rows (segments), T tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Aggregation = Literal[
    "token-mean",
    "seq-mean-token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "dr_grpo",
]

AGGREGATIONS: tuple[Aggregation, ...] = (
    "token-mean",
    "seq-mean-token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "dr_grpo",
)


@dataclass(frozen=True, slots=True)
class Denominators:
    """True counts of one optimiser step, over all its micro-batches and processes.

    Attributes:
        tokens: trained tokens (mask 1).
        sequences: rows with at least one trained token; rows without any are padding.
        length: the constant length L of "seq-mean-token-sum-norm" and "dr_grpo". None: not set,
            and those modes refuse to run, because a padded width is a property of the cut.
    """

    tokens: int
    sequences: int
    length: int | None = None

    @classmethod
    def of(cls, mask_B_T: Tensor, length: int | None = None) -> Denominators:
        """Counts of one (B, T) mask."""
        mask = as_mask(mask_B_T)
        return cls(int(mask.sum()), int(mask.any(dim=-1).sum()), length)

    def __add__(self, other: Denominators) -> Denominators:
        """Counts of two disjoint sets of rows; both must agree on `length`."""
        if self.length != other.length:
            raise ValueError(f"Cannot add counts of lengths {self.length} and {other.length}.")
        return Denominators(
            self.tokens + other.tokens, self.sequences + other.sequences, self.length
        )


def as_mask(mask_B_T: Tensor) -> Tensor:
    """The mask as bool (B, T). Raises ValueError on another rank or on values besides 0 and 1."""
    if mask_B_T.dim() != 2:
        raise ValueError(f"Expected a mask of shape (B, T), found {tuple(mask_B_T.shape)}.")
    if mask_B_T.dtype == torch.bool:
        return mask_B_T
    mask = mask_B_T != 0
    if not bool((mask_B_T == mask).all()):
        raise ValueError(
            "A loss mask may hold only 0 and 1; put weights into the advantages or coefficients."
        )
    return mask


def check_matrices(**tensors: Tensor) -> None:
    """Raise ValueError unless all tensors share one shape (B, T)."""
    shapes = {name: tuple(value.shape) for name, value in tensors.items()}
    if any(len(shape) != 2 for shape in shapes.values()) or len(set(shapes.values())) > 1:
        raise ValueError(f"Expected tensors of one shape (B, T), found {shapes}.")


def aggregation_coefficients(
    mask_B_T: Tensor, how: Aggregation, denominators: Denominators
) -> Tensor:
    """Coefficient of each row's masked token sum.

    With n_b the row's trained tokens, and N_tok, N_seq, L from `denominators`:

    - "token-mean":              c_b = 1 / N_tok
    - "seq-mean-token-mean":     c_b = 1 / (N_seq * n_b)
    - "seq-mean-token-sum":      c_b = 1 / N_seq
    - "seq-mean-token-sum-norm": c_b = 1 / L          (verl's mode of that name)
    - "dr_grpo":                 c_b = 1 / (N_seq * L)   (Dr. GRPO, arXiv:2503.20783)

    "seq-mean-token-sum-norm" does not divide by the number of sequences despite its name (verl
    issues 3741 and 5366), so its force grows with the batch; it is here to reproduce runs.

    Args:
        mask_B_T: bool or 0/1 (B, T).
        how: the mode.
        denominators: counts of the whole optimiser step.

    Returns:
        float64 (B,). Rows without trained tokens get exactly 0.

    Raises:
        ValueError: unknown mode, a needed length is missing or not positive, or the step's
            counts are smaller than those of this part of it.
    """
    mask = as_mask(mask_B_T)
    n_B = mask.sum(dim=-1)
    tokens, sequences = int(n_B.sum()), int((n_B > 0).sum())
    if denominators.tokens < tokens or denominators.sequences < sequences:
        raise ValueError(
            f"The step's counts ({denominators.tokens} tokens, {denominators.sequences} sequences) "
            f"are below those of this batch ({tokens}, {sequences}). Pass the counts of the whole "
            "optimiser step."
        )
    n_tok, n_seq = max(denominators.tokens, 1), max(denominators.sequences, 1)
    count_B = n_B.double()
    if how == "token-mean":
        scale_B = torch.full_like(count_B, n_tok)
    elif how == "seq-mean-token-mean":
        scale_B = n_seq * count_B
    elif how == "seq-mean-token-sum":
        scale_B = torch.full_like(count_B, n_seq)
    elif how in ("seq-mean-token-sum-norm", "dr_grpo"):
        if denominators.length is None or denominators.length <= 0:
            raise ValueError(
                f"Aggregation {how!r} divides by a constant length, found "
                f"{denominators.length}. Set Denominators.length, e.g. to the longest reply "
                "allowed."
            )
        rows = n_seq if how == "dr_grpo" else 1
        scale_B = torch.full_like(count_B, rows * denominators.length)
    else:
        raise ValueError(f"Unknown aggregation {how!r}; choose one of {AGGREGATIONS}.")
    return torch.where(n_B > 0, 1.0 / scale_B.clamp(min=1.0), torch.zeros_like(scale_B))


def weighted_row_sum(value_B_T: Tensor, mask_B_T: Tensor, coef_B: Tensor) -> Tensor:
    """sum_b coef_b * sum_t value[b, t] * mask[b, t].

    Entries outside the mask and rows with coefficient 0 are *replaced* by 0 before anything is
    multiplied: 0 * inf is NaN, forward and backward. They influence neither the value (bit for
    bit) nor the gradient (exactly 0), whatever they hold.

    Args:
        value_B_T: float (B, T), with gradient.
        mask_B_T: bool or 0/1 (B, T).
        coef_B: float (B,), treated as a constant.

    Returns:
        Scalar of `value_B_T`'s dtype; exactly 0, still attached to the graph, if nothing is left.
    """
    check_matrices(value_B_T=value_B_T, mask_B_T=mask_B_T)
    if tuple(coef_B.shape) != (value_B_T.shape[0],):
        raise ValueError(
            f"Expected one coefficient per row, ({value_B_T.shape[0]},), found "
            f"{tuple(coef_B.shape)}."
        )
    coef = coef_B.detach()
    keep = as_mask(mask_B_T) & (coef != 0).unsqueeze(-1)
    row_sum_B = value_B_T.masked_fill(~keep, 0.0).sum(dim=-1)
    return (row_sum_B * coef.to(value_B_T.dtype)).sum()


def weighted_nll(logp_B_T: Tensor, mask_B_T: Tensor, coef_B: Tensor) -> Tensor:
    """Sum over rows of coef_b * sum of token NLL: any part of a step's imitation loss.

    Rows with coefficient 0 and tokens outside the mask are removed before multiplying. So are
    rows with a log-prob of -inf on a loss token: their NLL is infinite and its gradient undefined
    (a token the model cannot emit); NaN is not hidden.

    Args:
        logp_B_T: float (B, T), log-probs under the trained policy, padded, with gradient.
        mask_B_T: bool or 0/1 (B, T), loss tokens.
        coef_B: float (B,), treated as a constant.

    Returns:
        Scalar of `logp_B_T`'s dtype; exactly 0 with exactly zero gradient if nothing is left.
    """
    check_matrices(logp_B_T=logp_B_T, mask_B_T=mask_B_T)
    mask = as_mask(mask_B_T)
    infinite_B = (mask & (logp_B_T == -math.inf)).any(dim=-1)
    return weighted_row_sum(-logp_B_T, mask, coef_B.detach().masked_fill(infinite_B, 0.0))


def aggregate(
    value_B_T: Tensor,
    mask_B_T: Tensor,
    how: Aggregation = "token-mean",
    denominators: Denominators | None = None,
) -> Tensor:
    """Reduce per-token values to this batch's part of the loss.

    Args:
        value_B_T: float (B, T), with gradient.
        mask_B_T: bool or 0/1 (B, T).
        how: see `aggregation_coefficients`.
        denominators: counts of the whole optimiser step. None: this batch is the whole step.

    Returns:
        Scalar. The parts of one step add up to the loss of the step.
    """
    counts = Denominators.of(mask_B_T) if denominators is None else denominators
    coef_B = aggregation_coefficients(mask_B_T, how, counts)
    return weighted_row_sum(value_B_T, mask_B_T, coef_B)
