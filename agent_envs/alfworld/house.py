"""Rooms of generated households: which receptacles stand where.

A layout is what all games of one scene share: receptacles, who shares a spot to stand on, and the
scenery that nobody can pick up. Class frequencies, openable shares and shared spots follow the
public games of ALFWorld (`data/class_tables.json`, docs/alfworld.md).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from importlib.resources import files
from math import sqrt
from random import Random
from typing import TypeVar

T = TypeVar("T")


class Draws:
    """Random draws from one stream, the same in every process and on every Python version.

    Only `random.Random.random` promises a sequence that never changes, so everything else is
    built on it.

    >>> Draws("a", 1).below(1000) == Draws("a", 1).below(1000)
    True
    """

    __slots__ = ("unit",)

    def __init__(self, *key: object) -> None:
        """Open the stream named by `key` (strings and integers)."""
        digest = blake2b(repr(key).encode(), digest_size=16).digest()
        self.unit: Callable[[], float] = Random(int.from_bytes(digest, "big")).random

    def below(self, n: int) -> int:
        """A uniform integer in [0, n)."""
        return int(self.unit() * n)

    def chance(self, p: float) -> bool:
        """True with probability `p`."""
        return self.unit() < p

    def choice(self, items: Sequence[T]) -> T:
        """A uniform element of a non-empty sequence."""
        return items[int(self.unit() * len(items))]

    def weighted(self, items: Sequence[T], weights: Sequence[float]) -> T:
        """An element of a non-empty sequence with probability proportional to its weight."""
        left = self.unit() * sum(weights)
        for item, weight in zip(items, weights, strict=True):
            left -= weight
            if left < 0:
                return item
        return items[-1]

    def count(self, low: int, mean: float, high: int) -> int:
        """An integer in [low, high] with the given mean, spread wider than a binomial."""
        if high <= low:
            return low
        p = (mean - low) / (high - low)
        p = 2 * p * self.unit() if p <= 0.5 else 1 - 2 * (1 - p) * self.unit()
        return low + sum(self.unit() < p for _ in range(high - low))


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


@lru_cache(maxsize=1)
def class_tables_text() -> str:
    """The shipped data file, read once."""
    path = files("agent_envs.alfworld") / "data" / "class_tables.json"
    return path.read_bytes().decode("utf-8")


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


ROOMS = {"kitchen": 0, "livingroom": 200, "bedroom": 300, "bathroom": 400}
"""Room kind -> what is added to the number of a room to give its scene number."""
ROOMS_EACH = 30
UNSEEN_FROM = 26
"""Rooms with this number and above belong to valid_unseen; the others to the two seen splits."""

# What a room of a fixed size needs so that its tasks can be done in it.
_CORE: dict[str, tuple[tuple[str, ...], ...]] = {
    "kitchen": (("Microwave",), ("Fridge",), ("SinkBasin",), ("CounterTop",)),
    "livingroom": (("Sofa",), ("SideTable", "Shelf", "Dresser", "CoffeeTable")),
    "bedroom": (("Bed",), ("Desk", "SideTable", "Dresser", "Shelf")),
    "bathroom": (("SinkBasin",), ("Toilet",)),
}

# (class, classes it may stand next to, probability): one spot serves both.
_SHARED_SPOTS: dict[str, tuple[tuple[str, ...], float]] = {
    "CoffeeMachine": (("CounterTop", "DiningTable"), 0.35),
    "Toaster": (("CounterTop",), 0.2),
    "Drawer": (("Drawer", "Desk", "Dresser", "SideTable"), 0.17),
    "Cabinet": (("Cabinet", "Drawer", "StoveBurner"), 0.15),
    "Shelf": (("Shelf", "TVStand"), 0.15),
    "GarbageCan": (("Cabinet", "StoveBurner", "ToiletPaperHanger"), 0.05),
    "HandTowelHolder": (("TowelHolder",), 0.04),
}
_BURNER_PAIR = 0.95
_FEWEST = 6  # receptacles in the barest real room

# (class, neighbour class, probability): what is in the first is also listed in the second.
_OVERLAPS: tuple[tuple[str, str, float], ...] = (
    ("StoveBurner", "StoveBurner", 0.5),
    ("CoffeeMachine", "CounterTop", 0.3),
    ("CounterTop", "StoveBurner", 0.06),
    ("Shelf", "Desk", 0.15),
    ("CounterTop", "SinkBasin", 0.01),
    ("Dresser", "Safe", 0.05),
)

_HEIGHTS = {
    "Cabinet": 1.3, "CounterTop": 0.94, "SinkBasin": 0.84, "Microwave": 1.3, "StoveBurner": 0.94,
    "Toaster": 0.92, "CoffeeMachine": 0.92, "Drawer": 0.58, "Shelf": 0.82, "TowelHolder": 1.35,
    "HandTowelHolder": 1.67, "ToiletPaperHanger": 0.88, "DiningTable": 0.31, "SideTable": 0.21,
}  # fmt: skip
_SCENERY_HEIGHTS = {
    "Window": 1.5, "LightSwitch": 1.2, "Painting": 1.6, "Mirror": 1.4, "Blinds": 2.2,
}  # fmt: skip


def number(value: float) -> str:
    """A coordinate as it is spelled inside ids.

    >>> number(0.12), number(-2.3)
    ('_plus_00_dot_12', '_minus_02_dot_30')
    """
    cents = round(abs(value) * 100)
    return f"_{'minus' if value < 0 and cents else 'plus'}_{cents // 100:02d}_dot_{cents % 100:02d}"


def place_id(cls: str, spot: tuple[float, float, float], suffix: str = "") -> str:
    """The PDDL symbol of a thing of class `cls` at `spot` (metres)."""
    return f"{cls}_bar_{number(spot[0])}_bar_{number(spot[1])}_bar_{number(spot[2])}{suffix}"


def _grid(value: int) -> str:
    return str(value) if value >= 0 else f"_minus_{-value}"


@dataclass(frozen=True, slots=True)
class Receptacle:
    """One receptacle of a layout; `loc` indexes `Layout.locations`."""

    id: str
    cls: str
    openable: bool
    loc: int
    spot: tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Scenery:
    """A thing that can be named by the problem but never picked up or found in a receptacle."""

    id: str
    cls: str
    loc: int


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """One scene: what is the same in all its games. Compared and hashed by identity."""

    room: str
    scene: int
    receptacles: tuple[Receptacle, ...]
    scenery: tuple[Scenery, ...]
    locations: tuple[str, ...]
    start_spots: tuple[str, ...]
    """Locations without a receptacle, one of which a game starts at; not in `locations`."""
    overlaps: tuple[tuple[int, int, float], ...]
    """(receptacle, receptacle, probability that something in the first is listed in both)."""
    by_class: dict[str, tuple[int, ...]]

    @property
    def inventory(self) -> tuple[tuple[str, int], ...]:
        """Receptacle classes and their numbers, sorted."""
        return tuple(sorted((cls, len(found)) for cls, found in self.by_class.items()))


def _classes(room: str, size: int | None, draws: Draws) -> list[str]:
    table = class_tables().receptacles[room]
    if size is None:
        while True:
            counts = {cls: draws.count(lo, mean, hi) for cls, (lo, mean, hi) in table.items()}
            if sum(counts.values()) >= _FEWEST:
                return [cls for cls, n in counts.items() for _ in range(n)]
    chosen = [draws.choice(options) for options in _CORE[room]][:size]
    # The square root keeps the many cabinets and drawers from filling a small room.
    weights = {cls: sqrt(mean) for cls, (_, mean, _) in table.items()}
    names = list(table)
    while len(chosen) < size:
        left = [weights[c] if chosen.count(c) < table[c][2] else 0.0 for c in names]
        chosen.append(draws.weighted(names, left))
    return sorted(chosen)


class _Floor:
    """Hands out spots along the walls and the locations from which they are reached."""

    def __init__(self, draws: Draws, size: int) -> None:
        self.draws = draws
        self.half = 2 + size // 8
        self.used: set[str] = set()
        self.locations: list[str] = []

    def spot(self, height: float) -> tuple[float, float, float]:
        draws, half = self.draws, self.half
        along = round((2 * draws.unit() - 1) * half, 2)
        wall = half + round(draws.unit() / 2, 2)
        side = draws.below(4)
        x, z = ((along, wall), (wall, along), (along, -wall), (-wall, along))[side]
        return x, round(height + (draws.unit() - 0.5) / 4, 2), z

    def fresh(self, cls: str, height: float, suffix: str) -> tuple[str, tuple[float, float, float]]:
        while True:
            spot = self.spot(height)
            name = place_id(cls, spot, suffix)
            if name not in self.used:
                self.used.add(name)
                return name, spot

    def stand(self, spot: tuple[float, float, float]) -> str:
        """A new location id near `spot`: quarter metres, heading, tilt of the head."""
        draws, reach = self.draws, 4 * self.half
        while True:
            x, z = (max(-reach, min(reach, round(4 * v) + draws.below(5) - 2))
                    for v in (spot[0], spot[2]))  # fmt: skip
            tilt = draws.choice(("60", "45", "30", "_minus_30", "0", "15", "_minus_15"))
            name = f"loc_bar_{_grid(x)}_bar_{_grid(z)}_bar_{draws.below(4)}_bar_{tilt}"
            if name not in self.used:
                self.used.add(name)
                return name

    def new_location(self, spot: tuple[float, float, float]) -> int:
        self.locations.append(self.stand(spot))
        return len(self.locations) - 1


def _neighbour(
    cls: str, done: Sequence[Receptacle], draws: Draws, unpaired: list[int]
) -> int | None:
    """Location that a new receptacle of class `cls` shares, or None for one of its own."""
    if cls == "StoveBurner":
        if unpaired and draws.chance(_BURNER_PAIR):
            return unpaired.pop()
        return None
    classes, p = _SHARED_SPOTS.get(cls, ((), 0.0))
    near = [r.loc for r in done if r.cls in classes]
    return draws.choice(near) if near and draws.chance(p) else None


def make_layout(room: str, scene: int, size: int | None, real_like: bool, draws: Draws) -> Layout:
    """Draw one layout.

    Args:
        room: a key of `ROOMS`.
        scene: the scene number.
        size: number of receptacles; None draws the numbers that real rooms have.
        real_like: also draw shared locations, receptacles that overlap, and scenery.
        draws: the stream to draw from.
    """
    tables = class_tables()
    classes = _classes(room, size, draws)
    floor = _Floor(draws, len(classes))
    receptacles: list[Receptacle] = []
    unpaired: list[int] = []
    # Work surfaces first: what may share their spot can then find them.
    for cls in sorted(classes, key=lambda c: (c in _SHARED_SPOTS, c)):
        stem, suffix = (cls[:-5], f"_bar_{cls}") if cls.endswith("Basin") else (cls, "")
        name, spot = floor.fresh(stem, _HEIGHTS.get(cls, 0.1), suffix)
        loc = _neighbour(cls, receptacles, draws, unpaired) if real_like else None
        if loc is None:
            loc = floor.new_location(spot)
            if cls == "StoveBurner":
                unpaired.append(loc)
        openable = draws.chance(tables.openable.get(cls, 0.0))
        receptacles.append(Receptacle(name, cls, openable, loc, spot))
    receptacles.sort(key=lambda r: r.id)
    by_class: dict[str, list[int]] = {}
    for i, r in enumerate(receptacles):
        by_class.setdefault(r.cls, []).append(i)
    return Layout(
        room=room,
        scene=scene,
        receptacles=tuple(receptacles),
        scenery=tuple(_scenery(room, floor)) if real_like else (),
        start_spots=tuple(floor.stand((0.0, 0.0, 0.0)) for _ in range(4)),
        locations=tuple(floor.locations),
        overlaps=tuple(_overlaps(receptacles, by_class, draws)) if real_like else (),
        by_class={cls: tuple(found) for cls, found in sorted(by_class.items())},
    )


def _scenery(room: str, floor: _Floor) -> Iterable[Scenery]:
    tables = class_tables()
    for cls, (share, mean) in tables.objects[room].items():
        if "pickupable" in tables.properties.get(cls, ()) or cls in tables.starts:
            continue
        if not floor.draws.chance(share):
            continue
        loc = -1
        for _ in range(floor.draws.count(1, mean, 4)):
            name, spot = floor.fresh(cls, _SCENERY_HEIGHTS.get(cls, 0.3), "")
            if loc < 0 or floor.draws.chance(0.5):
                loc = floor.new_location(spot)
            yield Scenery(name, cls, loc)


def _overlaps(
    receptacles: Sequence[Receptacle], by_class: dict[str, list[int]], draws: Draws
) -> Iterable[tuple[int, int, float]]:
    for first, second, p in _OVERLAPS:
        for a in by_class.get(first, ()):
            near = [b for b in by_class.get(second, ()) if b != a]
            same = [b for b in near if receptacles[b].loc == receptacles[a].loc]
            if near:
                yield a, draws.choice(same or near), p
