"""CHORD in a run: a part of the base loss gives way to fine-tuning on the oracle's episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trainer.auxiliary.chord import chord_mu, chord_phi_loss
from trainer.methods.imitation.base import OracleMethod, expert_segments, part_of, segment_backward
from trainer.methods.imitation.oracle_rows import OracleDesk
from trainer.methods.protocol import PassLimits, Rollouts, Step
from trainer.objectives import Denominators, weighted_nll
from trainer.rollouts.data import Segment

__all__ = ["Chord"]


class Chord(OracleMethod):
    """See `trainer.auxiliary.chord`; one iteration is one update of the schedule.

    In an iteration without an expert row the base loss keeps its whole force.
    """

    name = "chord"

    def forget(self) -> None:
        self.segments: Sequence[Segment] = ()
        self._mu = 0.0

    def ask(self, desk: OracleDesk, rollouts: Rollouts, model: nn.Module) -> None:
        self.segments = expert_segments(desk, rollouts.trajectories)
        self._mu = self.mu(rollouts.iteration)

    def mu(self, iteration: int) -> float:
        """Share of the supervised loss, before the weight."""
        c = self.section
        return chord_mu(
            iteration,
            decay_steps=c.mu_decay,
            warmup_steps=c.mu_warmup,
            peak=c.mu_peak,
            valley=c.mu_valley,
            shape=c.mu_shape,
        )

    def base_scale(self, iteration: int) -> float:
        return 1.0 - self.weight * self.mu(iteration) if self.segments else 1.0

    def part(self, step: Step) -> list[Segment]:
        """The step's expert rows: shuffled and cut as a plain data set."""
        seed = self.setup.config.run.seed
        return [self.segments[i] for i in part_of(len(self.segments), step, seed, "chord-shuffle")]

    def has_pass(self, step: Step) -> bool:
        return self.mu(step.iteration) > 0.0 and bool(self.part(step))

    def backward(self, model: nn.Module, step: Step, limits: PassLimits) -> float:
        segments, mu = self.part(step), self.mu(step.iteration)
        counts = Denominators(sum(s.trained for s in segments), len(segments))

        def loss(logp_B_T: Tensor, mask_B_T: Tensor) -> Tensor:
            if self.section.token_weights == "phi":
                return chord_phi_loss(logp_B_T, mask_B_T, denominators=counts)
            share_B = torch.full_like(logp_B_T[:, 0], 1.0 / counts.tokens, dtype=torch.float64)
            return weighted_nll(logp_B_T, mask_B_T, share_B)

        return mu * segment_backward(model, segments, self.weight * mu, limits, loss)

    def figures(self) -> Mapping[str, Any]:
        """rows: of the expert; mu: share of the supervised loss, None where there is no row."""
        return {
            "chord/rows": len(self.segments),
            "chord/mu": self.weight * self._mu if self.segments else None,
        }
