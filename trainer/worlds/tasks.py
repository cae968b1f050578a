"""Tasks and environments of a run, whatever environment its config names.

What differs between environments is in `trainer.worlds.environments`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

import agent_envs  # noqa: F401  (registers the environment ids)
from agent_envs.errors import MissingData
from trainer import rng
from trainer.worlds.environments import VARIABLES, TaskSet, environment_of

if TYPE_CHECKING:
    from trainer.config import Config, EnvConfig

__all__ = [
    "WorldRecipe",
    "check_splits",
    "make_env",
    "open_tasks",
    "split_tasks",
    "spread",
    "tasks_at",
    "tasks_from",
]


def open_tasks(config: EnvConfig, option: str = "--env.data") -> TaskSet:
    """The tasks that `env.data` names: `generated`, a path, or null for what can be found.

    Args:
        option: of the command that says where the data are, for messages.

    Raises:
        MissingData: the path does not exist.
        NamedError: `env.id` is a `module:name` that is not there, or no environment.
    """
    try:
        return environment_of(config.id).open(config)
    except MissingData as error:
        variable = VARIABLES.get(config.id)
        if config.data is None or variable is None:
            raise
        # It goes before the variable that the data's own message speaks of.
        null = f", or {option} null with ${variable}" if option == "--env.data" else ""
        raise MissingData(f"{error} Here: {option} PATH{null}.") from error


def make_env(config: EnvConfig, task_set: TaskSet, split: str) -> gymnasium.Env[str, str]:
    """One environment over `task_set`, which all environments share."""
    entry = environment_of(config.id)
    if entry.make is not None:
        return entry.make(config, task_set, split)
    options = entry.options(config, task_set, split)
    env: gymnasium.Env[str, str] = gymnasium.make(config.id, max_steps=config.max_steps, **options)
    return env


@dataclass(frozen=True, slots=True)
class WorldRecipe:
    """Makes environments of a config over a split; can be sent to other processes."""

    config: EnvConfig
    split: str

    def __call__(self) -> gymnasium.Env[str, str]:
        """A new environment. Its tasks are opened for it alone."""
        return make_env(self.config, open_tasks(self.config), self.split)


def split_tasks(config: EnvConfig, task_set: TaskSet, split: str) -> Sequence[str]:
    """All task ids of a split, in the order of the set.

    Raises:
        MissingData: there is none.
    """
    ids = task_set.task_ids(split, config.task_types or None)
    if not ids:
        raise MissingData(
            f"The tasks from {task_set.source} have none in split {split!r}"
            + (f" of the types {', '.join(config.task_types)}" if config.task_types else "")
            + f"; splits: {', '.join(task_set.splits) or 'none'}. Change env.data or the split."
        )
    return ids


def check_splits(config: Config, task_set: TaskSet) -> None:
    """Looks for tasks wherever a run is going to need them, before any work is done.

    Raises:
        MissingData: there is none in `env.split` or in a split of `eval.splits`; names the field.
    """
    fields = [("env.split", config.env.split), *(("eval.splits", s) for s in config.eval.splits)]
    for field, split in fields:
        try:
            split_tasks(config.env, task_set, split)
        except MissingData as error:
            raise MissingData(f"{field} names {split!r}. {error}") from error


def spread(task_ids: Sequence[str], n: int | None) -> tuple[str, ...]:
    """`n` of the ids at even distances, so that sorted task types keep their share; None: all."""
    if n is None or n >= len(task_ids):
        return tuple(task_ids)
    return tuple(task_ids[i * len(task_ids) // n] for i in range(n))


def tasks_at(task_ids: Sequence[str], n: int, seed: int, iteration: int) -> list[str]:
    """The `n` tasks of one iteration: `tasks_from` at its place in the schedule."""
    return tasks_from(task_ids, iteration * n, n, seed)


def tasks_from(task_ids: Sequence[str], first: int, n: int, seed: int) -> list[str]:
    """`n` tasks of the schedule, from place `first` on.

    The schedule is one endless sequence: a permutation of all ids after another, each from the
    stream (seed, epoch, "tasks"). It depends on nothing else, so every arm of a comparison and
    every resumed run sees the same tasks.
    """
    size = len(task_ids)
    places = range(first, first + n)
    return [task_ids[_permutation(size, seed, p // size)[p % size]] for p in places]


@lru_cache(maxsize=64)
def _permutation(size: int, seed: int, epoch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return rng.stream(seed, epoch, purpose=rng.TASKS).permutation(size)
