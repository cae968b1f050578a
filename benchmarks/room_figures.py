"""Measures the rooms of the public games for the generator: writes its room_figures.json.

    python benchmarks/room_figures.py path/to/json_2.1.1

Only counts and shares are kept, none of a game's own text. What they are used for:
agent_envs/alfworld/households/class_tables.py. Once written, the file changes only when the
generator is to follow other games, and then the same seed gives other games.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any

from agent_envs.alfworld.games import GameSet
from agent_envs.alfworld.households.class_tables import class_tables
from agent_envs.alfworld.households.house import ROOMS, placed_late
from agent_envs.alfworld.model import Game, TaskType, bits

OUT = Path(__file__).parents[1] / "agent_envs" / "alfworld" / "data" / "room_figures.json"
TABLES = class_tables()
SPELLING = {
    name.lower(): name for name in (*TABLES.object_types, *TABLES.receptacle_types, "DeskLamp")
}
_RARE = 3
_DOUBT = 1
"""Rooms, or receptacles, added to those a chance is measured over: few of them say little."""


class Found:
    """One game with what is asked of it again and again."""

    def __init__(self, task_id: str, game: Game) -> None:
        self.game = game
        _, self.object, _, self.target, scene = task_id.split("/")[1].split("-")
        self.scene = int(scene)
        self.room = {base: room for room, base in ROOMS.items()}[self.scene // 100 * 100]
        self.recs = [SPELLING[name] for name in game.rec_class]
        self.objs = [SPELLING[name] for name in game.obj_class]
        self.where: list[list[int]] = [[] for _ in self.objs]
        for r, mask in enumerate(game.start.contents):
            for i in bits(mask):
                self.where[i].append(r)
        self.spots: list[list[int]] = [[] for _ in self.objs]
        for loc, mask in enumerate(game.start.at):
            for i in bits(mask):
                self.spots[i].append(loc)
        self.wanted = [i for i in bits(game.goal.objects) if self.where[i]]

    def opens(self, r: int) -> bool:
        """Whether receptacle `r` has a door."""
        return bool(self.game.openable >> r & 1)

    def scenery(self) -> list[int]:
        """Objects that nobody can take and that are in no receptacle."""
        return [
            i for i, cls in enumerate(self.objs)
            if not self.where[i] and cls not in TABLES.starts
            and "pickupable" not in TABLES.properties.get(cls, ())
        ]  # fmt: skip


def histogram(values: Iterable[int]) -> dict[str, int]:
    """How often each number occurs, as JSON can hold it."""
    return {str(n): count for n, count in sorted(Counter(values).items())}


def share(hits: int, of: int) -> float:
    """A rounded share; 0 of nothing is 0."""
    return round(hits / of, 4) if of else 0.0


def counts(rooms: list[Found]) -> dict[str, Any]:
    """Receptacle class -> number in a room -> rooms."""
    names = sorted({cls for room in rooms for cls in room.recs})
    return {cls: histogram(room.recs.count(cls) for room in rooms) for cls in names}


def shared(rooms: list[Found]) -> dict[str, Any]:
    """Receptacle class -> class that was there first -> chance to stand at the same spot."""
    joined: Counter[tuple[str, str]] = Counter()
    for room in rooms:
        for here in room.game.recs_at:
            first, *later = sorted((room.recs[r] for r in here), key=placed_late) or [""]
            joined.update((cls, first) for cls in later)
    out: dict[str, Any] = defaultdict(dict)
    for (cls, first), n in sorted(joined.items()):
        chances = sum(room.recs.count(cls) - (cls == first) for room in rooms if first in room.recs)
        out[cls][first] = share(n, chances + _DOUBT)
    burners = sum(room.recs.count("StoveBurner") for room in rooms)
    if burners:
        out["StoveBurner"] = {
            "StoveBurner": share(2 * joined["StoveBurner", "StoveBurner"], burners)
        }
    return dict(out)


def listed_twice(games: list[Found]) -> list[list[Any]]:
    """[class, class, share of rooms with a pair that overlaps, pairs there, share of objects]."""
    pairs: dict[tuple[str, str], dict[int, set[tuple[int, int]]]] = defaultdict(
        lambda: defaultdict(set)
    )
    objects: Counter[tuple[str, str]] = Counter()
    for found in games:
        for i, cls in enumerate(found.objs):
            if cls not in TABLES.starts:
                continue
            for a, b in combinations(found.where[i], 2):
                key = tuple(sorted((found.recs[a], found.recs[b])))
                pairs[key[0], key[1]][found.scene].add((a, b))
                objects[key[0], key[1]] += 1
    out = []
    for (one, two), scenes in sorted(pairs.items()):
        if objects[one, two] < _RARE:
            continue
        rooms = {
            g.scene for g in games
            if one in g.recs and two in g.recs and (one != two or g.recs.count(one) > 1)
        }  # fmt: skip
        both = either = 0
        for found in games:
            for a, b in scenes.get(found.scene, ()):
                for i, cls in enumerate(found.objs):
                    here = (a in found.where[i]) + (b in found.where[i])
                    if all(cls in TABLES.can.get(r, ()) or here == 2 for r in (one, two)):
                        both += here == 2
                        either += here > 0
        out.append([
            one, two, share(len(scenes), len(rooms) + _DOUBT),
            round(mean(len(found) for found in scenes.values()), 2), share(both, either),
        ])  # fmt: skip
    return out


def scenery(rooms: list[Found]) -> dict[str, Any]:
    """Class -> numbers in a room, share with a location of its own, share at a receptacle's."""
    names = sorted({room.objs[i] for room in rooms for i in room.scenery()})
    out = {}
    for cls in names:
        numbers, alone, more, at, total = [], 0, 0, 0, 0
        for room in rooms:
            spots = [room.spots[i][0] for i in room.scenery() if room.objs[i] == cls]
            free = [loc for loc in spots if not room.game.recs_at[loc]]
            numbers.append(len(spots))
            total += len(spots)
            at += len(spots) - len(free)
            more += max(len(free) - 1, 0)
            alone += max(len(set(free)) - 1, 0)
        out[cls] = {
            "counts": histogram(numbers),
            "own": share(alone, more) if more else 1.0,
            "at": share(at, total),
        }
    return out


def floor(games: list[Found]) -> dict[str, float]:
    """Class -> share of its objects that lie in no receptacle, of those that are no scenery."""
    loose: Counter[str] = Counter()
    every: Counter[str] = Counter()
    for found in games:
        idle = set(found.scenery())
        for i, cls in enumerate(found.objs):
            if i not in idle and cls in TABLES.starts:
                every[cls] += 1
                loose[cls] += not found.where[i]
    return {cls: share(n, every[cls]) for cls, n in sorted(loose.items()) if n}


def nested(games: list[Found]) -> dict[str, Any]:
    """Share of games with an object in another, their number there, and which in which."""
    pairs: Counter[tuple[str, str]] = Counter()
    with_some = 0
    for found in games:
        here = [
            (cls, found.objs[j])
            for i, cls in enumerate(found.objs)
            for j in found.game.inner[i]
            if found.where[j] and found.objs[j] in TABLES.starts
        ]
        pairs.update(here)
        with_some += bool(here)
    return {
        "share": share(with_some, len(games)),
        "number": round(pairs.total() / with_some, 2) if with_some else 0,
        "pairs": [[a, b, n] for (a, b), n in sorted(pairs.items())],
    }


def misplaced(games: list[Found]) -> float:
    """Share of placed objects that are recorded at another location than their receptacle's."""
    placed = odd = 0
    for found in games:
        for i, places in enumerate(found.where):
            placed += bool(places)
            here = {found.game.rec_loc[r] for r in places}
            odd += bool(places) and not here & set(found.spots[i])
    return share(odd, placed)


def tasks(games: list[Found]) -> dict[str, Any]:
    """Rooms, object and target classes of a task type, and how its wanted objects start."""
    hidden = could = beside = lit = 0
    for found in games:
        at_lamp = {
            found.game.rec_loc[r]
            for i, cls in enumerate(found.objs) if cls == "DeskLamp" for r in found.where[i]
        }  # fmt: skip
        for i in found.wanted:
            first = found.where[i][0]
            kinds = TABLES.starts[found.object]
            doors = {found.opens(r) for r, cls in enumerate(found.recs) if cls in kinds}
            if len(doors) == 2:
                could += 1
                hidden += all(found.opens(r) for r in found.where[i])
            if found.game.task_type is TaskType.LOOK:
                lit += 1
                beside += found.game.rec_loc[first] in at_lamp
    return {
        "rooms": dict(sorted(Counter(g.room for g in games).items())),
        "objects": dict(sorted(Counter(g.object for g in games).items())),
        "targets": dict(sorted(Counter(g.target for g in games).items())),
        "wanted": histogram(len(g.wanted) for g in games),
        "hidden": share(hidden, could),
        "beside_lamp": share(beside, lit),
    }


def main() -> None:
    """Measure the games of the first argument and write the figures."""
    source = GameSet.from_path(sys.argv[1])
    games = [Found(name, source.load(name)) for name in source.task_ids()]
    figures: dict[str, Any] = {
        "about": "Counts over public games of ALFWorld 0.4 (benchmarks/room_figures.py); what "
        "each entry means: agent_envs/alfworld/households/class_tables.py.",
        "games": len(games),
        "tasks": {str(t): tasks([g for g in games if g.game.task_type is t]) for t in TaskType},
        "rooms": {},
    }
    for room in ROOMS:
        here = [g for g in games if g.room == room]
        scenes = list({g.scene: g for g in here}.values())
        figures["rooms"][room] = {
            "receptacles": counts(scenes),
            "shared": shared(scenes),
            "listed_twice": listed_twice(here),
            "scenery": scenery(scenes),
            "floor": floor(here),
            "nested": nested(here),
            "misplaced": misplaced(here),
        }
    OUT.write_text(_compact(figures), encoding="utf-8")
    print(f"measured {len(games)} games, wrote {OUT}")


def _compact(figures: dict[str, Any]) -> str:
    """JSON with one entry of a room or task a line."""

    def dumps(value: object) -> str:
        return json.dumps(value, separators=(",", ":"))

    lines = [f' "about": {dumps(figures["about"])},', f' "games": {figures["games"]},']
    for part in ("tasks", "rooms"):
        groups = [
            f"  {dumps(name)}: {{\n"
            + ",\n".join(f"   {dumps(key)}: {dumps(value)}" for key, value in entry.items())
            + "\n  }"
            for name, entry in figures[part].items()
        ]
        lines.append(f' "{part}": {{\n' + ",\n".join(groups) + "\n }" + ("," * (part == "tasks")))
    return "{\n" + "\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    main()
