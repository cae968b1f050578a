"""Rooms of generated households: which receptacles stand where.

A layout is what all games of one scene share: receptacles, who shares a spot to stand on, and the
scenery that nobody can pick up. Plain layouts follow the class tables, real-like ones also the
room figures (agent_envs/alfworld/households/class_tables.py, docs/generated.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt

from agent_envs.alfworld.households.class_tables import KindFigures, class_tables, room_figures
from agent_envs.draws import Draws

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

# What can stand at the spot of something else comes after it.
_LATE = frozenset(
    ("Cabinet", "CoffeeMachine", "Drawer", "GarbageCan", "HandTowelHolder", "Shelf", "Toaster")
)
_CROWDED = 0.1
"""Chance that the spot to share may be one that is shared already."""
_FEWEST = 6  # receptacles in the barest real room
_FLOOR_SPOTS = 12

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
    floor_spots: tuple[str, ...]
    """Locations without a receptacle where objects can lie about; not in `locations`."""
    overlaps: tuple[tuple[int, int, float], ...]
    """(receptacle, receptacle, probability that something in the first is listed in both)."""
    by_class: dict[str, tuple[int, ...]]

    @property
    def inventory(self) -> tuple[tuple[str, int], ...]:
        """Receptacle classes and their numbers, sorted."""
        return tuple(sorted((cls, len(found)) for cls, found in self.by_class.items()))


def placed_late(cls: str) -> tuple[bool, str]:
    """Sort key of the order in which the receptacles of a room are placed."""
    return cls in _LATE, cls


def _classes(room: str, size: int | None, real_like: bool, draws: Draws) -> list[str]:
    if size is not None:
        return _classes_of(room, size, draws)
    table = class_tables().receptacles[room]
    while True:
        if real_like:
            found = room_figures().rooms[room].receptacles
            counts = {cls: draws.from_counts(numbers) for cls, numbers in found.items()}
        else:
            counts = {cls: draws.count(lo, mean, hi) for cls, (lo, mean, hi) in table.items()}
        if sum(counts.values()) >= _FEWEST:
            return [cls for cls, n in counts.items() for _ in range(n)]


def _classes_of(room: str, size: int, draws: Draws) -> list[str]:
    table = class_tables().receptacles[room]
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

    def somewhere(self) -> str:
        """A new location id anywhere on the floor."""
        half = self.half
        x, z = ((2 * self.draws.unit() - 1) * half for _ in range(2))
        return self.stand((x, 0.0, z))

    def new_location(self, spot: tuple[float, float, float]) -> int:
        self.locations.append(self.stand(spot))
        return len(self.locations) - 1


def _neighbour(
    cls: str, done: Sequence[Receptacle], shared: dict[str, dict[str, float]], draws: Draws
) -> int | None:
    """Location that a new receptacle of class `cls` shares, or None for one of its own."""
    left = draws.unit()
    for other, p in shared.get(cls, {}).items():
        near = [r.loc for r in done if r.cls == other]
        alone = [loc for loc in near if sum(r.loc == loc for r in done) == 1]
        if cls == other == "StoveBurner":
            near = alone  # pairs, and `p` is the chance to find the other of a pair
        elif not draws.chance(_CROWDED):
            near = alone
        if not near:
            continue
        left -= p
        if left < 0:
            return draws.choice(near)
    return None


def make_layout(room: str, scene: int, size: int | None, real_like: bool, draws: Draws) -> Layout:
    """Draw one layout.

    Args:
        room: a key of `ROOMS`.
        scene: the scene number.
        size: number of receptacles; None draws the numbers that real rooms have.
        real_like: also draw shared locations, receptacles that overlap, and scenery.
        draws: the stream to draw from.
    """
    tables, figures = class_tables(), room_figures().rooms[room]
    classes = _classes(room, size, real_like, draws)
    floor = _Floor(draws, len(classes))
    receptacles: list[Receptacle] = []
    for cls in sorted(classes, key=placed_late):
        stem, suffix = (cls[:-5], f"_bar_{cls}") if cls.endswith("Basin") else (cls, "")
        name, spot = floor.fresh(stem, _HEIGHTS.get(cls, 0.1), suffix)
        loc = _neighbour(cls, receptacles, figures.shared, draws) if real_like else None
        if loc is None:
            loc = floor.new_location(spot)
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
        scenery=tuple(_scenery(figures, floor)) if real_like else (),
        start_spots=tuple(floor.stand((0.0, 0.0, 0.0)) for _ in range(4)),
        floor_spots=tuple(floor.somewhere() for _ in range(_FLOOR_SPOTS if real_like else 0)),
        locations=tuple(floor.locations),
        overlaps=tuple(_overlaps(figures, receptacles, by_class, draws)) if real_like else (),
        by_class={cls: tuple(found) for cls, found in sorted(by_class.items())},
    )


def _scenery(figures: KindFigures, floor: _Floor) -> Iterable[Scenery]:
    draws, beside = floor.draws, len(floor.locations)
    for cls, found in figures.scenery.items():
        free = -1
        for _ in range(draws.from_counts(found.counts)):
            name, spot = floor.fresh(cls, _SCENERY_HEIGHTS.get(cls, 0.3), "")
            if draws.chance(found.at):
                yield Scenery(name, cls, draws.below(beside))
                continue
            if free < 0 or draws.chance(found.own):
                free = floor.new_location(spot)
            yield Scenery(name, cls, free)


def _overlaps(
    figures: KindFigures,
    receptacles: Sequence[Receptacle],
    by_class: dict[str, list[int]],
    draws: Draws,
) -> Iterable[tuple[int, int, float]]:
    for one, two, rooms, number, p in figures.listed_twice:
        pairs = [(a, b) for a in by_class.get(one, ()) for b in by_class.get(two, ())]
        pairs = [(a, b) for a, b in pairs if (a < b if one == two else True)]
        if not pairs or not draws.chance(rooms):
            continue
        # Neighbours first: what stands at one spot is near.
        pairs = draws.shuffled(pairs)
        pairs.sort(key=lambda pair: receptacles[pair[0]].loc != receptacles[pair[1]].loc)
        for a, b in pairs[: int(number + draws.unit())]:
            yield a, b, p
            yield b, a, p
