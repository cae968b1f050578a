"""SERO: how the branches of one iteration are weighted, every choice settled.

Between `trainer.auxiliary.sero_weights`, which weighs a single branch, and a run, where a decay may
follow from the branches at hand and a schedule may train a part of each branch.

Axis letters: K branch rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from trainer.auxiliary.depth_schedule import DepthDirection, depth_mask
from trainer.auxiliary.sero_weights import (
    DepthDecay,
    WeightRule,
    match_depth_decay,
    reach_weights,
)


@dataclass(frozen=True, slots=True)
class Weighting:
    """Weights of branch rows.

    Attributes:
        rule, delta, decay: see `reach_weights`.
        depth: rows of each branch that count; None: all.
        direction: which end of a branch they are at, see `depth_mask`.
    """

    rule: WeightRule = "sero"
    delta: float = 0.9
    decay: DepthDecay = "exponential"
    depth: int | None = None
    direction: DepthDirection = "forward"

    def weights(self, logz: Sequence[float]) -> list[float]:
        """w_0 .. w_{K-1} of one branch; exactly 0 for rows beyond the depth.

        The depth takes rows away and changes no weight: z of a row that is not trained still
        counts in the weights behind it.
        """
        weights = reach_weights(logz, self.rule, self.delta, self.decay)
        if self.depth is None:
            return weights
        t_K = torch.arange(len(weights))
        kept_K = depth_mask(
            t_K, torch.full_like(t_K, len(weights)), self.depth, direction=self.direction
        )
        return [w if kept else 0.0 for w, kept in zip(weights, kept_K.tolist(), strict=True)]


def decay_of(delta: float | Literal["matched"], logz_bank: Sequence[Sequence[float]]) -> float:
    """The decay of rule "depth": as given, or the one with the mass that "sero" has on the bank.

    Args:
        delta: in [0, 1], or "matched".
        logz_bank: log z of every step of every open branch at hand.

    Returns:
        delta; matched on an empty bank 0.0, where there is nothing to weigh.
    """
    if delta != "matched":
        return delta
    return match_depth_decay(logz_bank) if logz_bank else 0.0
