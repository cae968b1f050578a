"""Games of generated households: the task, and where the objects of one game start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from agent_envs.alfworld.house import ClassTables, Draws, Layout, class_tables, place_id
from agent_envs.alfworld.household_spec import HouseholdSpec
from agent_envs.alfworld.model import TaskType

_STATIONS = {
    TaskType.CLEAN: ("SinkBasin", "cleanable"),
    TaskType.HEAT: ("Microwave", "heatable"),
    TaskType.COOL: ("Fridge", "coolable"),
}
_NESTS = frozenset({"Bowl", "Cup", "Mug", "Plate", "Pot", "Pan"})
_NESTED = frozenset({"ButterKnife", "Fork", "Knife", "Spoon", "Spatula"})
_NEST_SHARE = 0.2
_COOL_SHARE = 0.04
_ONE_THERE_SHARE = 0.03  # of the two-object games may start with one object in place
_MOST_OF_A_CLASS = 4


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be done: object class and receptacle class as the data spells them.

    `target` is "DeskLamp" for `TaskType.LOOK`.
    """

    type: TaskType
    object: str
    target: str


@dataclass(frozen=True, slots=True)
class Thing:
    """An object at the start of a game."""

    id: str
    cls: str
    where: tuple[int, ...]
    """Receptacles that list it (usually one), by position in the layout."""
    cool: bool = False
    inside: str | None = None
    """Id of the object that it lies in (a spoon in a mug)."""


@dataclass(frozen=True, slots=True)
class Household:
    """One game before it is written down."""

    layout: Layout
    task: Task
    things: tuple[Thing, ...]
    start: str
    """Id of the location where the agent starts; no receptacle is there."""


def station(task_type: TaskType) -> str | None:
    """Receptacle class that cleans, heats or cools, for the tasks that need one."""
    found = _STATIONS.get(task_type)
    return found[0] if found else None


def start_classes(layout: Layout, cls: str, but: str | None = None) -> list[str]:
    """Receptacle classes of the layout in which an object class is found at the start."""
    return [r for r in class_tables().starts.get(cls, ()) if r in layout.by_class and r != but]


@lru_cache(maxsize=2048)
def possible_tasks(layout: Layout, task_type: TaskType) -> dict[str, tuple[str, ...]]:
    """Object class -> receptacle classes it can be asked to be put into, in one layout."""
    tables = class_tables()
    found: dict[str, tuple[str, ...]] = {}
    for cls in tables.objects[layout.room]:
        props = tables.properties.get(cls, frozenset())
        if "pickupable" not in props or not start_classes(layout, cls):
            continue
        targets: tuple[str, ...]
        if task_type is TaskType.LOOK:
            targets = ("DeskLamp",) if cls in tables.looked_at else ()
        else:
            machine, needed = _STATIONS.get(task_type, ("", "pickupable"))
            targets = tuple(
                r for r in layout.by_class
                if r != machine and needed in props and cls in tables.can.get(r, ())
                and start_classes(layout, cls, but=r)
            )  # fmt: skip
        if targets:
            found[cls] = targets
    return found


def draw_task(layout: Layout, task_type: TaskType, draws: Draws) -> Task | None:
    """A task that the layout can host, or None if there is none of this type."""
    if task_type is TaskType.LOOK and not start_classes(layout, "DeskLamp"):
        return None
    tasks = possible_tasks(layout, task_type)
    if not tasks:
        return None
    cls = draws.choice(tuple(tasks))
    return Task(task_type, cls, draws.choice(tasks[cls]))


class _Placer:
    """Puts objects into a layout, one at a time."""

    def __init__(self, layout: Layout, extras: bool, draws: Draws) -> None:
        self.layout, self.extras, self.draws = layout, extras, draws
        self.tables: ClassTables = class_tables()
        self.used: set[str] = set()
        self.things: list[Thing] = []

    def fresh(self, cls: str, receptacle: int) -> str:
        """An unused id close to a receptacle."""
        x, y, z = self.layout.receptacles[receptacle].spot
        draws = self.draws
        while True:
            dx, dz = draws.unit() - 0.5, draws.unit() - 0.5
            name = place_id(cls, (x + dx, y + draws.unit() / 4, z + dz))
            if name not in self.used:
                self.used.add(name)
                return name

    def place(self, cls: str, but: str | None = None) -> None:
        """Start one object where its class is usually found, but not in the class `but`."""
        layout, draws = self.layout, self.draws
        options = start_classes(layout, cls, but)
        counts = self.tables.starts[cls]
        kind = draws.weighted(options, [counts[r] for r in options])
        first = draws.choice(layout.by_class[kind])
        where = [first]
        for a, b, p in layout.overlaps:
            other = layout.receptacles[b].cls
            fits = other != but and cls in self.tables.can.get(other, ())
            if a == first and fits and b not in where and draws.chance(p):
                where.append(b)
        cool = kind == "Fridge" and "coolable" in self.tables.properties[cls]
        cool = cool and self.extras and draws.chance(_COOL_SHARE)
        self.things.append(Thing(self.fresh(cls, first), cls, tuple(where), cool))

    def nest(self) -> None:
        """Lay one small thing into a vessel of the same receptacle, where there is such a pair."""
        pairs = [
            (i, outer.id)
            for i, inner in enumerate(self.things) if inner.cls in _NESTED
            for outer in self.things if outer.cls in _NESTS and outer.where == inner.where
        ]  # fmt: skip
        if pairs:
            i, outer_id = self.draws.choice(pairs)
            inner = self.things[i]
            self.things[i] = Thing(inner.id, inner.cls, inner.where, inner.cool, outer_id)


def furnish(layout: Layout, task: Task, spec: HouseholdSpec, draws: Draws) -> Household:
    """Draw the objects of one game; the result may be won already and must be checked."""
    placer = _Placer(layout, spec.extras, draws)
    avoid = task.target if task.type in (TaskType.PICK, TaskType.TWO) else None
    needed = 2 if task.type is TaskType.TWO else 1
    if spec.objects is None:
        _fill_like_real(placer, task, needed, avoid)
    else:
        _fill_exactly(placer, task, needed, avoid, spec.objects)
    if spec.extras and draws.chance(_NEST_SHARE):
        placer.nest()
    things = tuple(sorted(placer.things, key=lambda thing: thing.id))
    return Household(layout, task, things, draws.choice(layout.start_spots))


def _fill_like_real(placer: _Placer, task: Task, needed: int, avoid: str | None) -> None:
    draws, layout = placer.draws, placer.layout
    for cls, (share, mean) in placer.tables.objects[layout.room].items():
        wanted = needed if cls == task.object else 0
        if task.type is TaskType.LOOK and cls == "DeskLamp":
            wanted = 1
        if not start_classes(layout, cls) or not (wanted or draws.chance(share)):
            continue
        count = max(wanted, draws.count(1, mean, _MOST_OF_A_CLASS))
        for _ in range(count):
            placer.place(cls, avoid if cls == task.object else None)
    if task.type is TaskType.TWO and draws.chance(_ONE_THERE_SHARE):
        placer.place(task.object)


def _fill_exactly(placer: _Placer, task: Task, needed: int, avoid: str | None, size: int) -> None:
    draws, layout = placer.draws, placer.layout
    for _ in range(needed):
        placer.place(task.object, avoid)
    if task.type is TaskType.LOOK:
        placer.place("DeskLamp")
    names, weights = _fillers(layout, placer.tables, placer.extras)
    while len(placer.things) < size:
        cls = draws.weighted(names, weights)
        if cls == "DeskLamp" and any(thing.cls == cls for thing in placer.things):
            continue
        if start_classes(layout, cls, avoid if cls == task.object else None):
            placer.place(cls, avoid if cls == task.object else None)


def _fillers(
    layout: Layout, tables: ClassTables, extras: bool
) -> tuple[Sequence[str], Sequence[float]]:
    """Object classes to fill a room with, and how common each is."""
    held = {cls for r in layout.by_class for cls in tables.can.get(r, ())}
    chosen = {
        cls: share * mean
        for cls, (share, mean) in tables.objects[layout.room].items()
        if start_classes(layout, cls)
        and (extras or cls in held or "toggleable" in tables.properties.get(cls, ()))
    }
    return list(chosen), list(chosen.values())


def classes_present(household: Household) -> Iterable[str]:
    """Object classes of a game, scenery included, sorted."""
    found = {thing.cls for thing in household.things}
    return sorted(found | {item.cls for item in household.layout.scenery})
