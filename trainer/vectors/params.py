"""A case's parameters, read key by key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Json = Any
BaseMethod = Callable[["Params", Mapping[str, Json] | None], Json]
AuxMethod = Callable[["Params"], Json]


class Params:
    """A case's parameters; reading marks them, so that none is silently ignored."""

    def __init__(self, values: Mapping[str, Json]) -> None:
        self._values = values
        self._read: set[str] = set()

    def get(self, key: str, default: Json = None) -> Json:
        """The value of `key`, or the default where the case leaves it out."""
        self._read.add(key)
        return self._values.get(key, default)

    def need(self, key: str) -> Json:
        """The value of `key`; KeyError with the name where it is missing."""
        self._read.add(key)
        return self._values[key]

    def matrix(self, key: str) -> Tensor:
        """A (B, T) float64 tensor."""
        return torch.tensor(self.need(key), dtype=torch.float64)

    def ignore(self, *keys: str) -> None:
        """Mark shared inputs that this method has no use for."""
        self._read.update(keys)

    def subset(self, *keys: str) -> dict[str, Json]:
        """The options among `keys` that the case sets, as keyword arguments."""
        self._read.update(keys)
        return {key: self._values[key] for key in keys if key in self._values}

    def finish(self) -> None:
        """Raise ValueError if the case has parameters nobody read."""
        unknown = sorted(set(self._values) - self._read)
        if unknown:
            raise ValueError(f"unknown parameters {unknown}")


def tensors(rows: Sequence[Sequence[float]]) -> list[Tensor]:
    """Ragged rows as float64 tensors."""
    return [torch.tensor(row, dtype=torch.float64) for row in rows]


def gradient(leaf: Tensor) -> Tensor:
    """Gradient of a leaf; zeros where nothing reached it."""
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
