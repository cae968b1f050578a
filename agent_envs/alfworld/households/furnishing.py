"""Tasks and starts of objects as the public games have them.

Which tasks are asked, where wanted objects start, which objects are listed twice, lie in one
another, on the floor, or are recorded at a location that is not their receptacle's: all follow
the room figures (see `class_tables`). Two rules hold in every game measured and are kept: a wanted
object never starts where it would be cleaned, heated or cooled, and the coolable objects of the
wanted class that start in the fridge, and no others, are cool.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache

from agent_envs.alfworld.households.class_tables import (
    KindFigures,
    TaskFigures,
    class_tables,
    room_figures,
)
from agent_envs.alfworld.households.house import Layout
from agent_envs.alfworld.households.placement import (
    Household,
    Placer,
    Task,
    Thing,
    affordance,
    size_of,
    start_classes,
    station,
)
from agent_envs.alfworld.households.spec import HouseholdSpec
from agent_envs.alfworld.model import TaskType
from agent_envs.draws import Draws

_OTHERS = 0.5
"""Weight of an object class that no measured game asked for; one game counts 1."""
_MOST = 3
"""Objects of a class that is not wanted; the wanted one has up to one more."""
_ELSEWHERE = 0.2
"""Share of misplaced objects that are recorded at another receptacle's location."""


@lru_cache(maxsize=4096)
def weighted_tasks(
    layout: Layout, task_type: TaskType, hidden: bool | None = None
) -> dict[tuple[str, str], float]:
    """(object class, target class) -> weight, for the tasks that a layout can host."""
    tables, figures = class_tables(), room_figures().tasks[task_type]
    look = task_type is TaskType.LOOK
    if look and not start_classes(layout, "DeskLamp"):
        return {}
    found: dict[tuple[str, str], float] = {}
    for cls in tables.objects[layout.room]:
        properties = tables.properties.get(cls, frozenset())
        if not {"pickupable", affordance(task_type)} <= properties:
            continue
        weight = figures.objects.get(cls, 0) + _OTHERS
        if look:
            if cls in tables.looked_at and start_classes(layout, cls, (), hidden):
                found[cls, "DeskLamp"] = weight
            continue
        for target, games in figures.targets.items():
            fits = target in layout.by_class and cls in tables.can.get(target, ())
            if fits and start_classes(layout, cls, avoided(task_type, target), hidden):
                found[cls, target] = weight * games
    return found


def avoided(task_type: TaskType, target: str) -> tuple[str, ...]:
    """Receptacle classes in which no wanted object starts."""
    machine = station(task_type)
    if machine:
        return (machine,)
    return () if task_type is TaskType.LOOK else (target,)


def draw_real_task(
    layout: Layout, task_type: TaskType, draws: Draws, hidden: bool | None = None
) -> Task | None:
    """A task that the layout can host, or None; the arguments of `weighted_tasks`."""
    tasks = weighted_tasks(layout, task_type, hidden)
    return Task(task_type, *draws.from_counts(tasks)) if tasks else None


class _RealPlacer(Placer):
    """Also draws what makes public games awkward."""

    def __init__(self, layout: Layout, task: Task, hidden: bool | None, draws: Draws) -> None:
        super().__init__(layout, draws)
        self.task, self.hidden = task, hidden
        self.avoid = avoided(task.type, task.target)
        self.kind: KindFigures = room_figures().rooms[layout.room]
        self.about: TaskFigures = room_figures().tasks[task.type]

    def place(self, cls: str, but: Collection[str] = (), hidden: bool | None = None) -> None:
        first = self.receptacle(cls, but, hidden)
        layout, draws = self.layout, self.draws
        where = [first]
        for a, b, p in layout.overlaps:
            other = layout.receptacles[b]
            fits = other.cls not in but and cls in self.tables.can.get(other.cls, ())
            seen = hidden is None or other.openable is hidden
            if a in where and b not in where and fits and seen and draws.chance(p):
                where.append(b)
        name = self.fresh(cls, layout.receptacles[first].spot)
        cool = (
            cls == self.task.object
            and layout.receptacles[first].cls == "Fridge"
            and "coolable" in self.tables.properties[cls]
        )
        spot = self._elsewhere(first) if draws.chance(self.kind.misplaced) else None
        self.things.append(Thing(name, cls, tuple(where), cool, spot=spot))

    def _elsewhere(self, first: int) -> str:
        layout, draws = self.layout, self.draws
        if draws.chance(_ELSEWHERE):
            here = layout.receptacles[first].loc
            beside = [r.loc for r in layout.receptacles if r.loc != here]
            return layout.locations[draws.choice(beside)]
        return draws.choice(layout.floor_spots)

    def want(self) -> None:
        """Start one object of the wanted class."""
        cls, draws = self.task.object, self.draws
        if self.hidden is not None:
            self.place(cls, self.avoid, self.hidden)
            return
        if self.task.type is TaskType.LOOK and self._near_the_lamp():
            return
        doors = [d for d in (False, True) if start_classes(self.layout, cls, self.avoid, d)]
        hidden = doors[0] if len(doors) == 1 else draws.chance(self.about.hidden)
        self.place(cls, self.avoid, hidden)

    def _near_the_lamp(self) -> bool:
        """Perhaps start a wanted object in the receptacle of a lamp."""
        cls, receptacles = self.task.object, self.layout.receptacles
        kinds = start_classes(self.layout, cls)
        lit = sorted({r for thing in self.things if thing.cls == "DeskLamp" for r in thing.where})
        places = [r for r in lit if receptacles[r].cls in kinds]
        if not places or not self.draws.chance(self.about.beside_lamp):
            return False
        first = self.draws.choice(places)
        self.things.append(Thing(self.fresh(cls, receptacles[first].spot), cls, (first,)))
        return True

    def drop(self, cls: str) -> None:
        """Leave one object on the floor."""
        spot = self.draws.choice(self.layout.floor_spots)
        self.things.append(Thing(self.fresh(cls, (0.0, 0.1, 0.0)), cls, (), spot=spot))

    def nest(self) -> None:
        """Lay small things into vessels of the same receptacle, as often as rooms of this kind
        have it."""
        draws, figures = self.draws, self.kind
        if not draws.chance(figures.nested):
            return
        for _ in range(int(figures.nested_number + draws.unit())):
            pairs = {
                (i, j): figures.nested_pairs[outer.cls, inner.cls]
                for i, outer in enumerate(self.things) if outer.where and outer.inside is None
                for j, inner in enumerate(self.things)
                if i != j and inner.where == outer.where and inner.inside is None
                and (outer.cls, inner.cls) in figures.nested_pairs
                and all(thing.inside != inner.id for thing in self.things)
            }  # fmt: skip
            if not pairs:
                return
            i, j = draws.from_counts(pairs)
            self.things[j] = replace(self.things[j], inside=self.things[i].id)


def furnish_like_real(
    layout: Layout, task: Task, spec: HouseholdSpec, draws: Draws, hidden: bool | None = None
) -> Household:
    """Draw the objects of one game; arguments and result as of `placement.furnish`."""
    placer = _RealPlacer(layout, task, hidden, draws)
    size = size_of(task, spec)
    if task.type is TaskType.LOOK:
        placer.place("DeskLamp")
    wanted = draws.from_counts(placer.about.wanted)
    if size is not None:
        wanted = min(wanted, size - len(placer.things))
    for _ in range(wanted):
        placer.want()
    if size is None:
        _fill_like_real(placer)
    else:
        placer.fill(task, size, placer.avoid, hidden)
    placer.nest()
    things = tuple(sorted(placer.things, key=lambda thing: thing.id))
    return Household(layout, task, things, draws.choice(layout.start_spots))


def _fill_like_real(placer: _RealPlacer) -> None:
    draws, tables, task = placer.draws, placer.tables, placer.task
    for cls, (share, mean) in tables.objects[placer.layout.room].items():
        there = cls == "DeskLamp" and task.type is TaskType.LOOK
        if cls == task.object or there or cls not in tables.starts or not draws.chance(share):
            continue
        somewhere = bool(start_classes(placer.layout, cls))
        loose = placer.kind.floor.get(cls, 0.0)
        for _ in range(draws.count(1, mean, _MOST)):
            if loose and draws.chance(loose):
                placer.drop(cls)
            elif somewhere:
                placer.place(cls)
