"""Somebody's environment, checked call by call: what it raises or answers wrongly is said by name.

An environment's class is replaced by one of the same name that calls it and looks at what it gives.
So whoever asks (rollouts, branches, an evaluation, a worker process) gets the same error, and no
wrapper appears in a snapshot.
"""

from __future__ import annotations

import copyreg
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from numbers import Real
from typing import Any

import numpy as np

from agent_envs.core import TextEnv
from agent_envs.errors import SnapshotMismatch
from trainer.worlds.named import FAILURES, NamedError, somebodys

__all__ = ["check_answer", "check_began", "checked", "name_of"]


def checked(env: TextEnv, name: str) -> None:
    """Makes `env` check itself from now on.

    Args:
        name: of the environment, for messages, such as `env.id=module:name`.

    From now on `reset`, `step`, snapshots and restores raise:
        NamedError: the call failed, with its place in the code; or what it gave is no answer. With
            the task, and of a step its number.
        SnapshotMismatch: a restore failed.
        SeroError: whatever the environment itself raises of these.
    """
    if not hasattr(type(env), "_checked_name"):
        env.__class__ = _checked_class(type(env), name)


def name_of(env: Any) -> str | None:
    """The name of an environment that checks itself, wrapped or not; None: it does not."""
    found: str | None = getattr(type(env.unwrapped), "_checked_name", None)
    return found


@lru_cache(maxsize=256)
def _checked_class(kind: type[TextEnv], name: str) -> type[TextEnv]:
    class Checked(kind):  # type: ignore[valid-type, misc]
        env_id = kind.env_id
        _checked_name = name

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            with _located((options or {}).get("task_id")):
                found = _called(name, "reset", super().reset, seed=seed, options=options)
                return check_began(found, name)

        def step(self, action: str) -> Any:
            task, number = self._task_id, self._taken + 1
            try:
                return check_answer(super().step(action), name)
            except FAILURES:  # contexts only now: to enter two takes as long as a short step
                with _located(task, number), somebodys(f"{name}: step"):
                    raise

        def __reduce_ex__(self, protocol: Any) -> Any:
            found = super().__reduce_ex__(protocol)
            if type(found) is tuple and found[0] is copyreg.__newobj__:  # type: ignore[attr-defined]
                return (_remade, (kind, name, *found[1][1:]), *found[2:])
            return found  # made in a way of its own

        def _capture(self, *arguments: Any) -> Any:
            with _located(self._task_id, self._taken):
                found = _called(name, "a snapshot", super()._capture, *arguments)
                engine = found.state[0]
                if type(engine) is not tuple:
                    raise _wrong(name, "a snapshot", "a state that is no tuple", engine)
                return found

        def _resume(self, snap: Any) -> Any:
            try:
                found = _called(name, "a restore", super()._resume, snap)
                return check_began(found, name, "a restore")
            except NamedError as error:
                raise SnapshotMismatch(str(error)) from error

    Checked.__name__, Checked.__qualname__ = kind.__name__, kind.__qualname__
    Checked.__module__, Checked.__doc__ = kind.__module__, kind.__doc__
    return Checked


def _remade(kind: type[TextEnv], name: str, *arguments: Any) -> TextEnv:
    """An empty object of the checked class, which pickle does not find by its name."""
    made = _checked_class(kind, name)
    found: TextEnv = made.__new__(made, *arguments)
    return found


def _called(name: str, what: str, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
    with somebodys(f"{name}: {what}"):
        return call(*args, **named)


@contextmanager
def _located(task: str | None, step: int | None = None) -> Iterator[None]:
    """Says of an error in the block in which task it was, and at which step (the first is 1)."""
    try:
        yield
    except NamedError as error:
        if task is None:
            raise
        at = "" if step is None else f", step {step}"
        raise NamedError(f"{str(error).rstrip('.')}. It was in task {task!r}{at}.") from error


# ------------------------------------------------------------------------------ what is an answer


def check_began(found: Any, name: str, what: str = "reset") -> Any:
    """`found`, once it is (observation, info).

    Raises:
        NamedError: it is not; says what is wrong with it.
    """
    if not isinstance(found, tuple) or len(found) != 2:
        raise _wrong(name, what, "no pair of observation and info", found)
    _check_observation(found[0], name, what)
    _check_info(found[1], name, what)
    return found


def check_answer(found: Any, name: str) -> Any:
    """`found`, once it is (observation, reward, terminated, truncated, info).

    Raises:
        NamedError: it is not; says what is wrong with it.
    """
    if not isinstance(found, tuple) or len(found) != 5:
        expected = "no tuple of observation, reward, terminated, truncated and info"
        raise _wrong(name, "step", expected, found)
    observation, reward, terminated, truncated, info = found
    _check_observation(observation, name, "step")
    if not _is_number(reward):
        raise _wrong(name, "step", "a reward that is no finite number", reward)
    for key, flag in (("terminated", terminated), ("truncated", truncated)):
        if not _is_flag(flag):
            raise _wrong(name, "step", f"{key} that is neither true nor false", flag)
    _check_info(info, name, "step")
    return found


def _check_observation(observation: Any, name: str, what: str) -> None:
    if not _is_text(observation):
        raise _wrong(name, what, "an observation that is no text", observation)


def _check_info(info: Any, name: str, what: str) -> None:
    if not isinstance(info, (dict, Mapping)):
        raise _wrong(name, what, "an info that is no mapping", info)
    if not info.keys() >= _INFO.keys():
        missing = sorted(_INFO.keys() - info.keys())
        raise NamedError(
            f"{name}: {what} gives an info without {', '.join(map(repr, missing))}. See "
            "docs/environments.md for what info holds."
        )
    for key, (fits, expected) in _INFO.items():
        if not fits(info[key]):
            raise _wrong(name, what, f"an info[{key!r}] that is no {expected}", info[key])


def _wrong(name: str, what: str, words: str, found: Any) -> NamedError:
    parts = found if isinstance(found, tuple) else (found,)
    half = any(isinstance(part, str) and not _is_text(part) for part in parts)
    why = ", which holds half of a surrogate pair and cannot be written as UTF-8" if half else ""
    return NamedError(
        f"{name}: {what} gives {words}: found {found!r:.80} of type {type(found).__name__}{why}. "
        "See docs/environments.md."
    )


def _is_text(value: Any) -> bool:
    """Whether it is text that can be written: half of a surrogate pair alone cannot."""
    if not isinstance(value, str):
        return False
    if value.isascii():
        return True
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _is_flag(value: Any) -> bool:
    return isinstance(value, (bool, np.bool_))


def _is_number(value: Any) -> bool:
    if not isinstance(value, (float, int, Real, np.bool_)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int that no float holds
        return False


def _are_texts(value: Any) -> bool:
    if not isinstance(value, tuple):
        return False
    try:
        if "".join(value).isascii():  # one look at all of them
            return True
    except TypeError:
        return False
    return all(map(_is_text, value))


_INFO: dict[str, tuple[Callable[[Any], bool], str]] = {
    "task_id": (_is_text, "text"),
    "task_type": (_is_text, "text"),
    "split": (_is_text, "text"),
    "goal": (_is_text, "text"),
    "admissible_actions": (_are_texts, "tuple of texts"),
    "action_templates": (_are_texts, "tuple of texts"),
    "command_valid": (_is_flag, "true or false"),
    "success": (_is_flag, "true or false"),
    "score": (_is_number, "finite number"),
    "steps_left": (lambda value: value is None or type(value) is int, "number of steps, or None"),
    "stop_reason": (lambda value: value is None or _is_text(value), "text, or None"),
    "provenance": (lambda value: isinstance(value, (dict, Mapping)), "mapping"),
}
