"""SERO in a run: roots and branches once an iteration, their rows in every optimiser step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from trainer import rng
from trainer.batch import partition
from trainer.branching import Brancher, GrownRoot, step_rows
from trainer.methods.protocol import Method, PassLimits, Rollouts, Setup, Step
from trainer.rollout import Trajectory
from trainer.update import AuxiliaryRow, auxiliary_backward

__all__ = ["Sero"]


class Sero(Method):
    """See `trainer.branching` and `trainer.auxiliary.sero`."""

    name = "sero"

    def __init__(self, setup: Setup, section: Any) -> None:
        super().__init__(setup, section)
        # An environment of its own: branches never disturb a rollout.
        self.brancher = (
            Brancher(setup.config, section, setup.make_env(), setup.student)
            if setup.make_env is not None
            else None
        )
        self.roots: Sequence[GrownRoot] = ()
        self._rows: tuple[Step, list[AuxiliaryRow]] | None = None

    def prepare(self, rollouts: Rollouts, model: nn.Module) -> None:
        if self.brancher is not None:
            self.roots = self.brancher.branch(rollouts.iteration, rollouts.trajectories, model)
        self._rows = None

    def has_pass(self, step: Step) -> bool:
        return bool(self.rows(step))

    def backward(self, model: nn.Module, step: Step, limits: PassLimits) -> float:
        return auxiliary_backward(model, self.rows(step), self.weight, limits)

    def rows(self, step: Step) -> list[AuxiliaryRow]:
        """Rows of this step's roots: roots are shuffled and cut by a stream of their own."""
        if self._rows is None or self._rows[0] != step:
            seed = self.setup.config.run.seed
            stream = rng.stream(seed, step.iteration, step.epoch, purpose="root-shuffle")
            part = partition(len(self.roots), step.count, stream)[step.index]
            self._rows = step, step_rows([self.roots[i] for i in part], self.section)
        return self._rows[1]

    def metrics(self) -> Mapping[str, Any]:
        return {} if self.brancher is None else self.brancher.metrics(self.roots)

    def records(self, trajectories: Sequence[Trajectory]) -> Sequence[Mapping[str, Any]]:
        if self.brancher is None:
            return ()
        return self.brancher.records(self.roots, trajectories)
