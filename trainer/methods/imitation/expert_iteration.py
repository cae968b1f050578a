"""Expert iteration in a run: the NLL of the policy's own replies in successful rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trainer.auxiliary.imitation import expert_iteration_rows, imitation_coefficients
from trainer.methods.protocol import Method, Rollouts, Setup, Step, TokenTerm
from trainer.metrics import mean_or_none
from trainer.models.policy import SegmentBatch
from trainer.objectives import weighted_nll

__all__ = ["ExpertIteration"]


class ExpertIteration(Method):
    """See `trainer.auxiliary.imitation`.

    The replies are those that the base trains anyway, so the term shares its forward pass, at the
    temperature of the sampling.
    """

    name = "expert_iteration"
    _selected: Sequence[bool] = ()
    _trained: Sequence[int] = ()

    def __init__(self, setup: Setup, section: Any) -> None:
        super().__init__(setup, section)
        self._losses: list[float] = []

    def prepare(self, rollouts: Rollouts, model: nn.Module) -> None:
        won = {(turn.uid, turn.tid) for turn in rollouts.turns if turn.done and turn.success}
        success = torch.tensor(
            [(turn.uid, turn.tid) in won for turn in rollouts.turns], dtype=torch.bool
        )
        valid = None
        if self.section.well_formed:
            valid = torch.tensor([turn.format_valid for turn in rollouts.turns], dtype=torch.bool)
        self._selected = expert_iteration_rows(success, valid).tolist()
        self._trained = [segment.trained for segment in rollouts.segments]
        self._losses = []

    def token_term(self, step: Step) -> TokenTerm | None:
        # A number beyond the rollouts is a turn that somebody else brought into the groups.
        turns = [i for i in step.turns if i < len(self._selected) and self._selected[i]]
        counts = torch.tensor([self._trained[i] for i in turns], dtype=torch.int64)
        n_rows = int((counts > 0).sum())
        if self.weight == 0.0 or n_rows == 0:
            return None
        coefficients = imitation_coefficients(
            torch.ones_like(counts, dtype=torch.bool), counts, n_rows=n_rows
        )
        self._losses.append(0.0)
        return _OwnReplies(
            dict(zip(turns, coefficients.tolist(), strict=True)), self.weight, self._losses
        )

    def metrics(self) -> Mapping[str, Any]:
        """rows: replies imitated; nll: mean loss of the optimiser steps, without the weight."""
        pairs = zip(self._selected, self._trained, strict=True)
        return {
            "expert_iteration/rows": sum(on and n > 0 for on, n in pairs),
            "expert_iteration/nll": mean_or_none(self._losses),
        }


class _OwnReplies(TokenTerm):
    """weight * sum over rows of coefficient * NLL of the row's sampled tokens."""

    def __init__(
        self, coefficients: Mapping[int, float], weight: float, losses: list[float]
    ) -> None:
        self._coefficients = coefficients
        self._weight = weight
        self._losses = losses

    def needs(self, turn: int) -> bool:
        return self._coefficients.get(turn, 0.0) > 0.0

    def loss(self, new_B_T: Tensor, batch: SegmentBatch, turns_B: Sequence[int]) -> Tensor | None:
        coef_B = torch.tensor(
            [self._coefficients.get(turn, 0.0) for turn in turns_B],
            dtype=torch.float64,
            device=new_B_T.device,
        )
        if not bool((coef_B > 0.0).any()):
            return None
        loss = weighted_nll(new_B_T, batch.mask_B_T, coef_B)
        self._losses[-1] += float(loss.detach())
        return self._weight * loss
