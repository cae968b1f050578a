"""SDAR: SEED's loss with skills from a fixed library instead of hindsight.

    L_sdar = sum m * g * (sg[T] - S) / sum m               beta = 5, lambda = 0.01

T is the log-prob under the prompt with retrieved skills (`trainer.auxiliary.skill_retrieval`);
every sampled token takes part, there is no mask of rows. Three gates:

    "gap":     g = sigma(beta * Delta)                               Delta = sg[T - S]
    "entropy": g = sigma(beta * h)
    "soft_or": g = sigma(beta * (1 - (1 - h) * (1 - Delta)))

h is the student's entropy at the token. "soft_or" needs it in [0, 1]: divide by the log of the
vocabulary's size.

Source: SDAR (arXiv:2605.15155). Axis letters: B rows (turns), T tokens.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from trainer.auxiliary.seed import (
    BETA,
    GateCenter,
    GateStats,
    check_beta,
    distillation_gate,
    gated_loss,
)
from trainer.objectives.aggregate import Aggregation, Denominators, as_mask, check_matrices

GateKind = Literal["gap", "entropy", "soft_or"]

GATE_KINDS = ("gap", "entropy", "soft_or")

# Room for rounding of an entropy that was divided by its maximum.
_ENTROPY_SLACK = 1e-4


def sdar_gate(
    student_B_T: Tensor,
    teacher_B_T: Tensor,
    mask_B_T: Tensor,
    *,
    kind: GateKind = "gap",
    entropy_B_T: Tensor | None = None,
    beta: float = BETA,
) -> Tensor:
    """g under one of the three rules; the module's docstring gives them.

    Args:
        student_B_T, teacher_B_T: float (B, T), S and T.
        mask_B_T: bool or 0/1 (B, T).
        kind: the rule.
        entropy_B_T: float (B, T), h; needed by "entropy" (any scale, not negative) and "soft_or"
            (in [0, 1]).
        beta: steepness.

    Returns:
        (B, T), dtype of `student_B_T`, detached; 0 outside the mask.

    Raises:
        ValueError: shapes differ, unknown kind, entropy missing or out of range.
    """
    check_matrices(student_B_T=student_B_T, teacher_B_T=teacher_B_T, mask_B_T=mask_B_T)
    check_beta(beta)
    if kind not in GATE_KINDS:
        raise ValueError(f"Unknown gate {kind!r}; choose one of {GATE_KINDS}.")
    outside = ~as_mask(mask_B_T)
    if kind == "gap":
        gate = distillation_gate(student_B_T, teacher_B_T, beta=beta)
        return gate.masked_fill(outside, 0.0)
    if entropy_B_T is None:
        raise ValueError(f"The gate {kind!r} needs entropy_B_T, the student's token entropy.")
    check_matrices(student_B_T=student_B_T, entropy_B_T=entropy_B_T)
    h = entropy_B_T.detach().to(student_B_T.dtype).masked_fill(outside, 0.0)
    highest = 1.0 + _ENTROPY_SLACK if kind == "soft_or" else torch.inf
    if not bool(((h >= 0.0) & (h <= highest)).all()):
        raise ValueError(
            f"The gate {kind!r} found an entropy outside [0, {1 if kind == 'soft_or' else 'inf'}]"
            f" (from {float(h.min())} to {float(h.max())}). For 'soft_or' divide the entropy by "
            "log(vocabulary size)."
        )
    if kind == "entropy":
        score = h
    else:
        gap = (teacher_B_T - student_B_T).detach().to(h.dtype).masked_fill(outside, 0.0)
        score = 1.0 - (1.0 - h) * (1.0 - gap)
    return torch.sigmoid(beta * score).masked_fill(outside, 0.0)


def sdar_loss(
    student_B_T: Tensor,
    teacher_B_T: Tensor,
    mask_B_T: Tensor,
    *,
    gate: GateKind = "gap",
    entropy_B_T: Tensor | None = None,
    beta: float = BETA,
    gate_center: GateCenter = "none",
    gate_mean: float | None = None,
    aggregation: Aggregation = "token-mean",
    denominators: Denominators | None = None,
) -> tuple[Tensor, GateStats]:
    """SDAR's loss of one (micro-)batch.

    Args:
        student_B_T: float (B, T), S under the current policy, with gradient.
        teacher_B_T: float (B, T), T under the prompt with retrieved skills; a constant.
        mask_B_T: bool or 0/1 (B, T), every sampled token.
        gate, entropy_B_T, beta: see `sdar_gate`.
        gate_center, gate_mean, aggregation, denominators: see
            `trainer.auxiliary.seed.gated_loss`.

    Returns:
        Loss before its coefficient, and statistics. With the gate "gap" both equal
        `seed_opd_loss` on the same mask.
    """
    gate_B_T = sdar_gate(
        student_B_T, teacher_B_T, mask_B_T, kind=gate, entropy_B_T=entropy_B_T, beta=beta
    )
    return gated_loss(
        student_B_T,
        teacher_B_T,
        gate_B_T,
        mask_B_T,
        gate_center=gate_center,
        gate_mean=gate_mean,
        aggregation=aggregation,
        denominators=denominators,
    )
