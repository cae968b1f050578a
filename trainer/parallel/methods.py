"""Auxiliary objectives whose rows lie on several ranks, divided by the counts of all of them.

Every rank asks a method for each step's rows, also where it has none: ranks add up their counts
then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from trainer import rng
from trainer.auxiliary.sero import count_roots
from trainer.branches.branching import step_rows
from trainer.branches.records import GrownRoot, depth_at, weighting
from trainer.learning.batch import partition
from trainer.learning.update import AuxiliaryRow, auxiliary_backward
from trainer.methods.format_only import FormatOnly
from trainer.methods.protocol import Method, PassLimits, Rollouts, Setup, Step
from trainer.methods.sero import Sero
from trainer.parallel.context import Group
from trainer.parallel.reduce import even_passes
from trainer.parallel.shard import own_parts

__all__ = ["SharedFormatOnly", "SharedSero", "make_shared_methods"]


class SharedSero(Sero):
    """SERO on the groups of one rank. Roots are shuffled and cut as those of one process, and
    N_root counts the roots of all ranks."""

    def __init__(self, setup: Setup, section: Any, group: Group) -> None:
        super().__init__(setup, section)
        self.group = group
        self._of_rank: list[int] = []
        self._step_rows: tuple[Step, list[AuxiliaryRow]] | None = None

    def prepare(self, rollouts: Rollouts, model: nn.Module) -> None:
        with even_passes(model, self.group, gradient=False):
            super().prepare(rollouts, model)
        self._of_rank = self.group.counts(len(self.roots))
        self._step_rows = None

    def rows(self, step: Step) -> list[AuxiliaryRow]:
        if self._step_rows is None or not _same(self._step_rows[0], step):
            self._step_rows = step, self._made(step)
        return self._step_rows[1]

    def _made(self, step: Step) -> list[AuxiliaryRow]:
        config, section = self.setup.config, self.section
        stream = rng.stream(config.run.seed, step.iteration, step.epoch, purpose="root-shuffle")
        parts = partition(sum(self._of_rank), step.count, stream)
        part = own_parts(parts, self._of_rank, self.group.rank)[step.index]
        roots = self._of_epoch(step.epoch)
        scheme = weighting(roots, section, depth_at(section, config.env.max_steps, step.iteration))
        chosen = [roots[i] for i in part]
        mine = count_roots(
            [root.gate for root in chosen], [root.valid for root in chosen], section.normaliser
        )
        factor = max(mine, 1) / max(self.group.sum([mine])[0], 1.0)
        return _scaled(step_rows(chosen, section, scheme), factor)

    def _of_epoch(self, epoch: int) -> Sequence[GrownRoot]:
        if epoch == 0 or self._model is None:
            return super()._of_epoch(epoch)
        with even_passes(self._model, self.group, gradient=False):
            return super()._of_epoch(epoch)


class SharedFormatOnly(FormatOnly):
    """The format-only control; its mean is over the rows of all ranks."""

    def __init__(self, setup: Setup, section: Any, group: Group) -> None:
        super().__init__(setup, section)
        self.group = group
        self._step_rows: tuple[Step, list[AuxiliaryRow]] | None = None

    def prepare(self, rollouts: Rollouts, model: nn.Module) -> None:
        super().prepare(rollouts, model)
        self._step_rows = None

    def has_pass(self, step: Step) -> bool:
        return bool(self._shared(step))

    def backward(self, model: nn.Module, step: Step, limits: PassLimits) -> float:
        return auxiliary_backward(model, self._shared(step), self.weight, limits)

    def _shared(self, step: Step) -> list[AuxiliaryRow]:
        if self._step_rows is None or not _same(self._step_rows[0], step):
            mine = self.rows(self.own(step))
            total = self.group.sum([len(mine)])[0]
            self._step_rows = step, _scaled(mine, len(mine) / total if total else 0.0)
        return self._step_rows[1]


def make_shared_methods(setup: Setup, group: Group) -> list[Method]:
    """As `make_methods`, for a run in many processes; the config was checked for others."""
    kinds = {"sero": SharedSero, "format_only": SharedFormatOnly}
    return [kinds[name](setup, section, group) for name, section in setup.config.auxiliary.active()]


def _scaled(rows: Sequence[AuxiliaryRow], factor: float) -> list[AuxiliaryRow]:
    return [replace(row, coefficient=row.coefficient * factor) for row in rows]


def _same(left: Step, right: Step) -> bool:
    """Whether two steps are the same one; ranks must agree, whose turns differ."""
    place = ("iteration", "epoch", "index", "count")
    return all(getattr(left, name) == getattr(right, name) for name in place)
