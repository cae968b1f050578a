"""What a vector env asks of one of its envs, here or in a worker process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
from gymnasium import Space
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import TimeLimit

from agent_envs.core import Info
from agent_envs.forking import layers_of, remaining_steps, restore, snapshot
from agent_envs.snapshots import Snapshot

Env = gymnasium.Env[Any, Any]
MakeWrapper = Callable[[Env], Env]
Request = tuple[str, tuple[Any, ...]]
"""Name of a function in `CALLS`, and its arguments after the env."""


class Outcome(NamedTuple):
    """What came of a request."""

    value: Any
    error: Exception | None


class Recipe(NamedTuple):
    """How to build one env."""

    spec: EnvSpec
    kwargs: Mapping[str, Any]
    wrappers: Sequence[MakeWrapper]

    def make(self) -> Env:
        """A new env."""
        env: Env = gymnasium.make(self.spec, **self.kwargs)
        for wrapper in self.wrappers:
            env = wrapper(env)
        return env


class Description(NamedTuple):
    """What all envs of a vector env have in common."""

    observation_space: Space[Any]
    action_space: Space[Any]
    metadata: dict[str, Any]
    render_mode: str | None

    @classmethod
    def of(cls, env: Env) -> Description:
        """The description of `env`."""
        return cls(env.observation_space, env.action_space, dict(env.metadata), env.render_mode)


def perform(env: Env, request: Request) -> Outcome:
    """Do what `request` says; an exception becomes part of the outcome."""
    name, arguments = request
    try:
        return Outcome(CALLS[name](env, *arguments), None)
    except Exception as error:
        return Outcome(None, error)


def _reset(env: Env, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, Info]:
    return env.reset(seed=seed, options=options)


def _step(env: Env, action: Any) -> tuple[Any, float, bool, bool, Info]:
    observation, reward, terminated, truncated, info = env.step(action)
    return observation, float(reward), terminated, truncated, info


def _restore(env: Env, snap: Snapshot) -> tuple[Any, Info, bool, bool]:
    """The result of `agent_envs.restore`, and whether the episode is over there, and how."""
    observation, info = restore(env, snap)
    layers, base = layers_of(env)
    if info["stop_reason"] not in base.ends:
        return observation, info, False, remaining_steps(env) == 0
    # Of its own the env has no steps left now; a limit around it may be reached at the same time.
    limits = [layer for layer in layers if isinstance(layer, TimeLimit)]
    reached = any((one._elapsed_steps or 0) >= one._max_episode_steps for one in limits)
    return observation, info, True, reached


def _call(env: Env, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    attribute = env.get_wrapper_attr(name)
    return attribute(*args, **kwargs) if callable(attribute) else attribute


def _set(env: Env, name: str, value: Any) -> None:
    env.set_wrapper_attr(name, value)


CALLS: dict[str, Callable[..., Any]] = {
    "reset": _reset,
    "step": _step,
    "snapshot": snapshot,
    "restore": _restore,
    "call": _call,
    "set": _set,
    "render": lambda env: env.render(),
    "close": lambda env: env.close(),
}
