"""Sets of generated households as one short text: ``generated:small?seed=1&train=4000``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl

from rapidfuzz import process

from agent_envs.alfworld.households.spec import (
    PRESETS,
    SMALL,
    SPLITS,
    STANDARD,
    HouseholdSpec,
    InvalidSpec,
)
from agent_envs.alfworld.model import TaskType

PREFIX = "generated:"
DEFAULT_COUNTS = (("train", 2000), ("valid_seen", 500), ("valid_unseen", 500))
_DIGITS = 40
"""Of a seed or number: more than anybody needs, few enough to be read and written anywhere."""
_REAL = "real"  # spelling of None: as many as real rooms have
_KEYS = ("seed", *SPLITS, "receptacles", "objects", "distractors", "depth", "task_types", "rooms")


@dataclass(frozen=True, slots=True, init=False)
class Source:
    """Which games to generate: seed, number of games by split, specification.

    Raises:
        InvalidSpec: an unknown split, or a seed or number that is not a whole number from 0 up,
            of 40 digits at most.
    """

    seed: int
    counts: tuple[tuple[str, int], ...]
    spec: HouseholdSpec

    def __init__(self, seed: int, counts: Mapping[str, int] | None, spec: HouseholdSpec) -> None:
        given = dict(DEFAULT_COUNTS) if counts is None else dict(counts)
        for name, value in {"seed": seed, **given}.items():
            if name != "seed" and name not in SPLITS:
                raise InvalidSpec(f"Unknown split {name!r}; choose from {', '.join(SPLITS)}.")
            if type(value) is not int or value < 0:
                raise InvalidSpec(f"{name} is {value!r}; give a whole number from 0 up.")
            if value >= 10**_DIGITS:
                raise InvalidSpec(f"{name} has more than {_DIGITS} digits; give a smaller number.")
        pairs = tuple((split, given.get(split, 0)) for split in SPLITS)
        for name, field in (("seed", seed), ("counts", pairs), ("spec", spec)):
            object.__setattr__(self, name, field)

    def __str__(self) -> str:
        """The text that `read_source` turns into an equal source.

        >>> str(Source(1, {"train": 4000}, SMALL))
        'generated:small?seed=1&train=4000&valid_seen=0&valid_unseen=0'
        """
        spec, preset = self.spec, STANDARD if self.spec.extras else SMALL
        words = [f"seed={self.seed}", *(f"{split}={n}" for split, n in self.counts)]
        for name in ("receptacles", "objects"):
            value = getattr(spec, name)
            if value != getattr(preset, name):
                words.append(f"{name}={_REAL if value is None else value}")
        if spec.distractors is not None:
            words.append(f"distractors={spec.distractors}")
        if spec.depth is not None:
            words.append(f"depth={spec.depth!r}")
        if spec.task_types != preset.task_types:
            words.append(f"task_types={','.join(spec.task_types)}")
        if spec.rooms != preset.rooms:
            words.append(f"rooms={','.join(spec.rooms)}")
        return f"{PREFIX}{'standard' if spec.extras else 'small'}?{'&'.join(words)}"


def read_source(text: str) -> Source:
    """Read a source text; what it leaves out is as in the preset and `DEFAULT_COUNTS`.

    >>> read_source("generated:small?seed=1&train=4000").seed
    1

    Raises:
        InvalidSpec: an unknown preset, key or value.
    """
    preset, _, query = text.removeprefix(PREFIX).partition("?")
    if preset not in PRESETS:
        raise InvalidSpec(
            f"Unknown preset {preset!r} in {text!r}; choose {' or '.join(sorted(PRESETS))}, as in "
            f"'{PREFIX}small?seed=1'."
        )
    numbers: dict[str, int] = {}
    fields: dict[str, Any] = {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError as error:
        raise InvalidSpec(f"{text!r} is not of the form {PREFIX}PRESET?key=value&...") from error
    for key, value in pairs:
        if key in numbers or key in fields:
            raise InvalidSpec(f"{key!r} is given twice in {text!r}; give it once.")
        if key in ("seed", *SPLITS):
            numbers[key] = _whole(key, value, text)
        elif key in ("receptacles", "objects", "distractors"):
            fields[key] = None if value == _REAL else _whole(key, value, text)
        elif key == "depth":
            fields[key] = None if value == _REAL else _share(key, value, text)
        elif key == "task_types":
            fields[key] = tuple(_task_type(name, text) for name in value.split(","))
        elif key == "rooms":
            fields[key] = tuple(value.split(","))
        else:
            near = process.extractOne(key, _KEYS)
            raise InvalidSpec(
                f"Unknown key {key!r} in {text!r}; did you mean {near[0]!r}? Keys: "
                f"{', '.join(_KEYS)}."
            )
    if fields.get("distractors") is not None:
        fields.setdefault("objects", None)
    seed = numbers.pop("seed", 0)
    return Source(seed, dict(DEFAULT_COUNTS) | numbers, replace(PRESETS[preset], **fields))


def _whole(key: str, value: str, text: str) -> int:
    if not (value.isascii() and value.isdigit()) or len(value) > _DIGITS:
        raise InvalidSpec(f"{key} is {value!r} in {text!r}; give a whole number from 0 up.")
    return int(value)


def _share(key: str, value: str, text: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise InvalidSpec(f"{key} is {value!r} in {text!r}; give a share from 0 to 1.") from None


def _task_type(name: str, text: str) -> TaskType:
    try:
        return TaskType(name)
    except ValueError:
        raise InvalidSpec(
            f"Unknown task type {name!r} in {text!r}; choose from {', '.join(TaskType)}."
        ) from None
