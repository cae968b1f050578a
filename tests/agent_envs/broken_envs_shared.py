"""More broken lamp envs: snapshots that miss something, and things that envs share."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import numpy as np

from agent_envs import SnapshotMismatch
from tests.agent_envs.broken_envs import breaks
from tests.agent_envs.lamp_env import LampEnv

# ------------------------------------------------------------------ snapshots

HIDDEN = ("snapshot_bytes", "fresh_restore")


@breaks("snapshot_replay", "step .* observation .*look at _engine_state", *HIDDEN)
class HiddenCounter(LampEnv):
    """What a roll says depends on a count that no snapshot has."""

    def _begin(self) -> str:
        self._count = 0
        return super()._begin()

    def _apply(self, command: str) -> tuple[str, float, str | None, float, bool]:
        observation, *rest = super()._apply(command)
        self._count = getattr(self, "_count", 0) + rest[-1]
        return f"{observation} ({self._count})", *rest  # type: ignore[return-value]


@breaks("next_episode", r"reset\(\) after a restore: .*is not in the snapshot")
class OwnOrder(LampEnv):
    """The order of tasks is kept in a counter of its own."""

    _turn = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        if seed is not None:
            self._turn = 0
        elif not options:
            self._turn += 1
            options = {"task_id": self._ids[self._turn % len(self._ids)]}
        return super().reset(seed=seed, options=options)


@breaks("snapshot_equal", "restored at once: state .*equals nothing", "fresh_restore")
class CountsRestores(LampEnv):
    _restores = 0

    def _engine_state(self) -> tuple[Any, ...]:
        return (*super()._engine_state(), self._restores)

    def _set_engine_state(self, task_id: str, state: tuple[Any, ...]) -> None:
        super()._set_engine_state(task_id, state[:3])
        if len(state) != 4 or type(state[3]) is not int:
            super()._set_engine_state(task_id, ())  # raises
        self._restores = state[3] + 1


@breaks(
    "asking_changes_nothing",
    "with snapshots in between",
    "task_on_request",
    "snapshot_equal",
    "invalid_is_noop",
    "privileged_view",
    "hostile_snapshots",
    "fresh_restore",
    "fork_independent",
    "deepcopy",
)
class SnapshotsDraw(LampEnv):
    def _engine_state(self) -> tuple[Any, ...]:
        self.np_random.random()
        return super()._engine_state()


@breaks("snapshot_bytes", "SnapshotFormatError", "hostile_snapshots", "fresh_restore")
class HoldsNaN(LampEnv):
    nan: ClassVar[float] = float("nan")

    def _engine_state(self) -> tuple[Any, ...]:
        return (*super()._engine_state(), self.nan)

    def _set_engine_state(self, task_id: str, state: tuple[Any, ...]) -> None:
        super()._set_engine_state(task_id, state[:3])


@breaks("hostile_snapshots", r"'x.*' for \d+ at \(1,\) of the engine state: restored")
class ChecksNothing(LampEnv):
    def _set_engine_state(self, task_id: str, state: tuple[Any, ...]) -> None:
        self._load(task_id)
        self._state = state  # type: ignore[assignment]


@breaks("hostile_snapshots", r"1048576 for \d+ at \(0,\) .*restored, then IndexError.*in range")
class ChecksNoRange(LampEnv):
    names: ClassVar[str] = "abcdef"

    def _set_engine_state(self, task_id: str, state: tuple[Any, ...]) -> None:
        if [type(value) for value in state] != [int, int, bool]:
            raise SnapshotMismatch(f"{state!r} is no state of {task_id}.")
        self._load(task_id)
        self._state = state  # type: ignore[assignment]

    def _apply(self, command: str) -> tuple[str, float, str | None, float, bool]:
        assert self.names[self._state[0]]
        return super()._apply(command)


@breaks("hostile_snapshots", "assigns before it has checked the whole state")
class ChecksTooLate(LampEnv):
    """Its state is a list that is changed in place before it is checked."""

    def _begin(self) -> str:
        observation = super()._begin()
        self._box = [self._state[0]]
        return observation

    def _engine_state(self) -> tuple[Any, ...]:
        return (*super()._engine_state(), self._box[0])

    def _set_engine_state(self, task_id: str, state: tuple[Any, ...]) -> None:
        if not hasattr(self, "_box"):
            self._box = [0]
        self._box[0] = state[3] if len(state) == 4 and type(state[3]) is int else -1
        super()._set_engine_state(task_id, state[:3] if self._box[0] >= 0 else ())


@breaks("fresh_restore", "AttributeError: .*_table")
class NeedsAReset(LampEnv):
    def _begin(self) -> str:
        self._table = ("lamp",)
        return super()._begin()

    def _set_engine_state(self, task_id: str, state: tuple[Any, ...]) -> None:
        assert self._table
        super()._set_engine_state(task_id, state)


@breaks("budget_restored", "the count of steps is not in the snapshot", "snapshot_replay")
class ForgetsTheBudget(LampEnv):
    """Has a second budget, of 40 steps, that no snapshot has."""

    _spent = 0

    def _begin(self) -> str:
        self._spent = 0
        return super()._begin()

    @property
    def remaining_steps(self) -> int | None:
        left = super().remaining_steps
        return 0 if left == 0 else 40 - self._spent

    def step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        self._spent += 1
        if self._spent == 40 and not terminated:
            truncated = True
        return observation, reward, terminated, truncated, info


# ------------------------------------------------------------------ isolation


@breaks("fork_independent", "steps of the fork change the original", "deepcopy")
class SharesItsRooms(LampEnv):
    shared_on_copy = LampEnv.shared_on_copy | {"_where"}

    def __init__(self) -> None:
        super().__init__()
        self._where = [0, 0, False]

    @property
    def _state(self) -> tuple[int, int, bool]:
        return tuple(self._where)  # type: ignore[return-value]

    @_state.setter
    def _state(self, value: tuple[int, int, bool]) -> None:
        if "_where" in vars(self):
            self._where[:] = value


@breaks(
    "deepcopy", "the copy is before its first reset.*leaves the episode out", "fork_independent"
)
class CopiesAreNew(LampEnv):
    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return type(self)()


@breaks("fork_independent", "TypeError: cannot be copied")
class RefusesCopies(LampEnv):
    """A refusal is no broken promise of `copy.deepcopy`, but forks need copies."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        raise TypeError("cannot be copied")


@breaks("invalid_is_noop", "after refused commands, .*a refused command changes the world")
class RefusalsCount(LampEnv):
    """Each refused command adds one to the dice."""

    def _apply(self, command: str) -> tuple[str, float, str | None, float, bool]:
        if command not in self._admissible():
            room, total, lit = self._state
            self._state = (room, total + 1, lit)
        return super()._apply(command)


@breaks(
    "envs_independent",
    "in turn with another.*holds something that changes with an episode",
)
class SharedDice(LampEnv):
    """Notices if another env of the class moved last. Copies count as the same env."""

    moved: ClassVar[list[object]] = [None]

    def __init__(self) -> None:
        super().__init__()
        self._key = id(self)

    def _begin(self) -> str:
        type(self).moved[0] = self._key
        return super()._begin()

    def _set_engine_state(self, task_id: str, state: tuple[Any, ...]) -> None:
        super()._set_engine_state(task_id, state)
        type(self).moved[0] = self._key

    def step(self, action: str) -> Any:
        observation, *rest = super().step(action)
        strange = type(self).moved[0] != self._key
        type(self).moved[0] = self._key
        return f"{observation} Somebody was here." if strange else observation, *rest


@breaks("global_rng", r"the state of numpy\.random changed")
class SeedsTheWorld(LampEnv):
    def _begin(self) -> str:
        np.random.seed(7)
        return super()._begin()


@breaks("global_rng", "with another global seed: .*copies the global generator's state")
class ReadsTheWorld(LampEnv):
    def _begin(self) -> str:
        dice = random.Random()
        dice.setstate(random.getstate())
        return super()._begin() + f"It is {dice.randrange(10**6)} o'clock."


@breaks("close", "closing an env twice: AttributeError")
class ClosesOnce(LampEnv):
    _file: Any = None

    def _begin(self) -> str:
        self._file = "a file"
        return super()._begin()

    def close(self) -> None:
        if "_file" in vars(self):
            self._file.upper()
            self._file = None


@breaks("close", "after another env was closed: .*releases something that envs share")
class ClosesForAll(LampEnv):
    shelf: ClassVar[dict[str, int]] = {}

    def __init__(self) -> None:
        super().__init__()
        type(self).shelf["lamp"] = 1

    def step(self, action: str) -> Any:
        type(self).shelf["lamp"]
        return super().step(action)

    def close(self) -> None:
        if self._taken == 3:
            type(self).shelf.clear()
