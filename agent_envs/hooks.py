"""What a subclass of `TextEnv` brings: tasks, and a world to act in.

`TextEnv` calls these hooks and nobody else does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from agent_envs.frozen import FrozenDict

SUCCESS = "success"
"""The stop reason of an episode that was won."""


class Hooks(ABC):
    """Underscored, as they are no part of what a user of an env calls."""

    refusal: ClassVar[str]
    ends: ClassVar[frozenset[str]] = frozenset((SUCCESS,))
    """Stop reasons of an episode that the world itself ends. Only `SUCCESS` is a success."""
    reset_options: ClassVar[frozenset[str]] = frozenset(("task_id",))
    """Keys that ``reset(options=...)`` understands."""

    @abstractmethod
    def _task_ids(self) -> Sequence[str]:
        """All tasks, in an order that never depends on the machine."""

    @abstractmethod
    def _load(self, task_id: str) -> None:
        """Make `task_id` current. On failure raise `TaskNotFound` or `DataError`, unchanged."""

    @abstractmethod
    def _begin(self) -> str:
        """Put the current task at its start; the first observation. May draw from np_random, and
        may still fail with a `SeroError`, if it has changed nothing else by then."""

    @abstractmethod
    def _apply(self, command: str) -> tuple[str, float, str | None, float, bool]:
        """Take one command: observation, reward, end, score, whether it was accepted.

        The end is None while the episode goes on, else its stop reason, one of `ends`."""

    @abstractmethod
    def _admissible(self) -> tuple[str, ...]:
        """Commands accepted in the current state, in a documented order. Changes nothing."""

    @abstractmethod
    def _engine_state(self) -> tuple[Any, ...]:
        """The world as nested tuples of int, str, bool, None and finite float."""

    @abstractmethod
    def _set_engine_state(self, task_id: str, state: tuple[Any, ...]) -> None:
        """Make `task_id` current in `state`. The value may be hostile: check all of it, raise
        `SnapshotMismatch` if it is not a possible state, and only then change anything, by
        assigning new values to attributes, not by changing old ones in place. Setting `_static`
        to {} has `_info_static` asked again, though the task is the same."""

    @abstractmethod
    def _info_static(self) -> Mapping[str, Any]:
        """``task_type, split, goal, action_templates, provenance`` of the current episode."""

    @property
    @abstractmethod
    def data_revision(self) -> str:
        """Revision of the data behind this env."""

    def _task_revision(self, task_id: str) -> str:
        """Revision of the data of one task, recorded in snapshots. Default: `data_revision`."""
        return self.data_revision

    def _refuse(self) -> str:
        """Observation that answers an action which is no string."""
        return self.refusal

    def _chosen_task(self, options: Mapping[str, Any]) -> Any:
        """The task id that ``reset(options=...)`` asks for, None for the schedule's. May raise
        `InvalidOption`; must not change the running episode."""
        return options.get("task_id")

    def _page_info(self) -> Mapping[str, Any]:
        """What `info` says of the present state in place of, or besides, the episode's own
        entries; asked if `_has_page_info`. New and immutable values."""
        return {}

    def _observation_extras(self) -> FrozenDict:
        """What `_extras` names, as the player could know it."""
        return FrozenDict()
