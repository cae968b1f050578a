"""An auxiliary objective on one of several ranks, whose loss is a mean over the rows of all.

A method divides its loss by what it counts: rows, pairs, roots or tokens of the optimiser step. Its
part on a rank, divided by the rank's own count, is multiplied by that count over all ranks' count.
Lists that are shuffled and cut by a method itself are shuffled and cut as one list of all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from torch import Tensor, nn

from trainer import rng
from trainer.learning.batch import partition
from trainer.methods.protocol import Method, PassLimits, Rollouts, Setup, Step, TokenTerm
from trainer.models.policy import SegmentBatch
from trainer.parallel.context import Group
from trainer.parallel.reduce import even_passes
from trainer.parallel.shard import own_parts
from trainer.parallel.wrap import WholeParameters

__all__ = ["Shared", "same_step", "whole_step"]

T = TypeVar("T")


class Shared(Method):
    """Mixed in before a method. Every rank calls everything, also where it has no row."""

    _share = _factor = 1.0

    def __init__(self, setup: Setup, section: Any, group: Group) -> None:
        super().__init__(setup, section)
        self.group = group
        self._policy: nn.Module = setup.model
        self._of_ranks: list[int] = []

    def count(self, step: Step) -> float | None:
        """What this rank's part of the step's loss is divided by; None: by no count."""
        raise NotImplementedError(f"{self.name} says nothing of its counts.")

    def listed(self) -> int | None:
        """Length of this rank's list, where the method cuts one; known after `prepare`."""
        return None

    @property
    def weight(self) -> float:
        return super().weight * self._factor

    def prepare(self, rollouts: Rollouts, model: nn.Module) -> None:
        self._policy = model
        with even_passes(model, self.group):
            super().prepare(rollouts, model)
        listed = self.listed()
        self._of_ranks = [] if listed is None else self.group.counts(listed)

    def token_term(self, step: Step) -> TokenTerm | None:
        own = self.count(step)
        if own is not None:
            total = self.group.sum([own])[0]
            self._share = own / total if own else 1.0
        with even_passes(self._policy, self.group):
            term = super().token_term(step)
        return None if term is None else _Part(term, self._share)

    def backward(self, model: nn.Module, step: Step, limits: PassLimits) -> float:
        self._factor = self._share
        try:
            return self._share * super().backward(model, step, limits)
        finally:
            self._factor = 1.0

    def finished_step(self, model: nn.Module) -> None:
        super().finished_step(WholeParameters(model))

    def finished_iteration(self, iteration: int, model: nn.Module) -> None:
        super().finished_iteration(iteration, WholeParameters(model))

    def own_of(self, things: Sequence[T], step: Step, purpose: str) -> list[T]:
        """Of this rank's list those that are in the step: all lists are shuffled and cut as one."""
        stream = rng.stream(self.setup.config.run.seed, step.iteration, step.epoch, purpose=purpose)
        parts = partition(sum(self._of_ranks), step.count, stream)
        chosen = own_parts(parts, self._of_ranks, self.group.rank)[step.index]
        return [things[i] for i in chosen]


class _Part(TokenTerm):
    """A rank's part of a term."""

    def __init__(self, term: TokenTerm, share: float) -> None:
        self._term = term
        self._share = share

    def needs(self, turn: int) -> bool:
        return self._term.needs(turn)

    def advantages(
        self, adv_B_T: Tensor, new_B_T: Tensor, batch: SegmentBatch, turns_B: Sequence[int]
    ) -> Tensor:
        return self._term.advantages(adv_B_T, new_B_T, batch, turns_B)

    def loss(self, new_B_T: Tensor, batch: SegmentBatch, turns_B: Sequence[int]) -> Tensor | None:
        loss = self._term.loss(new_B_T, batch, turns_B)
        return None if loss is None else self._share * loss


def same_step(left: Step, right: Step) -> bool:
    """Whether two steps are the same one; ranks must agree, whose turns differ."""
    place = ("iteration", "epoch", "index", "count")
    return all(getattr(left, name) == getattr(right, name) for name in place)


def whole_step(step: Step) -> Step:
    """The step as the only one of its epoch: a list that was cut is not cut again."""
    return replace(step, index=0, count=1)
