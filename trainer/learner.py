"""Learning from one iteration's turns and branches: advantages, losses, optimiser steps.

Promises (tests/trainer/test_learner.py, test_sero_promises.py):

1. The auxiliary objective touches neither advantages nor ratios nor KL. With weight 0, or
   without a root, the parameters after a step are those of the base objective alone, bit for bit.
2. An iteration takes `optim.steps` optimiser steps per epoch: turns are shuffled and cut into as
   many parts, roots likewise, and every part is normalised by its own counts.
3. A step with nothing to learn from is skipped and counted, also where every advantage is 0:
   otherwise momentum and weight decay would move the policy for no reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from trainer import rng
from trainer.auxiliary.format_control import format_row_coefficients
from trainer.batch import advantages, partition, trained_turns
from trainer.config import Config
from trainer.data import Segment, Turn, make_segment, segments_from_turns
from trainer.metrics import Phases, mean_or_none
from trainer.optim import StepResult, build_optimizer, optimiser_step
from trainer.rollout import Student
from trainer.rollout_metrics import step_metrics
from trainer.update import (
    AuxiliaryRow,
    BaseStep,
    LossStats,
    auxiliary_backward,
    base_backward,
    contributing,
    score_segments,
)

__all__ = ["Counters", "Learner"]


@dataclass(slots=True)
class Counters:
    """Running totals; part of the checkpoint."""

    optimizer_steps: int = 0
    skipped_steps: int = 0
    nonfinite_steps: int = 0


class Learner:
    """The policy with its optimiser.

    Args:
        reference: frozen policy for the KL term; needed if `objective.kl_coef` > 0.
    """

    def __init__(
        self,
        config: Config,
        model: nn.Module,
        student: Student,
        reference: nn.Module | None = None,
    ) -> None:
        if reference is None and config.objective.kl_coef > 0:
            raise ValueError("objective.kl_coef > 0 needs a reference model.")
        self.config = config
        self.model = model
        self.student = student
        self.reference = reference
        self.optimizer = build_optimizer(model, config.optim)
        self.counters = Counters()

    def learn(
        self, iteration: int, turns: Sequence[Turn], roots: Sequence[Any], phases: Phases
    ) -> dict[str, Any]:
        """All optimiser steps of one iteration; returns their metrics.

        Args:
            turns: of all groups; turns read from a file serve as well.
            roots: scored branches (`trainer.branching.GrownRoot`); empty without SERO.
        """
        c = self.config
        with phases("advantages"):
            adv_M = self.advantages(turns)
        with phases("scoring"):
            segments = self.segments(turns)
            reference = self.reference_logprobs(segments)
        stats = LossStats()
        results: list[StepResult] = []
        auxiliary_losses: list[float] = []
        before = replace(self.counters)
        # Not in train mode: dropout would move ratios off 1 and draw from the global random state.
        self.model.eval()
        with phases("update"):
            for epoch in range(c.optim.epochs):
                parts = self._partition(len(turns), iteration, epoch, rng.SHUFFLE)
                root_parts = self._partition(len(roots), iteration, epoch, "root-shuffle")
                for part, root_part in zip(parts, root_parts, strict=True):
                    base = BaseStep(
                        [segments[i] for i in part],
                        adv_M,
                        None if reference is None else [reference[i] for i in part],
                    )
                    rows = self.auxiliary_rows(
                        [turns[i] for i in part], [roots[i] for i in root_part]
                    )
                    results.append(self.step(base, rows, stats, auxiliary_losses))
        losses = {**stats.metrics(), "loss/auxiliary": mean_or_none(auxiliary_losses)}
        return {
            # A step that is not finite is refused and counted; its loss has no value to log.
            **{k: v if v is None or math.isfinite(v) else None for k, v in losses.items()},
            **step_metrics(results),
            "advantage_abs_mean": mean_or_none(adv_M.abs().tolist()),
            "optimizer_steps": self.counters.optimizer_steps,
            "skipped_steps": self.counters.skipped_steps,
            "skipped_now": self.counters.skipped_steps - before.skipped_steps,
            "nonfinite_steps": self.counters.nonfinite_steps,
        }

    def advantages(self, turns: Sequence[Turn]) -> Tensor:
        """float64 (M,): the base objective's, or zeros where rewards are switched off."""
        if not self.config.base_active:
            return torch.zeros(len(turns), dtype=torch.float64)
        return advantages(turns, self.config.objective, self.config.rollout)

    def segments(self, turns: Sequence[Turn]) -> list[Segment]:
        """One segment per turn, in order; turns that are left out get an empty mask."""
        keep = trained_turns(turns, self.config.objective)
        segments = [
            segment if kept else _untrained(segment)
            for segment, kept in zip(segments_from_turns(turns), keep, strict=True)
        ]
        if self.config.optim.old_logprobs == "sampler":
            return segments
        scored = self._score(self.model, segments)
        return [_with_logprobs(s, v.tolist()) for s, v in zip(segments, scored, strict=True)]

    def reference_logprobs(self, segments: Sequence[Segment]) -> list[Tensor] | None:
        """Reference log-probs at each segment's own temperature; None where KL is off."""
        if self.reference is None or self.config.objective.kl_coef == 0:
            return None
        return self._score(self.reference, segments) if self.config.base_active else None

    def auxiliary_rows(self, turns: Sequence[Turn], roots: Sequence[Any]) -> list[AuxiliaryRow]:
        """Rows of one optimiser step, from its own turns and roots."""
        c = self.config.auxiliary
        if c.name == "sero":
            from trainer.branching import step_rows

            return step_rows(roots, c)
        return self._format_rows(turns) if c.name == "format_only" else []

    def step(
        self,
        base: BaseStep,
        rows: Sequence[AuxiliaryRow],
        stats: LossStats,
        auxiliary_losses: list[float],
    ) -> StepResult:
        """One optimiser step on one part of the turns and one part of the roots."""
        c = self.config
        limits: Any = {
            "micro_batch_tokens": c.optim.micro_batch_tokens,
            "pad_id": self.student.pad_id,
            "bf16": c.run.dtype == "bfloat16",
        }

        def base_pass() -> None:
            length = c.rollout.max_new_tokens
            base_backward(self.model, base, c.objective, length=length, stats=stats, **limits)

        def auxiliary_pass() -> None:
            loss = auxiliary_backward(self.model, rows, c.auxiliary.weight, **limits)
            auxiliary_losses.append(loss)

        use_base = self.config.base_active and bool(contributing(base, c.objective))
        result = optimiser_step(
            self.model,
            self.optimizer,
            c.optim,
            self.counters.optimizer_steps,
            base_pass if use_base else None,
            auxiliary_pass if rows and c.auxiliary.weight > 0 else None,
            measure=c.auxiliary.measure_gradients,
        )
        if result.stepped:
            self.counters.optimizer_steps += 1
        elif result.finite:
            self.counters.skipped_steps += 1
        else:
            self.counters.nonfinite_steps += 1
        return result

    def _format_rows(self, turns: Sequence[Turn]) -> list[AuxiliaryRow]:
        """Format tokens (all but the command) of the step's own well-formed replies."""
        segments = []
        for turn in turns:
            if turn.format_valid:
                command = self.student.command_mask(turn.response_ids)
                mask = [not inside for inside in command]
                segments.append(make_segment(turn.prompt_ids, turn.response_ids, mask=mask))
        counts = [segment.trained for segment in segments]
        coefficients = format_row_coefficients(counts, n_rows=sum(n > 0 for n in counts))
        return [
            AuxiliaryRow(segment, coefficient)
            for segment, coefficient in zip(segments, coefficients, strict=True)
            if coefficient > 0.0
        ]

    def _partition(self, n: int, iteration: int, epoch: int, purpose: str) -> list[list[int]]:
        stream = rng.stream(self.config.run.seed, iteration, epoch, purpose=purpose)
        return partition(n, self.config.optim.steps, stream)

    def _score(self, model: nn.Module, segments: Sequence[Segment]) -> list[Tensor]:
        c = self.config
        bf16 = c.run.dtype == "bfloat16"
        return score_segments(
            model, segments, c.optim.micro_batch_tokens, self.student.pad_id, bf16
        )


def _untrained(segment: Segment) -> Segment:
    size = len(segment.ids)
    return replace(
        segment, loss_mask=(False,) * size, token_turn=(-1,) * size, logprobs=(0.0,) * size
    )


def _with_logprobs(segment: Segment, values: Sequence[float]) -> Segment:
    fresh = iter(values)
    return replace(
        segment, logprobs=tuple(next(fresh) if keep else 0.0 for keep in segment.loss_mask)
    )
