"""SERO: the auxiliary loss on oracle branches, and its report.

    L_SERO  = 1 / max(N_root, 1) * sum_r sg[g_r] * sum_k sg[w_{r,k}] * l_{r,k}(theta)
    L_total = L_base + lambda_O * L_SERO                      lambda_O = 0.1 by default

l_{r,k} = -(1 / |C_k|) * sum over i in C_k of log pi_theta(y_{k,i} | student-visible prompt): the
mean NLL of the oracle's reply at branch state k over its loss tokens C_k (by default the command
and the closing tag). g_r is the gate and w_{r,k} the reachability weight of
`trainer.auxiliary.sero_weights`; sg[] means that both are constants.

There is no normalisation over k: a branch weighs D_r = sum_k w_{r,k}, so Full-Flat, SERO and
Root-only differ in the size of the loss as well as in its direction. `branch_norm="mass"` divides
by D_r to separate the two.

Micro-batches: `row_coefficients` gives every branch row one number from the counts of the whole
optimiser step; the loss is the sum of coefficient times summed token NLL over any partition.

Axis letters: R roots (branches), K branch rows, T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trainer.auxiliary.sero_rows import (
    BranchNorm,
    Normaliser,
    TokenAggregation,
    TokenWeights,
    count_roots,
    pruned_mass,
    row_coefficients,
    same_length,
    sero_branch_loss,
    weigh_tokens,
)
from trainer.auxiliary.sero_weights import (
    WeightRule,
    effective_depth,
    effective_sample_size,
    gate,
    log_z,
    reach_weights,
)
from trainer.objectives.aggregate import as_mask, weighted_nll

__all__ = [
    "Branch",
    "Row",
    "SeroResult",
    "count_roots",
    "is_valid",
    "pruned_mass",
    "row_coefficients",
    "sero_branch_loss",
    "sero_loss",
    "weigh_tokens",
    "weighted_nll",
]


@dataclass(frozen=True, slots=True)
class Branch:
    """One selected root with its oracle branch, scored; input of `sero_loss`.

    Attributes:
        valid: v_r; see `is_valid` for what the loss adds to it.
        G_pi, G_O, c_R: returns and scale of the gate.
        behaviour: per row, log-probs of the reply's tokens under the behaviour policy.
        student: per row, log-probs of the same tokens under the trained policy, with gradient.
        z_mask: per row, which tokens count in z (the command). None: all.
        loss_mask: per row, which tokens count in the loss. None: all.
    """

    valid: bool
    G_pi: float
    G_O: float
    c_R: float = 1.0
    behaviour: Sequence[Tensor] = ()
    student: Sequence[Tensor] = ()
    z_mask: Sequence[Tensor] | None = None
    loss_mask: Sequence[Tensor] | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One branch row: gate, weight, NLL (None where dropped) and gate * weight / N_root / norm."""

    gate: float
    weight: float
    nll: float | None
    share: float


@dataclass(frozen=True, slots=True)
class SeroResult:
    """Loss of one optimiser step with its parts.

    Attributes:
        loss: L_SERO, float64 scalar with gradient.
        weighted: lambda_O * L_SERO.
        rows: per branch, per row.
        diagnostics: n_root, n_valid, n_active, gate_zero_ratio, gate_mean, effective_depth_mean,
            ess_mean (means over selected roots, 0.0 without any), pruned_mass (sum of g * w over
            rows dropped by w_min) and n_infinite (rows skipped for an infinite NLL).
    """

    loss: Tensor
    weighted: Tensor
    rows: list[list[Row]]
    diagnostics: dict[str, float] = field(default_factory=dict)


def is_valid(branch: Branch) -> bool:
    """v_r as the loss uses it: v_r, finite returns, at least one step, tokens in every row."""
    return bool(
        branch.valid
        and math.isfinite(branch.G_pi)
        and math.isfinite(branch.G_O)
        and len(branch.student) > 0
        and all(int(mask.sum()) > 0 for mask in _masks(branch, branch.z_mask))
        and all(int(mask.sum()) > 0 for mask in _masks(branch, branch.loss_mask))
    )


def sero_loss(
    branches: Sequence[Branch],
    *,
    rule: WeightRule = "sero",
    delta: float = 0.9,
    normaliser: Normaliser = "selected",
    lambda_O: float = 0.1,
    token_agg: TokenAggregation = "mean",
    w_min: float = 0.0,
    branch_norm: BranchNorm = "none",
    token_weights: TokenWeights = "none",
) -> SeroResult:
    """The whole objective for one optimiser step, branch by branch, in float64.

    The readable definition; training computes the same number by `row_coefficients` and
    `weighted_nll`. Empty branches count in "selected" and contribute 0.

    Args:
        branches: every selected root of the step.
        rule, delta: weights, see `reach_weights`.
        normaliser: see `count_roots`.
        lambda_O: coefficient of `weighted`.
        token_agg, w_min, branch_norm: see `row_coefficients`.
        token_weights: see `weigh_tokens`; `Row.nll` is without them.

    Returns:
        SeroResult. Without a positive gate the loss is exactly 0, `backward()` works and every
        gradient is exactly 0.
    """
    valid_R = [is_valid(branch) for branch in branches]
    gates_R = [
        gate(branch.G_pi, branch.G_O, branch.c_R, v)
        for branch, v in zip(branches, valid_R, strict=True)
    ]
    weights_R_K = [reach_weights(_branch_logz(branch), rule, delta) for branch in branches]
    masks_R_K = [_masks(branch, branch.loss_mask) for branch in branches]
    n_root = count_roots(gates_R, valid_R, normaliser)
    counts_R_K = [[int(mask.sum()) for mask in masks] for masks in masks_R_K]
    coefficients_R_K = row_coefficients(
        gates_R,
        weights_R_K,
        counts_R_K,
        n_root=n_root,
        token_agg=token_agg,
        w_min=w_min,
        branch_norm=branch_norm,
    )

    loss = torch.zeros((), dtype=torch.float64, requires_grad=True)
    rows: list[list[Row]] = []
    n_infinite = 0
    for r, branch in enumerate(branches):
        rows.append([])
        for k, (logp, mask) in enumerate(zip(branch.student, masks_R_K[r], strict=True)):
            coefficient = coefficients_R_K[r][k]
            infinite = bool((mask & (logp.detach() == -math.inf)).any())
            n_infinite += infinite and coefficient != 0.0
            dropped = infinite or coefficient == 0.0
            divisor = counts_R_K[r][k] if token_agg == "mean" else 1
            nll = None if dropped else float(-logp.detach()[mask].double().sum() / divisor)
            share = 0.0 if dropped else coefficient * divisor
            rows[r].append(Row(gates_R[r], weights_R_K[r][k], nll, share))
            coef_1 = torch.tensor([coefficient], dtype=torch.float64)
            weighed = weigh_tokens(logp.double()[None], mask[None], token_weights)
            loss = loss + weighted_nll(weighed, mask[None], coef_1)

    n = max(len(branches), 1)
    n_active = sum(g > 0 for g in gates_R)
    diagnostics: dict[str, float] = {
        "n_root": len(branches),
        "n_valid": sum(valid_R),
        "n_active": n_active,
        "gate_zero_ratio": (len(branches) - n_active) / n,
        "gate_mean": math.fsum(gates_R) / n,
        "effective_depth_mean": math.fsum(map(effective_depth, weights_R_K)) / n,
        "ess_mean": math.fsum(map(effective_sample_size, weights_R_K)) / n,
        "pruned_mass": pruned_mass(gates_R, weights_R_K, w_min),
        "n_infinite": n_infinite,
    }
    return SeroResult(loss, lambda_O * loss, rows, diagnostics)


def _masks(branch: Branch, masks: Sequence[Tensor] | None) -> list[Tensor]:
    """Row masks as bool tensors; None means all tokens."""
    if masks is None:
        return [torch.ones_like(logp, dtype=torch.bool) for logp in branch.student]
    same_length(student=branch.student, masks=masks)
    for logp, mask in zip(branch.student, masks, strict=True):
        if logp.shape != mask.shape:
            raise ValueError(f"Row has {tuple(logp.shape)} tokens, its mask {tuple(mask.shape)}.")
    return [as_mask(mask[None])[0] for mask in masks]


def _branch_logz(branch: Branch) -> list[float]:
    masks = _masks(branch, branch.z_mask)
    same_length(student=branch.student, behaviour=branch.behaviour)
    for mask, logp in zip(masks, branch.behaviour, strict=True):
        if mask.shape != logp.shape:
            raise ValueError(
                f"Row has {tuple(mask.shape)} student and {tuple(logp.shape)} behaviour tokens."
            )
    return [log_z(logp[mask]) for mask, logp in zip(masks, branch.behaviour, strict=True)]
