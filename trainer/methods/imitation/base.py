"""What the objectives that imitate share: asking an oracle once an iteration, rows, their pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trainer import rng
from trainer.auxiliary.imitation import imitation_coefficients
from trainer.learning.batch import partition
from trainer.learning.update import AuxiliaryRow, auxiliary_backward, passes, precision
from trainer.methods.imitation.oracle_rows import OracleDesk, first_of_groups
from trainer.methods.protocol import Method, PassLimits, Rollouts, Setup, Step
from trainer.models.policy import token_logprobs
from trainer.rollouts.data import Segment
from trainer.rollouts.rollout import Trajectory

__all__ = [
    "OracleMethod",
    "OracleRowMethod",
    "equal_rows",
    "expert_segments",
    "part_of",
    "segment_backward",
    "turn_numbers",
]

RowLoss = Callable[[Tensor, Tensor], Tensor]
"""(log-probs (B, T), mask (B, T)) -> this micro-batch's part of a loss."""


class OracleMethod(Method, ABC):
    """An objective that asks an oracle once an iteration, in an environment of its own.

    Without `Setup.make_env` it has nothing to learn from.
    """

    def __init__(self, setup: Setup, section: Any) -> None:
        super().__init__(setup, section)
        self.desk = None if setup.make_env is None else OracleDesk(setup, section)
        self.forget()

    def prepare(self, rollouts: Rollouts, model: nn.Module) -> None:
        self.forget()
        if self.desk is not None:
            self.desk.start()
            self.ask(self.desk, rollouts, model)

    @abstractmethod
    def forget(self) -> None:
        """Drop what the last iteration learned from."""

    @abstractmethod
    def ask(self, desk: OracleDesk, rollouts: Rollouts, model: nn.Module) -> None:
        """Ask the oracle, and keep what is to be learned."""

    def figures(self) -> Mapping[str, Any]:
        """Metrics besides those of asking."""
        return {}

    def metrics(self) -> Mapping[str, Any]:
        if self.desk is None:
            return {}
        return {**self.desk.metrics(self.name), **self.figures()}


class OracleRowMethod(OracleMethod):
    """One whose loss is the NLL of rows of the oracle. Subclasses say which a step has."""

    _rows: tuple[Step, list[AuxiliaryRow]] | None = None

    def prepare(self, rollouts: Rollouts, model: nn.Module) -> None:
        self._rows = None
        super().prepare(rollouts, model)

    @abstractmethod
    def step_rows(self, step: Step) -> list[AuxiliaryRow]:
        """Rows of one optimiser step with their coefficients."""

    def rows(self, step: Step) -> list[AuxiliaryRow]:
        """`step_rows`, computed once a step."""
        if self._rows is None or self._rows[0] != step:
            self._rows = step, self.step_rows(step)
        return self._rows[1]

    def has_pass(self, step: Step) -> bool:
        return bool(self.rows(step))

    def backward(self, model: nn.Module, step: Step, limits: PassLimits) -> float:
        return auxiliary_backward(model, self.rows(step), self.weight, limits)


def equal_rows(segments: Sequence[Segment]) -> list[AuxiliaryRow]:
    """The rows of one optimiser step, each of weight 1/N: the mean over rows of their mean NLL."""
    counts = torch.tensor([segment.trained for segment in segments], dtype=torch.int64)
    coefficients = imitation_coefficients(
        torch.ones_like(counts, dtype=torch.bool), counts, n_rows=int((counts > 0).sum())
    )
    return [
        AuxiliaryRow(segment, coefficient)
        for segment, coefficient in zip(segments, coefficients.tolist(), strict=True)
        if coefficient > 0.0
    ]


def expert_segments(desk: OracleDesk, trajectories: Sequence[Trajectory]) -> list[Segment]:
    """Rows of the oracle's episodes from the first state of each group's task, if it is solved."""
    episodes = [desk.episode(trajectory) for _, trajectory in first_of_groups(trajectories)]
    return [row.segment() for episode in episodes if episode.solved for row in episode.rows]


def part_of(n: int, step: Step, seed: int, purpose: str) -> list[int]:
    """Which of n things, shuffled by a stream of their own, belong to this optimiser step."""
    stream = rng.stream(seed, step.iteration, step.epoch, purpose=purpose)
    return partition(n, step.count, stream)[step.index]


def turn_numbers(trajectories: Sequence[Trajectory]) -> list[int]:
    """Number of each trajectory's first turn in the list of all turns."""
    first, total = [], 0
    for trajectory in trajectories:
        first.append(total)
        total += len(trajectory.turns)
    return first


def segment_backward(
    model: nn.Module, segments: Sequence[Segment], scale: float, limits: PassLimits, loss: RowLoss
) -> float:
    """Accumulates scale times the gradient of `loss`, which adds up over micro-batches.

    Returns:
        The loss without `scale`.
    """
    device = next(model.parameters()).device
    total = 0.0
    for _, batch in passes(model, segments, limits):
        with precision(device, limits.bf16):
            logprobs = token_logprobs(model, batch).logprobs
        value = loss(logprobs, batch.mask_B_T)
        total += float(value.detach())
        (scale * value).backward()  # type: ignore[no-untyped-call]
    return total
