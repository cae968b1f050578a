"""The goals that an env plays, and the goals that a caller gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from agent_envs.errors import InvalidOption, MissingData, SnapshotMismatch, TaskNotFound
from agent_envs.webshop import compat as original
from agent_envs.webshop.catalogue.splits import Split
from agent_envs.webshop.model import Goal
from agent_envs.webshop.shop import GoalSet
from agent_envs.webshop.states import GIVEN, checked_goal, goal_id


class PlayedGoals:
    """The goals of one split, all, or those of a list, by task id. Nothing in it changes.

    Args:
        split: None for all goals.
        listed: ids of the only tasks that are played, in this order; `split` is not asked.

    Raises:
        InvalidOption: `split` is no name.
        MissingData: no goals, or none in this split.
        TaskNotFound: a listed id that is not there.
    """

    def __init__(self, goals: GoalSet, split: str | None, listed: tuple[str, ...] | None) -> None:
        self.goals = goals
        self.split = split
        self.ids = _selected(goals, split, listed)
        self._listed = None if listed is None else frozenset(self.ids)
        self._sums: NDArray[np.float64] | None = None

    def check(self, task_id: str) -> None:
        """Raises `TaskNotFound` where a task is not among those that are played."""
        if is_given(task_id):
            raise TaskNotFound(
                f"Task {task_id!r} is a goal that a caller gave. Give the goal itself: "
                "reset(options={'goal': ...})."
            )
        ref = self.goals.meta(task_id)
        if self._listed is not None:
            played = ref.task_id in self._listed
        else:
            played = self.split is None or ref.split == self.split
        if not played:
            raise TaskNotFound(
                f"Task {task_id!r} is of the split {ref.split!r}, and this env plays "
                f"{'a list of other tasks' if self._listed else f'the split {self.split!r}'}. "
                "Make it with split=None to play all goals."
            )

    def drawn(self, share: float) -> str:
        """The task that the original draws by weight, at `share` in [0, 1) of all weights."""
        if self._sums is None:
            weights = self.goals.goals.weights
            if self.split is not None:
                numbers = self.goals.goals.numbers(cast(Split, self.split), self.goals.split_by)
                weights = weights[numbers]
            self._sums = original.cumulated(weights)
        return self.ids[original.drawn_goal(self._sums, share)]


def is_given(task_id: str | None) -> bool:
    """Whether a task is a goal that a caller gave."""
    return task_id is not None and task_id.startswith(GIVEN)


def given_goal(task_id: str, value: Any) -> Goal:
    """The goal of a snapshot whose task a caller gave.

    Raises:
        SnapshotMismatch: it is none, or another one's.
    """
    try:
        goal = checked_goal(value)
    except ValueError as error:
        raise SnapshotMismatch(f"The goal of the snapshot is none: {error}.") from error
    if goal_id(goal) != task_id:
        raise SnapshotMismatch(
            f"The goal of the snapshot has the id {goal_id(goal)!r}, not {task_id!r}."
        )
    return goal


def _selected(goals: GoalSet, split: str | None, listed: tuple[str, ...] | None) -> Sequence[str]:
    """The ids of the goals to play.

    Raises:
        InvalidOption: `split` is no name.
        MissingData: no goals, or none in this split.
        TaskNotFound: a listed id that is not there.
    """
    if split is not None and not isinstance(split, str):
        raise InvalidOption(f"split is the name of a split or None, found {split!r}.")
    if listed is not None:
        return tuple(goals.meta(task_id).task_id for task_id in listed)
    goals.need_goals()
    if split is not None and split not in goals.splits:
        raise MissingData(
            f"No {goals.kind} goals in split {split!r} of {goals.source!r}. It has {len(goals):,} "
            f"in the splits {list(goals.splits)}. Choose one of these, or split=None for all."
        )
    return goals.task_ids(split)
