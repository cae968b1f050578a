"""OPD in a run: a teacher scores what the policy sampled, in one of three forms.

- "loss": the sampled reverse KL as a loss in the base's forward pass.
- "advantage": the same as advantages of the base's policy loss, in place of its own or on top.
- "exact": a divergence over the vocabulary, in a pass of its own.

The teacher reads the student's own prompt. See `trainer.auxiliary.distill` for the formulas and
`trainer.auxiliary.depth_schedule` for TCOD, which distils a growing part of each trajectory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trainer.auxiliary.depth_schedule import depth_mask, max_depth
from trainer.auxiliary.distill import opd_advantages, opd_loss, vopd_baseline
from trainer.config.auxiliary.distillation import DepthConfig
from trainer.methods.distillation.base import Distiller, SampledTerm, divergence_loss, padded
from trainer.methods.distillation.distributions import Distributions, Pair, distribution_values
from trainer.methods.distillation.outside_teacher import teacher_of
from trainer.methods.protocol import Rollouts, Setup, Step, TokenTerm
from trainer.models.policy import SegmentBatch
from trainer.objectives import Denominators
from trainer.rollouts.data import Turn

__all__ = ["Opd", "within_depth"]


class Opd(Distiller):
    """See the top of this module."""

    name = "opd"

    def __init__(self, setup: Setup, section: Any) -> None:
        teacher = teacher_of(setup, section.teacher, "auxiliary.opd.teacher")
        super().__init__(setup, section, teacher)
        self.depth: int | None = None
        self.share: float | None = None
        self.baselines: dict[int, Tensor] = {}

    def prepare(self, rollouts: Rollouts, model: nn.Module) -> None:
        section, turns = self.section, rollouts.turns
        chosen: Sequence[bool] = [True] * len(turns)
        if section.depth is not None:
            self.depth = depth_at(section.depth, rollouts.iteration, self.setup)
            chosen = within_depth(turns, self.depth, section.depth.direction)
        self.share = sum(chosen) / len(turns) if turns else None
        self.begin(
            {
                turn: Pair(segment, segment)
                for turn, (segment, on) in enumerate(zip(rollouts.segments, chosen, strict=True))
                if on
            }
        )
        self.baselines = {}
        if section.form != "exact" or self.weight == 0:
            self.score(model)
        if section.baseline and self.weight > 0:
            pairs = list(self.pairs.values())
            teacher = self.teacher.of(model)
            found = distribution_values(model, teacher, pairs, _baseline, self.limits)
            self.baselines = dict(zip(self.pairs, found, strict=True))

    def shaped(self, advantages: Sequence[Tensor]) -> Sequence[Tensor]:
        section = self.section
        on = section.form == "advantage" and self.weight > 0 and bool(self.pairs)
        if not on or section.combine == "add":
            return advantages
        return [torch.zeros_like(row) for row in advantages]

    def token_term(self, step: Step) -> TokenTerm | None:
        sampled = self.section.form != "exact" and self.weight > 0
        if not sampled or not self.step_pairs(step):
            return None
        kind = _LossTerm if self.section.form == "loss" else _AdvantageTerm
        return kind(step, self)

    def has_pass(self, step: Step) -> bool:
        return self.section.form == "exact" and super().has_pass(step)

    def loss(self, found: Distributions, counts: Denominators) -> Tensor:
        return divergence_loss(found, counts, self.section)

    def metrics(self) -> Mapping[str, Any]:
        """Share of turns within the depth, and the sampled reverse KL."""
        return {
            "opd/turn_share": self.share,
            "opd/depth": self.depth,
            "opd/gap_mean": self.gap_mean(),
        }


class _Term(SampledTerm):
    def __init__(self, step: Step, method: Opd) -> None:
        super().__init__(step, method)
        self.baselines = method.baselines

    def given(
        self, new_B_T: Tensor, batch: SegmentBatch, turns_B: Sequence[int]
    ) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
        """Student, teacher and mask; and the baseline."""
        own = new_B_T, self.teacher(new_B_T, turns_B), self.mask(batch, turns_B)
        return own, padded(self.baselines, new_B_T, turns_B)


class _LossTerm(_Term):
    def loss(self, new_B_T: Tensor, batch: SegmentBatch, turns_B: Sequence[int]) -> Tensor:
        own, baseline_B_T = self.given(new_B_T, batch, turns_B)
        return self.weight * opd_loss(*own, baseline_B_T=baseline_B_T, denominators=self.counts)


class _AdvantageTerm(_Term):
    def advantages(
        self, adv_B_T: Tensor, new_B_T: Tensor, batch: SegmentBatch, turns_B: Sequence[int]
    ) -> Tensor:
        own, baseline_B_T = self.given(new_B_T, batch, turns_B)
        extra = self.weight * opd_advantages(*own, baseline_B_T=baseline_B_T)
        return adv_B_T + extra.to(adv_B_T.dtype)


def depth_at(section: DepthConfig, iteration: int, setup: Setup) -> int:
    """Turns of a trajectory that an iteration distils."""
    final = setup.config.env.max_steps if section.final is None else section.final
    return max_depth(
        iteration,
        growth_updates=section.growth,
        final=max(final, section.start),
        start=section.start,
    )


def within_depth(turns: Sequence[Turn], depth: int, direction: Any) -> list[bool]:
    """Which turns are among the first (last) `depth` of their trajectory."""
    lengths = Counter((turn.uid, turn.tid) for turn in turns)
    steps = torch.tensor([turn.t for turn in turns], dtype=torch.int64)
    sizes = torch.tensor([lengths[turn.uid, turn.tid] for turn in turns], dtype=torch.int64)
    found: list[bool] = depth_mask(steps, sizes, depth, direction=direction).tolist()
    return found


def _baseline(found: Distributions) -> Tensor:
    return vopd_baseline(found.student_1_N_V, found.teacher_1_N_V, found.mask_1_N)
