"""What kind of households to generate: the specification and two presets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from agent_envs.alfworld.households.house import ROOMS
from agent_envs.alfworld.model import TaskType
from agent_envs.errors import InvalidOption

SPLITS = ("train", "valid_seen", "valid_unseen")
_RECEPTACLES = (5, 30)
_OBJECTS = (3, 60)
_DISTRACTORS = (0, 57)

ROOMS_FOR = {
    TaskType.PICK: ("kitchen", "livingroom", "bedroom", "bathroom"),
    TaskType.LOOK: ("livingroom", "bedroom"),
    TaskType.CLEAN: ("kitchen", "bathroom"),
    TaskType.HEAT: ("kitchen",),
    TaskType.COOL: ("kitchen",),
    TaskType.TWO: ("kitchen", "livingroom", "bedroom", "bathroom"),
}
"""Task type -> room kinds that have what it needs."""


class InvalidSpec(InvalidOption):
    """A household specification, split or source text that cannot be generated."""


@dataclass(frozen=True, slots=True)
class HouseholdSpec:
    """What generated households look like.

    Raises:
        InvalidSpec: a size out of range, an unknown room or task type, or a task type that none
            of the rooms can host.
    """

    receptacles: int | None = None
    """Receptacles in each room; None draws the numbers that the rooms of ALFWorld have."""
    objects: int | None = None
    """Objects in each game; None draws the numbers that the games of ALFWorld have."""
    task_types: tuple[TaskType, ...] = tuple(TaskType)
    rooms: tuple[str, ...] = tuple(ROOMS)
    extras: bool = True
    """Like the public games in every respect measured (docs/generated.md), also in what makes
    them awkward: receptacles at one spot, objects listed in two receptacles or in none, objects
    inside objects, scenery, and things that no receptacle can take back."""
    distractors: int | None = None
    """Objects in each game besides those that its task needs; in place of `objects`."""
    depth: float | None = None
    """Share of games in which every object of the wanted class starts behind closed doors; in the
    others none does. None hides them as often as the public games do."""

    def __post_init__(self) -> None:
        for name, value, (low, high) in (
            ("receptacles", self.receptacles, _RECEPTACLES),
            ("objects", self.objects, _OBJECTS),
            ("distractors", self.distractors, _DISTRACTORS),
        ):
            if value is not None and (type(value) is not int or not low <= value <= high):
                raise InvalidSpec(
                    f"HouseholdSpec.{name} is {value!r}; give a whole number from {low} to "
                    f"{high}, or None for what the rooms of ALFWorld have."
                )
        if self.objects is not None and self.distractors is not None:
            raise InvalidSpec(
                f"HouseholdSpec has {self.objects} objects and {self.distractors} distractors; "
                "give one of the two: distractors are the objects that the task does not need."
            )
        depth = self.depth
        if depth is not None and (type(depth) not in (int, float) or not 0 <= depth <= 1):
            raise InvalidSpec(
                f"HouseholdSpec.depth is {depth!r}; give a share from 0 to 1, or None to hide "
                "objects as the games of ALFWorld do."
            )
        _check_names("rooms", self.rooms, ROOMS)
        _check_names("task_types", self.task_types, [str(t) for t in TaskType])
        object.__setattr__(self, "depth", depth if depth is None else depth + 0.0)  # -0.0 is 0.0
        object.__setattr__(self, "rooms", tuple(self.rooms))
        object.__setattr__(self, "task_types", tuple(TaskType(t) for t in self.task_types))
        for task_type in self.task_types:
            if not set(ROOMS_FOR[task_type]) & set(self.rooms):
                raise InvalidSpec(
                    f"HouseholdSpec.rooms is {self.rooms}, but {str(task_type)!r} needs one of "
                    f"{ROOMS_FOR[task_type]}. Add one of them or leave the task type out."
                )

    @property
    def key(self) -> tuple[object, ...]:
        """What decides the games, as plain values."""
        types = tuple(str(t) for t in self.task_types)
        # Knobs that came later count only where they are turned: seeds keep their games.
        later = {"distractors": self.distractors, "depth": self.depth}
        turned = tuple((name, value) for name, value in later.items() if value is not None)
        return (self.receptacles, self.objects, types, self.rooms, self.extras, *turned)


def _check_names(field: str, given: Iterable[str], known: Iterable[str]) -> None:
    names, allowed = list(given), [str(k) for k in known]
    unknown = [str(name) for name in names if str(name) not in allowed]
    if not names or unknown or len(set(names)) < len(names):
        what = f"unknown: {', '.join(unknown)}" if unknown else "empty, or names one twice"
        raise InvalidSpec(
            f"HouseholdSpec.{field} is wrong ({what}); choose one or more, once each, of "
            f"{', '.join(allowed)}."
        )


STANDARD = HouseholdSpec()
"""Like the public games: about 24 receptacles and 40 objects, with all their awkwardness."""

SMALL = HouseholdSpec(receptacles=8, objects=8, extras=False)
"""Small, plain rooms for learning on a CPU; every task fits into 15 steps."""

PRESETS = {"standard": STANDARD, "small": SMALL}
