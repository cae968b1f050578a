"""Auxiliary objectives whose rows lie on several ranks, divided by the counts of all of them.

Every rank asks a method for each step's rows, also where it has none: ranks add up their counts
then.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, cast

from torch import nn

from trainer import rng
from trainer.auxiliary.sero import count_roots
from trainer.auxiliary.sero_weighting import decay_of
from trainer.branches.branching import step_rows
from trainer.branches.records import GrownRoot, depth_at, weighting
from trainer.learning.batch import partition
from trainer.learning.update import AuxiliaryRow
from trainer.methods.format_only import FormatOnly
from trainer.methods.protocol import Method, Rollouts, Setup, Step
from trainer.methods.sero import Sero
from trainer.parallel.context import Group
from trainer.parallel.reduce import even_passes
from trainer.parallel.shard import own_parts
from trainer.parallel.shared import Shared, same_step

__all__ = ["METHODS", "SharedFormatOnly", "SharedSero", "make_shared_methods"]

_IMITATION = "trainer.parallel.imitation"
_TEACHERS = "trainer.parallel.teachers"
METHODS: Mapping[str, str] = MappingProxyType(
    {
        "sero": "trainer.parallel.methods:SharedSero",
        "format_only": "trainer.parallel.methods:SharedFormatOnly",
        "dagger": f"{_IMITATION}:SharedDagger",
        "corrections": f"{_IMITATION}:SharedCorrections",
        "sft": f"{_IMITATION}:SharedSft",
        "expert_iteration": f"{_IMITATION}:SharedExpertIteration",
        "step_dpo": f"{_IMITATION}:SharedStepDpo",
        "chord": f"{_IMITATION}:SharedChord",
        "luffy": f"{_IMITATION}:SharedLuffy",
        "opd": f"{_TEACHERS}:SharedOpd",
        "gkd": f"{_TEACHERS}:SharedGkd",
        "opsd": f"{_TEACHERS}:SharedOpsd",
        "opsd_legacy": f"{_TEACHERS}:SharedOpsdLegacy",
        "sdpo": f"{_TEACHERS}:SharedSdpo",
        "serl": f"{_TEACHERS}:SharedSerl",
        "rlsd": f"{_TEACHERS}:SharedRlsd",
        "opid": f"{_TEACHERS}:SharedOpid",
        "seed": f"{_TEACHERS}:SharedSeed",
        "sdar": f"{_TEACHERS}:SharedSdar",
        "skill_sd": f"{_TEACHERS}:SharedSkillSd",
    }
)
"""As `trainer.methods.registry.METHODS`, of a rank."""


class SharedSero(Sero):
    """SERO on the groups of one rank. Roots are shuffled and cut as those of one process, and
    N_root counts the roots of all ranks."""

    def __init__(self, setup: Setup, section: Any, group: Group) -> None:
        super().__init__(setup, section)
        self.group = group
        self._of_rank: list[int] = []
        self._step_rows: tuple[Step, list[AuxiliaryRow]] | None = None
        self._fitted: tuple[int, float] | None = None

    def prepare(self, rollouts: Rollouts, model: nn.Module) -> None:
        with even_passes(model, self.group):
            super().prepare(rollouts, model)
        self._of_rank = self.group.counts(len(self.roots))
        self._step_rows = self._fitted = None
        if self.brancher is not None:
            # What is logged says the decay that is trained with.
            self.brancher.section = self._with_decay(self.roots, 0)

    def rows(self, step: Step) -> list[AuxiliaryRow]:
        if self._step_rows is None or not same_step(self._step_rows[0], step):
            self._step_rows = step, self._made(step)
        return self._step_rows[1]

    def _made(self, step: Step) -> list[AuxiliaryRow]:
        config, section = self.setup.config, self.section
        stream = rng.stream(config.run.seed, step.iteration, step.epoch, purpose="root-shuffle")
        parts = partition(sum(self._of_rank), step.count, stream)
        part = own_parts(parts, self._of_rank, self.group.rank)[step.index]
        roots = self._of_epoch(step.epoch)
        depth = depth_at(section, config.env.max_steps, step.iteration)
        scheme = weighting(roots, self._with_decay(roots, step.epoch), depth)
        chosen = [roots[i] for i in part]
        mine = count_roots(
            [root.gate for root in chosen], [root.valid for root in chosen], section.normaliser
        )
        factor = max(mine, 1) / max(self.group.sum([mine])[0], 1.0)
        return _scaled(step_rows(chosen, section, scheme), factor)

    def _with_decay(self, roots: Sequence[GrownRoot], epoch: int) -> Any:
        """The section with its decay as a number: matched to the open branches of all ranks."""
        section = self.section
        if section.rule != "depth" or section.delta != "matched":
            return section
        if self._fitted is None or self._fitted[0] != epoch:
            bank = [root.logz for root in roots if root.gate > 0]
            everybody = [row for part in self.group.gather(bank) for row in part]
            self._fitted = epoch, decay_of(section.delta, everybody)
        return replace(section, delta=self._fitted[1])

    def _of_epoch(self, epoch: int) -> Sequence[GrownRoot]:
        if epoch == 0 or self._model is None:
            return super()._of_epoch(epoch)
        with even_passes(self._model, self.group):
            return super()._of_epoch(epoch)


class SharedFormatOnly(Shared, FormatOnly):
    """The format-only control; its mean is over the rows of all ranks."""

    def count(self, step: Step) -> float:
        return len(self.rows(self.own(step)))


def make_shared_methods(setup: Setup, group: Group) -> list[Method]:
    """As `make_methods`, for a run in many processes; the config was checked for others."""
    methods = []
    for name, section in setup.config.auxiliary.active():
        module, _, attribute = METHODS[name].partition(":")
        made = getattr(importlib.import_module(module), attribute)(setup, section, group)
        methods.append(cast("Method", made))
    return methods


def _scaled(rows: Sequence[AuxiliaryRow], factor: float) -> list[AuxiliaryRow]:
    return [replace(row, coefficient=row.coefficient * factor) for row in rows]
