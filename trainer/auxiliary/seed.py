"""SEED: gated distillation from the policy's own hindsight skills.

After the rollouts the policy reads each finished trajectory and writes a skill
(`trainer.auxiliary.analyser`). The sampled tokens are scored once more under the prompt with that
skill in it, and tokens that the skill makes likelier are reinforced:

    Delta = sg[T - S],   g = sg[sigma(beta * Delta)]
    L_opd = sum m * (g - c) * (sg[T] - S) / sum m          dL/dS = -(g - c) * m / sum m
    L     = L_rl + lambda_opd * L_opd                       beta = 5, lambda_opd = 0.01

S: log-probs under the student's own prompt, T: under the prompt with the skill, m: sampled tokens
of rows whose trajectory has a valid skill, c = 0 in the paper. It is a gate-weighted negative
log-likelihood of the policy's own tokens, not a divergence: T drops out of the gradient and acts
through g alone. A constant gate (beta = 0) therefore has zero expected gradient on policy, and a
constant c leaves the expected gradient as it is and lowers its variance.

Which weights T comes from is the caller's choice, since T is an argument: the weights at rollout
time, scored once an iteration (as public code does), or the current ones (as the paper writes).

Source: SEED (arXiv:2607.14777). Axis letters: B rows (turns), T tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from trainer.objectives.aggregate import (
    Aggregation,
    Denominators,
    aggregate,
    as_mask,
    check_matrices,
)

GateCenter = Literal["none", "half", "mean"]

GATE_CENTERS = ("none", "half", "mean")
BETA = 5.0
COEFFICIENT = 0.01
SATURATION = 0.01


@dataclass(frozen=True, slots=True)
class GateStats:
    """Sums over tokens, so that the parts of a step can be added.

    Attributes (float64 scalars, detached):
        tokens: tokens counted.
        gate: sum of g, before any centring.
        active: tokens with g > 0.5, i.e. with a positive gap.
        saturated: tokens with g < 0.01 or g > 0.99, where the gate no longer tells gaps apart.
        gap, abs_gap: sums of Delta and of |Delta|.
    """

    tokens: Tensor
    gate: Tensor
    active: Tensor
    saturated: Tensor
    gap: Tensor
    abs_gap: Tensor

    def __add__(self, other: GateStats) -> GateStats:
        """Statistics of two disjoint sets of tokens."""
        return GateStats(
            self.tokens + other.tokens,
            self.gate + other.gate,
            self.active + other.active,
            self.saturated + other.saturated,
            self.gap + other.gap,
            self.abs_gap + other.abs_gap,
        )

    def metrics(self) -> dict[str, float]:
        """Means over tokens: gate_mean, gate_active, gate_saturated, gap_mean, gap_abs_mean.

        0.0 without tokens.
        """
        tokens = max(float(self.tokens), 1.0)
        return {
            "gate_mean": float(self.gate) / tokens,
            "gate_active": float(self.active) / tokens,
            "gate_saturated": float(self.saturated) / tokens,
            "gap_mean": float(self.gap) / tokens,
            "gap_abs_mean": float(self.abs_gap) / tokens,
        }


def distillation_gate(student_B_T: Tensor, teacher_B_T: Tensor, *, beta: float = BETA) -> Tensor:
    """g = sigma(beta * (T - S)), a constant.

    Args:
        student_B_T: float (B, T), S.
        teacher_B_T: float (B, T), T.
        beta: steepness, finite and not negative; 0 gives 0.5 everywhere.

    Returns:
        (B, T) in [0, 1], dtype of `student_B_T`, detached.
    """
    check_matrices(student_B_T=student_B_T, teacher_B_T=teacher_B_T)
    check_beta(beta)
    student = student_B_T.detach()
    return torch.sigmoid(beta * (teacher_B_T.detach().to(student.dtype) - student))


def check_beta(beta: float) -> None:
    """Raise ValueError unless the gate's steepness is finite and not negative."""
    if not (math.isfinite(beta) and beta >= 0.0):
        raise ValueError(f"beta must be finite and >= 0, found {beta}.")


def gated_loss(
    student_B_T: Tensor,
    teacher_B_T: Tensor,
    gate_B_T: Tensor,
    mask_B_T: Tensor,
    *,
    gate_center: GateCenter = "none",
    gate_mean: float | None = None,
    aggregation: Aggregation = "token-mean",
    denominators: Denominators | None = None,
) -> tuple[Tensor, GateStats]:
    """The loss under any gate: SEED and SDAR share it.

        L = aggregate(m * (sg[g] - c) * (sg[T] - S))

    With `gate_center="none"` and the token mean every entry of the gradient lies in
    [-1 / sum m, 0]: the loss can only raise S.

    Args:
        student_B_T: float (B, T), S, with gradient.
        teacher_B_T: float (B, T), T; a constant.
        gate_B_T: float (B, T), g; a constant.
        mask_B_T: bool or 0/1 (B, T), m.
        gate_center: c. "none": 0 (the paper). "half": 1/2. "mean": mean of g over the masked
            tokens of the whole optimiser step; equally likely tokens then cancel out.
        gate_mean: that mean. Needed with "mean" when `denominators` counts more tokens than this
            batch has, for one micro-batch does not know the gates of the others.
        aggregation, denominators: see `trainer.objectives.aggregate`. None: this batch is the
            whole step.

    Returns:
        Scalar loss in the dtype of `student_B_T`, before its coefficient, and the statistics.
        The parts of one step add up. Exactly 0 with exactly zero gradient for an empty mask.
        Where g - c is 0 a teacher of -inf (a token it rules out) gives 0, the limit.

    Raises:
        ValueError: shapes differ, unknown option, `gate_mean` missing or without use.
    """
    check_matrices(
        student_B_T=student_B_T, teacher_B_T=teacher_B_T, gate_B_T=gate_B_T, mask_B_T=mask_B_T
    )
    if gate_center not in GATE_CENTERS:
        raise ValueError(f"Unknown gate_center {gate_center!r}; choose one of {GATE_CENTERS}.")
    if gate_mean is not None and gate_center != "mean":
        raise ValueError(f"gate_mean has no use with gate_center={gate_center!r}; leave it out.")
    outside = ~as_mask(mask_B_T)
    # Masked entries become S = T first, so nothing they hold can reach a product.
    student = student_B_T.masked_fill(outside, 0.0)
    teacher = teacher_B_T.detach().to(student.dtype).masked_fill(outside, 0.0)
    gate = gate_B_T.detach().to(student.dtype).masked_fill(outside, 0.0)
    stats = _stats(student.detach(), teacher, gate, ~outside)

    if gate_center == "half":
        weight = gate - 0.5
    elif gate_center == "mean":
        weight = gate - _gate_mean(gate_mean, stats, denominators)
    else:
        weight = gate
    teacher = torch.where(weight == 0, student.detach(), teacher)
    loss = aggregate(weight * (teacher - student), mask_B_T, aggregation, denominators)
    return loss, stats


def seed_opd_loss(
    student_B_T: Tensor,
    teacher_B_T: Tensor,
    mask_B_T: Tensor,
    *,
    beta: float = BETA,
    gate_center: GateCenter = "none",
    gate_mean: float | None = None,
    aggregation: Aggregation = "token-mean",
    denominators: Denominators | None = None,
) -> tuple[Tensor, GateStats]:
    """L_opd of one (micro-)batch; the module's docstring gives the formula.

    Args:
        student_B_T: float (B, T), S under the current policy, with gradient.
        teacher_B_T: float (B, T), T under the prompt with the skill; a constant.
        mask_B_T: bool or 0/1 (B, T), from `opd_mask`.
        beta: steepness of the gate.
        gate_center, gate_mean, aggregation, denominators: see `gated_loss`.

    Returns:
        Loss before its coefficient, and statistics; see `gated_loss`.
    """
    gate = distillation_gate(student_B_T, teacher_B_T, beta=beta)
    return gated_loss(
        student_B_T,
        teacher_B_T,
        gate,
        mask_B_T,
        gate_center=gate_center,
        gate_mean=gate_mean,
        aggregation=aggregation,
        denominators=denominators,
    )


def opd_mask(
    response_mask_B_T: Tensor, row_B: Tensor, token_mask_B_T: Tensor | None = None
) -> Tensor:
    """m: sampled tokens of rows that take part.

    Args:
        response_mask_B_T: bool or 0/1 (B, T), 1 on every sampled token, thoughts included.
        row_B: bool or 0/1 (B,), from `opd_rows`.
        token_mask_B_T: bool or 0/1 (B, T), a further restriction, e.g. to command tokens.

    Returns:
        bool (B, T).
    """
    mask = as_mask(response_mask_B_T) & _rows(response_mask_B_T.shape[0], row_B=row_B)[0][:, None]
    if token_mask_B_T is None:
        return mask
    check_matrices(response_mask_B_T=response_mask_B_T, token_mask_B_T=token_mask_B_T)
    return mask & as_mask(token_mask_B_T)


def opd_rows(
    step: int,
    skill_B: Tensor,
    success_B: Tensor,
    *,
    start_after: int = 0,
    stop_after: int | None = None,
    failed_only: bool = False,
) -> Tensor:
    """Rows that take part at one update: start_after <= step < stop_after, skill valid.

    Args:
        step: completed optimiser iterations, 0 at the first.
        skill_B: bool or 0/1 (B,), whether the row's trajectory has a valid skill.
        success_B: bool or 0/1 (B,), whether it solved the task.
        start_after: iterations without this loss at the beginning.
        stop_after: iteration from which it is off again. None: never.
        failed_only: leave out successful trajectories.

    Returns:
        bool (B,); all False outside the window, where no teacher forward is needed.

    Raises:
        ValueError: shapes differ, or a number is negative or the window is empty.
    """
    if step < 0 or start_after < 0:
        raise ValueError(f"step and start_after must be >= 0, found {step} and {start_after}.")
    if stop_after is not None and stop_after <= start_after:
        raise ValueError(
            f"The window is empty: start_after={start_after}, stop_after={stop_after}. Set "
            "stop_after above start_after, or None."
        )
    skill, success = _rows(skill_B.shape[0], skill_B=skill_B, success_B=success_B)
    if step < start_after or (stop_after is not None and step >= stop_after):
        return torch.zeros_like(skill)
    return skill & ~success if failed_only else skill.clone()


def gate_report(
    student_B_T: Tensor,
    teacher_B_T: Tensor,
    mask_B_T: Tensor,
    success_B: Tensor,
    command_mask_B_T: Tensor,
    *,
    beta: float = BETA,
) -> dict[str, GateStats]:
    """Gate and gap by outcome and by kind of token.

    Run it a second time on a teacher that was given another trajectory's skill
    (`trainer.auxiliary.skills.other_skill`): a gap that stays is an effect of any text at all, not
    of what the skill says.

    Args:
        student_B_T, teacher_B_T: float (B, T), S and T.
        mask_B_T: bool or 0/1 (B, T), m.
        success_B: bool or 0/1 (B,), outcome of each row's trajectory.
        command_mask_B_T: bool or 0/1 (B, T), tokens of the executed command.
        beta: steepness of the gate.

    Returns:
        Statistics under "all", "success", "failure", "command" and "think" (sampled tokens
        outside the command). Those of two micro-batches add up key by key.
    """
    gate = distillation_gate(student_B_T, teacher_B_T, beta=beta)
    check_matrices(student_B_T=student_B_T, mask_B_T=mask_B_T, command_mask_B_T=command_mask_B_T)
    mask, command = as_mask(mask_B_T), as_mask(command_mask_B_T)
    success = _rows(mask.shape[0], success_B=success_B)[0][:, None]
    parts = {
        "all": mask,
        "success": mask & success,
        "failure": mask & ~success,
        "command": mask & command,
        "think": mask & ~command,
    }
    student, teacher = student_B_T.detach(), teacher_B_T.detach().to(student_B_T.dtype)
    return {name: _stats(student, teacher, gate, part) for name, part in parts.items()}


def _stats(student: Tensor, teacher: Tensor, gate: Tensor, mask: Tensor) -> GateStats:
    gap = (teacher - student).masked_fill(~mask, 0.0).double()
    saturated = mask & ((gate < SATURATION) | (gate > 1.0 - SATURATION))
    return GateStats(
        tokens=mask.sum().double(),
        gate=gate.masked_fill(~mask, 0.0).double().sum(),
        active=(mask & (gate > 0.5)).sum().double(),
        saturated=saturated.sum().double(),
        gap=gap.sum(),
        abs_gap=gap.abs().sum(),
    )


def _gate_mean(
    given: float | None, stats: GateStats, denominators: Denominators | None
) -> float | Tensor:
    if given is not None:
        if not 0.0 <= given <= 1.0:
            raise ValueError(f"gate_mean is a mean of gates, so in [0, 1]; found {given}.")
        return given
    if denominators is not None and denominators.tokens != int(stats.tokens):
        raise ValueError(
            f"gate_center='mean' on {int(stats.tokens)} of {denominators.tokens} tokens needs "
            "gate_mean, the mean over the whole step: add up the GateStats of its parts first."
        )
    return float(stats.gate) / max(float(stats.tokens), 1.0)


def _rows(n_rows: int, **rows: Tensor) -> list[Tensor]:
    found = {name: tuple(value.shape) for name, value in rows.items()}
    if any(shape != (n_rows,) for shape in found.values()):
        raise ValueError(f"Expected one value per row, ({n_rows},), found {found}.")
    return [as_mask(value.unsqueeze(-1)).squeeze(-1) for value in rows.values()]
