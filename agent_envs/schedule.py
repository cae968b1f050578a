"""The order in which `reset()` goes through the tasks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from agent_envs.errors import InvalidOption

_KEY_LIMIT = 1 << 63
_AS_LISTED = -1


def first_task(seed: int, n_tasks: int) -> int:
    """Index of the task that a schedule of `seed` begins with.

    A bijection on every `n_tasks` consecutive seeds: seeds 0 and 1, or the seeds ``s + i`` that a
    vector env gives its sub-envs, never begin alike. Near the golden ratio, the step spreads
    consecutive seeds over the sorted list, where neighbours resemble each other.

    >>> sorted(first_task(seed, 10) for seed in range(90, 100))
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    step = max(1, round(n_tasks * 0.6180339887))
    while math.gcd(step, n_tasks) != 1:
        step += 1
    return seed * step % n_tasks


@lru_cache(maxsize=64)  # shared: an order takes 14 kB, and there may be thousands of envs
def _permutation(key: int, epoch: int, n_tasks: int) -> NDArray[np.int32]:
    seeds = np.random.SeedSequence((key, epoch))
    order = np.random.Generator(np.random.PCG64(seeds)).permutation(n_tasks)
    return order.astype(np.int32)


@dataclass(slots=True)
class Schedule:
    """Epochs over `n_tasks` tasks, each a fresh permutation that depends on `key` and epoch only.

    Epoch 0 begins with the task `first`. The whole schedule is therefore five numbers, whatever
    the number of tasks. A schedule `as_listed` takes the tasks in their own order instead, epoch
    after epoch.
    """

    key: int
    n_tasks: int
    first: int
    epoch: int = 0
    position: int = 0

    @classmethod
    def drawn_from(cls, rng: np.random.Generator, seed: int, n_tasks: int) -> Schedule:
        """A new schedule with a key drawn from `rng` (one draw), which was seeded with `seed`."""
        return cls(int(rng.integers(_KEY_LIMIT)), n_tasks, first_task(seed, n_tasks))

    @classmethod
    def as_listed(cls, n_tasks: int) -> Schedule:
        """A new schedule that takes the tasks in their own order."""
        return cls(_AS_LISTED, n_tasks, 0)

    def peek(self) -> int:
        """Index of the next task."""
        epoch, position = self._next()
        if self.key == _AS_LISTED:
            return position
        order = _permutation(self.key, epoch, self.n_tasks)
        if epoch == 0:  # the task `first` and the one at the front change places
            if position == 0:
                return self.first
            if order[position] == self.first:
                return int(order[0])
        return int(order[position])

    def advance(self) -> None:
        """Count the task that `peek` names as taken."""
        epoch, position = self._next()
        self.epoch, self.position = epoch, position + 1

    def _next(self) -> tuple[int, int]:
        if self.position < self.n_tasks:
            return self.epoch, self.position
        return self.epoch + 1, 0

    def for_tasks(self, n_tasks: int) -> Schedule:
        """The schedule of the same key over another number of tasks, at its beginning."""
        if self.key == _AS_LISTED:
            return self.as_listed(n_tasks)
        return Schedule(self.key, n_tasks, first_task(self.key, n_tasks))

    def to_state(self) -> tuple[int, int, int, int, int]:
        """The schedule as plain numbers."""
        return self.key, self.n_tasks, self.first, self.epoch, self.position

    @classmethod
    def from_state(cls, state: tuple[int, ...]) -> Schedule:
        """Inverse of `to_state`; `ValueError` unless the numbers are possible."""
        if type(state) is not tuple or len(state) != 5 or any(type(n) is not int for n in state):
            raise ValueError("its schedule is not five integers")
        key, n_tasks, first, epoch, position = state
        good = 0 <= key < _KEY_LIMIT or (key == _AS_LISTED and first == 0)
        good = good and 0 <= epoch < _KEY_LIMIT and 0 <= first < n_tasks
        if not good or not 0 <= position <= n_tasks:
            raise ValueError(f"no schedule has the numbers {state}")
        return cls(key, n_tasks, first, epoch, position)

    def __deepcopy__(self, memo: dict[int, object]) -> Schedule:
        return Schedule(*self.to_state())


def checked_order(task_ids: Iterable[str]) -> tuple[str, ...]:
    """A list of tasks in the order in which to play them.

    Raises:
        InvalidOption: no order, no strings, an id twice, or none at all.
    """
    unordered = isinstance(task_ids, set | frozenset)  # in another order in each process
    if unordered or isinstance(task_ids, str) or not isinstance(task_ids, Iterable):
        raise InvalidOption(
            f"task_ids must be a sequence of task ids, in the order to play, found {task_ids!r}."
        )
    listed = tuple(task_ids)
    strange = [task_id for task_id in listed if not isinstance(task_id, str)]
    if strange:
        raise InvalidOption(f"task_ids must hold strings, found {strange[0]!r}.")
    twice = sorted(task_id for task_id, times in Counter(listed).items() if times > 1)
    if twice or not listed:
        found = f"{twice[0]!r} more than once" if twice else "none"
        raise InvalidOption(f"task_ids must name at least one task, each once, found {found}.")
    return tuple(map(str, listed))
