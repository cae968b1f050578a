"""SDAR in a run: SEED's loss with skills from a library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from trainer.methods.privileged import TeacherPrompt
from trainer.methods.protocol import Rollouts, Setup
from trainer.methods.skills.library import Library
from trainer.methods.skills.teacher import Gated, behaviour_of, entropies

__all__ = ["Sdar"]


class Sdar(Gated):
    """See `trainer.auxiliary.sdar`."""

    name = "sdar"

    def __init__(self, setup: Setup, section: Any) -> None:
        super().__init__(setup, section)
        self.beta = section.beta
        self.kind = section.gate
        self.library = Library(setup, self.name, section)

    def prompts(self, rollouts: Rollouts, model: nn.Module) -> Sequence[TeacherPrompt]:
        return self.library.prompts(rollouts)

    def figures(self, rollouts: Rollouts, model: nn.Module) -> dict[str, float | None]:
        found = {**super().figures(rollouts, model), **self.library.figures()}
        if self.kind != "gap" and self._frozen:
            own = {m: rollouts.segments[m] for m in self._frozen}
            student = {m: behaviour_of(segment) for m, segment in own.items()}
            entropy = entropies(model, own, self.limits)
            gate = self.gate_stats(student, self._frozen, entropy)
            found |= {key: gate[key] for key in ("gate_mean", "gate_active", "gate_saturated")}
        return found

    def state(self) -> Mapping[str, Tensor]:
        return self.library.state()

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        self.library.load_state(tensors)
