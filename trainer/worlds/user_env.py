"""Somebody's own snapshot environment in a config: `env.id: module:name`.

`module:name` is a factory, a subclass of `agent_envs.TextEnv`, or an id that the module registers;
see `trainer.worlds.named`. It gets `max_steps`, `split` and `data` where it takes them by name.
Tasks are those of the environment itself:

- one that takes `split` has for each split the tasks that it lists when made with it;
- otherwise a task belongs to the split that ``info["split"]`` names after a reset, so every task
  is reset once when the tasks are opened.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import gymnasium

from agent_envs.core import TextEnv
from agent_envs.errors import InvalidOption
from trainer.config.env import EnvConfig
from trainer.errors import ConfigError
from trainer.worlds.checked import check_began, checked
from trainer.worlds.environments import Environment, TaskRef
from trainer.worlds.named import NamedError, arguments_of, maker_of, somebodys

__all__ = ["UserTasks", "user_environment"]


@dataclass(frozen=True, slots=True)
class _Ref:
    split: str
    task_type: str


class UserTasks:
    """The tasks of an environment, as it lists them (`trainer.worlds.environments.TaskSet`).

    Raises:
        NamedError: `env.id` names nothing, or no `TextEnv`; or its code fails.
        ConfigError: `env.data` or `env.max_steps` is set and the environment does not take it.
    """

    def __init__(self, config: EnvConfig) -> None:
        self.config = config
        self.source = config.id
        self.maker = maker_of(config.id, "env.id")
        self.takes = frozenset(("max_steps", "split", "data")) & arguments_of(config.id, self.maker)
        if config.data != EnvConfig().data and "data" not in self.takes:
            raise ConfigError(f"env.data is set, but {config.id} takes no `data`. Remove it.")
        self._ids: dict[str, tuple[str, ...]] = {}
        self._refs: dict[str, _Ref] = {}
        with closing(self.make(config.split)) as env:
            steps = _text_env(env).max_steps
            if steps != config.max_steps:
                raise ConfigError(
                    f"env.max_steps={config.max_steps}, but {config.id} takes no `max_steps` and "
                    f"its episodes have {'no limit' if steps is None else f'{steps} steps'}. "
                    f"{'Give it one' if steps is None else f'Set env.max_steps={steps}'}."
                )
            ids = _task_ids(env, config.id)
            digest = hashlib.sha256()
            with somebodys(f"env.id={config.id}: the revision of a task"):
                revisions = [_text_env(env)._task_revision(task_id) for task_id in ids]
            for task_id, revision in zip(ids, revisions, strict=True):
                digest.update(f"{task_id}\0{revision}\n".encode())
            self.manifest_hash = digest.hexdigest()
            if "split" in self.takes:
                self._ids[config.split] = ids
            else:
                self._look_up(env, ids)
                for task_id in ids:
                    split = self._refs[task_id].split
                    self._ids[split] = (*self._ids.get(split, ()), task_id)

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits that were seen to have tasks."""
        return tuple(sorted(split for split, ids in self._ids.items() if ids))

    def task_ids(
        self, split: str | None = None, task_types: Sequence[str] | None = None
    ) -> tuple[str, ...]:
        """Ids in the order of the environment."""
        if split is None:
            ids = tuple(task_id for known in self._ids.values() for task_id in known)
        else:
            ids = self._of_split(split)
        if task_types is None:
            return ids
        return tuple(task_id for task_id in ids if self.meta(task_id).task_type in task_types)

    def meta(self, task_id: str) -> TaskRef:
        """Split and type of a task, from its reset."""
        if task_id not in self._refs:
            split = next((s for s, ids in self._ids.items() if task_id in ids), self.config.split)
            with closing(self.make(split)) as env:
                self._look_up(env, self._ids.get(split, ()) or (task_id,))
        return self._refs[task_id]

    def options(self, split: str) -> dict[str, Any]:
        """Arguments of the maker, `max_steps` apart."""
        given = {"split": split, "data": self.config.data}
        if self.config.data == EnvConfig().data:
            del given["data"]
        return {name: value for name, value in given.items() if name in self.takes}

    def make(self, split: str) -> gymnasium.Env[str, str]:
        """A new environment over the tasks of a split."""
        options = self.options(split)
        if "max_steps" in self.takes:
            options["max_steps"] = self.config.max_steps
        with somebodys(f"Making env.id={self.config.id}"):
            env = self.maker(**options)
        checked(_text_env(env, self.config.id), f"env.id={self.config.id}")
        return env

    def _of_split(self, split: str) -> tuple[str, ...]:
        if split not in self._ids and "split" in self.takes:
            try:
                with closing(self.make(split)) as env:
                    found = _task_ids(env, self.config.id)
            except _TwiceError:
                raise
            except (InvalidOption, NamedError):
                # Its way to say that there is no such split; who asks says it with the field.
                found = ()
            self._ids[split] = found
        return self._ids.get(split, ())

    def _look_up(self, env: gymnasium.Env[str, str], ids: Sequence[str]) -> None:
        with somebodys(f"env.id={self.config.id}: reset"):
            for task_id in ids:
                found = env.reset(options={"task_id": task_id})
                # Of its wrappers too: the environment inside checks itself.
                _, info = check_began(found, f"env.id={self.config.id}")
                self._refs[task_id] = _Ref(info["split"], info["task_type"])


def user_environment(env_id: str) -> Environment:
    """The entry of `module:name`. Nothing is imported before its tasks are opened."""

    def options(config: EnvConfig, tasks: Any, split: str) -> Mapping[str, Any]:
        found: dict[str, Any] = tasks.options(split)
        return found

    def make(config: EnvConfig, tasks: Any, split: str) -> gymnasium.Env[str, str]:
        env: gymnasium.Env[str, str] = tasks.make(split)
        return env

    return Environment(
        open=UserTasks,
        options=options,
        held_out=(),
        reads=frozenset(("data", "task_types")),
        make=make,
    )


class _TwiceError(NamedError):
    """A task that would be played twice where each counts once."""


def _task_ids(env: Any, env_id: str) -> tuple[str, ...]:
    """The tasks that an environment lists.

    Raises:
        NamedError: one of them twice; an evaluation plays each exactly once. Or an id is no text,
            or its code fails.
    """
    with somebodys(f"env.id={env_id}: the list of its tasks"):
        ids = _text_env(env).task_ids
    odd = next((task_id for task_id in ids if not isinstance(task_id, str)), None)
    if odd is not None:
        raise NamedError(f"env.id={env_id} lists the task {odd!r:.80}: expected a text as its id.")
    twice = next((task_id for task_id, n in Counter(ids).items() if n > 1), None)
    if twice is not None:
        raise _TwiceError(
            f"env.id={env_id} lists the task {twice!r} more than once. Give every task an id of "
            "its own."
        )
    return ids


def _text_env(env: Any, env_id: str = "") -> TextEnv:
    base = env.unwrapped if isinstance(env, gymnasium.Env) else env
    if not isinstance(base, TextEnv):
        raise NamedError(
            f"env.id={env_id} gives a {type(base).__name__}: expected an agent_envs.TextEnv, "
            "whose states can be snapshot and restored. See docs/adoption.md."
        )
    return base
