"""SERL in a run: the executed command's tokens, weighted by a teacher that saw what came of it.

The maths is in `trainer.auxiliary.serl`. Delta compares the teacher, who scored once an iteration,
with the policy as it is in each micro-batch; no gradient passes through it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from trainer.auxiliary.judge_context import JUDGE_MODES
from trainer.auxiliary.serl import act_loss, act_vocabulary_loss, reweight_advantages
from trainer.learning.update import pad_like
from trainer.methods.distillation.distributions import Distributions, Pair, distribution_backward
from trainer.methods.protocol import PassLimits, Rollouts, Setup, Step, TokenTerm
from trainer.methods.reweighting.base import Reweighting
from trainer.methods.reweighting.feedback import Sections, context_turns, feedback_sections
from trainer.metrics import mean_or_none
from trainer.models.policy import SegmentBatch
from trainer.models.text_model import load_text_model
from trainer.objectives import Denominators
from trainer.rollouts.data import Turn, make_segment

__all__ = ["Serl"]

_SAMPLED = ("pg_rkl", "k3")


class Serl(Reweighting):
    """See `trainer.methods.reweighting.base` and `trainer.auxiliary.serl`."""

    name = "serl"
    figures = (*Reweighting.figures, "parse_failure", "action_token_fraction")

    def __init__(self, setup: Setup, section: Any) -> None:
        super().__init__(setup, section)
        self.judge = None
        if section.judge is not None:
            self.judge = load_text_model(section.judge, "auxiliary.serl.judge").function
        self.act_scale = 0.0
        """act_weight with alpha's decay: the coefficient of L_act, before `weight`."""
        self.act_losses: list[float] = []
        """L_act of each optimiser step of the iteration, as it is."""

    def contexts(self, rollouts: Rollouts) -> Sequence[Sections]:
        told = context_turns(self.setup.student, rollouts.turns)
        return feedback_sections(told, self.section, self.judge)

    @property
    def of_episode(self) -> bool:
        return self.section.source in JUDGE_MODES

    def weighed(self, turn: Turn) -> tuple[bool, ...]:
        return self.setup.student.command_mask(turn.response_ids)

    def active(self, iteration: int) -> bool:
        distils = self.section.act_weight > 0.0 and self.decay(iteration) > 0.0
        return distils or super().active(iteration)

    def prepare(self, rollouts: Rollouts, model: nn.Module) -> None:
        super().prepare(rollouts, model)
        self.act_scale = self.section.act_weight * self.decay(rollouts.iteration)
        self.act_losses = []

    def token_term(self, step: Step) -> TokenTerm | None:
        if not any(i in self.scored for i in step.turns):
            return None
        return _Term(self, step)

    def has_pass(self, step: Step) -> bool:
        wanted = self.act_scale > 0.0 and self.section.act_kind not in _SAMPLED
        return wanted and any(i in self.scored for i in step.turns)

    def backward(self, model: nn.Module, step: Step, limits: PassLimits) -> float:
        """L_act over the whole vocabulary, at the tokens of the command."""

        def loss(found: Distributions, counts: Denominators) -> Tensor:
            return act_vocabulary_loss(
                found.student_1_N_V,
                found.teacher_1_N_V,
                found.mask_1_N,
                kind=self.section.act_kind,
                beta=self.section.act_beta,
                denominators=counts,
            )

        pairs = [self._pair(i) for i in step.turns if i in self.scored]
        weight = self.weight * self.act_scale
        found = distribution_backward(model, self.teacher.of(model), pairs, loss, weight, limits)
        self.act_losses.append(found)
        return self.act_scale * found

    def metrics(self) -> Mapping[str, Any]:
        return {**super().metrics(), "serl/act_loss": mean_or_none(self.act_losses)}

    def _pair(self, index: int) -> Pair:
        """The command behind the student's own prompt and behind the teacher's."""
        row = self.scored[index]
        own, told = (
            make_segment(
                prompt,
                row.turn.response_ids,
                mask=row.tokens,
                turn=index,
                temperature=row.turn.temperature,
            )
            for prompt in (row.turn.prompt_ids, row.prompt.ids)
        )
        return Pair(own, told)


class _Term(TokenTerm):
    """The reweighting, and L_act from sampled tokens, in one optimiser step."""

    def __init__(self, method: Serl, step: Step) -> None:
        self.method = method
        tokens = [sum(method.scored[i].tokens) for i in step.turns if i in method.scored]
        self.counts = Denominators(sum(tokens), len(tokens))
        sampled = method.section.act_kind in _SAMPLED
        self.coefficient = method.weight * method.act_scale if sampled else 0.0
        if self.coefficient > 0.0:
            method.act_losses.append(0.0)

    def needs(self, turn: int) -> bool:
        return self.coefficient > 0.0 and turn in self.method.scored

    def advantages(
        self, adv_B_T: Tensor, new_B_T: Tensor, batch: SegmentBatch, turns_B: Sequence[int]
    ) -> Tensor:
        teacher_B_T, action_B_T, on_B = self._rows(turns_B, new_B_T)
        # A policy that is no longer finite is the optimiser step's to refuse.
        on_B = on_B & ~new_B_T.isnan().any(dim=-1)
        section = self.method.section
        result = reweight_advantages(
            adv_B_T,
            new_B_T,
            teacher_B_T,
            batch.mask_B_T,
            action_B_T,
            on_B,
            alpha=self.method.alpha,
            clip=section.clip,
        )
        self.method.measure(result.stats)
        return result.adv

    def loss(self, new_B_T: Tensor, batch: SegmentBatch, turns_B: Sequence[int]) -> Tensor | None:
        teacher_B_T, action_B_T, on_B = self._rows(turns_B, new_B_T)
        if not self.coefficient > 0.0 or not bool(on_B.any()):
            return None
        section = self.method.section
        value = act_loss(
            new_B_T,
            teacher_B_T,
            batch.mask_B_T & action_B_T,
            kind=section.act_kind,
            clamp=section.act_clamp,
            denominators=self.counts,
        )
        self.method.act_losses[-1] += float(value.detach())
        return self.coefficient * value

    def _rows(self, turns_B: Sequence[int], like_B_T: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Padded; rows that were not scored hold zeros and no action."""
        teacher, tokens, on_B = self.method.rows(turns_B)
        return (
            pad_like(teacher, like_B_T),
            pad_like(tokens, like_B_T).bool(),
            on_B.to(like_B_T.device),
        )
