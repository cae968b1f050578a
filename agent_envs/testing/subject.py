"""The env under test and how it is played: seeded walks, recorded step by step."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple
from zlib import crc32

import gymnasium
import numpy as np

from agent_envs.core import Info, TextEnv
from agent_envs.errors import InvalidOption

Env = gymnasium.Env[Any, Any]

NONSENSE = "xyzzy 7"
"""A command that no world understands."""


class Unchecked(Exception):
    """A promise cannot be checked with this env; the message says why."""


class Taken(NamedTuple):
    """One step: the action, and all that came of it."""

    action: Any
    observation: Any
    reward: Any
    terminated: Any
    truncated: Any
    info: Info

    @property
    def over(self) -> bool:
        """Whether the episode ended."""
        return bool(self.terminated or self.truncated)


@dataclass
class Subject:
    """An env, how to make another one, and how much to play."""

    env: Env
    promise: str
    make: Callable[[], Env] | None = None
    seed: int = 0
    walks: int = 3
    steps: int = 12
    plan: Callable[[Env], Sequence[str]] | None = None
    public_keys: Collection[str] = ()
    _made: list[Env] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name, least in (("walks", 1), ("steps", 2), ("seed", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise InvalidOption(f"{name} is an int of at least {least}, not {value!r}.")
        if not isinstance(self.env, gymnasium.Env):
            raise InvalidOption(f"Expected a gymnasium.Env, got {type(self.env).__name__}.")
        if not isinstance(self.env.unwrapped, TextEnv):
            raise InvalidOption(
                f"Expected an agent_envs.TextEnv inside the wrappers, found "
                f"{type(self.env.unwrapped).__name__}. The promises are those of TextEnv: derive "
                "the env from it."
            )

    def __enter__(self) -> Subject:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for env in self._made:
            with suppress(Exception):  # closing is checked by a promise of its own
                env.close()

    def fresh(self) -> Env:
        """Another env of the same make, never reset; closed at the end of the check."""
        if self.make is not None:
            env = self.make()
        elif self.env.spec is not None:
            for wrapper in self.env.spec.additional_wrappers:
                if wrapper.kwargs is None:
                    raise Unchecked(
                        f"it needs a second env, and Gymnasium cannot rebuild the wrapper "
                        f"{wrapper.name}, which is no RecordConstructorArgs: give make="
                    )
            env = gymnasium.make(self.env.spec)
        else:
            raise Unchecked("it needs a second env: register the env, or give make=")
        self._made.append(env)
        return env

    def rng(self, number: int = 0) -> np.random.Generator:
        """A generator for this promise and this walk."""
        return np.random.default_rng([self.seed, crc32(self.promise.encode()), number])

    def walk(self, env: Env, info: Info, number: int = 0, steps: int | None = None) -> list[Taken]:
        """Play admissible commands, drawn by `number`, until `steps` or the end."""
        rng, trace = self.rng(number), []
        for _ in range(self.steps if steps is None else steps):
            taken = take(env, any_action(info, rng))
            trace.append(taken)
            info = taken.info
            if taken.over:
                break
        return trace

    def point(self, env: Env, number: int, *, refused: bool = False) -> tuple[list[Taken], Any]:
        """Bring `env` to some point of a running episode.

        Returns:
            The steps from ``reset(seed=self.seed + number)`` to there, and the last
            (observation, info). With `refused` the last command was refused.
        """
        start = env.reset(seed=self.seed + number)
        steps = number % 2 + int(self.rng(number).integers(self.steps))
        trace = self.walk(env, start[1], number, steps)
        if trace and trace[-1].over:
            start = env.reset(seed=self.seed + number)
            trace = follow(env, [taken.action for taken in trace[:-1]])
        if refused:
            trace.append(take(env, NONSENSE))
            if trace[-1].over:
                env.reset(seed=self.seed + number)
                trace = follow(env, [taken.action for taken in trace[:-1]])
        return trace, (trace[-1].observation, trace[-1].info) if trace else start


def any_action(info: Mapping[str, Any], rng: np.random.Generator) -> str:
    """An admissible command, or one of a template where nothing can be listed."""
    listed = info.get("admissible_actions") or ()
    if listed:
        chosen: str = listed[int(rng.integers(len(listed)))]
        return chosen
    templates = info.get("action_templates") or ()
    if templates:
        return re.sub(r"<[^>]*>", "lamp", templates[int(rng.integers(len(templates)))])
    return NONSENSE


def take(env: Env, action: Any) -> Taken:
    """One step, recorded."""
    return Taken(action, *env.step(action))


def follow(env: Env, actions: Iterable[Any]) -> list[Taken]:
    """Play `actions` until they or the episode end."""
    trace: list[Taken] = []
    for action in actions:
        trace.append(take(env, action))
        if trace[-1].over:
            break
    return trace


def actions_in(trace: Iterable[Taken]) -> list[Any]:
    """The actions of a recorded walk."""
    return [taken.action for taken in trace]


# ------------------------------------------------------------------ comparing


def own_info(info: Mapping[str, Any]) -> Info:
    """`info` without what Gymnasium's wrappers add to it, in which wall-clock times are."""
    return {key: value for key, value in info.items() if key != "episode"}


def plain(value: Any) -> Any:
    """A copy of `value` that nothing can change, to compare with later."""
    if isinstance(value, Mapping):
        return ("mapping", tuple((key, plain(value[key])) for key in sorted(value, key=repr)))
    if isinstance(value, (list, tuple, set, frozenset)):
        parts: Iterable[Any] = (
            sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
        )
        return (type(value).__name__, tuple(plain(part) for part in parts))
    if isinstance(value, np.ndarray):
        return ("array", value.dtype.str, plain(value.tolist()))
    if isinstance(value, float) and value != value:
        return ("not a number",)  # which would not equal itself
    return value


def same(one: Any, other: Any) -> bool:
    """Whether two answers are equal."""
    return bool(plain(one) == plain(other))


def short(value: Any) -> str:
    """`value` for a message."""
    text = repr(value)
    return text if len(text) <= 160 else f"{text[:110]} ... {text[-40:]}"


def difference(expected: Sequence[Taken], found: Sequence[Taken]) -> tuple[str, str] | None:
    """(found, expected) of the first step in which two recorded walks differ."""
    for number, (one, other) in enumerate(zip(expected, found, strict=False)):
        where = f"step {number + 1} ({short(one.action)})"
        for name in ("observation", "reward", "terminated", "truncated"):
            mine, theirs = getattr(one, name), getattr(other, name)
            if not same(mine, theirs):
                return f"{where}: {name} {short(theirs)}", short(mine)
        unequal = info_difference(one.info, other.info)
        if unequal is not None:
            return f"{where}: {unequal[0]}", unequal[1]
    if len(expected) != len(found):
        return f"the episode ends after {len(found)} steps", f"after {len(expected)}"
    return None


def info_difference(expected: Info, found: Info) -> tuple[str, str] | None:
    """(found, expected) of the first entry in which two infos differ."""
    one, other = own_info(expected), own_info(found)
    for key in [*one, *(key for key in other if key not in one)]:
        if key not in other or key not in one:
            return f"info {'without' if key in one else 'with'} {key!r}", "the same keys"
        if not same(one[key], other[key]):
            return f"info[{key!r}] {short(other[key])}", short(one[key])
    return None


def start_difference(expected: Any, found: Any) -> tuple[str, str] | None:
    """(found, expected) where two results of `reset` or `restore` differ."""
    if not same(expected[0], found[0]):
        return f"observation {short(found[0])}", short(expected[0])
    return info_difference(expected[1], found[1])
