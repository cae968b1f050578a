"""Environments in Ray actors, on this machine or on others: 8 to 32 environments an actor.

`RAY_ADDRESS` names a running cluster; without it Ray is started on this machine, for itself alone.
Needs the package `ray`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from agent_envs import Snapshot
from agent_envs.errors import WorkerError
from trainer.config.env import EnvConfig
from trainer.errors import ConfigError
from trainer.parallel.shard import part_of
from trainer.pools.base import Began, Start, Stepped, TextEnvironment, reset_one, step_one, stepped
from trainer.pools.process import TIMEOUT_S, WorldMaker

__all__ = ["ENVS_AN_ACTOR", "RayPool", "actors_for"]

ENVS_AN_ACTOR = 16
"""Where the config does not say: enough to outweigh a message, few enough to spread."""


class Room:
    """The environments of one actor, by their places in the pool. Lives in the actor."""

    def __init__(self, config: EnvConfig, split: str, places: tuple[int, ...]) -> None:
        maker = WorldMaker(config, split)
        self.envs: dict[int, TextEnvironment] = {place: maker.make() for place in places}

    def reset(self, starts: dict[int, Start]) -> dict[int, Any]:
        """Observation and info of each place, or its error."""
        return {i: _caught(reset_one, self.envs[i], start) for i, start in starts.items()}

    def step(self, commands: dict[int, str], snapshots: bool) -> dict[int, Any]:
        """(answer, state before as bytes) of each place, or its error."""
        return {i: _caught(self._step, i, c, snapshots) for i, c in commands.items()}

    def _step(self, place: int, command: str, snapshots: bool) -> tuple[Any, ...]:
        found = step_one(self.envs[place], command, snapshots)
        before = None if found.before is None else found.before.to_bytes()
        return (
            found.observation, found.reward, found.terminated, found.truncated, found.info, before
        )  # fmt: skip


def _caught(function: Any, *arguments: Any) -> Any:
    """The result, or the exception as a value: other places of the actor do their part."""
    try:
        return function(*arguments)
    except Exception as error:
        return error


class RayPool:
    """An `EnvPool` of `size` environments in `actors` actors (0: see `actors_for`), each with one
    core.

    Raises:
        ConfigError: the package is missing, or there are fewer cores than actors.
        WorkerError: an actor died, or gave no answer in `TIMEOUT_S`.
    """

    def __init__(self, config: EnvConfig, split: str, size: int, actors: int) -> None:
        self._ray = _started()
        self._size = size
        remote = self._ray.remote(num_cpus=1)(Room)
        self._rooms: list[Any] = []
        self._room_of: dict[int, int] = {}
        # A cluster may grow when more is asked of it; this machine does not.
        grows = bool(os.environ.get("RAY_ADDRESS"))
        cores = None if grows else int(self._ray.cluster_resources().get("CPU", 0))
        count = actors_for(size, actors, cores)
        for number in range(count):
            places = tuple(part_of(size, number, count))
            self._rooms.append(remote.remote(config, split, places))
            self._room_of |= dict.fromkeys(places, number)

    @property
    def size(self) -> int:
        return self._size

    def reset_many(self, starts: Mapping[int, Start]) -> dict[int, Began]:
        return self._ask("reset", starts)

    def step_many(self, commands: Mapping[int, str], *, snapshots: bool) -> dict[int, Stepped]:
        answers = self._ask("step", commands, snapshots)
        return {
            i: stepped(answer, None if before is None else Snapshot.from_bytes(before))
            for i, (*answer, before) in answers.items()
        }

    def close(self) -> None:
        for room in self._rooms:
            self._ray.kill(room)
        self._rooms.clear()

    def _ask(self, name: str, values: Mapping[int, Any], *more: Any) -> dict[int, Any]:
        """All actors work at the same time; the first error after all have done their part."""
        parts: dict[int, dict[int, Any]] = {}
        for place, value in values.items():
            parts.setdefault(self._room_of[place], {})[place] = value
        pending = [getattr(self._rooms[n], name).remote(part, *more) for n, part in parts.items()]
        try:
            answers = self._ray.get(pending, timeout=TIMEOUT_S)
        except (self._ray.exceptions.RayError, TimeoutError) as error:
            self.close()
            raise WorkerError(
                f"An actor with environments failed or gave no answer to {name!r} within "
                f"{TIMEOUT_S:g} s. All of them were ended. Each of the {len(pending)} asked needs "
                f"a core; env.workers says how many there are. {error}"
            ) from error
        found = {place: value for answer in answers for place, value in answer.items()}
        for place in sorted(found):
            if isinstance(found[place], Exception):
                raise found[place]
        return found


def actors_for(size: int, wanted: int, cores: int | None) -> int:
    """How many actors `size` environments get.

    Args:
        wanted: `env.workers`; 0: one for every `ENVS_AN_ACTOR`, as far as there are cores.
        cores: what Ray has; None: not known.

    Raises:
        ConfigError: more are wanted than can run; those beyond would wait for a core for ever.
    """
    count = min(wanted or -(-size // ENVS_AN_ACTOR), size)
    if cores is None or count <= cores:
        return count
    if wanted:
        raise ConfigError(
            f"env.workers={wanted} with env.pool=ray needs a core for each of {count} actors, and "
            f"Ray has {cores} here. Set env.workers to at most {cores}, or 0."
        )
    return max(cores, 1)


def _started() -> Any:
    """The package, connected."""
    try:
        import ray  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise ConfigError(
            "env.pool=ray needs the package ray: pip install ray. Or use env.pool: process."
        ) from error
    if not ray.is_initialized():
        address = os.environ.get("RAY_ADDRESS")
        alone: dict[str, Any] = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        ray.init(
            address=address or "local",
            log_to_driver=False,
            logging_level="ERROR",
            **({} if address else alone),
        )
    return ray
