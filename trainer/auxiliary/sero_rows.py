"""SERO's loss as training computes it: one coefficient a branch row, from counts of a whole step.

The readable definition is `trainer.auxiliary.sero.sero_loss`; both give the same number.

Axis letters: R roots (branches), K branch rows, B rows of a batch, T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from trainer.auxiliary.chord import chord_token_weights
from trainer.auxiliary.sero_weights import effective_depth
from trainer.objectives.aggregate import as_mask, check_matrices, weighted_nll

Normaliser = Literal["selected", "valid", "active"]
TokenAggregation = Literal["mean", "sum"]
BranchNorm = Literal["none", "mass"]
TokenWeights = Literal["none", "chord"]


def count_roots(
    gates_R: Sequence[float], valid_R: Sequence[bool], normaliser: Normaliser = "selected"
) -> int:
    """N_root of one optimiser step.

    - "selected": every selected root, also invalid ones and those with gate 0. The auxiliary
      force fades by itself as the policy catches up with the oracle.
    - "valid": roots with v_r = 1.
    - "active": roots with g_r > 0; each useful root keeps its force.

    With several processes, add their counts before calling `row_coefficients`.
    """
    same_length(gates_R=gates_R, valid_R=valid_R)
    if normaliser == "selected":
        return len(gates_R)
    if normaliser == "valid":
        return sum(map(bool, valid_R))
    if normaliser == "active":
        return sum(g > 0 for g in gates_R)
    raise ValueError(f"Unknown normaliser {normaliser!r}; choose 'selected', 'valid' or 'active'.")


def row_coefficients(
    gates_R: Sequence[float],
    weights_R_K: Sequence[Sequence[float]],
    token_counts_R_K: Sequence[Sequence[int]],
    *,
    n_root: int,
    token_agg: TokenAggregation = "mean",
    w_min: float = 0.0,
    branch_norm: BranchNorm = "none",
) -> list[list[float]]:
    """Factor of each branch row's summed token NLL.

        coef_{r,k} = g_r * w_{r,k} / (max(N_root, 1) * |C_k| * norm_r)

    |C_k| is left out under `token_agg="sum"`; norm_r is 1, or D_r = sum_k w_{r,k} under
    `branch_norm="mass"` (over all rows, so that pruning never makes the kept rows heavier).

    Rows with coefficient exactly 0 need no forward pass: gate 0, weight 0, no loss tokens, or
    w <= w_min where w_min > 0.

    Args:
        gates_R: g_r of each root.
        weights_R_K: w of each row; ragged over roots.
        token_counts_R_K: number of loss tokens |C_k| of each row.
        n_root: from `count_roots`, over the whole optimiser step.
        token_agg, branch_norm: as above.
        w_min: weight at or below which a row is dropped.

    Returns:
        Floats in the layout of `weights_R_K`.

    Raises:
        ValueError: layouts differ, a gate or weight is negative or not finite, unknown option.
    """
    same_length(gates_R=gates_R, weights_R_K=weights_R_K, token_counts_R_K=token_counts_R_K)
    if n_root < 0 or not w_min >= 0.0:
        raise ValueError(f"n_root and w_min must not be negative, found {n_root} and {w_min}.")
    _check_options(token_agg, branch_norm)
    coefficients: list[list[float]] = []
    for g, weights, counts in zip(gates_R, weights_R_K, token_counts_R_K, strict=True):
        same_length(weights=weights, token_counts=counts)
        for value in (g, *weights):
            if not (math.isfinite(value) and value >= 0.0):
                raise ValueError(f"Gates and weights must be finite and >= 0, found {value}.")
        scale = float(max(n_root, 1))
        if branch_norm == "mass":
            scale *= effective_depth(weights) or 1.0
        coefficients.append(
            [
                g * w / (scale * (count if token_agg == "mean" else 1))
                if _kept(g, w, w_min) and count > 0
                else 0.0
                for w, count in zip(weights, counts, strict=True)
            ]
        )
    return coefficients


def pruned_mass(
    gates_R: Sequence[float], weights_R_K: Sequence[Sequence[float]], w_min: float
) -> float:
    """Sum of g_r * w_{r,k} over the rows that `w_min` drops; log it next to the loss."""
    return math.fsum(
        g * w
        for g, weights in zip(gates_R, weights_R_K, strict=True)
        for w in weights
        if not _kept(g, w, w_min)
    )


def sero_branch_loss(
    logp_K_T: Tensor,
    mask_K_T: Tensor,
    gates_K: Tensor,
    weights_K: Tensor,
    *,
    n_root: int,
    token_agg: TokenAggregation = "mean",
    w_min: float = 0.0,
    branch_mass_K: Tensor | None = None,
    token_weights: TokenWeights = "none",
) -> Tensor:
    """The same part of the loss from padded rows, without precomputed coefficients.

    Args:
        logp_K_T: float (K, T), log-probs under the trained policy, with gradient.
        mask_K_T: bool or 0/1 (K, T), loss tokens.
        gates_K: float (K,), gate of each row's branch; detached here.
        weights_K: float (K,), weight of each row; detached here.
        n_root: roots of the whole optimiser step.
        token_agg, w_min: see `row_coefficients`.
        branch_mass_K: float (K,), D_r of each row's branch, for `branch_norm="mass"`; a branch
            may be cut over micro-batches, so it cannot be computed here. None: no division.
        token_weights: see `weigh_tokens`.

    Returns:
        Scalar; the parts of one step add up.
    """
    check_matrices(logp_K_T=logp_K_T, mask_K_T=mask_K_T)
    _check_options(token_agg, "none")
    mass_K = torch.ones_like(weights_K) if branch_mass_K is None else branch_mass_K
    gates = gates_K.detach().double().tolist()
    weights = weights_K.detach().double().tolist()
    masses = mass_K.detach().double().tolist()
    counts = as_mask(mask_K_T).sum(dim=-1).tolist()
    same_length(mask=counts, gates_K=gates, weights_K=weights, branch_mass_K=masses)
    coefficients = row_coefficients(
        gates,
        [[w] for w in weights],
        [[count] for count in counts],
        n_root=n_root,
        token_agg=token_agg,
        w_min=w_min,
    )
    flat = [c / mass if c else 0.0 for (c,), mass in zip(coefficients, masses, strict=True)]
    coef_K = torch.tensor(flat, dtype=torch.float64, device=logp_K_T.device)
    return weighted_nll(weigh_tokens(logp_K_T, mask_K_T, token_weights), mask_K_T, coef_K)


def weigh_tokens(
    logp_B_T: Tensor, mask_B_T: Tensor, token_weights: TokenWeights = "none"
) -> Tensor:
    """Log-probs times their tokens' weights, for `weighted_nll`.

    - "none": every token weighs 1.
    - "chord": sg[p * (1 - p)], see `trainer.auxiliary.chord`. The weights do not enter |C_k|, so
      the loss is smaller by their mean.

    Args:
        logp_B_T: float (B, T), log-probs under the trained policy, with gradient.
        mask_B_T: bool or 0/1 (B, T), loss tokens.
        token_weights: as above.

    Returns:
        float (B, T). -inf on a loss token stays -inf, so that `weighted_nll` leaves its row out
        whatever the weights are.

    Raises:
        ValueError: shapes differ or an unknown option.
    """
    check_matrices(logp_B_T=logp_B_T, mask_B_T=mask_B_T)
    if token_weights not in ("none", "chord"):
        raise ValueError(f"token_weights must be 'none' or 'chord', found {token_weights!r}.")
    if token_weights == "none":
        return logp_B_T
    logp = logp_B_T.masked_fill(~as_mask(mask_B_T), 0.0)
    return torch.where(logp == -math.inf, logp, chord_token_weights(logp) * logp)


def same_length(**values: Sequence[object]) -> None:
    """Raises ValueError unless all are as long as one another."""
    lengths = {name: len(value) for name, value in values.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"Expected sequences of equal length, found {lengths}.")


def _kept(g: float, w: float, w_min: float) -> bool:
    return g > 0.0 and w > 0.0 and w > w_min


def _check_options(token_agg: str, branch_norm: str) -> None:
    if token_agg not in ("mean", "sum"):
        raise ValueError(f"token_agg must be 'mean' or 'sum', found {token_agg!r}.")
    if branch_norm not in ("none", "mass"):
        raise ValueError(f"branch_norm must be 'none' or 'mass', found {branch_norm!r}.")
