"""Games of generated households: the task, and where the objects of one game start.

This is the plain way, from the class tables alone; `furnishing` places objects as the public games
do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from agent_envs.alfworld.households.class_tables import ClassTables, class_tables
from agent_envs.alfworld.households.house import Layout, place_id
from agent_envs.alfworld.households.spec import HouseholdSpec
from agent_envs.alfworld.model import TaskType
from agent_envs.draws import Draws

_STATIONS = {
    TaskType.CLEAN: ("SinkBasin", "cleanable"),
    TaskType.HEAT: ("Microwave", "heatable"),
    TaskType.COOL: ("Fridge", "coolable"),
}
_MOST_OF_A_CLASS = 4
_ONE_THERE_SHARE = 0.03  # of the plain two-object games may start with one object in place


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be done: object class and receptacle class as the data spells them.

    `target` is "DeskLamp" for `TaskType.LOOK`.
    """

    type: TaskType
    object: str
    target: str

    @property
    def needed(self) -> int:
        """Objects of the wanted class that the task takes."""
        return 2 if self.type is TaskType.TWO else 1


@dataclass(frozen=True, slots=True)
class Thing:
    """An object at the start of a game."""

    id: str
    cls: str
    where: tuple[int, ...]
    """Receptacles that list it (usually one, none on the floor), by position in the layout."""
    cool: bool = False
    inside: str | None = None
    """Id of the object that it lies in (a spoon in a mug)."""
    spot: str | None = None
    """Id of the location that is recorded for it; None: that of its first receptacle."""


@dataclass(frozen=True, slots=True)
class Household:
    """One game before it is written down."""

    layout: Layout
    task: Task
    things: tuple[Thing, ...]
    start: str
    """Id of the location where the agent starts; no receptacle is there."""

    def location(self, thing: Thing) -> str:
        """Id of the location that is recorded for a thing."""
        if thing.spot is not None:
            return thing.spot
        return self.layout.locations[self.layout.receptacles[thing.where[0]].loc]


def station(task_type: TaskType) -> str | None:
    """Receptacle class that cleans, heats or cools, for the tasks that need one."""
    found = _STATIONS.get(task_type)
    return found[0] if found else None


def affordance(task_type: TaskType) -> str:
    """Property that the object of a task must have."""
    return _STATIONS.get(task_type, ("", "pickupable"))[1]


def start_classes(
    layout: Layout, cls: str, but: Collection[str] = (), hidden: bool | None = None
) -> list[str]:
    """Receptacle classes of the layout in which an object class is found at the start.

    With `hidden`, only classes of which the layout has one with doors (True) or without (False).
    """
    return [
        r for r in class_tables().starts.get(cls, ())
        if r in layout.by_class and r not in but
        and (hidden is None or any(layout.receptacles[i].openable is hidden
                                   for i in layout.by_class[r]))
    ]  # fmt: skip


@lru_cache(maxsize=2048)
def possible_tasks(
    layout: Layout, task_type: TaskType, hidden: bool | None = None
) -> dict[str, tuple[str, ...]]:
    """Object class -> receptacle classes it can be asked to be put into, in one layout."""
    tables = class_tables()
    found: dict[str, tuple[str, ...]] = {}
    for cls in tables.objects[layout.room]:
        props = tables.properties.get(cls, frozenset())
        if "pickupable" not in props or not start_classes(layout, cls, (), hidden):
            continue
        targets: tuple[str, ...]
        if task_type is TaskType.LOOK:
            targets = ("DeskLamp",) if cls in tables.looked_at else ()
        else:
            machine, needed = _STATIONS.get(task_type, ("", "pickupable"))
            targets = tuple(
                r for r in layout.by_class
                if r != machine and needed in props and cls in tables.can.get(r, ())
                and start_classes(layout, cls, (r,), hidden)
            )  # fmt: skip
        if targets:
            found[cls] = targets
    return found


def draw_task(
    layout: Layout, task_type: TaskType, draws: Draws, hidden: bool | None = None
) -> Task | None:
    """A task that the layout can host, or None if there is none of this type."""
    if task_type is TaskType.LOOK and not start_classes(layout, "DeskLamp"):
        return None
    tasks = possible_tasks(layout, task_type, hidden)
    if not tasks:
        return None
    cls = draws.choice(tuple(tasks))
    return Task(task_type, cls, draws.choice(tasks[cls]))


class Placer:
    """Puts objects into a layout, one at a time."""

    def __init__(self, layout: Layout, draws: Draws) -> None:
        self.layout, self.draws = layout, draws
        self.tables: ClassTables = class_tables()
        self.used: set[str] = set()
        self.things: list[Thing] = []

    def fresh(self, cls: str, spot: tuple[float, float, float]) -> str:
        """An unused id close to a point (metres)."""
        x, y, z = spot
        draws = self.draws
        while True:
            dx, dz = draws.unit() - 0.5, draws.unit() - 0.5
            name = place_id(cls, (x + dx, y + draws.unit() / 4, z + dz))
            if name not in self.used:
                self.used.add(name)
                return name

    def receptacle(self, cls: str, but: Collection[str] = (), hidden: bool | None = None) -> int:
        """A receptacle where the class is usually found; the arguments of `start_classes`."""
        layout = self.layout
        options = start_classes(layout, cls, but, hidden)
        counts = self.tables.starts[cls]
        kind = self.draws.weighted(options, [counts[r] for r in options])
        places = [
            r for r in layout.by_class[kind]
            if hidden is None or layout.receptacles[r].openable is hidden
        ]  # fmt: skip
        return self.draws.choice(places)

    def place(self, cls: str, but: Collection[str] = (), hidden: bool | None = None) -> None:
        """Start one object where its class is usually found; the arguments of `start_classes`."""
        first = self.receptacle(cls, but, hidden)
        name = self.fresh(cls, self.layout.receptacles[first].spot)
        self.things.append(Thing(name, cls, (first,)))

    def fill(self, task: Task, size: int, but: Collection[str], hidden: bool | None) -> None:
        """Add objects by how common their classes are until there are `size` of them."""
        names, weights = self.fillers()
        while len(self.things) < size:
            cls = self.draws.weighted(names, weights)
            if cls == "DeskLamp" and any(thing.cls == cls for thing in self.things):
                continue
            avoid, doors = (but, hidden) if cls == task.object else ((), None)
            if start_classes(self.layout, cls, avoid, doors):
                self.place(cls, avoid, doors)

    def fillers(self) -> tuple[Sequence[str], Sequence[float]]:
        """Object classes to fill the room with, and how common each is."""
        layout, tables = self.layout, self.tables
        held = {cls for r in layout.by_class for cls in tables.can.get(r, ())}
        chosen = {
            cls: share * mean
            for cls, (share, mean) in tables.objects[layout.room].items()
            if start_classes(layout, cls)
            and (cls in held or "toggleable" in tables.properties.get(cls, ()))
        }
        return list(chosen), list(chosen.values())


def size_of(task: Task, spec: HouseholdSpec) -> int | None:
    """Number of objects in a game, or None for what the public games have."""
    if spec.distractors is None:
        return spec.objects
    return spec.distractors + task.needed + (task.type is TaskType.LOOK)


def furnish(
    layout: Layout, task: Task, spec: HouseholdSpec, draws: Draws, hidden: bool | None = None
) -> Household:
    """Draw the objects of one game; the result may be won already and must be checked.

    Args:
        layout: the room.
        task: what is to be done.
        spec: its sizes are read.
        draws: the stream to draw from.
        hidden: whether every object of the wanted class starts behind closed doors (True) or
            none (False); None leaves it to chance.
    """
    placer = Placer(layout, draws)
    avoid = (task.target,) if task.type in (TaskType.PICK, TaskType.TWO) else ()
    size = size_of(task, spec)
    if size is None:
        _fill_freely(placer, task, avoid, hidden)
    else:
        for _ in range(task.needed):
            placer.place(task.object, avoid, hidden)
        if task.type is TaskType.LOOK:
            placer.place("DeskLamp")
        placer.fill(task, size, avoid, hidden)
    things = tuple(sorted(placer.things, key=lambda thing: thing.id))
    return Household(layout, task, things, draws.choice(layout.start_spots))


def _fill_freely(placer: Placer, task: Task, avoid: Collection[str], hidden: bool | None) -> None:
    draws, layout = placer.draws, placer.layout
    for cls, (share, mean) in placer.tables.objects[layout.room].items():
        wanted = task.needed if cls == task.object else 0
        if task.type is TaskType.LOOK and cls == "DeskLamp":
            wanted = 1
        if not start_classes(layout, cls) or not (wanted or draws.chance(share)):
            continue
        for _ in range(max(wanted, draws.count(1, mean, _MOST_OF_A_CLASS))):
            if cls == task.object:
                placer.place(cls, avoid, hidden)
            else:
                placer.place(cls)
    if task.type is TaskType.TWO and hidden is None and draws.chance(_ONE_THERE_SHARE):
        placer.place(task.object)


def classes_present(household: Household) -> Iterable[str]:
    """Object classes of a game, scenery included, sorted."""
    found = {thing.cls for thing in household.things}
    return sorted(found | {item.cls for item in household.layout.scenery})
