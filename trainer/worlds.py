"""Games, environments and task lists of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import gymnasium
import numpy as np

import agent_envs  # noqa: F401  (registers the environment ids)
from agent_envs.alfworld.games import GameSet, load_game_set
from agent_envs.errors import MissingData
from trainer import rng
from trainer.config import Config, EnvConfig

__all__ = ["check_splits", "make_env", "open_games", "split_tasks", "spread", "tasks_at"]


def open_games(config: EnvConfig) -> GameSet:
    """The games that `env.data` names: `generated`, a path, or null for what can be found.

    Raises:
        MissingData: the path does not exist.
    """
    if config.data != "generated":
        return load_game_set(config.data)
    from agent_envs.alfworld.households.generator import generate_game_set
    from agent_envs.alfworld.households.spec import PRESETS

    generated = config.generated
    spec: Any = PRESETS[generated.preset]
    if generated.task_types:
        spec = replace(spec, task_types=generated.task_types)
    if generated.receptacles is not None:
        spec = replace(spec, receptacles=generated.receptacles)
    if generated.objects is not None:
        spec = replace(spec, objects=generated.objects)
    counts = {
        "train": generated.train,
        "valid_seen": generated.valid_seen,
        "valid_unseen": generated.valid_unseen,
    }
    return generate_game_set(generated.seed, counts, spec)


def make_env(config: EnvConfig, games: GameSet, split: str) -> gymnasium.Env[str, str]:
    """One environment over `games`, which all environments share."""
    env: gymnasium.Env[str, str] = gymnasium.make(
        config.id,
        data=games,
        split=split,
        task_types=config.task_types or None,
        max_steps=config.max_steps,
    )
    return env


def split_tasks(config: EnvConfig, games: GameSet, split: str) -> tuple[str, ...]:
    """All task ids of a split, sorted.

    Raises:
        MissingData: there is none.
    """
    ids = games.task_ids(split, config.task_types or None)
    if not ids:
        raise MissingData(
            f"The games from {games.source} have no task in split {split!r}"
            + (f" of the types {', '.join(config.task_types)}" if config.task_types else "")
            + f"; splits: {', '.join(games.splits) or 'none'}. Change env.data or the split."
        )
    return tuple(ids)


def check_splits(config: Config, games: GameSet) -> None:
    """Looks for tasks wherever a run is going to need them, before any work is done.

    Raises:
        MissingData: there is none in `env.split` or in a split of `eval.splits`; names the field.
    """
    fields = [("env.split", config.env.split), *(("eval.splits", s) for s in config.eval.splits)]
    for field, split in fields:
        try:
            split_tasks(config.env, games, split)
        except MissingData as error:
            raise MissingData(f"{field} names {split!r}. {error}") from error


def spread(task_ids: Sequence[str], n: int | None) -> tuple[str, ...]:
    """`n` of the ids at even distances, so that sorted task types keep their share; None: all."""
    if n is None or n >= len(task_ids):
        return tuple(task_ids)
    return tuple(task_ids[i * len(task_ids) // n] for i in range(n))


def tasks_at(task_ids: Sequence[str], n: int, seed: int, iteration: int) -> list[str]:
    """The `n` tasks of one iteration.

    The schedule is one endless sequence: a permutation of all ids after another, each from the
    stream (seed, epoch, "tasks"). It depends on nothing else, so every arm of a comparison and
    every resumed run sees the same tasks.
    """
    size = len(task_ids)
    places = range(iteration * n, (iteration + 1) * n)
    return [task_ids[_permutation(size, seed, p // size)[p % size]] for p in places]


@lru_cache(maxsize=64)
def _permutation(size: int, seed: int, epoch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return rng.stream(seed, epoch, purpose=rng.TASKS).permutation(size)
