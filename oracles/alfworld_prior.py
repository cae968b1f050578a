"""What is usual in ALFWorld's households: where things lie, what fits where, what stands together.

Figures over classes of the public games, shipped with `agent_envs`; nothing of any one game.
Classes are spelled as in names: in lower case.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TypeVar

from agent_envs.alfworld.households.class_tables import class_tables, room_figures

V = TypeVar("V")

# So that every receptacle is searched some time, also one where the object was never found.
_FLOOR = 1e-3


@lru_cache(maxsize=4096)
def likelihood(obj: str, rec: str) -> float:
    """Expected number of objects of one class in one receptacle of another, at the start.

    How often the public games have one in the other, divided by the number of such receptacles
    in rooms that have such objects. Shares that are unknown count as those of all rooms.
    """
    found = _starts().get(obj, {}).get(rec, 0)
    rooms = 0.0
    for room, games in _games().items():
        table = class_tables()
        share, _ = _lower(table.objects[room]).get(obj, (0.0, 0.0))
        _, number, _ = _lower(table.receptacles[room]).get(rec, (0, 0.0, 0))
        rooms += games * share * number
    return max(found / rooms, _FLOOR) if rooms else _FLOOR


@lru_cache(maxsize=4096)
def has_door(rec: str) -> float:
    """Share of the receptacles of a class that can be opened and closed."""
    return float(_lower(class_tables().openable).get(rec, 0.0))


@lru_cache(maxsize=4096)
def fits(obj: str, rec: str) -> bool | None:
    """Whether an object of one class may be put into a receptacle of another.

    None: no public game has the class of the object.
    """
    if not known_object(obj):
        return None
    held = _lower(class_tables().can).get(rec, frozenset())
    return obj in {name.lower() for name in held}


def known_object(obj: str) -> bool:
    """Whether any public game declares the class of objects."""
    return obj in _names(class_tables().object_types)


def known_receptacle(rec: str) -> bool:
    """Whether any public game declares the class of receptacles."""
    return rec in _names(class_tables().receptacle_types)


@lru_cache(maxsize=4096)
def together(one: str, other: str, room: tuple[str, ...]) -> float:
    """Chance that two given receptacles of these classes stand at the same spot.

    The figures tell how often a receptacle stands at the spot of some earlier one of a class; it
    may be any of those in the room. 0 where it was never seen.

    Args:
        one: class of the first.
        other: class of the second.
        room: classes of all receptacles in the room, one entry each. The figures are the highest
            among those of the kinds of rooms that have all of them.
    """
    chance = 0.0
    for kind in _kinds(frozenset(room)):
        shared = _lower(room_figures().rooms[kind].shared)
        for later, earlier in {(one, other), (other, one)}:
            share = _lower(shared.get(later, {})).get(earlier, 0.0)
            number = room.count(earlier)
            # among n of one class there are (n - 1) later ones for n (n - 1) / 2 pairs
            pairs = number / 2 if one == other else number
            chance = max(chance, share / max(pairs, 1.0))
    return chance


@lru_cache(maxsize=1024)
def _kinds(classes: frozenset[str]) -> tuple[str, ...]:
    """Kinds of rooms that have receptacles of all these classes; all kinds if there are none."""
    rooms = class_tables().receptacles
    fitting = tuple(kind for kind in rooms if classes <= _lower(rooms[kind]).keys())
    return fitting or tuple(rooms)


@lru_cache(maxsize=1)
def _starts() -> dict[str, dict[str, int]]:
    return {obj: _lower(recs) for obj, recs in _lower(class_tables().starts).items()}


@lru_cache(maxsize=1)
def _games() -> dict[str, float]:
    """Kind of room -> its games among the 3,827, as far as their part with figures tells."""
    figures = room_figures()
    games = dict.fromkeys(figures.rooms, 0)
    for task in figures.tasks.values():
        for room, number in task.rooms.items():
            games[room] += number
    return {room: number * 3827 / figures.games for room, number in games.items()}


def _names(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(name.lower() for name in names)


def _lower(table: Mapping[str, V]) -> dict[str, V]:
    return {name.lower(): value for name, value in table.items()}
