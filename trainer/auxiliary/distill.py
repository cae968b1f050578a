"""On-policy distillation: OPD, GKD, OPSD, and the form in which OPSD was published as a baseline.

The student samples; a teacher scores the same tokens. S and T are the log-probs of the sampled
tokens under student and teacher.

- OPD: a larger teacher. Either the sampled reverse KL, as an advantage or as a loss, or the exact
  divergence at each position over the vocabulary.
- GKD: only a fraction of the batches is sampled by the student, the rest comes from the teacher or
  a data set; generalised Jensen-Shannon divergence.
- OPSD: the teacher is the same model with a privileged context (a solution, a skill, a plan).

OPSD over several turns without further measures is reported to collapse (SDAR, RLSD, TCOD).

Axis letters: B rows, T tokens, V vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trainer.auxiliary.divergence import DivergenceKind, masked_divergence
from trainer.auxiliary.seed import seed_opd_loss
from trainer.objectives.aggregate import (
    Aggregation,
    Denominators,
    aggregate,
    as_mask,
    check_matrices,
)


def opd_advantages(
    student_B_T: Tensor,
    teacher_B_T: Tensor,
    mask_B_T: Tensor,
    *,
    baseline_B_T: Tensor | None = None,
) -> Tensor:
    """Advantage of each sampled token under the sampled reverse KL.

        A = -(S - T) - b

    Feed it to the policy loss with every other reward off: each token is credited with its own
    log-ratio only (a discount of 0). In expectation over the student's samples the gradient is
    that of KL(student || teacher) at each position. A baseline b that does not depend on the
    token, such as `vopd_baseline`, removes variance and leaves that expectation as it is.

    Source: "On-Policy Distillation", Thinking Machines Lab 2025.

    Args:
        student_B_T: float (B, T), S, a constant here.
        teacher_B_T: float (B, T), T, a constant.
        mask_B_T: bool or 0/1 (B, T), sampled tokens.
        baseline_B_T: float (B, T), b. None: 0.

    Returns:
        float64 (B, T), detached, exactly 0 outside the mask.

    Raises:
        ValueError: shapes differ, or an advantage is not finite inside the mask.
    """
    check_matrices(student_B_T=student_B_T, teacher_B_T=teacher_B_T, mask_B_T=mask_B_T)
    outside = ~as_mask(mask_B_T)
    advantage = teacher_B_T.detach().double() - student_B_T.detach()
    if baseline_B_T is not None:
        check_matrices(student_B_T=student_B_T, baseline_B_T=baseline_B_T)
        advantage = advantage - baseline_B_T.detach()
    advantage = advantage.masked_fill(outside, 0.0)
    if not bool(torch.isfinite(advantage).all()):
        raise ValueError(
            "The distillation advantage of a sampled token is not finite: the teacher (or the "
            "student) gives it probability 0. Score both with the same vocabulary and sampling "
            "filters off, or leave the token out of the mask."
        )
    return advantage


def vopd_baseline(student_B_T_V: Tensor, teacher_B_T_V: Tensor, mask_B_T: Tensor) -> Tensor:
    """Expectation of the sampled advantage at each position: b = -KL(student || teacher).

    Source: vOPD, whose baseline this is.

    Args:
        student_B_T_V, teacher_B_T_V: float (B, T, V), logits; constants here.
        mask_B_T: bool or 0/1 (B, T).

    Returns:
        (B, T), detached, exactly 0 outside the mask; an argument of `opd_advantages` and
        `opd_loss`.
    """
    return -masked_divergence(student_B_T_V.detach(), teacher_B_T_V, mask_B_T, kind="rkl")


def opd_loss(
    student_B_T: Tensor,
    teacher_B_T: Tensor,
    mask_B_T: Tensor,
    *,
    baseline_B_T: Tensor | None = None,
    aggregation: Aggregation = "token-mean",
    denominators: Denominators | None = None,
) -> Tensor:
    """The same estimator as a loss: sum over tokens of sg[S - T + b] * S, aggregated.

    Its gradient with respect to S is S - T + b per token. The value means nothing: log the mean
    of S - T instead.

    Args:
        student_B_T: float (B, T), S, with gradient.
        teacher_B_T, mask_B_T, baseline_B_T: see `opd_advantages`.
        aggregation, denominators: see `trainer.objectives.aggregate`.

    Returns:
        Scalar; exactly 0 with exactly zero gradient for an empty mask.
    """
    advantage = opd_advantages(student_B_T, teacher_B_T, mask_B_T, baseline_B_T=baseline_B_T)
    inside = student_B_T.masked_fill(~as_mask(mask_B_T), 0.0)
    value = -advantage.to(student_B_T.dtype) * inside
    return aggregate(value, mask_B_T, aggregation, denominators)


def distillation_loss(
    student_B_T_V: Tensor,
    teacher_B_T_V: Tensor,
    mask_B_T: Tensor,
    *,
    kind: DivergenceKind = "rkl",
    beta: float = 0.5,
    top_k: int | None = None,
    aggregation: Aggregation = "token-mean",
    denominators: Denominators | None = None,
) -> Tensor:
    """Exact form of OPD: the divergence at each sampled position, aggregated.

    Args:
        student_B_T_V: float (B, T, V), logits of the student, with gradient.
        teacher_B_T_V: float (B, T, V), of the teacher; a constant.
        mask_B_T: bool or 0/1 (B, T).
        kind, beta, top_k: see `trainer.auxiliary.divergence.divergence`.
        aggregation, denominators: see `trainer.objectives.aggregate`.

    Returns:
        Scalar; exactly 0 with exactly zero gradient for an empty mask.
    """
    value = masked_divergence(
        student_B_T_V, teacher_B_T_V, mask_B_T, kind=kind, beta=beta, top_k=top_k
    )
    return aggregate(value, mask_B_T, aggregation, denominators)


def gkd_loss(
    student_B_T_V: Tensor,
    teacher_B_T_V: Tensor,
    mask_B_T: Tensor,
    *,
    beta: float = 0.5,
    top_k: int | None = None,
    aggregation: Aggregation = "token-mean",
    denominators: Denominators | None = None,
) -> Tensor:
    """GKD: `distillation_loss` with the generalised Jensen-Shannon divergence.

    Which batches are sampled by the student is `gkd_on_student`.

    Source: Agarwal et al. 2023 (arXiv:2306.13649).

    Args:
        student_B_T_V, teacher_B_T_V, mask_B_T, beta, top_k, aggregation, denominators: see
            `distillation_loss`.

    Returns:
        Scalar; exactly 0 with exactly zero gradient for an empty mask.
    """
    return distillation_loss(
        student_B_T_V,
        teacher_B_T_V,
        mask_B_T,
        kind="gjs",
        beta=beta,
        top_k=top_k,
        aggregation=aggregation,
        denominators=denominators,
    )


def gkd_on_student(batch: int, fraction: float) -> bool:
    """Whether a batch is sampled by the student, so that a fraction of all batches is.

        floor((batch + 1) * fraction) > floor(batch * fraction)

    The paper draws each batch; this spreads them evenly instead, so that the first n batches
    hold floor(n * fraction) on-policy ones for every n, without a random stream.

    Args:
        batch: number of the batch, from 0.
        fraction: lambda of GKD, in [0, 1]: 0 never, 1 always.

    Raises:
        ValueError: a negative batch, or a fraction outside [0, 1].
    """
    if batch < 0:
        raise ValueError(f"Batches are numbered from 0, found {batch}.")
    if not 0.0 <= fraction <= 1.0:
        raise ValueError(f"The fraction of student batches must lie in [0, 1], found {fraction}.")
    return math.floor((batch + 1) * fraction) > math.floor(batch * fraction)


def opsd_loss(
    student_B_T_V: Tensor,
    teacher_B_T_V: Tensor,
    mask_B_T: Tensor,
    row_mask_B: Tensor,
    *,
    kind: DivergenceKind = "rkl",
    beta: float = 0.5,
    top_k: int | None = None,
    aggregation: Aggregation = "token-mean",
    denominators: Denominators | None = None,
) -> Tensor:
    """OPSD: divergence from the student on its own samples to itself with a privileged context.

    The two sets of logits belong to the same response tokens under two prompts. The teacher's
    weights are the student's, usually frozen at the start or synchronised now and then.

    Args:
        student_B_T_V: float (B, T, V), logits under the student's own prompt, with gradient.
        teacher_B_T_V: float (B, T, V), logits under the privileged prompt; a constant.
        mask_B_T: bool or 0/1 (B, T), response tokens.
        row_mask_B: bool or 0/1 (B,), rows that have a privileged context.
        kind, beta, top_k, aggregation: see `distillation_loss`.
        denominators: counts of the step's tokens in rows that take part.

    Returns:
        Scalar; exactly 0 with exactly zero gradient if no row takes part.
    """
    mask = rows_on(mask_B_T, row_mask_B)
    return distillation_loss(
        student_B_T_V,
        teacher_B_T_V,
        mask,
        kind=kind,
        beta=beta,
        top_k=top_k,
        aggregation=aggregation,
        denominators=denominators,
    )


def opsd_legacy_loss(
    student_B_T: Tensor,
    teacher_B_T: Tensor,
    mask_B_T: Tensor,
    *,
    beta: float = 0.0,
    aggregation: Aggregation = "token-mean",
    denominators: Denominators | None = None,
) -> Tensor:
    """What the SDAR and SEED tables call OPSD: SEED's gated loss, by default with a constant gate.

        g = sg[sigmoid(beta * (T - S))];    loss = g * (sg[T] - S), aggregated

    "GRPO+OPSD" there adds 0.01 times this with beta = 0 to GRPO; "OPSD" is beta = 5 with the
    policy loss off. With beta = 0 the gate is 1/2 everywhere: half the NLL of the policy's own
    samples, in which the teacher has no part; its expected gradient is 0 at the first step. It
    is no reverse KL. Use it to reproduce those rows, and `opsd_loss` for a real baseline.

    Source: the public codes of SDAR (ZJU-REAL/SDAR) and SEED (arXiv:2607.14777).

    Args:
        student_B_T: float (B, T), S, with gradient.
        teacher_B_T: float (B, T), T, log-probs of the same tokens under the privileged prompt.
        mask_B_T: bool or 0/1 (B, T), response tokens of rows with a privileged context.
        beta: slope of the gate, at least 0.
        aggregation, denominators: see `trainer.objectives.aggregate`.

    Returns:
        Scalar; exactly 0 with exactly zero gradient for an empty mask.
    """
    return seed_opd_loss(
        student_B_T,
        teacher_B_T,
        mask_B_T,
        beta=beta,
        aggregation=aggregation,
        denominators=denominators,
    )[0]


def rows_on(mask_B_T: Tensor, row_mask_B: Tensor) -> Tensor:
    """The token mask with the rows outside `row_mask_B` emptied, bool (B, T)."""
    mask = as_mask(mask_B_T)
    if tuple(row_mask_B.shape) != (mask.shape[0],):
        raise ValueError(
            f"Expected one entry of row_mask_B per row, ({mask.shape[0]},), found "
            f"{tuple(row_mask_B.shape)}."
        )
    return mask & as_mask(row_mask_B.unsqueeze(-1))
