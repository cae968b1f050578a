"""Divergences between a student's and a teacher's next-token distributions.

With S and T the two distributions over the vocabulary at one position:

    fkl  = KL(T || S)
    rkl  = KL(S || T)
    gjs  = beta * KL(T || M) + (1 - beta) * KL(S || M),    M = beta * T + (1 - beta) * S

gjs is the generalised Jensen-Shannon divergence of GKD (Agarwal et al. 2023, arXiv:2306.13649);
at beta = 1/2 it lies in [0, log 2]. Up to scale it behaves like fkl for beta -> 0 and like rkl for
beta -> 1, and is 0 everywhere at both ends, so these are refused.

Over the full vocabulary the gradient with respect to the student's logits has a closed form, and
it is the backward pass here: one tensor of the size of the logits is kept for it, where automatic
differentiation of the formula keeps several.

    fkl: s - t
    rkl: s * (d - <s, d>),   d = log s - log t
    gjs: s * (e - <s, e>),   e = (1 - beta) * (log s - log m)

The teacher is a constant throughout.

Axis letters: B rows, T tokens, V vocabulary, K buckets; `...` any leading axes.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from trainer.objectives.aggregate import as_mask

DivergenceKind = Literal["fkl", "rkl", "gjs"]

DIVERGENCES: tuple[DivergenceKind, ...] = ("fkl", "rkl", "gjs")

# Largest log-mass of the top-k tokens: log(1 - mass) of the tail stays finite, also in float32.
LOG_MASS_LIMIT = -1e-7


def check_divergence(kind: DivergenceKind, beta: float, top_k: int | None = None) -> None:
    """Raise ValueError for an unknown kind, a beta outside (0, 1) under "gjs", or a top_k < 1."""
    if kind not in DIVERGENCES:
        raise ValueError(f"Unknown divergence {kind!r}; choose one of {DIVERGENCES}.")
    if kind == "gjs" and not 0.0 < beta < 1.0:
        raise ValueError(
            f"beta must lie strictly between 0 and 1, found {beta}; the generalised "
            "Jensen-Shannon divergence is 0 at both ends. Use 'fkl' or 'rkl' there."
        )
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be at least 1 (or None for the full vocabulary): {top_k}.")


def divergence(
    student_V: Tensor,
    teacher_V: Tensor,
    *,
    kind: DivergenceKind = "rkl",
    beta: float = 0.5,
    top_k: int | None = None,
) -> Tensor:
    """Divergence at each position, over the vocabulary (formulas at the top of this module).

    Args:
        student_V: float (..., V), logits or log-probs of the student, with gradient.
        teacher_V: float (..., V), of the teacher; a constant.
        kind: which divergence.
        beta: weight of the teacher in "gjs"; the other kinds ignore it.
        top_k: compare the student's k likeliest tokens and one bucket for all others, see
            `bucket_log_probs`. None, or k >= V: the full vocabulary.

    Returns:
        (...), in the student's dtype, float32 at least. A token of probability 0 under the first
        argument of a KL adds nothing to it; one of probability 0 under the second argument only
        makes it infinite.

    Raises:
        ValueError: shapes differ or an option is out of range.
    """
    check_divergence(kind, beta, top_k)
    student, teacher = _aligned(student_V, teacher_V)
    if top_k is None or top_k >= student.shape[-1]:
        full: Tensor = _FullVocabulary.apply(  # type: ignore[no-untyped-call]
            student, teacher, kind, beta
        )
        return full
    log_s, log_t = bucket_log_probs(student, teacher, top_k)
    return _value(log_s, log_t, kind, beta)


def divergence_grad(
    student_V: Tensor,
    teacher_V: Tensor,
    *,
    kind: DivergenceKind = "rkl",
    beta: float = 0.5,
) -> Tensor:
    """Closed-form gradient of each position's divergence over the full vocabulary.

    Args:
        student_V, teacher_V, kind, beta: see `divergence`.

    Returns:
        (..., V), detached: the derivative with respect to the student's logits. Each position
        sums to 0.
    """
    check_divergence(kind, beta)
    student, teacher = _aligned(student_V, teacher_V)
    with torch.no_grad():
        return _logit_gradient(student.log_softmax(-1), teacher.log_softmax(-1), kind, beta)


def bucket_log_probs(student_V: Tensor, teacher_V: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Both distributions on the student's k likeliest tokens and one tail bucket.

        tail = log(1 - exp(min(logsumexp of the k log-probs, -1e-7)))

    The limit keeps the tail finite where the k tokens hold all the mass; it then has a log-prob
    of log(1e-7) = -16.1 and no gradient. The tokens are chosen by the student; the choice has no
    gradient. Of equal logits at the edge, either may be chosen.

    Args:
        student_V: float (..., V), logits or log-probs, with gradient.
        teacher_V: float (..., V); a constant.
        top_k: k below V.

    Returns:
        Log-probs of student and teacher, each (..., k + 1), the tail last.
    """
    student, teacher = _aligned(student_V, teacher_V)
    if not 1 <= top_k < student.shape[-1]:
        raise ValueError(f"top_k must be at least 1 and below V={student.shape[-1]}: {top_k}.")
    chosen = student.detach().topk(top_k, dim=-1).indices
    return _with_tail(student, chosen), _with_tail(teacher, chosen)


def masked_divergence(
    student_B_T_V: Tensor,
    teacher_B_T_V: Tensor,
    mask_B_T: Tensor,
    *,
    kind: DivergenceKind = "rkl",
    beta: float = 0.5,
    top_k: int | None = None,
) -> Tensor:
    """`divergence` on the positions of a mask; the others cost nothing.

    Args:
        student_B_T_V: float (B, T, V), logits or log-probs, with gradient.
        teacher_B_T_V: float (B, T, V); a constant.
        mask_B_T: bool or 0/1 (B, T).
        kind, beta, top_k: see `divergence`.

    Returns:
        (B, T), exactly 0 outside the mask, whatever the logits hold there.

    Raises:
        ValueError: shapes differ or an option is out of range.
    """
    mask = check_logits(student_B_T_V, teacher_B_T_V, mask_B_T)
    value = divergence(student_B_T_V[mask], teacher_B_T_V[mask], kind=kind, beta=beta, top_k=top_k)
    return value.new_zeros(mask.shape).index_put(mask.nonzero(as_tuple=True), value)


def check_logits(student_B_T_V: Tensor, teacher_B_T_V: Tensor, mask_B_T: Tensor) -> Tensor:
    """The mask as bool; ValueError unless the logits are (B, T, V) of one shape and fit it."""
    mask = as_mask(mask_B_T)
    shapes = tuple(student_B_T_V.shape), tuple(teacher_B_T_V.shape)
    if shapes[0] != shapes[1] or shapes[0][:-1] != tuple(mask.shape):
        raise ValueError(
            f"Expected student and teacher of one shape (B, T, V) and a mask (B, T), found "
            f"{shapes[0]}, {shapes[1]} and {tuple(mask.shape)}. Distillation over the vocabulary "
            "needs one tokenizer for both models."
        )
    return mask


class _FullVocabulary(torch.autograd.Function):
    """Divergence whose backward pass is the closed-form gradient."""

    @staticmethod
    def forward(
        ctx: Any, student: Tensor, teacher: Tensor, kind: DivergenceKind, beta: float
    ) -> Tensor:
        log_s, log_t = student.log_softmax(-1), teacher.log_softmax(-1)
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(_logit_gradient(log_s, log_t, kind, beta))
        return _value(log_s, log_t, kind, beta)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (slope,) = ctx.saved_tensors
        # A position without weight gets no gradient, also where its divergence is infinite.
        weight = grad.unsqueeze(-1)
        return (weight * slope).masked_fill(weight == 0, 0.0), None, None, None


def _value(log_s: Tensor, log_t: Tensor, kind: DivergenceKind, beta: float) -> Tensor:
    if kind == "fkl":
        return _mean_under(log_t, log_t - log_s)
    if kind == "rkl":
        return _mean_under(log_s, log_s - log_t)
    log_m = _log_mixture(log_s, log_t, beta)
    from_teacher = _mean_under(log_t, log_t - log_m)
    return beta * from_teacher + (1.0 - beta) * _mean_under(log_s, log_s - log_m)


def _logit_gradient(log_s: Tensor, log_t: Tensor, kind: DivergenceKind, beta: float) -> Tensor:
    s = log_s.exp()
    if kind == "fkl":
        return s - log_t.exp()
    if kind == "rkl":
        slope = log_s - log_t
    else:
        slope = (1.0 - beta) * (log_s - _log_mixture(log_s, log_t, beta))
    slope = slope.masked_fill(s == 0, 0.0)
    return s * (slope - (s * slope).sum(-1, keepdim=True))


def _log_mixture(log_s: Tensor, log_t: Tensor, beta: float) -> Tensor:
    """log(beta * t + (1 - beta) * s); tokens that neither emits hold an arbitrary number."""
    # logaddexp of two -inf has a NaN gradient.
    neither = (log_s == -math.inf) & (log_t == -math.inf)
    log_s = log_s.masked_fill(neither, 0.0)
    return torch.logaddexp(log_s + math.log1p(-beta), log_t + math.log(beta))


def _mean_under(log_p: Tensor, value: Tensor) -> Tensor:
    """sum_v p(v) * value(v) over the tokens with p > 0."""
    p = log_p.exp()
    return (p * value.masked_fill(p == 0, 0.0)).sum(-1)


def _with_tail(logits_V: Tensor, chosen_K: Tensor) -> Tensor:
    log_p = logits_V.log_softmax(-1).gather(-1, chosen_K)
    log_mass = log_p.logsumexp(-1, keepdim=True).clamp(max=LOG_MASS_LIMIT)
    return torch.cat([log_p, (-log_mass.expm1()).log()], dim=-1)


def _aligned(student_V: Tensor, teacher_V: Tensor) -> tuple[Tensor, Tensor]:
    """Student and detached teacher in one dtype, float32 at least."""
    if student_V.shape != teacher_V.shape or student_V.dim() < 1 or student_V.shape[-1] < 1:
        raise ValueError(
            f"Expected student and teacher of one shape (..., V), found {tuple(student_V.shape)} "
            f"and {tuple(teacher_V.shape)}. Both models must share the tokenizer."
        )
    dtype = torch.promote_types(student_V.dtype, torch.float32)
    return student_V.to(dtype), teacher_V.detach().to(dtype)
