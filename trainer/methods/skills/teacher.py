"""What the methods with skills share: the skilled policy's view of the policy's own tokens.

`prepare` builds prompts with skills and scores the sampled replies behind them under the frozen
weights; a `TokenTerm` then adds the loss in the base's forward pass. Teachers' log-probs, gates and
weights are constants.

Axis letters: M turns, B rows of a micro-batch, T tokens, R trained tokens of one turn.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trainer.auxiliary.sdar import GateKind, sdar_gate, sdar_loss
from trainer.auxiliary.seed import BETA, GateStats, gate_report, gated_loss
from trainer.learning.update import pad_like, passes, precision, score_segments
from trainer.methods.privileged import TeacherPrompt, rescored
from trainer.methods.protocol import Method, PassLimits, Rollouts, Setup, Step, TokenTerm
from trainer.metrics import mean_or_none
from trainer.models.policy import (
    SegmentBatch,
    evaluation_mode,
    pad_rows,
    token_logprobs,
)
from trainer.objectives import Denominators
from trainer.rollouts.data import Segment

__all__ = [
    "Distilled",
    "Gated",
    "Part",
    "behaviour_of",
    "entropies",
    "gap_figures",
    "padded",
    "scored",
    "teacher_rows",
    "truncated_share",
]

Rows = Mapping[int, Tensor]
"""Turn index to a value a trained token, (R,)."""


def teacher_rows(rollouts: Rollouts, prompts: Sequence[TeacherPrompt]) -> dict[int, Segment]:
    """Own replies behind the teacher's prompts, of trained turns that have such a prompt."""
    return {
        m: rescored(turn, prompt, m)
        for m, (turn, prompt) in enumerate(zip(rollouts.turns, prompts, strict=True))
        if prompt.on and rollouts.segments[m].trained
    }


def truncated_share(rollouts: Rollouts, prompts: Sequence[TeacherPrompt]) -> float | None:
    """Of the trained turns that have a skill, those whose prompt with it is too long."""
    rows = zip(prompts, rollouts.segments, strict=True)
    told = [
        prompt for prompt, segment in rows if segment.trained and (prompt.on or prompt.truncated)
    ]
    return mean_or_none(float(prompt.truncated) for prompt in told)


def scored(
    model: nn.Module, segments: Mapping[int, Segment], limits: PassLimits
) -> dict[int, Tensor]:
    """Log-probs (R,) of each segment's trained tokens, without gradient."""
    found = score_segments(model, list(segments.values()), limits)
    return dict(zip(segments, found, strict=True))


def entropies(
    model: nn.Module, segments: Mapping[int, Segment], limits: PassLimits
) -> dict[int, Tensor]:
    """Entropy (R,) at each trained token over its maximum, the log of the vocabulary's size."""
    device = next(model.parameters()).device
    head: Any = model.get_output_embeddings()  # type: ignore[operator]
    highest = math.log(head.weight.shape[0])
    turns, rows = list(segments), list(segments.values())
    result: dict[int, Tensor] = {}
    with evaluation_mode(model), torch.no_grad():
        for micro, batch in passes(model, rows, limits):
            with precision(device, limits.bf16):
                entropy = token_logprobs(model, batch, entropy=True).entropy
            assert entropy is not None
            shares = (entropy / highest).cpu()
            for row, i in enumerate(micro):
                result[turns[i]] = shares[row, : rows[i].trained].clone()
    return result


def behaviour_of(segment: Segment) -> Tensor:
    """O: log-probs (R,) of the trained tokens when they were sampled."""
    kept = [x for x, keep in zip(segment.logprobs, segment.loss_mask, strict=True) if keep]
    return torch.tensor(kept, dtype=torch.float64)


def gap_figures(
    setup: Setup,
    rollouts: Rollouts,
    teacher: Rows,
    masks: Rows,
    *,
    beta: float = BETA,
) -> dict[str, float | None]:
    """Gap T - O and SEED's gate over the teacher's rows, as they stood at the rollouts.

    Args:
        masks: which tokens count.

    Returns:
        gate_mean, gate_active, gate_saturated, gap_mean, gap_abs_mean, and the mean gap by outcome
        (gap_success, gap_failure) and kind of token (gap_command, gap_think). None without tokens.
    """
    names = ("all", "success", "failure", "command", "think")
    reports: dict[str, GateStats] = {}
    if teacher:
        student_M_T = padded(behaviour_of(rollouts.segments[m]) for m in teacher)
        teacher_M_T = padded(teacher.values())
        mask_M_T = padded(masks[m] for m in teacher).bool()
        won = {(turn.uid, turn.tid) for turn in rollouts.turns if turn.success}
        turns = [rollouts.turns[m] for m in teacher]
        known: dict[tuple[int, ...], Tensor] = {}  # a small policy repeats itself
        for turn in turns:
            if turn.response_ids not in known:
                command = setup.student.command_mask(turn.response_ids)
                known[turn.response_ids] = torch.tensor(command)
        reports = gate_report(
            student_M_T,
            teacher_M_T,
            mask_M_T,
            torch.tensor([(turn.uid, turn.tid) in won for turn in turns]),
            padded(known[turn.response_ids] for turn in turns).bool(),
            beta=beta,
        )
    means = {
        name: reports[name].metrics() if name in reports and reports[name].tokens > 0 else {}
        for name in names
    }
    whole = ("gate_mean", "gate_active", "gate_saturated", "gap_mean", "gap_abs_mean")
    return {
        **{key: means["all"].get(key) for key in whole},
        **{f"gap_{name}": means[name].get("gap_mean") for name in names[1:]},
    }


def padded(rows: Iterable[Tensor], width: int | None = None) -> Tensor:
    """Rows (R,) as float64 (M, T), filled with 0; T is `width` or the longest row."""
    return pad_rows([row.tolist() for row in rows], torch.float64, width=width)


class Distilled(Method, ABC):
    """A loss on the policy's own tokens that a teacher with skills has scored."""

    beta = BETA

    def __init__(self, setup: Setup, section: Any) -> None:
        super().__init__(setup, section)
        self.limits = PassLimits.of(setup.config, setup.student)
        self._model: nn.Module | None = None
        self._rollouts = Rollouts(0, (), ())
        self._segments: dict[int, Segment] = {}
        self._masks: dict[int, Tensor] = {}
        self._frozen: dict[int, Tensor] = {}
        self._truncated: float | None = None
        self._figures: dict[str, float | None] = {}
        self._terms: list[_Term] = []

    @abstractmethod
    def prompts(self, rollouts: Rollouts, model: nn.Module) -> Sequence[TeacherPrompt]:
        """The teacher's prompt of every turn."""

    def token_mask(self, turn: int) -> Tensor:
        """Which tokens of a turn's reply take part, bool (R,)."""
        return torch.ones(len(self._rollouts.turns[turn].response_ids), dtype=torch.bool)

    def loss(
        self, student_B_T: Tensor, teacher_B_T: Tensor, mask_B_T: Tensor, part: Part
    ) -> Tensor:
        """The loss of a micro-batch, before its weight."""
        raise NotImplementedError(f"{self.name} has no loss of its own.")

    def prepare(self, rollouts: Rollouts, model: nn.Module) -> None:
        # The trained module itself, to be asked again before a step; its values are not kept.
        self._model, self._rollouts, self._terms = model, rollouts, []
        prompts = self.prompts(rollouts, model)
        found = teacher_rows(rollouts, prompts)
        self._truncated = truncated_share(rollouts, prompts)
        masks = {m: self.token_mask(m) for m in found}
        self._masks = {m: mask for m, mask in masks.items() if bool(mask.any())}
        self._segments = {m: found[m] for m in self._masks}
        self._frozen = scored(model, self._segments, self.limits)
        self._figures = self.figures(rollouts, model)

    def figures(self, rollouts: Rollouts, model: nn.Module) -> dict[str, float | None]:
        """What is measured under the weights of the rollouts."""
        trained = sum(segment.trained > 0 for segment in rollouts.segments)
        return {
            "rows_on": len(self._segments) / trained if trained else None,
            "truncated_share": self._truncated,
            **gap_figures(self.setup, rollouts, self._frozen, self._masks, beta=self.beta),
        }

    def token_term(self, step: Step) -> TokenTerm | None:
        rows = [m for m in step.turns if m in self._segments]
        if self.weight == 0.0 or not rows:
            return None
        teacher: Rows = self._frozen
        if self.section.teacher == "current":
            assert self._model is not None
            teacher = scored(self._model, {m: self._segments[m] for m in rows}, self.limits)
        sizes = [int(self._masks[m].sum()) for m in rows]
        term = _Term(self, rows, teacher, Denominators(sum(sizes), len(sizes)))
        self._terms.append(term)
        return term

    def extra(self, rows: Sequence[int], teacher: Rows) -> Any:
        """What `loss` needs besides, once a step: under the weights before it."""
        return None

    def metrics(self) -> Mapping[str, Any]:
        totals = [term.total for term in self._terms]
        loss = math.fsum(totals) / len(totals) if totals else None
        finite = loss if loss is None or math.isfinite(loss) else None
        figures = {"loss": finite, **self._figures}
        return {f"{self.name}/{key}": value for key, value in figures.items()}


class Part:
    """One micro-batch of a step: its batch, the turns of its rows, the step's counts and extras."""

    def __init__(
        self, batch: SegmentBatch, turns_B: Sequence[int], counts: Denominators, extra: Any
    ) -> None:
        self.batch = batch
        self.turns_B = turns_B
        self.counts = counts
        self.extra = extra

    def padded(self, rows: Rows, like_B_T: Tensor) -> Tensor:
        """Values of turns as (B, T); 0 for turns that have none."""
        empty = torch.empty(0)
        return pad_like([rows.get(m, empty) for m in self.turns_B], like_B_T)


class _Term(TokenTerm):
    """The loss of one optimiser step; the counts are those of the whole step."""

    def __init__(
        self, method: Distilled, rows: Sequence[int], teacher: Rows, counts: Denominators
    ) -> None:
        self.method = method
        self.rows = frozenset(rows)
        self.teacher = teacher
        self.counts = counts
        self.extra = method.extra(rows, teacher)
        self.total = 0.0

    def needs(self, turn: int) -> bool:
        return turn in self.rows

    def loss(self, new_B_T: Tensor, batch: SegmentBatch, turns_B: Sequence[int]) -> Tensor | None:
        if not self.rows.intersection(turns_B):
            return None
        part = Part(batch, turns_B, self.counts, self.extra)
        # Rows outside the term have no mask, and so no part in anything.
        mask_B_T = part.padded(self.method._masks, new_B_T).bool()
        loss = self.method.loss(new_B_T, part.padded(self.teacher, new_B_T), mask_B_T, part)
        self.total += float(loss.detach())
        return self.method.weight * loss


class Gated(Distilled):
    """Distillation under a gate: SEED and SDAR share SDAR's form, of which SEED's is one case."""

    kind: GateKind = "gap"

    def loss(
        self, student_B_T: Tensor, teacher_B_T: Tensor, mask_B_T: Tensor, part: Part
    ) -> Tensor:
        entropy, gate_mean = part.extra
        return sdar_loss(
            student_B_T,
            teacher_B_T,
            mask_B_T,
            gate=self.kind,
            entropy_B_T=part.padded(entropy, student_B_T) if entropy else None,
            beta=self.beta,
            gate_center=self.section.gate_center,
            gate_mean=gate_mean,
            denominators=part.counts,
        )[0]

    def extra(self, rows: Sequence[int], teacher: Rows) -> tuple[Rows, float | None]:
        """Entropies where the gate needs them, and the step's mean gate where it is the centre."""
        assert self._model is not None
        own = {m: self._rollouts.segments[m] for m in rows}
        entropy = {} if self.kind == "gap" else entropies(self._model, own, self.limits)
        if self.section.gate_center != "mean":
            return entropy, None
        student = scored(self._model, own, self.limits)
        return entropy, self.gate_stats(student, teacher, entropy)["gate_mean"]

    def gate_stats(self, student: Rows, teacher: Rows, entropy: Rows) -> dict[str, float]:
        """Statistics of the gate over the tokens of the student's rows that take part."""
        student_M_T, teacher_M_T, mask_M_T = (
            padded(rows[m] for m in student) for rows in (student, teacher, self._masks)
        )
        gate_M_T = sdar_gate(
            student_M_T,
            teacher_M_T,
            mask_M_T,
            kind=self.kind,
            entropy_B_T=padded(entropy[m] for m in student) if entropy else None,
            beta=self.beta,
        )
        return gated_loss(student_M_T, teacher_M_T, gate_M_T, mask_M_T)[1].metrics()
