"""On-policy expert corrections in a run: from a state of the policy the oracle plays to the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from trainer.auxiliary.imitation import expert_correction_coefficients
from trainer.branches.branching import select_roots
from trainer.config import SeroConfig
from trainer.learning.update import AuxiliaryRow
from trainer.methods.imitation.base import OracleRowMethod, part_of
from trainer.methods.imitation.oracle_rows import OracleDesk, OracleEpisode
from trainer.methods.protocol import Rollouts, Step
from trainer.metrics import mean_or_none

__all__ = ["Corrections"]


class Corrections(OracleRowMethod):
    """See `trainer.auxiliary.imitation`. The roots are those that SERO would choose."""

    name = "corrections"

    def forget(self) -> None:
        self.episodes: Sequence[OracleEpisode] = ()

    def ask(self, desk: OracleDesk, rollouts: Rollouts, model: nn.Module) -> None:
        seed = self.setup.config.run.seed
        choices = select_roots(
            rollouts.trajectories, SeroConfig(pool=self.section.pool), seed, rollouts.iteration
        )
        self.episodes = [
            desk.episode(rollouts.trajectories[choice.index], choice.t, self.section.max_depth)
            for choice in choices
        ]

    def step_rows(self, step: Step) -> list[AuxiliaryRow]:
        part = part_of(len(self.episodes), step, self.setup.config.run.seed, "corrections-shuffle")
        episodes = [self.episodes[i] for i in part]
        segments = [[row.segment() for row in episode.rows] for episode in episodes]
        coefficients = expert_correction_coefficients(
            [episode.branch.success for episode in episodes],
            [episode.valid for episode in episodes],
            [[segment.trained for segment in of_root] for of_root in segments],
            n_root=len(episodes),
        )
        return [
            AuxiliaryRow(segment, coefficient)
            for of_root, weights in zip(segments, coefficients, strict=True)
            for segment, coefficient in zip(of_root, weights, strict=True)
            if coefficient > 0.0
        ]

    def figures(self) -> Mapping[str, Any]:
        """roots: all; solved_share: of them, corrected with success; rows: commands imitated."""
        solved = [episode for episode in self.episodes if episode.solved]
        return {
            "corrections/roots": len(self.episodes),
            "corrections/solved_share": mean_or_none(float(e.solved) for e in self.episodes),
            "corrections/rows": sum(len(episode.rows) for episode in solved),
        }
