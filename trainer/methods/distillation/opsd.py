"""OPSD in a run: the policy learns from itself with a privileged context. And its published form.

`Opsd` is a divergence over the vocabulary at the policy's own tokens. `OpsdLegacy` is what tables
of SEED and SDAR call OPSD: half the NLL of the policy's own samples, in which the teacher has no
part unless `beta` is raised. See `trainer.auxiliary.distill`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from trainer.auxiliary.distill import opsd_legacy_loss
from trainer.methods.distillation.base import Distiller, SampledTerm, divergence_loss
from trainer.methods.distillation.distributions import Distributions
from trainer.methods.distillation.told import Contexts, Told
from trainer.methods.protocol import Rollouts, Setup, Step, TokenTerm
from trainer.methods.teacher import Teacher
from trainer.models.policy import SegmentBatch
from trainer.objectives import Denominators

__all__ = ["Opsd", "OpsdLegacy"]


class _Privileged(Distiller):
    """A distiller whose teacher is told what the config's `context` says."""

    def __init__(self, setup: Setup, section: Any, teacher: Teacher) -> None:
        super().__init__(setup, section, teacher)
        self.contexts = Contexts(setup, section)
        self.told = Told({}, 0, 0, 0)

    def prepare(self, rollouts: Rollouts, model: nn.Module) -> None:
        self.told = self.contexts.told(rollouts)
        self.begin(self.told.pairs)

    def metrics(self) -> Mapping[str, Any]:
        return {**self.told.metrics(self.name), f"{self.name}/gap_mean": self.gap_mean()}


class Opsd(_Privileged):
    """The divergence from the policy to the same model with a privileged context."""

    name = "opsd"

    def __init__(self, setup: Setup, section: Any) -> None:
        teacher = Teacher(setup.model, section.teacher, sync_every=section.sync_every)
        super().__init__(setup, section, teacher)

    def prepare(self, rollouts: Rollouts, model: nn.Module) -> None:
        super().prepare(rollouts, model)
        if self.weight == 0:
            self.score(model)

    def loss(self, found: Distributions, counts: Denominators) -> Tensor:
        return divergence_loss(found, counts, self.section)


class OpsdLegacy(_Privileged):
    """The gated NLL; the teacher is the policy that made the rollouts, as in SEED's code."""

    name = "opsd_legacy"

    def __init__(self, setup: Setup, section: Any) -> None:
        super().__init__(setup, section, Teacher(setup.model, "current"))

    def prepare(self, rollouts: Rollouts, model: nn.Module) -> None:
        super().prepare(rollouts, model)
        self.score(model)

    def token_term(self, step: Step) -> TokenTerm | None:
        if self.weight == 0 or not self.step_pairs(step):
            return None
        return _LegacyTerm(step, self)

    def has_pass(self, step: Step) -> bool:
        return False


class _LegacyTerm(SampledTerm):
    def __init__(self, step: Step, method: OpsdLegacy) -> None:
        super().__init__(step, method)
        self.beta = method.section.beta

    def loss(self, new_B_T: Tensor, batch: SegmentBatch, turns_B: Sequence[int]) -> Tensor:
        return self.weight * opsd_legacy_loss(
            new_B_T,
            self.teacher(new_B_T, turns_B),
            self.mask(batch, turns_B),
            beta=self.beta,
            denominators=self.counts,
        )
