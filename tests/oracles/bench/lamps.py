"""Lamp envs for the tests of the benchmark: sound, lossy and slow ones, a policy, and oracles."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.utils import seeding

from agent_envs import Snapshot
from oracles import Decision, History, PlanStatus
from oracles.walks import Walk, walks
from tests.agent_envs.lamp_env import LampEnv

Make = Callable[[], gymnasium.Env[str, str]]


class Clock:
    """Moves by a microsecond with every look at it, and further when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1e-6
        return self.now


@dataclass(frozen=True)
class View:
    """Where the student is and where the lamp is."""

    room: int
    lamp: int


class Lamp(LampEnv):
    """Sound, with a privileged view."""

    def __init__(self) -> None:
        super().__init__(max_steps=20)

    def privileged(self) -> Any:
        return View(self._state[0], self._lamp)


def wanders(observation: str, info: Mapping[str, Any], generator: np.random.Generator) -> str:
    """A policy that never lights the lamp; one command in ten is not understood."""
    if generator.random() < 0.1:
        return "dance"
    commands = [c for c in info["admissible_actions"] if c != "light the lamp"]
    return str(commands[int(generator.integers(len(commands)))])


def lights(observation: str, info: Mapping[str, Any], generator: np.random.Generator) -> str:
    """A policy that goes east, then west, and lights the lamp as soon as it is there."""
    for command in ("light the lamp", "roll" if generator.random() < 0.3 else "", "go east"):
        if command in info["admissible_actions"]:
            return command
    return "go west"


def played(make: Make, seed: int = 0) -> Iterator[Walk]:
    return walks(make(), wanders, seed)


class Lighter:
    """Goes to the lamp and lights it."""

    privileged = True

    def start(self, view: View, history: History) -> None:
        return None

    def act(self, state: None, view: View, observation: str) -> tuple[Decision, None]:
        command = "light the lamp" if view.room == view.lamp else "go west"
        if view.room < view.lamp:
            command = "go east"
        return Decision(PlanStatus.FOUND, command), None


class Roller:
    """Rolls the dice: no better than the policy."""

    privileged = False

    def start(self, view: None, history: History) -> None:
        return None

    def act(self, state: None, view: None, observation: str) -> tuple[Decision, None]:
        return Decision(PlanStatus.FOUND, "roll"), None


# ------------------------------------------------------------------ lossy

LOSSY: list[tuple[type[Lamp], str]] = []
"""An env, and what has to be said of every root at which it is lossy."""


def loses(what: str) -> Any:
    def enter(cls: type[Lamp]) -> type[Lamp]:
        LOSSY.append((cls, what))
        return cls

    return enter


@loses("^the random generator: recorded")
class ForgetsTheGenerator(Lamp):
    def _resume(self, snap: Snapshot) -> Any:
        found = super()._resume(snap)
        self._np_random = seeding.np_random(7)[0]
        return found


@loses(r"^step \d+ \('roll'\): the observation: recorded 'The dice make")
class RollsItsOwnDice(Lamp):
    """A second generator, which no snapshot has; only rolls show it."""

    def __init__(self) -> None:
        super().__init__()
        self._dice = random.Random(0)

    def _apply(self, command: str) -> tuple[str, float, str | None, float, bool]:
        observation, *rest = super()._apply(command)
        if command == "roll":
            observation += f" {self._dice.random()}"
        return observation, *rest  # type: ignore[return-value]


@loses(r"^the step budget: recorded \d+, found 20")
class ForgetsTheBudget(Lamp):
    def _resume(self, snap: Snapshot) -> Any:
        found = super()._resume(snap)
        self._taken = 0
        return found


@loses(r"^step 11 \(.*\): the end of the episode: recorded True, found False")
class ForgetsASecondBudget(Lamp):
    """12 steps, counted by a counter that no snapshot has."""

    _spent = 0

    def _begin(self) -> str:
        self._spent = 0
        return super()._begin()

    def step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        self._spent += 1
        return observation, reward, terminated, truncated or self._spent == 12, info

    def _set_engine_state(self, task_id: str, state: tuple[Any, ...]) -> None:
        super()._set_engine_state(task_id, state)
        self._spent = -100


@loses(r"^step \d+ \('roll'\): the reward: recorded [\d.]+, found [\d.]+")
class PaysTheFourthRoll(Lamp):
    """The fourth roll of an episode pays more; how many there were is in no snapshot."""

    _rolls = 0

    def _begin(self) -> str:
        self._rolls = 0
        return super()._begin()

    def _apply(self, command: str) -> tuple[str, float, str | None, float, bool]:
        observation, reward, *rest = super()._apply(command)
        if command == "roll":
            self._rolls += 1
            reward += 5.0 if self._rolls == 4 else 0.0
        return observation, reward, *rest  # type: ignore[return-value]

    def _set_engine_state(self, task_id: str, state: tuple[Any, ...]) -> None:
        super()._set_engine_state(task_id, state)
        self._rolls = 0


@loses("^the observation: recorded '(.*)', found '(.*) You wake up.'")
class WakesUp(Lamp):
    def _resume(self, snap: Snapshot) -> Any:
        observation, info = super()._resume(snap)
        return f"{observation} You wake up.", info


@loses(r"^the admissible commands: recorded \(.*'sing'\), found \(.*'roll'\)")
class ForgetsASong(Lamp):
    """One may sing after the first step, if the env remembers that there was one."""

    _songs: tuple[str, ...] = ()

    def _begin(self) -> str:
        self._songs = ()
        return super()._begin()

    def _apply(self, command: str) -> tuple[str, float, str | None, float, bool]:
        if command == "sing":
            return "La la.", 0.0, None, self._score, True
        outcome = super()._apply(command)
        self._songs = ("sing",)
        return outcome

    def _admissible(self) -> tuple[str, ...]:
        return (*super()._admissible(), *self._songs)

    def _set_engine_state(self, task_id: str, state: tuple[Any, ...]) -> None:
        super()._set_engine_state(task_id, state)
        self._songs = ()


@loses(r"^step \d+ \(.*\): the admissible commands: recorded \(.*'roll'\), found")
class ListsTooMuchLater(Lamp):
    """What is listed is right at the root, and wrong from the next state on."""

    _restored = 0

    def _apply(self, command: str) -> tuple[str, float, str | None, float, bool]:
        self._restored += bool(self._restored)
        return super()._apply(command)

    def _admissible(self) -> tuple[str, ...]:
        return (*super()._admissible(), *(("fly",) if self._restored > 1 else ()))

    def _set_engine_state(self, task_id: str, state: tuple[Any, ...]) -> None:
        super()._set_engine_state(task_id, state)
        self._restored = 1


@loses(r"^step \d+ \('dance'\): whether it is accepted: recorded False, found True")
class AcceptsMoreLater(Lamp):
    _restored = False

    def _apply(self, command: str) -> tuple[str, float, str | None, float, bool]:
        *rest, accepted = super()._apply(command)
        return *rest, accepted or self._restored  # type: ignore[return-value]

    def _set_engine_state(self, task_id: str, state: tuple[Any, ...]) -> None:
        super()._set_engine_state(task_id, state)
        self._restored = True


@loses(r"^step 19 \(.*\): the score: recorded [\d.]+, found [\d.]+")
class ForgetsTheScore(Lamp):
    """The score grows with the rooms that were seen, which no snapshot has; it is shown last."""

    _seen: ClassVar[frozenset[int]] = frozenset()

    def _begin(self) -> str:
        observation = super()._begin()
        self._seen = frozenset({self._state[0]})  # type: ignore[misc]
        return observation

    def _apply(self, command: str) -> tuple[str, float, str | None, float, bool]:
        observation, reward, end, _, accepted = super()._apply(command)
        self._seen = self._seen | {self._state[0]}  # type: ignore[misc]
        return observation, reward, end, len(self._seen) / 8, accepted

    def _set_engine_state(self, task_id: str, state: tuple[Any, ...]) -> None:
        super()._set_engine_state(task_id, state)
        self._seen = frozenset()  # type: ignore[misc]


@loses(r"^step \d+ \(.*\): KeyError: 'gone'")
class BreaksLater(Lamp):
    _restored = False

    def _apply(self, command: str) -> tuple[str, float, str | None, float, bool]:
        if self._restored and command == "roll":
            raise KeyError("gone")
        return super()._apply(command)

    def _set_engine_state(self, task_id: str, state: tuple[Any, ...]) -> None:
        super()._set_engine_state(task_id, state)
        self._restored = True


@loses("^the restore: .*no such state")
class CannotRestore(Lamp):
    def _resume(self, snap: Snapshot) -> Any:
        raise RuntimeError("no such state")


@loses("^the snapshot as bytes: .*SnapshotFormatError")
class HoldsNaN(Lamp):
    nan: ClassVar[float] = float("nan")

    def _engine_state(self) -> tuple[Any, ...]:
        return (*super()._engine_state(), self.nan)

    def _set_engine_state(self, task_id: str, state: tuple[Any, ...]) -> None:
        super()._set_engine_state(task_id, state[:3])


@loses("^in a new environment, never reset: the restore: .*_table")
class NeedsAReset(Lamp):
    def _begin(self) -> str:
        self._table = ("lamp",)
        return super()._begin()

    def _set_engine_state(self, task_id: str, state: tuple[Any, ...]) -> None:
        assert self._table
        super()._set_engine_state(task_id, state)


@loses("^restored a second time: the observation: recorded")
class WearsOut(Lamp):
    """Knows the 24th restored state and those before it; then it is tired."""

    _restores = 0

    def _resume(self, snap: Snapshot) -> Any:
        observation, info = super()._resume(snap)
        self._restores += 1
        return (observation if self._restores <= 24 else f"{observation} Yawn."), info
