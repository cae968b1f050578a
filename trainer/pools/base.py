"""What every pool of environments can do, and one environment of it as the rollout loop sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium

import agent_envs
from agent_envs import Snapshot
from trainer.worlds.checked import check_answer, check_began, name_of
from trainer.worlds.named import somebodys

__all__ = ["EnvPool", "PooledEnv", "Start", "Stepped", "proxies", "reset_envs", "step_envs"]

TextEnvironment = gymnasium.Env[str, str]
Start = tuple[str, int | None]
"""A task, and the seed of the environment's own draws; None: it goes on with those it has."""
Began = tuple[str, Mapping[str, Any]]
"""Observation and info after a reset."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """What a command led to; `before` is the state it was sent in, if that was asked for."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: Mapping[str, Any]
    before: Snapshot | None = None


def stepped(answer: Sequence[Any], before: Snapshot | None) -> Stepped:
    """From what `step` of an environment returns."""
    observation, reward, terminated, truncated, info = answer
    return Stepped(observation, float(reward), terminated, truncated, info, before)


class EnvPool(Protocol):
    """Environments by their places 0..size-1. Errors of an environment arrive as its own."""

    @property
    def size(self) -> int:
        """How many there are."""

    def reset_many(self, starts: Mapping[int, Start]) -> dict[int, Began]:
        """Starts the task of each place named."""

    def step_many(self, commands: Mapping[int, str], *, snapshots: bool) -> dict[int, Stepped]:
        """Sends one command to each place named; all of them work at the same time.

        Args:
            snapshots: also bring the state before the command.
        """

    def close(self) -> None:
        """Ends environments and workers. Twice is no error."""


class PooledEnv(gymnasium.Env[str, str]):
    """One place of a pool as an environment. `step_envs` moves many of a pool together.

    Raises:
        SeroError: whatever the environment itself raises.
    """

    def __init__(self, pool: EnvPool, place: int, spec: Any, facts: Mapping[str, Any]) -> None:
        self.pool, self.place = pool, place
        self.spec = spec
        for name, value in facts.items():
            setattr(self, name, value)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Starts `options["task_id"]`; pools have no schedule of tasks, so there must be one."""
        if not options or set(options) != {"task_id"}:
            raise ValueError(
                "An environment of a pool is reset by options={'task_id': ...}, found "
                f"options={options!r}."
            )
        start = options["task_id"], seed
        observation, info = self.pool.reset_many({self.place: start})[self.place]
        return observation, dict(info)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """One command, for this environment alone."""
        found = self.pool.step_many({self.place: action}, snapshots=False)[self.place]
        return found.observation, found.reward, found.terminated, found.truncated, dict(found.info)

    def close(self) -> None:
        """Ends the whole pool: its environments are made and ended together."""
        self.pool.close()


def proxies(pool: EnvPool, like: TextEnvironment) -> list[TextEnvironment]:
    """All places of a pool as environments.

    Args:
        like: an environment of the same make; what is asked of it besides episodes (its id, its
            step cap) is answered by it.
    """
    facts = {"max_steps": getattr(like.unwrapped, "max_steps", None)}
    return [PooledEnv(pool, place, like.spec, facts) for place in range(pool.size)]


def reset_envs(envs: Sequence[TextEnvironment], starts: Sequence[Start]) -> list[Began]:
    """Starts a task in each environment; those of a pool together."""
    found: dict[int, Began] = {}
    for pool, members in _by_pool(envs).items():
        if pool is None:
            for i in members:
                found[i] = reset_one(envs[i], starts[i])
            continue
        places = _places(envs, members)
        answers = pool.reset_many({place: starts[i] for place, i in places.items()})
        found |= {i: answers[place] for place, i in places.items()}
    return [found[i] for i in range(len(envs))]


def step_envs(
    envs: Sequence[TextEnvironment], commands: Sequence[str], *, snapshots: bool = False
) -> list[Stepped]:
    """Sends a command to each environment, those of a pool together; answers in the same order.

    Works with environments of no pool as well, one after another.
    """
    found: dict[int, Stepped] = {}
    for pool, members in _by_pool(envs).items():
        if pool is None:
            for i in members:
                found[i] = step_one(envs[i], commands[i], snapshots)
            continue
        places = _places(envs, members)
        answers = pool.step_many(
            {place: commands[i] for place, i in places.items()}, snapshots=snapshots
        )
        found |= {i: answers[place] for place, i in places.items()}
    return [found[i] for i in range(len(envs))]


def reset_one(env: TextEnvironment, start: Start) -> Began:
    """Starts a task in an environment of this process.

    Raises:
        NamedError: somebody's environment, or a wrapper of theirs, fails or gives no answer.
    """
    task, seed = start
    name = name_of(env)
    if name is None:
        return env.reset(seed=seed, options={"task_id": task})
    with somebodys(f"{name}: reset"):
        found = env.reset(seed=seed, options={"task_id": task})
    began: Began = check_began(found, name)
    return began


def step_one(env: TextEnvironment, command: str, snapshots: bool) -> Stepped:
    """One command to an environment of this process. Raises as `reset_one`."""
    before = agent_envs.snapshot(env) if snapshots else None
    name = name_of(env)
    if name is None:
        return stepped(env.step(command), before)
    with somebodys(f"{name}: step"):
        found = env.step(command)
    return stepped(check_answer(found, name), before)


def _by_pool(envs: Sequence[TextEnvironment]) -> dict[EnvPool | None, list[int]]:
    members: dict[EnvPool | None, list[int]] = {}
    for i, env in enumerate(envs):
        members.setdefault(env.pool if isinstance(env, PooledEnv) else None, []).append(i)
    return members


def _places(envs: Sequence[TextEnvironment], members: Sequence[int]) -> dict[int, int]:
    """Index of each environment by its place in the pool."""
    places: dict[int, int] = {}
    for i in members:
        env = envs[i]
        assert isinstance(env, PooledEnv)
        if env.place in places:
            raise ValueError(f"Place {env.place} of a pool was named twice.")
        places[env.place] = i
    return places
