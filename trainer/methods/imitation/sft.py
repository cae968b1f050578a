"""Supervised fine-tuning in a run: the oracle's own episodes of the iteration's tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from trainer.learning.update import AuxiliaryRow
from trainer.methods.imitation.base import OracleRowMethod, equal_rows, expert_segments, part_of
from trainer.methods.imitation.oracle_rows import OracleDesk
from trainer.methods.protocol import Rollouts, Step
from trainer.rollouts.data import Segment

__all__ = ["Sft"]


class Sft(OracleRowMethod):
    """See `trainer.auxiliary.imitation`. Rows are shuffled and cut as a plain data set."""

    name = "sft"

    def forget(self) -> None:
        self.segments: Sequence[Segment] = ()

    def ask(self, desk: OracleDesk, rollouts: Rollouts, model: nn.Module) -> None:
        self.segments = expert_segments(desk, rollouts.trajectories)

    def step_rows(self, step: Step) -> list[AuxiliaryRow]:
        part = part_of(len(self.segments), step, self.setup.config.run.seed, "sft-shuffle")
        return equal_rows([self.segments[i] for i in part])

    def figures(self) -> Mapping[str, Any]:
        return {"sft/rows": len(self.segments)}
