"""SERO in a run: roots and branches once an iteration, their rows in every optimiser step."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from trainer import rng
from trainer.auxiliary.sero import weigh_tokens
from trainer.branches.ahead import Ahead
from trainer.branches.branching import Brancher, GrownRoot, score, step_rows
from trainer.branches.records import depth_at, weighting
from trainer.branches.thoughts import ThinkingBrancher
from trainer.learning.batch import partition
from trainer.learning.update import AuxiliaryRow, auxiliary_backward
from trainer.methods.protocol import Method, PassLimits, Rollouts, Setup, Step
from trainer.rollouts.rollout import Trajectory

__all__ = ["Sero"]


class Sero(Method):
    """See `trainer.branches.branching` and `trainer.auxiliary.sero`."""

    name = "sero"

    def __init__(self, setup: Setup, section: Any) -> None:
        super().__init__(setup, section)
        # Where turns come from a file, nothing can be played.
        self.brancher: Brancher | None = None
        if setup.make_env is not None:
            env = None if section.workers else setup.make_env()
            in_turn = setup.student.context == "chat" and section.think_mode == "sampled"
            brancher = ThinkingBrancher if in_turn else Brancher
            self.brancher = brancher(setup.config, section, env, setup.student, setup.sampler)
        self._ahead: Ahead[list[GrownRoot]] | None = None
        self._branch_s: float | None = None
        self.roots: Sequence[GrownRoot] = ()
        self._iteration = self._groups = 0
        self._model: nn.Module | None = None
        self._scored: tuple[int, Sequence[GrownRoot]] | None = None
        self._rows: tuple[Step, list[AuxiliaryRow]] | None = None

    def start_ahead(self, iteration: int, trajectories: Sequence[Trajectory]) -> None:
        brancher = self.brancher
        if brancher is not None and self.section.overlap:
            self._ahead = Ahead(
                lambda wanted: brancher.play(iteration, trajectories, wanted), "branches"
            )

    def abandon(self) -> None:
        if self._ahead is not None:
            self._ahead.abandon()
        self._ahead = None

    def prepare(self, rollouts: Rollouts, model: nn.Module) -> None:
        if self.brancher is not None:
            place = rollouts.iteration, rollouts.trajectories
            if self._ahead is None:
                start = time.perf_counter()
                roots = self.brancher.play(*place)
                self._branch_s = time.perf_counter() - start
            else:
                roots = self._ahead.result()
                self._branch_s = self._ahead.seconds
            self.roots = self.brancher.finish(
                rollouts.iteration, roots, rollouts.trajectories, model
            )
        self._iteration = rollouts.iteration
        self._groups = len({trajectory.episode.uid for trajectory in rollouts.trajectories})
        self._model = model
        self._scored = self._rows = None

    def has_pass(self, step: Step) -> bool:
        return bool(self.rows(step))

    def backward(self, model: nn.Module, step: Step, limits: PassLimits) -> float:
        weigh = None
        if self.section.token_weights != "none":
            weigh = functools.partial(weigh_tokens, token_weights=self.section.token_weights)
        return auxiliary_backward(model, self.rows(step), self.weight, limits, weigh)

    def rows(self, step: Step) -> list[AuxiliaryRow]:
        """Rows of this step's roots: roots are shuffled and cut by a stream of their own."""
        if self._rows is None or self._rows[0] != step:
            config, section = self.setup.config, self.section
            stream = rng.stream(config.run.seed, step.iteration, step.epoch, purpose="root-shuffle")
            part = partition(len(self.roots), step.count, stream)[step.index]
            roots = self._of_epoch(step.epoch)
            depth = depth_at(section, config.env.max_steps, step.iteration)
            scheme = weighting(roots, section, depth)
            self._rows = step, step_rows([roots[i] for i in part], section, scheme)
        return self._rows[1]

    def _of_epoch(self, epoch: int) -> Sequence[GrownRoot]:
        """The roots with the z of this epoch; what is logged is that of the first."""
        if self.section.z_every == "iteration" or epoch == 0 or self._model is None:
            return self.roots
        if self._scored is None or self._scored[0] != epoch:
            limits = PassLimits.of(self.setup.config, self.setup.student)
            self._scored = epoch, score(self.roots, self._model, limits)
        return self._scored[1]

    def metrics(self) -> Mapping[str, Any]:
        if self.brancher is None:
            return {}
        found = self.brancher.metrics(self.roots, self._groups, self._iteration)
        return {**found, "sero/branch_s": self._branch_s}

    def close(self) -> None:
        self.abandon()
        if self.brancher is not None:
            self.brancher.close()

    def records(self, trajectories: Sequence[Trajectory]) -> Sequence[Mapping[str, Any]]:
        if self.brancher is None:
            return ()
        return self.brancher.records(self.roots, trajectories, self._iteration)
