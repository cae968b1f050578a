"""The order in which `reset()` goes through the tasks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_KEY_LIMIT = 1 << 63


@dataclass(slots=True)
class Schedule:
    """Epochs over `n_tasks` tasks, each a fresh permutation that depends on `key` and epoch only.

    The whole schedule is therefore four numbers, whatever the number of tasks.
    """

    key: int
    n_tasks: int
    epoch: int = 0
    position: int = 0
    _order: tuple[int, tuple[int, ...]] | None = None

    @classmethod
    def drawn_from(cls, rng: np.random.Generator, n_tasks: int) -> Schedule:
        """A new schedule with a key drawn from `rng` (one draw)."""
        return cls(int(rng.integers(_KEY_LIMIT)), n_tasks)

    def peek(self) -> int:
        """Index of the next task."""
        epoch, position = self._next()
        if self._order is None or self._order[0] != epoch:
            seeds = np.random.SeedSequence((self.key, epoch))
            order = np.random.Generator(np.random.PCG64(seeds)).permutation(self.n_tasks)
            self._order = epoch, tuple(order.tolist())
        return self._order[1][position]

    def advance(self) -> None:
        """Count the task that `peek` names as taken."""
        epoch, position = self._next()
        self.epoch, self.position = epoch, position + 1

    def _next(self) -> tuple[int, int]:
        if self.position < self.n_tasks:
            return self.epoch, self.position
        return self.epoch + 1, 0

    def to_state(self) -> tuple[int, int, int, int]:
        """The schedule as plain numbers."""
        return self.key, self.n_tasks, self.epoch, self.position

    @classmethod
    def from_state(cls, state: tuple[int, ...]) -> Schedule:
        """Inverse of `to_state`; `ValueError` unless the numbers are possible."""
        if len(state) != 4 or any(type(number) is not int for number in state):
            raise ValueError("a schedule is four integers")
        key, n_tasks, epoch, position = state
        if not (0 <= key < _KEY_LIMIT and 0 <= epoch < _KEY_LIMIT and 0 <= position <= n_tasks):
            raise ValueError(f"no schedule has the numbers {state}")
        return cls(key, n_tasks, epoch, position)

    def __deepcopy__(self, memo: dict[int, object]) -> Schedule:
        return Schedule(self.key, self.n_tasks, self.epoch, self.position, self._order)
