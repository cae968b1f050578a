"""SDPO: self-distillation from a teacher that has seen a solution or the feedback.

The teacher is a slow copy of the policy whose prompt also holds either a successful attempt at the
same task or the environment's feedback on this one. With S and T the two distributions at each
token of the policy's own reply and O the log-prob at rollout time:

    alpha = 0:  d = KL(T || S)
    alpha = 1:  d = KL(S || T)
    else:       d = (1 - alpha) * KL(S || M) + alpha * KL(T || M),   M = (1 - alpha) * S + alpha * T
    rho  = sg[min(exp(clip(log S(token) - O, -20, 20)), 2)]
    loss = sum m * row * d * rho / max(sum m * row, 1)

It replaces the policy loss or is added to it. In public code S and T are compared on the student's
100 likeliest tokens and one bucket for the rest.

Source: SDPO (arXiv:2601.20802) and its public code (lasgroup/SDPO).

Axis letters: B rows (one reply each), T tokens, V vocabulary, M turns, N trajectories, G groups.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trainer.auxiliary.distill import rows_on
from trainer.auxiliary.divergence import DivergenceKind, check_logits, divergence
from trainer.objectives.aggregate import Aggregation, Denominators, aggregate, check_matrices
from trainer.objectives.groups import check_vectors, trajectory_groups
from trainer.objectives.losses import LOG_RATIO_LIMIT


class SDPOContexts(NamedTuple):
    """What the teacher of each turn sees; all of shape (M,).

    Attributes:
        sibling: int64, trajectory id of the successful sibling to show, or -1.
        feedback: bool, show the environment's feedback instead.
        row_mask: bool, whether there is either; other rows are not trained.
    """

    sibling: Tensor
    feedback: Tensor
    row_mask: Tensor


def sdpo_contexts(
    uid_M: Tensor,
    tid_M: Tensor,
    score_M: Tensor,
    feedback_M: Tensor,
    *,
    success_threshold: float = 0.5,
) -> SDPOContexts:
    """Choose the privileged context of each turn.

    A successful sibling if there is one: another trajectory of the group with a score of at least
    `success_threshold`, the one with the lowest trajectory id (batch order). Never the turn's own
    trajectory. Without a sibling, the feedback on the turn, if any; feedback is not used besides
    a solution. Thoughts are to be removed from the demonstration when it is rendered.

    Args:
        uid_M: int64 (M,), task-group id of each turn.
        tid_M: int64 (M,), trajectory id of each turn, unique over the batch, at least 0.
        score_M: float (M,), score of the turn's trajectory.
        feedback_M: bool (M,), whether the turn has environment feedback.
        success_threshold: lowest score of a success.

    Returns:
        SDPOContexts.

    Raises:
        ValueError: shapes differ, ids are negative, a score is NaN, or the turns of one
            trajectory disagree on its score.
    """
    check_vectors(uid_M=uid_M, tid_M=tid_M, score_M=score_M, feedback_M=feedback_M)
    if bool((tid_M < 0).any()):
        raise ValueError("Trajectory ids must not be negative: -1 stands for 'no sibling'.")
    if bool(score_M.isnan().any()):
        raise ValueError("score_M has a NaN entry; drop that trajectory first.")
    trajectory_M, group_N = trajectory_groups(uid_M, tid_M)
    n_trajectories = group_N.numel()
    score_N = score_M.new_zeros(n_trajectories).index_copy(0, trajectory_M, score_M.detach())
    if bool((score_N[trajectory_M] != score_M).any()):
        raise ValueError(
            "score_M differs between turns of one trajectory; pass the trajectory's score at each "
            "of its turns."
        )
    # Trajectories are numbered by increasing id, so the lowest number is the first of the batch.
    number_N = torch.arange(n_trajectories, device=uid_M.device)
    success_N = score_N >= success_threshold
    first_G = _lowest(number_N, group_N, success_N)
    others_N = success_N & (number_N != first_G[group_N])
    second_G = _lowest(number_N, group_N, others_N)
    sibling_N = torch.where(first_G[group_N] == number_N, second_G[group_N], first_G[group_N])
    found_N = sibling_N < n_trajectories
    tid_N = torch.unique(tid_M)
    shown_N = torch.full_like(sibling_N, -1)
    shown_N[found_N] = tid_N[sibling_N[found_N]]
    solved_M = found_N[trajectory_M]
    told_M = feedback_M.bool() & ~solved_M
    return SDPOContexts(shown_N[trajectory_M], told_M, solved_M | told_M)


def sdpo_loss(
    student_B_T_V: Tensor,
    teacher_B_T_V: Tensor,
    token_B_T: Tensor,
    old_B_T: Tensor,
    mask_B_T: Tensor,
    row_mask_B: Tensor,
    *,
    alpha: float = 0.5,
    top_k: int | None = 100,
    is_clip: float | None = 2.0,
    aggregation: Aggregation = "token-mean",
    denominators: Denominators | None = None,
) -> Tensor:
    """Self-distillation loss of one (micro-)batch (formula at the top of this module).

    Args:
        student_B_T_V: float (B, T, V), logits under the policy's own prompt, with gradient.
        teacher_B_T_V: float (B, T, V), logits of the teacher under the privileged prompt; a
            constant.
        token_B_T: int64 (B, T), the sampled tokens.
        old_B_T: float (B, T), O; a constant.
        mask_B_T: bool or 0/1 (B, T), response tokens.
        row_mask_B: bool or 0/1 (B,), from `sdpo_contexts`.
        alpha: mixture, in [0, 1].
        top_k: see `trainer.auxiliary.divergence.divergence`.
        is_clip: upper limit of rho, positive. None: rho = 1.
        aggregation: see `trainer.objectives.aggregate`.
        denominators: counts of the step's response tokens in rows that take part.

    Returns:
        Scalar; exactly 0 with exactly zero gradient if no row takes part.

    Raises:
        ValueError: shapes differ or an option is out of range.
    """
    _check_alpha(alpha)
    mask = check_logits(student_B_T_V, teacher_B_T_V, mask_B_T)
    check_matrices(token_B_T=token_B_T, old_B_T=old_B_T, mask_B_T=mask)
    mask = rows_on(mask, row_mask_B)
    student_P_V, teacher_P_V = student_B_T_V[mask], teacher_B_T_V[mask]
    kind: DivergenceKind = "fkl" if alpha == 0.0 else "rkl" if alpha == 1.0 else "gjs"
    value_P = divergence(student_P_V, teacher_P_V, kind=kind, beta=alpha, top_k=top_k)

    detached_P_V = student_P_V.detach().to(value_P.dtype)
    token_P_1 = token_B_T[mask].unsqueeze(-1)
    logp_P = detached_P_V.gather(-1, token_P_1).squeeze(-1) - detached_P_V.logsumexp(-1)
    value_P = value_P * importance_weights(logp_P, old_B_T[mask], is_clip)
    value = value_P.new_zeros(mask.shape).index_put(mask.nonzero(as_tuple=True), value_P)
    return aggregate(value, mask, aggregation, denominators)


def sdpo_sampled_loss(
    student_B_T: Tensor,
    teacher_B_T: Tensor,
    old_B_T: Tensor,
    mask_B_T: Tensor,
    row_mask_B: Tensor,
    *,
    alpha: float = 1.0,
    is_clip: float | None = 2.0,
    aggregation: Aggregation = "token-mean",
    denominators: Denominators | None = None,
) -> Tensor:
    """Fallback from sampled tokens alone: sg[S - T] * S * rho, the estimator of KL(S || T).

    Only alpha = 1 has one: the other mixtures need the teacher's probabilities of tokens that
    were not sampled.

    Args:
        student_B_T: float (B, T), S, with gradient.
        teacher_B_T: float (B, T), T; a constant.
        old_B_T, mask_B_T, row_mask_B, is_clip, aggregation, denominators: see `sdpo_loss`.
        alpha: must be 1.

    Returns:
        Scalar with gradient (S - T) * rho per token; exactly 0 with zero gradient if no row takes
        part.

    Raises:
        ValueError: alpha is not 1, or shapes differ.
    """
    if alpha != 1.0:
        raise ValueError(
            f"The sampled-token form exists for alpha=1 only, found {alpha}. Use sdpo_loss with "
            "the logits, or alpha=1."
        )
    check_matrices(
        student_B_T=student_B_T, teacher_B_T=teacher_B_T, old_B_T=old_B_T, mask_B_T=mask_B_T
    )
    mask = rows_on(mask_B_T, row_mask_B)
    student = student_B_T.masked_fill(~mask, 0.0)
    teacher = teacher_B_T.detach().to(student.dtype).masked_fill(~mask, 0.0)
    old = old_B_T.masked_fill(~mask, 0.0)
    factor = (student.detach() - teacher) * importance_weights(student, old, is_clip)
    return aggregate(factor * student, mask, aggregation, denominators)


def importance_weights(student: Tensor, old: Tensor, is_clip: float | None = 2.0) -> Tensor:
    """rho = min(exp(clip(S - O, -20, 20)), is_clip), detached, in the student's dtype.

    Args:
        student, old: log-probs of the same tokens, one shape.
        is_clip: upper limit, positive. None: 1 everywhere, i.e. no correction.
    """
    if is_clip is None:
        return torch.ones_like(student.detach())
    if not is_clip > 0.0:
        raise ValueError(f"is_clip must be positive (or None for no weight), found {is_clip}.")
    log_ratio = student.detach() - old.detach().to(student.dtype)
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp().clamp(max=is_clip)


def ema_update(teacher: Tensor, student: Tensor, rate: float = 0.05) -> Tensor:
    """teacher + rate * (student - teacher): one step of the slow teacher, for one tensor.

    Call it for each parameter after an update. Applied to the logits of a frozen reference and the
    student instead, it gives the teacher of the "trust region" variant. Keep the teacher in
    float32: in bfloat16 a step of 5 % of a small difference is rounded away.

    Args:
        teacher, student: of one shape.
        rate: share of the student, in [0, 1].

    Returns:
        A new, detached tensor in the teacher's dtype; the arguments are not changed.

    Raises:
        ValueError: shapes differ or the rate is out of range.
    """
    if teacher.shape != student.shape:
        raise ValueError(
            f"Teacher and student must have one shape, found {tuple(teacher.shape)} and "
            f"{tuple(student.shape)}."
        )
    if not 0.0 <= rate <= 1.0:
        raise ValueError(f"The teacher's rate must lie in [0, 1], found {rate}.")
    return torch.lerp(teacher.detach(), student.detach().to(teacher.dtype), rate)


def _lowest(number_N: Tensor, group_N: Tensor, among_N: Tensor) -> Tensor:
    """Lowest trajectory number of each group among some; N where there is none."""
    n = number_N.numel()
    none_G = number_N.new_full((n,), n)
    return none_G.scatter_reduce(0, group_N[among_N], number_N[among_N], "amin")


def _check_alpha(alpha: float) -> None:
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"alpha must lie in [0, 1], found {alpha}.")
