"""Environments in worker processes of this machine (`agent_envs.vector`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple, cast

from gymnasium.vector import AutoresetMode

from agent_envs.errors import SeroError
from agent_envs.vector.calls import Recipe, Request
from agent_envs.vector.pool import ProcessVectorEnv
from trainer.config.env import EnvConfig
from trainer.pools.base import Began, Start, Stepped, TextEnvironment, stepped
from trainer.worlds.checked import check_answer, check_began
from trainer.worlds.environments import TaskSet
from trainer.worlds.named import NamedError
from trainer.worlds.tasks import make_env, open_tasks

__all__ = ["ProcessPool", "WorldMaker"]

TIMEOUT_S = 600.0


class WorldMaker(NamedTuple):
    """Makes environments of a config in another process, where they share their tasks."""

    config: EnvConfig
    split: str

    def make(self) -> TextEnvironment:
        """A new environment."""
        return make_env(self.config, _tasks(self.config), self.split)


@lru_cache(maxsize=1)
def _tasks(config: EnvConfig) -> TaskSet:
    return open_tasks(config)


class _Workers(ProcessVectorEnv):
    """The vector environment's workers, asked for single sub-environments.

    Args:
        name: of somebody's environment, for messages; None: it is ours.
    """

    def __init__(self, recipe: Recipe, size: int, workers: int, name: str | None) -> None:
        super().__init__(recipe, size, AutoresetMode.DISABLED, workers, TIMEOUT_S)
        self._name = name

    def ask(self, requests: Mapping[int, Request]) -> dict[int, Any]:
        """The answers; the first error, if there is one, after all have done their part."""
        outcomes = self._each(requests)
        try:
            self._raise_first(outcomes)
        except SeroError:
            raise
        except Exception as error:
            if self._name is None:
                raise
            raise _theirs(error, self._name, next(iter(requests.values()))[0]) from error
        return {place: outcome.value for place, outcome in outcomes.items()}


def _theirs(error: Exception, name: str, call: str) -> NamedError:
    """As `somebodys` says it; the place is in what the worker told of it."""
    places = re.findall(r'File "(.+)", line (\d+)', "\n".join(getattr(error, "__notes__", ())))
    place = f" ({places[-1][0]}, line {places[-1][1]})" if places else ""
    return NamedError(f"{name}: {call} fails: {type(error).__name__}: {error}{place}")


class ProcessPool:
    """An `EnvPool` of `size` environments in `workers` processes.

    Raises:
        WorkerError: a worker died, or gave no answer in `TIMEOUT_S`.
        NamedError: somebody's environment, or a wrapper of theirs, fails or gives no answer.
    """

    def __init__(self, config: EnvConfig, split: str, size: int, workers: int) -> None:
        self._size = size
        recipe = cast("Recipe", WorldMaker(config, split))
        self._name = f"env.id={config.id}" if ":" in config.id else None
        self._vec = _Workers(recipe, size, workers, self._name)

    @property
    def size(self) -> int:
        return self._size

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Ids of the worker processes."""
        return self._vec.worker_pids

    def reset_many(self, starts: Mapping[int, Start]) -> dict[int, Began]:
        found = self._vec.ask(
            {i: ("reset", (seed, {"task_id": task})) for i, (task, seed) in starts.items()}
        )
        if self._name is not None:  # its wrappers do not check themselves
            for began in found.values():
                check_began(began, self._name)
        return found

    def step_many(self, commands: Mapping[int, str], *, snapshots: bool) -> dict[int, Stepped]:
        before: dict[int, Any] = {}
        if snapshots:
            before = self._vec.ask(dict.fromkeys(commands, ("snapshot", ())))
        answers = self._vec.ask({i: ("step", (command,)) for i, command in commands.items()})
        if self._name is not None:
            for answer in answers.values():
                check_answer(answer, self._name)
        return {i: stepped(answers[i], before.get(i)) for i in commands}

    def close(self) -> None:
        self._vec.close()
