"""Teachers that are the policy itself: as it is, as it was, or as it was on average."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Literal

import torch
from torch import Tensor, nn

from trainer.auxiliary.sdpo import ema_update

__all__ = ["Teacher", "TeacherKind"]

TeacherKind = Literal["current", "initial", "synced", "ema"]


class Teacher:
    """A frozen policy to score with. It gets no gradient and changes only as its kind says.

    - "current": the trained policy itself; what it says depends on when it is asked. Asked in
      `Method.prepare` it is the policy that made the rollouts.
    - "initial": as it was when training began.
    - "synced": a copy that becomes the trained policy every `sync_every` iterations.
    - "ema": moves towards the trained policy by `rate` after every optimiser step.

    Args:
        model: the trained policy, at the start of training.
        sync_every: iterations between copies; "synced" only.
        rate: of "ema" only, in (0, 1].
    """

    def __init__(
        self,
        model: nn.Module,
        kind: TeacherKind = "current",
        *,
        sync_every: int = 10,
        rate: float = 0.05,
    ) -> None:
        if kind not in ("current", "initial", "synced", "ema"):
            raise ValueError(f"Unknown kind of teacher {kind!r}.")
        if sync_every < 1:
            raise ValueError(f"sync_every must be at least 1, found {sync_every}.")
        self.kind = kind
        self._sync_every = sync_every
        self._rate = rate
        self._copy: nn.Module | None = None
        if kind != "current":
            self._copy = deepcopy(model).eval().requires_grad_(False)

    def of(self, trained: nn.Module) -> nn.Module:
        """The model to score with; call it without gradient."""
        return trained if self._copy is None else self._copy

    def finished_step(self, trained: nn.Module) -> None:
        """After an optimiser step."""
        if self.kind == "ema" and self._copy is not None:
            pairs = zip(self._copy.parameters(), trained.parameters(), strict=True)
            with torch.no_grad():
                for mine, new in pairs:
                    mine.copy_(ema_update(mine, new.detach(), self._rate))

    def finished_iteration(self, iteration: int, trained: nn.Module) -> None:
        """After the last optimiser step of iteration number `iteration`, counted from 0."""
        if self.kind == "synced" and (iteration + 1) % self._sync_every == 0:
            assert self._copy is not None
            with torch.no_grad():
                for mine, new in zip(self._copy.parameters(), trained.parameters(), strict=True):
                    mine.copy_(new)

    def state(self) -> dict[str, Tensor]:
        """Parameters of the copy, for a checkpoint; none where there is no copy."""
        if self._copy is None:
            return {}
        return {
            f"teacher/{name}": parameter.detach().cpu().contiguous().clone()
            for name, parameter in self._copy.named_parameters()
        }

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `state` gave.

        Raises:
            ValueError: the tensors are those of another model.
        """
        own = {} if self._copy is None else dict(self._copy.named_parameters())
        saved = {name.removeprefix("teacher/"): value for name, value in tensors.items()}
        if own.keys() != saved.keys() or any(own[k].shape != saved[k].shape for k in own):
            raise ValueError("it holds the parameters of another teacher")
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(saved[name])
