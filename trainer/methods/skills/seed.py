"""SEED in a run: the policy's own hindsight skills, distilled into it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trainer.auxiliary.seed import opd_rows
from trainer.methods.privileged import TeacherPrompt
from trainer.methods.protocol import Rollouts, Setup
from trainer.methods.skills.hindsight import Hindsight
from trainer.methods.skills.teacher import Gated, gap_figures, scored, teacher_rows

__all__ = ["Seed"]


class Seed(Gated):
    """See `trainer.auxiliary.seed`."""

    name = "seed"

    def __init__(self, setup: Setup, section: Any) -> None:
        super().__init__(setup, section)
        self.beta = section.beta
        self.hindsight = Hindsight(setup, self.name, section.analyser, section.skill_mode)

    def prompts(self, rollouts: Rollouts, model: nn.Module) -> Sequence[TeacherPrompt]:
        c = self.section
        self.hindsight.forget()
        window = opd_rows(
            rollouts.iteration,
            torch.tensor([True]),
            torch.tensor([False]),
            start_after=c.start_after,
            stop_after=c.stop_after,
        )
        if not bool(window.any()):
            return [TeacherPrompt(turn.prompt_ids, False) for turn in rollouts.turns]
        self.hindsight.read(rollouts, model, failed_only=c.failed_only)
        return self.hindsight.prompts(of_others=c.shuffle == "train")

    def token_mask(self, turn: int) -> Tensor:
        if self.section.tokens == "reply":
            return super().token_mask(turn)
        ids = self._rollouts.turns[turn].response_ids
        return torch.tensor(self.setup.student.command_mask(ids), dtype=torch.bool)

    def figures(self, rollouts: Rollouts, model: nn.Module) -> dict[str, float | None]:
        found = {**super().figures(rollouts, model), **self.hindsight.figures()}
        if self.section.shuffle == "measure":
            others = teacher_rows(rollouts, self.hindsight.prompts(of_others=True))
            rows = {m: segment for m, segment in others.items() if m in self._masks}
            teacher = scored(model, rows, self.limits)
            control = gap_figures(self.setup, rollouts, teacher, self._masks, beta=self.beta)
            found |= {f"shuffled_{key}": control[key] for key in ("gap_mean", "gate_mean")}
        return found
