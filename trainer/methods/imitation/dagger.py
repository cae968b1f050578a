"""DAgger in a run: the oracle's command at the states that the policy visited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from trainer import rng
from trainer.auxiliary.depth_schedule import depth_mask, max_depth
from trainer.auxiliary.imitation import dagger_rows
from trainer.learning.update import AuxiliaryRow
from trainer.methods.imitation.base import OracleRowMethod, equal_rows, turn_numbers
from trainer.methods.imitation.oracle_rows import OracleDesk
from trainer.methods.protocol import Rollouts, Step
from trainer.metrics import mean_or_none
from trainer.rollouts.data import Segment, make_segment
from trainer.rollouts.rollout import Trajectory

__all__ = ["Dagger"]


class Dagger(OracleRowMethod):
    """See `trainer.auxiliary.imitation`. A state's row belongs to the optimiser step of its turn.

    The rollouts stay the policy's own: beta, the share of steps that the oracle takes while states
    are collected, is 0.
    """

    name = "dagger"

    def forget(self) -> None:
        self._labels: dict[int, Segment] = {}
        self._agrees: list[bool] = []

    def ask(self, desk: OracleDesk, rollouts: Rollouts, model: nn.Module) -> None:
        trajectories = rollouts.trajectories
        places = [
            (first + t, trajectory, t)
            for first, trajectory in zip(turn_numbers(trajectories), trajectories, strict=True)
            for t in self.states(rollouts.iteration, trajectory)
        ]
        commands = [desk.label(trajectory, t) for _, trajectory, t in places]
        labelled = torch.tensor([command is not None for command in commands], dtype=torch.bool)
        if self.section.states == "failed":
            success = torch.tensor([trajectory.success for _, trajectory, _ in places])
            labelled = dagger_rows(success.bool(), labelled)
        for (number, trajectory, t), command, on in zip(
            places, commands, labelled.tolist(), strict=True
        ):
            target = desk.target(command) if on and command is not None else None
            if target is not None:
                turn = trajectory.turns[t]
                segment = make_segment(turn.prompt_ids, target.ids, mask=target.loss_mask)
                self._labels[number] = segment
                self._agrees.append(command == turn.command)

    def states(self, iteration: int, trajectory: Trajectory) -> Sequence[int]:
        """Turns of a trajectory that are labelled in this iteration."""
        c = self.section
        if trajectory.success and c.states == "failed":
            return []
        n = len(trajectory.turns)
        longest = max(self.setup.config.env.max_steps, c.depth_start)
        depth = max_depth(
            iteration, growth_updates=c.depth_iterations, final=longest, start=c.depth_start
        )
        within = depth_mask(
            torch.arange(n), torch.full((n,), n), depth, direction=c.depth_direction
        )
        states = within.nonzero().flatten().tolist()
        if c.max_states is None or len(states) <= c.max_states:
            return states
        seed, tid = self.setup.config.run.seed, trajectory.episode.tid
        order = rng.stream(seed, iteration, tid, purpose="dagger-states").permutation(len(states))
        return sorted(states[i] for i in order[: c.max_states])

    def step_rows(self, step: Step) -> list[AuxiliaryRow]:
        return equal_rows([self._labels[i] for i in step.turns if i in self._labels])

    def figures(self) -> Mapping[str, Any]:
        """rows: labelled states; agree_share: of them, where the policy did as the oracle says."""
        return {
            "dagger/rows": len(self._labels),
            "dagger/agree_share": mean_or_none(map(float, self._agrees)),
        }
