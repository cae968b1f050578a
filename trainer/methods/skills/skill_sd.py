"""Skill-SD in a run: an importance-weighted k3 towards the policy under a skill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from trainer.auxiliary.skill_sd import skill_sd_loss
from trainer.methods.privileged import TeacherPrompt
from trainer.methods.protocol import Rollouts, Setup
from trainer.methods.skills.hindsight import Hindsight
from trainer.methods.skills.library import Library
from trainer.methods.skills.teacher import Distilled, Part

__all__ = ["SkillSd"]

# The gate of SEED is no part of this loss.
_GATE = ("gate_mean", "gate_active", "gate_saturated")


class SkillSd(Distilled):
    """See `trainer.auxiliary.skill_sd`."""

    name = "skill_sd"

    def __init__(self, setup: Setup, section: Any) -> None:
        super().__init__(setup, section)
        self.library: Library | None = None
        self.hindsight: Hindsight | None = None
        if section.source == "library":
            self.library = Library(setup, self.name, section)
        else:
            self.hindsight = Hindsight(setup, self.name, section.analyser, section.skill_mode)

    def prompts(self, rollouts: Rollouts, model: nn.Module) -> Sequence[TeacherPrompt]:
        if self.library is not None:
            return self.library.prompts(rollouts)
        assert self.hindsight is not None
        self.hindsight.read(rollouts, model)
        return self.hindsight.prompts()

    def loss(
        self, student_B_T: Tensor, teacher_B_T: Tensor, mask_B_T: Tensor, part: Part
    ) -> Tensor:
        return skill_sd_loss(
            student_B_T, teacher_B_T, part.batch.old_B_T, mask_B_T, denominators=part.counts
        )

    def figures(self, rollouts: Rollouts, model: nn.Module) -> dict[str, float | None]:
        source = self.library or self.hindsight
        assert source is not None
        found = {**super().figures(rollouts, model), **source.figures()}
        return {key: value for key, value in found.items() if key not in _GATE}

    def state(self) -> Mapping[str, Tensor]:
        return {} if self.library is None else self.library.state()

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        if self.library is None:
            super().load_state(tensors)
        else:
            self.library.load_state(tensors)
