"""Reading files of JSON lines, plain or ``.gz``, that may be damaged or hostile."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent_envs.errors import CorruptData, MissingData

DEEPEST = 64
"""Levels of lists and objects within each other. Deeper ones cannot be relied on to be compared
and shown."""
TOO_DEEP = f"lists and objects lie more than {DEEPEST} deep in each other"


def json_lines(path: Path, what: str) -> Iterator[tuple[int, Any]]:
    """The values of a file, each with the number of its line from 1 up; empty lines are skipped.

    Args:
        path: the file.
        what: that the file should hold, for messages: "transcripts".

    Raises:
        MissingData: no such file.
        CorruptData: it cannot be read, or a line is no JSON.
    """
    if not path.is_file():
        raise MissingData(f"There is no file of {what} {path}.")
    opener = gzip.open if path.suffix == ".gz" else open
    number = 1
    try:
        with opener(path, "rb") as file:
            for line in file:
                if line.strip():
                    yield number, _value(line)
                number += 1
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise CorruptData(f"Cannot read the {what} {path}: line {number}: {error}.") from error


def _value(line: bytes) -> Any:
    """ValueError also for bytes that are no UTF-8, and for numbers of too many digits."""
    try:
        value = json.loads(line.decode("utf-8"))
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
    _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEEPEST + 1):
        inner = [one for one in level if isinstance(one, dict | list)]
        if not inner:
            return
        level = [
            child for one in inner for child in (one.values() if isinstance(one, dict) else one)
        ]
    raise ValueError(TOO_DEEP)
