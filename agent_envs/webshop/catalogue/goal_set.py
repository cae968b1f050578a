"""The goals that an environment or a trainer plays: ids, splits, and goals on request.

A task id is ``<kind>-<number>``, as in ``synthetic-1234``: the number of the goal after the
original's shuffle. Ids are made when asked for, so a million of them cost nothing.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, overload

from agent_envs.errors import InvalidOption, MissingData, TaskNotFound
from agent_envs.webshop.catalogue.goals import KINDS, Kind
from agent_envs.webshop.catalogue.shop import Shop
from agent_envs.webshop.catalogue.splits import (
    SPLITS,
    Split,
    SplitBy,
    check_kinds,
    check_split_by,
)
from agent_envs.webshop.model import Goal

_ID = re.compile(r"(synthetic|human)-(0|[1-9][0-9]{0,17})")


@dataclass(frozen=True, slots=True)
class GoalRef:
    """What is known of a goal without putting it together."""

    task_id: str
    split: Split
    task_type: Kind


class TaskIds(Sequence[str]):
    """The ids of some goals, in ascending order of their numbers; made when asked for."""

    __slots__ = ("_kind", "_numbers")

    def __init__(self, kind: Kind, numbers: Sequence[int]) -> None:
        """`numbers`: a range, or an ascending array of integers."""
        self._kind, self._numbers = kind, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> TaskIds: ...
    def __getitem__(self, place: int | slice) -> str | TaskIds:
        if isinstance(place, slice):
            step = 1 if place.step is None else place.step
            if step < 0:
                raise InvalidOption("Task ids are in ascending order; reverse them yourself.")
            return TaskIds(self._kind, self._numbers[place])
        return f"{self._kind}-{self._numbers[place]}"

    def __iter__(self) -> Iterator[str]:
        kind = self._kind
        return (f"{kind}-{number}" for number in self._numbers)

    def __contains__(self, task_id: object) -> bool:
        return self._place(task_id) is not None

    def index(self, task_id: str, start: int = 0, stop: int | None = None) -> int:
        """Where the id stands, as `list.index`."""
        place = self._place(task_id)
        within = range(*slice(start, stop).indices(len(self)))
        if place is None or place not in within:
            raise ValueError(f"{task_id!r} is not among these {len(self):,} ids")
        return place

    def count(self, task_id: object) -> int:
        """1 if the id is among these, else 0."""
        return int(task_id in self)

    def _place(self, task_id: object) -> int | None:
        parsed = parse_task_id(task_id)
        if parsed is None or parsed[0] != self._kind:
            return None
        numbers, number = self._numbers, parsed[1]
        if isinstance(numbers, range):
            return numbers.index(number) if number in numbers else None
        place = bisect_left(numbers, number)  # numpy's would copy the array to another type
        return place if place < len(numbers) and numbers[place] == number else None

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TaskIds) and self._kind != other._kind:
            return not len(self) and not len(other)
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(
            mine == its for mine, its in zip(self, other, strict=True)
        )

    def __hash__(self) -> int:
        return hash((len(self), self[0], self[-1]) if len(self) else 0)

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self[:3])) + (", ..." if len(self) > 3 else "")
        return f"<TaskIds {len(self):,}: {shown}>"


def parse_task_id(task_id: object) -> tuple[Kind, int] | None:
    """Kind and number that an id names; None if it is none.

    >>> parse_task_id("human-12"), parse_task_id("human-012")
    (('human', 12), None)
    """
    match = _ID.fullmatch(task_id) if isinstance(task_id, str) else None
    if match is None:
        return None
    kind: Kind = "human" if match[1] == "human" else "synthetic"
    return kind, int(match[2])


class GoalSet:
    """The goals of one kind in one shop, with their splits. Immutable; shared by any number of
    envs."""

    def __init__(self, shop: Shop, kind: Kind = "synthetic", *, split_by: SplitBy = "goal") -> None:
        """
        Args:
            shop: with its goals.
            kind: of goals.
            split_by: "goal" as published, or "product": no product is in two splits.

        Raises:
            InvalidOption: an unknown kind or `split_by`.
        """
        self.shop = shop
        self.goals = shop.goals(kind)
        self.kind: Kind = kind
        self.split_by = check_split_by(split_by)
        self.source = shop.source
        """Where the goals come from, for people."""
        told = repr((shop.revision, self.kind, self.split_by)).encode()
        self.manifest_hash = sha256(told).hexdigest()
        """SHA-256 (hex) over the shop, the kind of goals, and how they are split."""

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits that have goals."""
        return tuple(split for split in SPLITS if len(self._numbers(split)))

    def task_ids(
        self, split: str | None = None, task_types: Iterable[str] | None = None
    ) -> Sequence[str]:
        """Ids of all goals, or of one split, or of some kinds, by number.

        Raises:
            InvalidOption: an unknown task type.
        """
        if task_types is not None and self.kind not in check_kinds(task_types, KINDS):
            return TaskIds(self.kind, range(0))
        if split is None:
            return TaskIds(self.kind, range(len(self.goals)))
        for known in SPLITS:
            if split == known:
                return TaskIds(self.kind, self._numbers(known))
        return TaskIds(self.kind, range(0))

    def meta(self, task_id: str) -> GoalRef:
        """Split and kind of a goal.

        Raises:
            TaskNotFound: no such goal.
        """
        number = self.number_of(task_id)
        return GoalRef(task_id, self.goals.split_of(number, self.split_by), self.kind)

    def goal(self, task_id: str) -> Goal:
        """The goal itself, of which the shopper sees the sentence only.

        Raises:
            TaskNotFound: no such goal.
            CorruptData: it cannot be read.
        """
        return self.goals[self.number_of(task_id)]

    def number_of(self, task_id: str) -> int:
        """The number of the goal that an id names.

        Raises:
            TaskNotFound: there is none.
        """
        parsed = parse_task_id(task_id)
        if parsed is not None and parsed[0] == self.kind and parsed[1] < len(self.goals):
            return parsed[1]
        raise TaskNotFound(self._why_not(task_id, parsed))

    def need_goals(self) -> None:
        """Check that there is a goal.

        Raises:
            MissingData: there is none.
        """
        if not len(self.goals):
            file = "items_human_ins.json" if self.kind == "human" else "items_ins_v2.json"
            raise MissingData(
                f"The shop {self.source!r} has no {self.kind} goals: {file} names none of its "
                f"products. `sero data status` shows what was read; choose the other "
                "`goal_source`, or add the file."
            )

    def _why_not(self, task_id: object, parsed: tuple[Kind, int] | None) -> str:
        where = f"No task {task_id!r} among the {len(self):,} {self.kind} goals of {self.source}."
        if not len(self):
            return f"{where} There are no such goals; check the data."
        last = f"{self.kind}-{len(self) - 1}"
        if parsed is None:
            return f"{where} Ids are strings from '{self.kind}-0' to {last!r}."
        if parsed[0] != self.kind:
            return f"{where} It names a {parsed[0]} goal: choose goal_source={parsed[0]!r}."
        return f"{where} The last one is {last!r}."

    def _numbers(self, split: Split) -> Sequence[int]:
        return self.goals.numbers(split, self.split_by)

    def __len__(self) -> int:
        return len(self.goals)

    def __contains__(self, task_id: object) -> bool:
        parsed = parse_task_id(task_id)
        return parsed is not None and parsed[0] == self.kind and parsed[1] < len(self.goals)

    def __repr__(self) -> str:
        return f"<GoalSet of {len(self):,} {self.kind} goals of {self.source!r}>"

    def __copy__(self) -> GoalSet:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> GoalSet:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.shop, self.kind, self.split_by)


def _restored(shop: Shop, kind: Kind, split_by: SplitBy) -> GoalSet:
    return GoalSet(shop, kind, split_by=split_by)
