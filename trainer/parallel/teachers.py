"""The objectives with a teacher, over the tokens of all ranks.

What a teacher is told comes from the turn itself or from its group, which is whole on one rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trainer.methods.distillation.base import Distiller
from trainer.methods.distillation.distributions import Pair, pair_counts
from trainer.methods.distillation.gkd import SHUFFLE, Gkd
from trainer.methods.distillation.opd import Opd
from trainer.methods.distillation.opsd import Opsd, OpsdLegacy
from trainer.methods.distillation.sdpo import Sdpo
from trainer.methods.protocol import Rollouts, Step
from trainer.methods.reweighting.rlsd import Rlsd
from trainer.methods.reweighting.serl import Serl
from trainer.methods.skills.opid import Opid
from trainer.methods.skills.sdar import Sdar
from trainer.methods.skills.seed import Seed
from trainer.methods.skills.skill_sd import SkillSd
from trainer.methods.skills.teacher import Distilled
from trainer.parallel.shared import Shared

__all__ = [
    "SharedGkd",
    "SharedOpd",
    "SharedOpid",
    "SharedOpsd",
    "SharedOpsdLegacy",
    "SharedRlsd",
    "SharedSdar",
    "SharedSdpo",
    "SharedSeed",
    "SharedSerl",
    "SharedSkillSd",
]


class _SharedDistiller(Shared, Distiller):
    """A mean over the distilled tokens of all ranks."""

    def count(self, step: Step) -> float:
        return pair_counts(self.step_pairs(step)).tokens


class SharedOpd(_SharedDistiller, Opd):
    """Advantages are replaced everywhere as soon as one rank has a turn to distil."""

    _anywhere = False

    def prepare(self, rollouts: Rollouts, model: nn.Module) -> None:
        super().prepare(rollouts, model)
        self._anywhere = self.group.any([bool(self.pairs)])[0]

    def shaped(self, advantages: Sequence[Tensor]) -> Sequence[Tensor]:
        section = self.section
        if not self._anywhere or section.form != "advantage" or section.combine == "add":
            return advantages
        return [torch.zeros_like(row) for row in advantages] if self.weight > 0 else advantages


class SharedGkd(_SharedDistiller, Gkd):
    """Sequences of all ranks are one data set."""

    def listed(self) -> int:
        return len(self.data)

    def step_pairs(self, step: Step) -> list[Pair]:
        if self.on_student(step):
            return super().step_pairs(step)
        return self.own_of(self.data, step, SHUFFLE)


class SharedOpsd(_SharedDistiller, Opsd):
    """See `trainer.methods.distillation.opsd`."""


class SharedOpsdLegacy(_SharedDistiller, OpsdLegacy):
    """See `trainer.methods.distillation.opsd`."""


class SharedSdpo(_SharedDistiller, Sdpo):
    """See `trainer.methods.distillation.sdpo`."""


class SharedSerl(Shared, Serl):
    """L_act is a mean over the weighed tokens of all ranks; weights are each token's own."""

    def count(self, step: Step) -> float:
        return sum(sum(self.scored[i].tokens) for i in step.turns if i in self.scored)


class SharedRlsd(Shared, Rlsd):
    """Advantages are reshaped token by token: nothing is counted."""

    def count(self, step: Step) -> None:
        return None


class SharedOpid(Shared, Opid):
    """What is added to an advantage is the token's own: nothing is counted."""

    def count(self, step: Step) -> None:
        return None


class _SharedDistilled(Shared, Distilled):
    """A mean over the tokens of all ranks that the teacher scored."""

    def count(self, step: Step) -> float:
        return sum(int(self._masks[m].sum()) for m in step.turns if m in self._segments)


class SharedSeed(_SharedDistilled, Seed):
    """See `trainer.methods.skills.seed`."""


class SharedSdar(_SharedDistilled, Sdar):
    """See `trainer.methods.skills.sdar`."""


class SharedSkillSd(_SharedDistilled, SkillSd):
    """See `trainer.methods.skills.skill_sd`."""
