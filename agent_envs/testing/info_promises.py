"""Promises about `info`, and about what only an oracle may see."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, MutableMapping
from typing import Any

import agent_envs
from agent_envs.errors import PrivilegedAccess
from agent_envs.testing.report import Broken, promise
from agent_envs.testing.subject import Subject, own_info, plain, same, short, take
from agent_envs.testing.subject import any_action as any_of


def _is_texts(value: Any) -> bool:
    return type(value) is tuple and all(type(text) is str for text in value)


_EXPECTED: dict[str, tuple[str, Any]] = {
    "task_id": ("a string", lambda v: type(v) is str),
    "task_type": ("a string", lambda v: type(v) is str),
    "split": ("a string", lambda v: type(v) is str),
    "goal": ("a string", lambda v: type(v) is str),
    "admissible_actions": ("a tuple of strings", _is_texts),
    "action_templates": ("a tuple of strings", _is_texts),
    "command_valid": ("True or False", lambda v: type(v) is bool),
    "success": ("True or False", lambda v: type(v) is bool),
    "score": ("a finite number", lambda v: type(v) in (int, float) and math.isfinite(v)),
    "steps_left": ("None or an int from 0 up", lambda v: v is None or (type(v) is int and v >= 0)),
    "stop_reason": (
        "None or a string: 'success', 'step_limit' or another end",
        lambda v: v is None or (type(v) is str and v != ""),
    ),
    "provenance": (
        "a mapping with 'engine' and 'data_revision'",
        lambda v: isinstance(v, Mapping) and {"engine", "data_revision"} <= v.keys(),
    ),
}
_OPTIONAL = frozenset(("observation_extras", "reward_info"))
"""Further public keys that envs may have."""


@promise("info holds every documented key with a value of the documented type.")
def check_info_complete(subject: Subject) -> None:
    """At reset and at every step; at reset nothing was refused, and nothing is over."""
    env = subject.env
    for number in range(subject.walks):
        _, info = env.reset(seed=subject.seed + number)
        at_start = {"command_valid": True, "success": False, "stop_reason": None}
        for key, value in at_start.items():
            if key in info and info[key] != value:
                raise Broken(
                    f"after reset: info[{key!r}] {short(info[key])}",
                    repr(value),
                    "reset leaves something of the last episode behind",
                )
        for where, found in [("reset", info)] + [
            (f"step {short(taken.action)}", taken.info) for taken in subject.walk(env, info, number)
        ]:
            for key, (expected, good) in _EXPECTED.items():
                if key not in found:
                    raise Broken(
                        f"after {where}: no {key!r}", expected, "the key is only set sometimes"
                    )
                if not good(found[key]):
                    raise Broken(
                        f"after {where}: info[{key!r}] {short(found[key])}",
                        expected,
                        "a value of another type, such as a list or a NumPy scalar, is passed on",
                    )


@promise("What info returned never changes, and what callers do to it reaches no later info.")
def check_info_immutable(subject: Subject) -> None:
    """A recorded turn stays what it was."""
    env = subject.env
    for number in range(subject.walks):
        _, info = env.reset(seed=subject.seed + number)
        kept = [(info, plain(info))]
        rng = subject.rng(number)
        for _ in range(subject.steps):
            for key, value in own_info(info).items():
                found = _mutable(value)
                if found is not None:
                    raise Broken(
                        f"info[{key!r}] holds a {found}",
                        "immutable values: strings, numbers, tuples, agent_envs.FrozenDict",
                        "an inner list or dict of the env is handed out",
                    )
            taken = take(env, any_of(info, rng))
            info = taken.info
            kept.append((info, plain(info)))
            if taken.over:
                break
        for place, (old, copy) in enumerate(kept):
            if not same(old, copy) and plain(old) != copy:
                raise Broken(
                    f"the info of step {place} is now {short(old)}",
                    "what it was when it was returned",
                    "the env updates a dict that it has handed out",
                )
        _, info = env.reset(seed=subject.seed + number)
        keys = set(own_info(info))
        info.clear()
        later = set(own_info(take(env, "xyzzy 7").info))
        if not keys <= later:
            raise Broken(
                f"after the caller cleared an info, the next lacks {sorted(keys - later)}",
                "a complete info",
                "the env hands out the dict that it builds the next info from",
            )


def _mutable(value: Any) -> str | None:
    """Name of the first mutable type inside of `value`."""
    if isinstance(value, (str, int, float, bytes, type(None))):
        return None
    if isinstance(value, (tuple, frozenset)):
        return next((found for part in value if (found := _mutable(part))), None)
    if isinstance(value, Mapping) and not isinstance(value, MutableMapping):
        return next((found for part in value.values() if (found := _mutable(part))), None)
    try:
        hash(value)
    except TypeError:
        return type(value).__name__
    return None


@promise("info holds public keys with plain values, and nothing of the privileged view.")
def check_nothing_privileged(subject: Subject) -> None:
    """Public keys of one's own are named with `public_keys`."""
    env = subject.env
    public = {*_EXPECTED, *_OPTIONAL, *subject.public_keys}
    for number in range(subject.walks):
        _, info = env.reset(seed=subject.seed + number)
        rng = subject.rng(number)
        for _ in range(subject.steps):
            secrets = _parts(_view(env))
            for key, value in own_info(info).items():
                if key not in public:
                    raise Broken(
                        f"info[{key!r}] {short(value)}",
                        f"only the keys {sorted(public)}",
                        "an inner value leaks; if it is public, name its key in public_keys=",
                    )
                foreign = _foreign(value)
                if foreign is not None:
                    raise Broken(
                        f"info[{key!r}] holds a {foreign}",
                        "strings, numbers, tuples and mappings of these",
                        "an object of the engine is handed out",
                    )
                name = next((n for n, part in secrets if _equal(part, value)), None)
                if name is not None:
                    raise Broken(
                        f"info[{key!r}] {short(value)} is the field {name!r} of privileged()",
                        "nothing of the privileged view",
                        "the true state or the solution is put into info",
                    )
            taken = take(env, any_of(info, rng))
            info = taken.info
            if taken.over:
                break


def _equal(part: Any, value: Any) -> bool:
    return part is value or (isinstance(value, (tuple, Mapping)) and bool(value) and part == value)


def _foreign(value: Any) -> str | None:
    """Name of the first type inside of `value` that is no plain one."""
    if value is None or type(value) in (str, int, float, bool):
        return None
    if type(value) in (tuple, frozenset, list, set):
        return next((found for part in value if (found := _foreign(part))), None)
    if isinstance(value, Mapping):
        parts = [*value.keys(), *value.values()]
        return next((found for part in parts if (found := _foreign(part))), None)
    return type(value).__name__


def _view(env: Any) -> Any:
    try:
        return env.unwrapped.privileged()
    except PrivilegedAccess:
        return None


def _parts(view: Any, depth: int = 2) -> list[tuple[str, Any]]:
    """Named parts of a view that say something: no empty ones, no bare numbers and strings."""
    parts = []
    for name, value in _fields(view):
        if not isinstance(value, (str, int, float, type(None))) and value not in ((), {}):
            parts.append((name, value))
            if depth > 1:
                parts += _parts(value, depth - 1)
    return parts


def _fields(view: Any) -> list[tuple[str, Any]]:
    if dataclasses.is_dataclass(view):
        names = [field.name for field in dataclasses.fields(view)]
    else:
        names = list(getattr(view, "_fields", ()))
        if isinstance(view, Mapping):
            return [(str(key), value) for key, value in view.items()]
    return [(name, getattr(view, name)) for name in names if not name.startswith("_")]


@promise("privileged() gives an immutable view or raises PrivilegedAccess, and changes nothing.")
def check_privileged_view(subject: Subject) -> None:
    """The one door to the true state; what came through it does not change with the env."""
    env = subject.env
    for number in range(subject.walks):
        _, (_, info) = subject.point(env, number)
        before = agent_envs.snapshot(env)
        view = _view(env)
        if agent_envs.snapshot(env) != before:
            raise Broken(
                "asking for the view changed the episode",
                "the same snapshot before and after",
                "privileged() computes something in place",
            )
        if view is None:
            continue
        fields = _fields(view)
        mutable = next((n for n, v in fields if isinstance(v, (list, dict, set, bytearray))), None)
        if mutable is not None or isinstance(view, (list, dict, set)) or _assignable(view, fields):
            raise Broken(
                f"the view {type(view).__name__} can be changed"
                + (f" in its field {mutable!r}" if mutable else ""),
                "an immutable value, such as a frozen dataclass of tuples",
                "the env hands out its own state; an oracle could change the world with it",
            )
        kept = [plain(value) for _, value in fields if isinstance(value, (tuple, int, str))]
        take(env, any_of(info, subject.rng(number)))
        now = [plain(value) for _, value in _fields(view) if isinstance(value, (tuple, int, str))]
        if kept != now:
            raise Broken(
                "a view changed when the env took a step",
                "a value that stays what it was",
                "the view reads the env's attributes instead of copying them",
            )


def _assignable(view: Any, fields: list[tuple[str, Any]]) -> bool:
    for name, value in fields[:1]:
        try:
            setattr(view, name, value)
        except (AttributeError, TypeError):
            return False
        return True
    return False
