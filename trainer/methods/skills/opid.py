"""OPID in a run: what the skilled policy thinks of each token, added to its advantage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trainer.auxiliary.opid import opid_advantages
from trainer.methods.privileged import TeacherPrompt
from trainer.methods.protocol import Method, PassLimits, Rollouts, Setup
from trainer.methods.skills.contexts import Level
from trainer.methods.skills.hindsight import Hindsight
from trainer.methods.skills.teacher import (
    behaviour_of,
    gap_figures,
    padded,
    scored,
    teacher_rows,
    truncated_share,
)

__all__ = ["Opid"]

Prompts = Mapping[Level, Sequence[TeacherPrompt]]

LEVELS: tuple[Level, ...] = ("episode", "step")
_GAPS = ("gap_mean", "gap_abs_mean", "gap_success", "gap_failure", "gap_command", "gap_think")


class Opid(Method):
    """See `trainer.auxiliary.opid`."""

    name = "opid"

    def __init__(self, setup: Setup, section: Any) -> None:
        super().__init__(setup, section)
        self.limits = PassLimits.of(setup.config, setup.student)
        self.hindsight = Hindsight(setup, self.name, section.analyser, section.skill_mode)
        self._rollouts = Rollouts(0, (), ())
        self._teachers: dict[Level, dict[int, Tensor]] = {}
        self._figures: dict[str, float | None] = {}
        self._added: float | None = None

    def prepare(self, rollouts: Rollouts, model: nn.Module) -> None:
        self._rollouts = rollouts
        self.hindsight.read(rollouts, model)
        shuffle = self.section.shuffle
        prompts = self._prompts(of_others=shuffle == "train")
        self._teachers = self._scored(model, prompts)
        self._figures = {**self.hindsight.figures(), **self._gaps(self._teachers, prompts, "")}
        if shuffle == "measure":
            others = self._prompts(of_others=True)
            self._figures |= self._gaps(self._scored(model, others), others, "shuffled_")

    def shaped(self, advantages: Sequence[Tensor]) -> Sequence[Tensor]:
        """A + w_ep * (T_ep - O) + w_step * (T_step - O), where a turn has such a skill."""
        weights = {"episode": self.weight, "step": float(self.section.of_steps)}
        used = {
            level: rows for level, rows in self._teachers.items() if weights[level] != 0.0 and rows
        }
        turns = sorted({m for rows in used.values() for m in rows})
        self._added = None
        if not turns:
            return advantages
        old_M_T = padded(behaviour_of(self._rollouts.segments[m]) for m in turns)
        mask_M_T = padded(torch.ones(self._rollouts.segments[m].trained) for m in turns)
        terms: dict[str, Tensor] = {}
        for level, rows in used.items():
            empty = torch.empty(0)
            terms[f"{level}_B_T"] = padded((rows.get(m, empty) for m in turns), old_M_T.shape[1])
            terms[f"{level}_B"] = torch.tensor([m in rows for m in turns])
        # Advantages may differ within a turn, so the terms are made alone and added to them.
        added_M_T = opid_advantages(
            torch.zeros(len(turns), dtype=torch.float64),
            old_M_T,
            mask_M_T,
            episode_B_T=terms.get("episode_B_T"),
            episode_B=terms.get("episode_B"),
            step_B_T=terms.get("step_B_T"),
            step_B=terms.get("step_B"),
            w_episode=weights["episode"],
            w_step=weights["step"],
        )
        self._added = float(added_M_T.abs().sum() / mask_M_T.sum())
        result = list(advantages)
        for row, m in zip(added_M_T, turns, strict=True):
            result[m] = result[m] + row[: len(result[m])]
        return result

    def metrics(self) -> Mapping[str, Any]:
        figures = {**self._figures, "added_abs_mean": self._added}
        return {f"{self.name}/{key}": value for key, value in figures.items()}

    def _prompts(self, *, of_others: bool) -> Prompts:
        return {level: self.hindsight.prompts(level, of_others=of_others) for level in LEVELS}

    def _scored(self, model: nn.Module, prompts: Prompts) -> dict[Level, dict[int, Tensor]]:
        return {
            level: scored(model, teacher_rows(self._rollouts, of_level), self.limits)
            for level, of_level in prompts.items()
        }

    def _gaps(
        self, teachers: Mapping[Level, Mapping[int, Tensor]], prompts: Prompts, prefix: str
    ) -> dict[str, float | None]:
        """Figures of both levels.

        rows_on: share of trained turns with such a skill; truncated_share: of those that would
        have one, the share whose prompt was too long.
        """
        trained = sum(segment.trained > 0 for segment in self._rollouts.segments)
        found: dict[str, float | None] = {}
        for level, rows in teachers.items():
            masks = {m: torch.ones_like(row) for m, row in rows.items()}
            gaps = gap_figures(self.setup, self._rollouts, rows, masks)
            found[f"{prefix}{level}_rows_on"] = len(rows) / trained if trained else None
            found[f"{prefix}{level}_truncated_share"] = truncated_share(
                self._rollouts, prompts[level]
            )
            found |= {f"{prefix}{level}_{key}": gaps[key] for key in _GAPS}
        return found
