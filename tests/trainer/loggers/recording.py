"""A logger that keeps what it was given, and one that fails on demand."""

from __future__ import annotations

from collections.abc import Mapping


class Recording:
    """Keeps steps and numbers; raises at the steps `fails`, and when closing if `stubborn`."""

    def __init__(self, name: str = "kept", fails: tuple[int, ...] = (), stubborn: bool = False):
        self.name = name
        self.fails = fails
        self.stubborn = stubborn
        self.seen: list[tuple[int, dict[str, float]]] = []
        self.closed: list[bool] = []

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        if step in self.fails:
            raise OSError("the disk is full\x1b[2J")
        self.seen.append((step, dict(numbers)))

    def close(self, *, failed: bool) -> None:
        self.closed.append(failed)
        if self.stubborn:
            raise RuntimeError("no")
