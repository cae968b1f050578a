"""What a logger is, and what each of them is given: one mapping of names to numbers a step.

A step is the number of finished iterations: 0 is the policy that training starts from. So the
evaluation after an iteration stands at the step of that iteration's own figures.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from agent_envs.errors import SeroError

__all__ = [
    "Identity",
    "Logger",
    "LoggerError",
    "evaluation_numbers",
    "flat",
    "tracker_package",
    "without_secrets",
]


class LoggerError(SeroError):
    """A logger of `log.to` that cannot be used here; says what to install or to change."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which run a logger records.

    Attributes:
        id: 8 hexadecimal digits, the same for every part of a run that was resumed.
        project, name: as the tracker shows them.
        folder: that loggers may write to, each to what bears its name in there.
        first: finished iterations at the start of this part; 0 for a new run.
        config: resolved, without secrets.
    """

    id: str
    project: str
    name: str
    folder: Path
    first: int
    config: Mapping[str, Any]


def tracker_package(name: str, module: str | None = None) -> Any:
    """The package of the tracker `name`, or a module of it.

    Raises:
        LoggerError: it cannot be imported; names the extra.
    """
    try:
        return import_module(module or name)
    except ImportError as error:
        raise LoggerError(
            f"log.to names {name}, whose package cannot be imported here ({error}). Install it "
            f"with pip install 'sero-rl[{name}]', or take it out of log.to."
        ) from error


class Logger(Protocol):
    """One tracker. Any of its calls may raise: the run drops it and goes on."""

    name: str

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """The numbers of one step. A step may come in several parts, never after a later one."""

    def close(self, *, failed: bool) -> None:
        """Writes what is still held back. `failed`: the run ends by an error."""


def flat(record: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers in `record`, those of mappings inside it as `name/key`.

    What has no value (None), and text, is left out; true is 1.

    >>> flat({"a": 1, "b": None, "c": {"x": 2.5, "y": "text"}, "d": True})
    {'a': 1, 'c/x': 2.5, 'd': 1}
    """
    found: dict[str, float] = {}
    for key, value in record.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= flat(value, f"{name}/")
        elif isinstance(value, (bool, int)):
            found[name] = int(value)
        elif isinstance(value, float):
            found[name] = value
    return found


def evaluation_numbers(results: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Of evaluation results by split: `eval/SPLIT/success`, `/wins`, `/n`, `/score` and more.

    Only what the result itself says as one number and is no setting; the list of its tasks stays
    in its file.
    """
    return flat(
        {
            f"eval/{split}": {
                name: value
                for name, value in result.items()
                if isinstance(value, (int, float)) and name not in _SETTINGS
            }
            for split, result in results.items()
        }
    )


_SETTINGS = frozenset(
    ("format", "iteration", "trials", "max_steps", "max_new_tokens", "temperature", "seed")
)


_SECRET = re.compile(r"(^|_)(api_?key|key|token|secret|password|passwd|credentials?)$", re.I)
_USERINFO = re.compile(r"(?<=://)[^/@\s]+@")
_REDACTED = "(left out)"


def without_secrets(value: Any, key: str = "") -> Any:
    """`value` without texts under a name like `api_key`, and URLs without user and password.

    >>> without_secrets({"token": "abc", "max_tokens": 5, "url": "http://me:pw@host/x"})
    {'token': '(left out)', 'max_tokens': 5, 'url': 'http://host/x'}
    """
    if isinstance(value, Mapping):
        return {name: without_secrets(part, str(name)) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_secrets(part, key) for part in value]
    if isinstance(value, str):
        return _REDACTED if value and _SECRET.search(key) else _USERINFO.sub("", value)
    return value
