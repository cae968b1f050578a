"""What `module:name` stands for, in a config or on a command line.

The current folder is looked through first, as `python -m` does, for this import only. What is
named runs with the rights of the command, so name only what you trust. Nothing here imports torch
or `oracles`.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, reduce
from traceback import extract_tb, format_exception_only
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator

from agent_envs.errors import SeroError

__all__ = ["NamedError", "arguments_of", "is_attribute", "load_named", "maker_of", "somebodys"]


FAILURES = (Exception, SystemExit)
"""What somebody's code may raise; a call of `sys.exit` in it must not end the command, whose exit
code would then mean something else."""


class NamedError(SeroError, ValueError):
    """A `module:name` that is not there, is of another kind, or fails; names it."""


def load_named(place: str, field: str) -> Any:
    """The attribute that `module:name` stands for.

    Args:
        field: what was set to `place`, for messages.

    Raises:
        NamedError: there is no such module or attribute, or the module fails.
    """
    found = _attribute(place, field)
    if found is None:
        module, _, name = place.partition(":")
        raise NamedError(f"{_set(field, place)}: the module {module} has no {name!r}.")
    return found


def maker_of(place: str, field: str) -> Callable[..., gymnasium.Env[str, str]]:
    """What makes the environment of `module:name`: a function or class of the module, else an id
    that the module registers.

    Raises:
        NamedError: there is none.
    """
    found, name = _attribute(place, field), place.partition(":")[2]
    if found is None and name in gymnasium.registry:
        return partial(gymnasium.make, name)
    if not callable(found):
        what = f"no {name!r}" if found is None else f"{name!r} of type {type(found).__name__}"
        raise NamedError(
            f"{_set(field, place)}: the module has {what}, and registers no such id. Expected a "
            "function that makes an environment, its class, or an id."
        )
    maker: Callable[..., gymnasium.Env[str, str]] = found
    return maker


def arguments_of(place: str, maker: Callable[..., Any]) -> frozenset[str]:
    """Names of the arguments that the maker of `module:name` takes."""
    name = place.partition(":")[2]
    if isinstance(maker, partial):
        # An id: what it registered takes them.
        entry: Any = gymnasium.registry[name].entry_point
        maker = load_env_creator(entry) if isinstance(entry, str) else entry
    return frozenset(inspect.signature(maker).parameters)


@contextmanager
def somebodys(what: str) -> Iterator[None]:
    """Around code that is not ours: what it raises becomes a `NamedError` with its place in the
    code; our own typed errors pass."""
    try:
        yield
    except SeroError:
        raise
    except FAILURES as error:
        words = "".join(format_exception_only(error)).strip()
        raise NamedError(f"{what} fails: {words}{_place(error)}") from error


def _place(error: BaseException) -> str:
    """Where it was raised; of what Python's own library raises, where that was called."""
    frames = extract_tb(error.__traceback__)
    library = sysconfig.get_path("stdlib")
    own = [
        frame
        for frame in frames
        if not frame.filename.startswith((library, "<")) or "site-packages" in frame.filename
    ]
    last = (own or frames)[-1:]
    return f" ({last[0].filename}, line {last[0].lineno})" if last else ""


def is_attribute(place: str, field: str) -> bool:
    """Whether the module of `module:name` has such an attribute; else the name may be an id."""
    return _attribute(place, field) is not None


def _set(field: str, place: str) -> str:
    """What was said, as it was said: an option of a command, or a field of a config."""
    return f"{field}{' ' if field.startswith('-') else '='}{place}"


def _attribute(place: str, field: str) -> Any:
    module, _, name = place.partition(":")
    if not module or not name:
        raise NamedError(f"{_set(field, place)}: expected the form module:name.")
    try:
        with _current_folder_first():
            loaded: Any = importlib.import_module(module)
    except FAILURES as error:  # whatever somebody's module does when imported
        raise NamedError(
            f"{_set(field, place)}: the module {module} cannot be imported "
            f"({type(error).__name__}: {error}). It is looked for in the current folder and where "
            "Python finds packages: start where it is, or set PYTHONPATH to its folder."
        ) from error
    return reduce(lambda found, part: getattr(found, part, None), name.split("."), loaded)


@contextmanager
def _current_folder_first() -> Iterator[None]:
    here = os.getcwd()
    sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(here)
