"""What rooms and games are made of, in numbers: the two data files behind generated households.

`ClassTables` holds figures over all 3,827 public games of ALFWorld 0.4, `RoomFigures` what
`benchmarks/room_figures.py` measured on a part of them, game by game (docs/generated.md). Both
hold counts and shares of classes only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from agent_envs.alfworld.model import TaskType


@dataclass(frozen=True, slots=True)
class ClassTables:
    """Figures over the public games; see the `about` entry of the data file."""

    receptacles: dict[str, dict[str, tuple[int, float, int]]]
    """Room kind -> receptacle class -> fewest, mean, most."""
    objects: dict[str, dict[str, tuple[float, float]]]
    """Room kind -> object class -> share of rooms that have it, mean number where present."""
    can: dict[str, frozenset[str]]
    """Receptacle class -> object classes it may hold."""
    starts: dict[str, dict[str, int]]
    """Object class -> receptacle class -> how often one was found in the other at the start."""
    properties: dict[str, frozenset[str]]
    looked_at: frozenset[str]
    openable: dict[str, float]
    object_types: tuple[str, ...]
    receptacle_types: tuple[str, ...]


def _data(name: str) -> str:
    return (files("agent_envs.alfworld") / "data" / name).read_bytes().decode("utf-8")


@lru_cache(maxsize=1)
def class_tables_text() -> str:
    """The shipped data file, read once."""
    return _data("class_tables.json")


@lru_cache(maxsize=1)
def class_tables() -> ClassTables:
    """The shipped class tables."""
    raw = json.loads(class_tables_text())
    return ClassTables(
        receptacles={
            room: {c: (lo, mean, hi) for c, (lo, mean, hi) in table["receptacles"].items()}
            for room, table in raw["rooms"].items()
        },
        objects={
            room: {c: (share, mean) for c, (share, mean) in table["objects"].items()}
            for room, table in raw["rooms"].items()
        },
        can={r: frozenset(objs) for r, objs in raw["can"].items()},
        starts=raw["starts"],
        properties={o: frozenset(names) for o, names in raw["properties"].items()},
        looked_at=frozenset(raw["looked_at"]),
        openable=raw["openable"],
        object_types=tuple(raw["object_types"]),
        receptacle_types=tuple(raw["receptacle_types"]),
    )


@dataclass(frozen=True, slots=True)
class SceneryFigures:
    """One class of things that stand around and cannot be taken."""

    counts: dict[int, int]
    """Number in a room -> rooms."""
    own: float
    """Share of them, but for the first, at a location of its own."""
    at: float
    """Share of them at a receptacle's location."""


@dataclass(frozen=True, slots=True)
class KindFigures:
    """One kind of room."""

    receptacles: dict[str, dict[int, int]]
    """Receptacle class -> number in a room -> rooms."""
    shared: dict[str, dict[str, float]]
    """Receptacle class -> class that stands there first -> chance to share its spot. For a
    StoveBurner: the share of burners that come in pairs."""
    listed_twice: tuple[tuple[str, str, float, float, float], ...]
    """(class, class, share of rooms where two such receptacles overlap, their mean number of
    pairs, share of the objects of either that both list)."""
    scenery: dict[str, SceneryFigures]
    floor: dict[str, float]
    """Object class -> share of its objects that are in no receptacle."""
    nested: float
    """Share of games in which an object lies in another."""
    nested_number: float
    """Mean number of such objects in those games."""
    nested_pairs: dict[tuple[str, str], int]
    """(class, class that lies in it) -> how often."""
    misplaced: float
    """Share of objects whose recorded location is not that of their receptacle."""


@dataclass(frozen=True, slots=True)
class TaskFigures:
    """One task type."""

    rooms: dict[str, int]
    objects: dict[str, int]
    targets: dict[str, int]
    """Room kind, object class, target class -> games."""
    wanted: dict[int, int]
    """Number of objects of the wanted class in receptacles at the start -> games."""
    hidden: float
    """Share of them behind closed doors, where the room has both doors and open places."""
    beside_lamp: float
    """Share of them at the location of a desk lamp (look tasks)."""


@dataclass(frozen=True, slots=True)
class RoomFigures:
    """What single games and rooms of the public data are like."""

    games: int
    rooms: dict[str, KindFigures]
    tasks: dict[TaskType, TaskFigures]


@lru_cache(maxsize=1)
def room_figures_text() -> str:
    """The shipped data file, read once."""
    return _data("room_figures.json")


@lru_cache(maxsize=1)
def room_figures() -> RoomFigures:
    """The shipped room figures."""
    raw = json.loads(room_figures_text())
    return RoomFigures(
        raw["games"],
        {room: _kind(entry) for room, entry in raw["rooms"].items()},
        {TaskType(name): _task(entry) for name, entry in raw["tasks"].items()},
    )


def _numbers(counts: Mapping[str, int]) -> dict[int, int]:
    return {int(number): rooms for number, rooms in counts.items()}


def _kind(raw: Mapping[str, Any]) -> KindFigures:
    nested = raw["nested"]
    return KindFigures(
        receptacles={cls: _numbers(counts) for cls, counts in raw["receptacles"].items()},
        shared=raw["shared"],
        listed_twice=tuple((a, b, rooms, n, p) for a, b, rooms, n, p in raw["listed_twice"]),
        scenery={
            cls: SceneryFigures(_numbers(entry["counts"]), entry["own"], entry["at"])
            for cls, entry in raw["scenery"].items()
        },
        floor=raw["floor"],
        nested=nested["share"],
        nested_number=nested["number"],
        nested_pairs={(outer, inner): n for outer, inner, n in nested["pairs"]},
        misplaced=raw["misplaced"],
    )


def _task(raw: Mapping[str, Any]) -> TaskFigures:
    return TaskFigures(
        rooms=raw["rooms"],
        objects=raw["objects"],
        targets=raw["targets"],
        wanted=_numbers(raw["wanted"]),
        hidden=raw["hidden"],
        beside_lamp=raw["beside_lamp"],
    )
