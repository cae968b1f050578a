"""What an ALFWorld task sentence asks for: a reading of the sentence alone.

All that a player is told of a goal is its sentence. Both generations of game files use the same
twelve wordings, two for each of the six task types (docs/alfworld.md).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agent_envs.alfworld.model import TaskType

_IN = r"(?:in/on|in|on)"
_OBJ = r"(?P<obj>[a-z]+)"
_REC = r"(?P<rec>[a-z]+)"
_PATTERNS = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        (TaskType.TWO, rf"put two {_OBJ} {_IN} {_REC}"),
        (TaskType.TWO, rf"find two {_OBJ} and put them {_IN} {_REC}"),
        (TaskType.CLEAN, rf"put a clean {_OBJ} {_IN} {_REC}"),
        (TaskType.CLEAN, rf"clean some {_OBJ} and put it {_IN} {_REC}"),
        (TaskType.HEAT, rf"put a hot {_OBJ} {_IN} {_REC}"),
        (TaskType.HEAT, rf"heat some {_OBJ} and put it {_IN} {_REC}"),
        (TaskType.COOL, rf"put a cool {_OBJ} {_IN} {_REC}"),
        (TaskType.COOL, rf"cool some {_OBJ} and put it {_IN} {_REC}"),
        (TaskType.PICK, rf"put (?:a|some) {_OBJ} {_IN} {_REC}"),
        (TaskType.LOOK, rf"look at {_OBJ} under the desklamp"),
        (TaskType.LOOK, rf"examine the {_OBJ} with the desklamp"),
    )
)

LAMP = "desklamp"
"""Class of the only lamps that goals ask for."""


@dataclass(frozen=True, slots=True)
class Request:
    """A task: its kind, and the classes (lower case, as in names) that it is about."""

    kind: TaskType
    obj: str
    rec: str | None
    """None for `TaskType.LOOK`, which names no receptacle."""


def read_request(sentence: str) -> Request | None:
    """The request behind a task sentence; None if it is worded otherwise.

    >>> read_request("put two cd in safe.")
    Request(kind=<TaskType.TWO: 'pick_two_obj_and_place'>, obj='cd', rec='safe')
    >>> read_request("Move the discs to the safe.") is None
    True
    """
    text = " ".join(sentence.split()).removesuffix(".")
    for kind, pattern in _PATTERNS:
        match = pattern.fullmatch(text)
        if match is not None:
            return Request(kind, match["obj"], match.groupdict().get("rec"))
    return None
