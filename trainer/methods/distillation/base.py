"""What the distilling methods share: a teacher, its passes, and terms on sampled tokens.

Axis letters: B rows of a micro-batch, T tokens, R trained tokens of one turn.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trainer.auxiliary.distill import distillation_loss
from trainer.learning.update import pad_like, score_segments
from trainer.methods.distillation.distributions import (
    Distributions,
    Pair,
    distribution_backward,
    pair_counts,
)
from trainer.methods.distillation.outside_teacher import OutsideTeacher
from trainer.methods.protocol import Method, PassLimits, Setup, Step, TokenTerm
from trainer.methods.teacher import Teacher
from trainer.models.policy import SegmentBatch
from trainer.objectives import Denominators

__all__ = ["Distiller", "SampledTerm", "divergence_loss", "padded"]


class Distiller(Method):
    """A method whose teacher scores replies. `prepare` of a subclass fills `pairs`.

    Attributes:
        pairs: what is distilled, by turn; turns that are left out are missing.
        scores: log-probs (R,) of the teacher at the same tokens, where `score` was called.
    """

    def __init__(self, setup: Setup, section: Any, teacher: Teacher | OutsideTeacher) -> None:
        super().__init__(setup, section)
        self.teacher = teacher
        self.pairs: dict[int, Pair] = {}
        self.scores: dict[int, Tensor] = {}
        self.limits = PassLimits.of(setup.config, setup.student)
        self._gap, self._gap_tokens = 0.0, 0

    def begin(self, pairs: Mapping[int, Pair]) -> None:
        """Starts an iteration with these pairs; those without trained tokens are left out."""
        self.pairs = {turn: pair for turn, pair in pairs.items() if pair.student.trained}
        self.scores = {}
        self._gap, self._gap_tokens = 0.0, 0

    def score(self, model: nn.Module) -> None:
        """Fills `scores`, under the frozen weights of the moment."""
        segments = [pair.teacher for pair in self.pairs.values()]
        found = score_segments(self.teacher.of(model), segments, self.limits)
        self.scores = dict(zip(self.pairs, found, strict=True))
        for pair, score in zip(self.pairs.values(), found, strict=True):
            # Log-probs of tokens that are not trained are 0.
            own = math.fsum(pair.student.logprobs)
            self._add_gap(own - float(score.double().sum()), pair.student.trained)

    def step_pairs(self, step: Step) -> list[Pair]:
        """What an optimiser step distils."""
        return [self.pairs[turn] for turn in step.turns if turn in self.pairs]

    def has_pass(self, step: Step) -> bool:
        return bool(self.step_pairs(step))

    def backward(self, model: nn.Module, step: Step, limits: PassLimits) -> float:
        def loss(found: Distributions, counts: Denominators) -> Tensor:
            self._add_gap(found.gap(), found.token_1_N.numel())
            return self.loss(found, counts)

        teacher = self.teacher.of(model)
        pairs = self.step_pairs(step)
        return distribution_backward(model, teacher, pairs, loss, self.weight, limits)

    def loss(self, found: Distributions, counts: Denominators) -> Tensor:
        """A micro-batch's part of the loss, without weight."""
        raise NotImplementedError(f"{self.name} has no loss over the vocabulary.")

    def gap_mean(self) -> float | None:
        """Mean of log S - log T over the iteration's distilled tokens: the sampled reverse KL.

        S is the policy that sampled them where the teacher scored them beforehand, and the policy
        in training where a pass over the vocabulary did.
        """
        return self._gap / self._gap_tokens if self._gap_tokens else None

    def finished_step(self, model: nn.Module) -> None:
        self.teacher.finished_step(model)

    def finished_iteration(self, iteration: int, model: nn.Module) -> None:
        self.teacher.finished_iteration(iteration, model)

    def state(self) -> Mapping[str, Tensor]:
        return self.teacher.state()

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        self.teacher.load_state(tensors)

    def _add_gap(self, total: float, tokens: int) -> None:
        self._gap += total
        self._gap_tokens += tokens


class SampledTerm(TokenTerm):
    """A term on the policy's own tokens, of the turns that the method's teacher scored."""

    def __init__(self, step: Step, method: Distiller) -> None:
        self.scores = method.scores
        self.weight = method.weight
        self.counts = pair_counts(method.step_pairs(step))

    def needs(self, turn: int) -> bool:
        return turn in self.scores

    def teacher(self, like_B_T: Tensor, turns_B: Sequence[int]) -> Tensor:
        """(B, T) the teacher's log-probs, 0 where it has none."""
        return padded(self.scores, like_B_T, turns_B)

    def mask(self, batch: SegmentBatch, turns_B: Iterable[int]) -> Tensor:
        """bool (B, T): trained tokens of the turns that take part."""
        rows = [turn in self.scores for turn in turns_B]
        return batch.mask_B_T & torch.tensor(rows, device=batch.mask_B_T.device)[:, None]


def divergence_loss(found: Distributions, counts: Denominators, section: Any) -> Tensor:
    """The divergence that a config section names, averaged over the step's tokens."""
    return distillation_loss(
        found.student_1_N_V,
        found.teacher_1_N_V,
        found.mask_1_N,
        kind=section.divergence,
        beta=section.beta,
        top_k=section.top_k,
        denominators=counts,
    )


def padded(values: Mapping[int, Tensor], like_B_T: Tensor, turns_B: Sequence[int]) -> Tensor:
    """(B, T) values of the rows' turns, 0 for turns that have none."""
    return pad_like([values.get(turn, torch.empty(0)) for turn in turns_B], like_B_T)
