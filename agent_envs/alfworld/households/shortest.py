"""Shortest plans from the start of a generated household.

At the start everything is shut, nothing is carried and the agent stands by no receptacle, so a
shortest plan is a few stops in a fixed order and only the choice of objects and receptacles is
open: all choices are tried. (Plans from any other state are the planner's job, in `oracles`.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from agent_envs.alfworld.households.placement import Household, Thing, station
from agent_envs.alfworld.model import TaskType

Stop = tuple[int, str, str]
"""(receptacle, verb, object id); the verb is one of take, move, use, clean, heat, cool."""

_OPENS = frozenset({"take", "move"})
_MAKES = {TaskType.CLEAN: "clean", TaskType.HEAT: "heat", TaskType.COOL: "cool"}


def names(ids: Iterable[str]) -> dict[str, str]:
    """The name that the game gives to each id: class and number.

    Within a class the first id in the order of the lower-cased ids has the highest number; a
    basin is a class of its own.

    >>> names(["Mug_bar__plus_00", "Mug_bar__minus_00"])["Mug_bar__plus_00"]
    'mug 1'
    """
    classes: dict[str, list[tuple[str, str]]] = {}
    for name in ids:
        lower = name.lower()
        cls = lower.split("_bar_", 1)[0] + ("basin" if "basin" in lower else "")
        classes.setdefault(cls, []).append((lower, name))
    return {
        name: f"{cls} {len(found) - i}"
        for cls, found in classes.items()
        for i, (_, name) in enumerate(sorted(found))
    }


def shortest_plan(household: Household) -> tuple[Stop, ...] | None:
    """The stops of a shortest plan; empty if the game is won at the start, None if unsolvable."""
    layout = household.layout
    best: tuple[Stop, ...] | None = None
    least = 0
    for stops in _candidates(household):
        if not stops:
            return ()
        cost, at, opened = 0, -1, set()
        for receptacle, verb, _ in stops:
            r = layout.receptacles[receptacle]
            cost += 1 + (r.loc != at)
            at = r.loc
            if r.openable and verb in _OPENS and receptacle not in opened:
                opened.add(receptacle)
                cost += 1
        if best is None or cost < least:
            best, least = stops, cost
    return best


def commands(household: Household, stops: Sequence[Stop]) -> tuple[str, ...]:
    """The commands that make the given stops."""
    layout = household.layout
    ids = [r.id for r in layout.receptacles] + [thing.id for thing in household.things]
    called = names([*ids, *(item.id for item in layout.scenery)])
    out: list[str] = []
    at, opened = -1, set()
    for receptacle, verb, thing in stops:
        r = layout.receptacles[receptacle]
        place, what = called[r.id], called[thing]
        if r.loc != at:
            out.append(f"go to {place}")
            at = r.loc
        if r.openable and verb in _OPENS and receptacle not in opened:
            opened.add(receptacle)
            out.append(f"open {place}")
        if verb == "use":
            out.append(f"use {what}")
        else:
            joint = {"take": "from", "move": "to"}.get(verb, "with")
            out.append(f"{verb} {what} {joint} {place}")
    return tuple(out)


def _candidates(household: Household) -> Iterator[tuple[Stop, ...]]:
    """Every sequence of stops that may be shortest and ends with the goal reached."""
    task, by_class = household.task, household.layout.by_class
    wanted = [thing for thing in household.things if thing.cls == task.object]
    targets = by_class.get(task.target, ())
    if task.type is TaskType.LOOK:
        lamps = [thing for thing in household.things if thing.cls == "DeskLamp"]
        for thing in wanted:
            for r in thing.where:
                for lamp in lamps:
                    for spot in lamp.where:
                        yield (r, "take", thing.id), (spot, "use", lamp.id)
    elif task.type is TaskType.TWO:
        yield from _pairs(wanted, targets)
    else:
        machine = station(task.type)
        stations = by_class.get(machine, ()) if machine else ()
        for thing in wanted:
            yield from _deliveries(thing, task.type, stations, targets)


def _deliveries(
    thing: Thing, task_type: TaskType, stations: Sequence[int], targets: Sequence[int]
) -> Iterator[tuple[Stop, ...]]:
    ready = task_type is TaskType.PICK or (task_type is TaskType.COOL and thing.cool)
    if ready and any(r in targets for r in thing.where):
        yield ()
    for r in thing.where:
        take: Stop = (r, "take", thing.id)
        if ready:
            for target in targets:
                yield take, (target, "move", thing.id)
            continue
        verb = _MAKES[task_type]
        # Still listed in a second receptacle: treated in the hand, it already counts as there.
        arrived = any(other in targets for other in thing.where if other != r)
        for s in stations:
            treat: Stop = (s, verb, thing.id)
            if arrived:
                yield take, treat
            for target in targets:
                yield take, treat, (target, "move", thing.id)


def _pairs(wanted: Sequence[Thing], targets: Sequence[int]) -> Iterator[tuple[Stop, ...]]:
    for target in targets:
        outside = [thing for thing in wanted if target not in thing.where]
        there = len(wanted) - len(outside)
        if there >= 2:
            yield ()
        trips: list[tuple[Stop, Stop]] = [
            ((r, "take", thing.id), (target, "move", thing.id))
            for thing in outside
            for r in thing.where
        ]
        if there:
            yield from trips
            continue
        for first in trips:
            for second in trips:
                if first[0][2] != second[0][2]:
                    yield (*first, *second)
