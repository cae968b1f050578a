"""Skill-SD: importance-weighted k3 towards the policy under a skill.

    d    = min(T - S, 20)                 k3 = exp(d) - 1 - d >= 0
    rho  = exp(min(S - O, 10))
    loss = aggregate(m * rho * k3)        coefficient 0.1

S: log-probs of the student, T: under the prompt with a skill, O: at rollout time. The tokens were
sampled under O; rho, *with* gradient, turns the estimate into one of KL(S || T) and its gradient
into that of the KL: without rho's own gradient only the half of it that moves S at fixed samples
would be left.

Public code limits exp(T - S) alone and leaves -(T - S) unlimited, so that beyond 20 the gradient
pushes S away from T. Here d as a whole is limited, with zero gradient beyond, as in
`trainer.objectives.kl`; the two agree up to 20.

Source: Skill-SD as published with SDAR (arXiv:2605.15155). Axis letters: B rows, T tokens.
"""

from __future__ import annotations

from torch import Tensor

from trainer.objectives.aggregate import (
    Aggregation,
    Denominators,
    aggregate,
    as_mask,
    check_matrices,
)

COEFFICIENT = 0.1
GAP_LIMIT = 20.0
LOG_RATIO_LIMIT = 10.0


def skill_sd_loss(
    student_B_T: Tensor,
    teacher_B_T: Tensor,
    old_B_T: Tensor,
    mask_B_T: Tensor,
    *,
    aggregation: Aggregation = "token-mean",
    denominators: Denominators | None = None,
) -> Tensor:
    """Loss of one (micro-)batch, before its coefficient.

    Args:
        student_B_T: float (B, T), S, with gradient.
        teacher_B_T: float (B, T), T; a constant.
        old_B_T: float (B, T), O; a constant.
        mask_B_T: bool or 0/1 (B, T).
        aggregation, denominators: see `trainer.objectives.aggregate`.

    Returns:
        Scalar >= 0; the parts of one step add up. Exactly 0 with exactly zero gradient for an
        empty mask or where S = T.

    Raises:
        ValueError: shapes differ, or an unknown aggregation.
    """
    check_matrices(
        student_B_T=student_B_T, teacher_B_T=teacher_B_T, old_B_T=old_B_T, mask_B_T=mask_B_T
    )
    outside = ~as_mask(mask_B_T)
    student, teacher, old = (
        logp_B_T.to(student_B_T.dtype).masked_fill(outside, 0.0)
        for logp_B_T in (student_B_T, teacher_B_T.detach(), old_B_T.detach())
    )
    d = (teacher - student).clamp(max=GAP_LIMIT)
    ratio = (student - old).clamp(max=LOG_RATIO_LIMIT).exp()
    # expm1 keeps k3 >= 0 for small d, where exp(d) - 1 cancels.
    return aggregate(ratio * (d.expm1() - d), mask_B_T, aggregation, denominators)
