"""SERL: action tokens weighted by what a better informed copy of the policy thinks of them.

    Delta  = sg[ T - S ]                                    per sampled token
    u      = clip( exp( clip(sgn(A) * Delta, -20, 20) ), 1 - eps_w, 1 + eps_w )
    A~     = A * [ (1 - alpha) + alpha * u ]    where response, row and action mask are all 1
    A~     = A                                  on the other response tokens
    L_SERL = PPO-clip(A~) + lambda * alpha / alpha_0 * L_act

S and T are the log-probs of the same token under the current policy with its own prompt, and
under a teacher (a copy of the policy) whose prompt also holds feedback that the policy did not
see. sg[] stops the gradient: A~ is a constant of the policy loss.

The sign of A~ is that of A and |A~ / A - 1| <= alpha * eps_w, so a misleading teacher can only
shift credit between tokens. Where A is 0 nothing happens: a group in which every rollout failed
learns nothing from this term.

Sources: SERL's public code (OliverLeeXZ/SERL) for the reweighting, which is all that it has; its
paper for L_act.

Axis letters: B rows (one reply each), T tokens, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from trainer.auxiliary.divergence import DivergenceKind, masked_divergence
from trainer.objectives.aggregate import Denominators, aggregate, as_mask, check_matrices

ActKind = Literal["pg_rkl", "gap", "k3"]
VocabularyKind = Literal["rkl", "js"]

ACT_KINDS: tuple[ActKind, ...] = ("pg_rkl", "gap", "k3")
VOCABULARY_KINDS: tuple[VocabularyKind, ...] = ("rkl", "js")


@dataclass(frozen=True, slots=True)
class ReweightStats:
    """Sums over one part of a step, so that the parts can be added.

    Attributes (floats, except `alpha` sums):
        alpha: the blend in force.
        rows: rows with at least one response token.
        rows_on: of those, rows with row mask 1.
        rows_without_action: of `rows`, those without an action token (nothing was parsed).
        tokens: response tokens.
        action_tokens: of those, action tokens.
        reweighted: tokens where all three masks are 1; the sums below run over them.
        delta_abs: |Delta|, limited to `delta_clamp`.
        clipped: tokens whose weight the clip changed.
        weight: u.
    """

    alpha: float
    rows: float
    rows_on: float
    rows_without_action: float
    tokens: float
    action_tokens: float
    reweighted: float
    delta_abs: float
    clipped: float
    weight: float

    def __add__(self, other: ReweightStats) -> ReweightStats:
        """Statistics of two disjoint sets of rows of one step.

        Raises:
            ValueError: their alphas differ, so they are of different steps.
        """
        if self.alpha != other.alpha:
            raise ValueError(f"Cannot add statistics of alpha {self.alpha} and {other.alpha}.")
        return ReweightStats(
            self.alpha,
            self.rows + other.rows,
            self.rows_on + other.rows_on,
            self.rows_without_action + other.rows_without_action,
            self.tokens + other.tokens,
            self.action_tokens + other.action_tokens,
            self.reweighted + other.reweighted,
            self.delta_abs + other.delta_abs,
            self.clipped + other.clipped,
            self.weight + other.weight,
        )

    def metrics(self) -> dict[str, float]:
        """alpha, row_coverage, parse_failure, action_token_fraction, and over reweighted tokens
        delta_abs_mean, clipped_fraction, u_mean. Shares of nothing are 0.0.
        """
        rows, tokens = max(self.rows, 1.0), max(self.tokens, 1.0)
        reweighted = max(self.reweighted, 1.0)
        return {
            "alpha": self.alpha,
            "row_coverage": self.rows_on / rows,
            "parse_failure": self.rows_without_action / rows,
            "action_token_fraction": self.action_tokens / tokens,
            "delta_abs_mean": self.delta_abs / reweighted,
            "clipped_fraction": self.clipped / reweighted,
            "u_mean": self.weight / reweighted,
        }


@dataclass(frozen=True, slots=True)
class Reweighted:
    """Result of `reweight_advantages`.

    Attributes:
        adv: (B, T), dtype of the input advantages; exactly 0 outside the response.
        weight: float64 (B, T), u; exactly 1 where a mask is 0. Does not depend on alpha.
        stats: diagnostics.
    """

    adv: Tensor
    weight: Tensor
    stats: ReweightStats


def lam_schedule(step: int, *, lambda0: float = 0.5, decay_steps: int = 50) -> float:
    """alpha_k = lambda0 * max(0, 1 - k / decay_steps).

    Args:
        step: k, finished rollout iterations (not mini-batches or epochs).
        lambda0: alpha_0, in [0, 1].
        decay_steps: K_d; 0 keeps lambda0 for ever.

    Returns:
        The blend of this iteration. At exactly 0 the teacher need not be run.

    Raises:
        ValueError: a negative step or decay_steps, or lambda0 outside [0, 1].
    """
    if step < 0 or decay_steps < 0:
        raise ValueError(
            f"step and decay_steps must not be negative, found {step} and {decay_steps}."
        )
    _check_unit("lambda0", lambda0)
    if decay_steps == 0:
        return lambda0
    return lambda0 * max(0.0, 1.0 - step / decay_steps)


def selected_tokens(
    response_mask_B_T: Tensor, action_mask_B_T: Tensor | None, row_mask_B: Tensor | None
) -> Tensor:
    """Tokens where response, action and row mask are all 1.

    Args:
        response_mask_B_T: bool or 0/1 (B, T), 1 on sampled tokens.
        action_mask_B_T: bool or 0/1 (B, T), 1 on action tokens. None: every token.
        row_mask_B: bool or 0/1 (B,), 1 where the teacher has something to say. None: every row.

    Returns:
        bool (B, T).

    Raises:
        ValueError: shapes differ, or a mask holds other values.
    """
    selected = as_mask(response_mask_B_T)
    if action_mask_B_T is not None:
        check_matrices(response_mask_B_T=response_mask_B_T, action_mask_B_T=action_mask_B_T)
        selected = selected & as_mask(action_mask_B_T)
    if row_mask_B is not None:
        selected = selected & _row_mask(row_mask_B, selected).unsqueeze(-1)
    return selected


def reweight_advantages(
    adv_B_T: Tensor,
    student_B_T: Tensor,
    teacher_B_T: Tensor,
    response_mask_B_T: Tensor,
    action_mask_B_T: Tensor | None = None,
    row_mask_B: Tensor | None = None,
    *,
    alpha: float,
    clip: float = 0.2,
    delta_clamp: float = 20.0,
) -> Reweighted:
    """Token advantages A~ of the formula at the top of this module.

    Computed as A * (1 + alpha * (u - 1)) in float64: with alpha = 0, clip = 0, T = S or an empty
    mask the factor is exactly 1 and the result equals the input bit for bit.

    Args:
        adv_B_T: float (B, T), advantages; sgn is taken of each entry.
        student_B_T: float (B, T), S: log-probs of the *current* policy.
        teacher_B_T: float (B, T), T. Not read outside the selected tokens.
        response_mask_B_T, action_mask_B_T, row_mask_B: see `selected_tokens`.
        alpha: blend in [0, 1], from `lam_schedule`.
        clip: eps_w, in [0, 1).
        delta_clamp: limit of |Delta| before exp.

    Returns:
        Reweighted, detached.

    Raises:
        ValueError: shapes differ, an option is out of range, an advantage of a response token is
            not finite, or Delta of a selected token is NaN (a log-prob is missing).
    """
    check_matrices(
        adv_B_T=adv_B_T,
        student_B_T=student_B_T,
        teacher_B_T=teacher_B_T,
        response_mask_B_T=response_mask_B_T,
    )
    _check_unit("alpha", alpha)
    if not 0.0 <= clip < 1.0:
        raise ValueError(f"clip must be in [0, 1), found {clip}; from 1 on the sign could flip.")
    if not delta_clamp > 0.0:
        raise ValueError(f"delta_clamp must be positive, found {delta_clamp}.")
    response = as_mask(response_mask_B_T)
    on = selected_tokens(response, action_mask_B_T, row_mask_B)
    adv = adv_B_T.detach().masked_fill(~response, 0.0)
    if not bool(torch.isfinite(adv).all()):
        raise ValueError("adv_B_T is NaN or infinite on a response token.")

    student = student_B_T.detach().double().masked_fill(~on, 0.0)
    teacher = teacher_B_T.detach().double().masked_fill(~on, 0.0)
    delta = teacher - student
    if bool(delta.isnan().any()):
        raise ValueError(
            "Delta is NaN on a selected token: a log-prob there is NaN, or both are infinite. Set "
            "row_mask_B to 0 for rows that were not scored."
        )
    delta = delta.clamp(-delta_clamp, delta_clamp)
    raw = (adv.double().sign() * delta).exp()
    weight = raw.clamp(1.0 - clip, 1.0 + clip)
    blended = (adv.double() * (1.0 + alpha * (weight - 1.0))).to(adv.dtype)
    action = response if action_mask_B_T is None else response & as_mask(action_mask_B_T)
    replied_B = response.any(dim=-1)
    on_B = replied_B if row_mask_B is None else replied_B & _row_mask(row_mask_B, response)
    stats = ReweightStats(
        alpha=float(alpha),
        rows=float(replied_B.sum()),
        rows_on=float(on_B.sum()),
        rows_without_action=float((replied_B & ~action.any(dim=-1)).sum()),
        tokens=float(response.sum()),
        action_tokens=float(action.sum()),
        reweighted=float(on.sum()),
        delta_abs=float(delta.abs().sum()),
        clipped=float((on & (weight != raw)).sum()),
        weight=float(weight[on].sum()),
    )
    return Reweighted(torch.where(on, blended, adv), weight, stats)


def act_loss(
    student_B_T: Tensor,
    teacher_B_T: Tensor,
    mask_B_T: Tensor,
    *,
    kind: ActKind = "pg_rkl",
    clamp: float | None = 5.0,
    denominators: Denominators | None = None,
) -> Tensor:
    """L_act from sampled log-probs: mean of d over the mask (action tokens of rows that are on).

    - "pg_rkl": d = sg[S - T] * S. Its value means nothing; its gradient in S is S - T, a sample
      of the gradient of KL(S || T).
    - "gap": d = T - S, gradient -1. The teacher drops out of the gradient, so it is plain
      imitation of the own samples; for comparison.
    - "k3": d = exp(D) - D - 1 with D = T - S limited from above by `clamp`, with zero gradient
      beyond. Without the limit one token at D = 7.9 contributes 2.7e3.

    Args:
        student_B_T: float (B, T), S, with gradient.
        teacher_B_T: float (B, T), T; a constant.
        mask_B_T: bool or 0/1 (B, T), see `selected_tokens`.
        kind: as above.
        clamp: limit of k3 (other kinds ignore it), or None.
        denominators: counts of `mask_B_T` over the whole optimiser step. None: this batch is it.

    Returns:
        Scalar in the dtype of `student_B_T`; the parts of one step add up. Exactly 0 with zero
        gradient for an empty mask.

    Raises:
        ValueError: shapes differ, unknown kind, or clamp is not positive.
    """
    check_matrices(student_B_T=student_B_T, teacher_B_T=teacher_B_T, mask_B_T=mask_B_T)
    if clamp is not None and not clamp > 0.0:
        raise ValueError(f"clamp must be positive (or None), found {clamp}.")
    # Whatever the values hold outside the mask, the fill gives those entries a zero gradient.
    student = student_B_T.masked_fill(~as_mask(mask_B_T), 0.0)
    teacher = teacher_B_T.detach().to(student.dtype)
    if kind == "pg_rkl":
        value = (student - teacher).detach() * student
    elif kind == "gap":
        value = teacher - student
    elif kind == "k3":
        delta = teacher - student
        if clamp is not None:
            delta = delta.clamp(max=clamp)
        value = delta.expm1() - delta
    else:
        raise ValueError(f"Unknown kind {kind!r}; choose one of {ACT_KINDS}.")
    return aggregate(value, mask_B_T, "token-mean", denominators)


def act_vocabulary_loss(
    student_B_T_V: Tensor,
    teacher_B_T_V: Tensor,
    mask_B_T: Tensor,
    *,
    kind: VocabularyKind = "rkl",
    beta: float = 0.5,
    denominators: Denominators | None = None,
) -> Tensor:
    """L_act over the whole vocabulary: mean over the mask of a divergence per position.

    - "rkl": KL(S || T).
    - "js": beta * KL(T || M) + (1 - beta) * KL(S || M) with M = beta * T + (1 - beta) * S, the
      generalised Jensen-Shannon divergence of GKD (arXiv:2306.13649).

    Args:
        student_B_T_V: float (B, T, V), logits or log-probs, with gradient.
        teacher_B_T_V: float (B, T, V), logits or log-probs; a constant.
        mask_B_T: bool or 0/1 (B, T), positions to compare; the others are never read.
        kind: as above.
        beta: weight of the teacher in "js", in (0, 1).
        denominators: counts of `mask_B_T` over the whole optimiser step. None: this batch is it.

    Returns:
        Scalar in the dtype of `student_B_T_V`, float32 at least; the parts of one step add up.
        Exactly 0 with zero gradient for an empty mask.

    Raises:
        ValueError: shapes differ, unknown kind, or beta outside (0, 1) under "js".
    """
    if kind not in VOCABULARY_KINDS:
        raise ValueError(f"Unknown kind {kind!r}; choose one of {VOCABULARY_KINDS}.")
    name: DivergenceKind = "gjs" if kind == "js" else kind
    value = masked_divergence(student_B_T_V, teacher_B_T_V, mask_B_T, kind=name, beta=beta)
    return aggregate(value, mask_B_T, "token-mean", denominators)


def _row_mask(row_mask_B: Tensor, like_B_T: Tensor) -> Tensor:
    """The row mask as bool (B,)."""
    if tuple(row_mask_B.shape) != (like_B_T.shape[0],):
        raise ValueError(
            f"Expected row_mask_B of shape ({like_B_T.shape[0]},), found {tuple(row_mask_B.shape)}."
        )
    return as_mask(row_mask_B[None])[0]


def _check_unit(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must be in [0, 1], found {value}.")
