"""Lamp envs that each break a promise of the environment contract, and what a check says of them.

`BROKEN` lists them: the promise, a text in its message, and every promise that the fault breaks.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Text

from agent_envs import AnyText, InvalidOption, TaskNotFound
from tests.agent_envs.lamp_env import LampEnv


class Case(NamedTuple):
    """A fault, the promise it is made for, part of the message, all promises that it breaks."""

    env: type[LampEnv]
    promise: str
    message: str
    all_broken: frozenset[str]


BROKEN: list[Case] = []


def breaks(promise: str, message: str, *others: str) -> Any:
    """Enter a class into `BROKEN`."""

    def enter(cls: type[LampEnv]) -> type[LampEnv]:
        BROKEN.append(Case(cls, promise, message, frozenset((promise, *others))))
        return cls

    return enter


def plan(env: Any) -> list[str]:
    """Commands that win a lamp env."""
    inner = env.unwrapped
    room, lamp = inner._state[0], inner._lamp
    return ["go east"] * (lamp - room) + ["go west"] * (room - lamp) + ["light the lamp"]


# ------------------------------------------------------------------ spaces, seeds, tasks


@breaks("spaces", r"Café™.*use agent_envs\.AnyText", "invalid_is_noop")
class PlainText(LampEnv):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = Text(5000, min_length=0)


class Bell(AnyText):
    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return "\x07"


@breaks("spaces", r"action_space\.sample\(\) gave '\\x07'")
class UnprintableSamples(LampEnv):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = Bell(50)


@breaks(
    "seeded_reset",
    r"after other episodes: observation .*reset leaves something of the last episode behind",
    "task_on_request",
)
class RemembersEpisodes(LampEnv):
    """The start tells how the last episode went."""

    last = 0

    def _begin(self) -> str:
        if self._schedule is not None and self._taken > 2:
            self.last = self._taken
        return super()._begin() + f"Last time: {self.last} steps."


@breaks("seeds_differ", r"both start with 'Welcome! .*or 0 is taken for no seed")
class IgnoresSeeds(LampEnv):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return super().reset(seed=None if seed is None else 5, options=options)


@breaks("task_on_request", r"info\['task_id'\] .*does not read options", "schedule")
class IgnoresTheTask(LampEnv):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return super().reset(seed=seed)


@breaks("task_on_request", r"reset\(options=\{'no such': 1\}\): no error")
class IgnoresOptions(LampEnv):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        known = {key: value for key, value in (options or {}).items() if key == "task_id"}
        return super().reset(seed=seed, options=known)


@breaks("task_on_request", "before everything that can fail was tried")
class ForgetsOnError(LampEnv):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        try:
            return super().reset(seed=seed, options=options)
        except (TaskNotFound, InvalidOption):
            self._taken = 0
            raise


@breaks("schedule", r"among 12 resets: .*drawn with replacement")
class DrawsTasks(LampEnv):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        if seed is None and not options:
            options = {"task_id": self._ids[int(self.np_random.integers(len(self._ids)))]}
        return super().reset(seed=seed, options=options)


@breaks("reset_needed", "step before reset: no error")
class StepsUnasked(LampEnv):
    def step(self, action: str) -> Any:
        if self._task_id is None:
            return "", 0.0, False, False, {}
        return super().step(action)


# ------------------------------------------------------------------ steps


@breaks("step_results", r"truncated .*\(bool\w*\).*a NumPy bool")
class NumpyFlags(LampEnv):
    def step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, np.bool_(truncated), info


@breaks("step_results", "reward nan")
class NotANumber(LampEnv):
    def step(self, action: str) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, float("nan") if action == "go east" else reward, *rest


@breaks("admissible_accepted", r"'fly' is listed, but answered by 'You cannot fly")
class ListsTooMuch(LampEnv):
    def _admissible(self) -> tuple[str, ...]:
        return (*super()._admissible(), "fly")

    def _apply(self, command: str) -> tuple[str, float, str | None, float, bool]:
        if command == "fly":
            return "You cannot fly.", 0.0, None, self._score, False
        return super()._apply(command)


@breaks("admissible_accepted", "'roll' is listed twice")
class ListsTwice(LampEnv):
    def _admissible(self) -> tuple[str, ...]:
        return (*super()._admissible(), "roll")


@breaks("invalid_is_noop", "refused commands draw from the generator")
class RefusalsDraw(LampEnv):
    def _apply(self, command: str) -> tuple[str, float, str | None, float, bool]:
        if command not in self._admissible():
            self.np_random.random()
        return super()._apply(command)


@breaks("invalid_is_noop", r"'': info\['command_valid'\] True.*does not report the refusal")
class AcceptsEverything(LampEnv):
    def _apply(self, command: str) -> tuple[str, float, str | None, float, bool]:
        return *super()._apply(command)[:4], True


@breaks("invalid_is_noop", r"'': info\['command_valid'\] True.*does not report the refusal")
class AcceptsEverythingForAWhile(AcceptsEverything):
    """Its episodes are shorter than a walk."""

    def __init__(self) -> None:
        super().__init__(max_steps=6)


@breaks("invalid_is_noop", r"TypeError: no text.*in step \(broken_envs\.py.*where it has to answer")
class RaisesOnNone(LampEnv):
    def step(self, action: str) -> Any:
        if action is None:
            raise TypeError("no text")
        return super().step(action)


@breaks(
    "step_budget",
    "terminated True, truncated False, success True.*treated as a success",
    "budget_restored",
)
class TimeOutsWin(LampEnv):
    def step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        if truncated:
            return observation, reward, True, False, {**info, "success": True}
        return observation, reward, terminated, truncated, info


@breaks("step_budget", "stop_reason None.*'step_limit'", "success")
class NoReason(LampEnv):
    def step(self, action: str) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "stop_reason": None}


@breaks("success", "terminated and truncated")
class WinsAreCutOff(LampEnv):
    def step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated or terminated, info


@breaks("success", r"on the last allowed step.*terminated True.*taken for a time-out")
class LateWinsAreLost(LampEnv):
    def step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        if terminated and info["steps_left"] == 0:
            info = {**info, "success": False, "stop_reason": "step_limit"}
            terminated, truncated = False, True
        return observation, reward, terminated, truncated, info


@breaks("step_after_end", "one more step: .*whether the episode is over, or a wrapper restarts it")
class RestartsItself(LampEnv):
    def step(self, action: str) -> Any:
        if self._stop_reason is not None:
            observation, info = self.reset()
            return observation, 0.0, False, False, info
        return super().step(action)


# ------------------------------------------------------------------ info


@breaks("info_complete", "no 'split'.*only set sometimes")
class DropsAKey(LampEnv):
    def _info(self) -> dict[str, Any]:
        info = super()._info()
        if self._taken == 2:
            del info["split"]
        return info


@breaks("info_complete", r"info\['score'\] .*NumPy scalar", "nothing_privileged")
class NumpyScore(LampEnv):
    def _info(self) -> dict[str, Any]:
        return {**super()._info(), "score": np.float32(0)}


@breaks("info_immutable", "holds a list.*an inner list or dict of the env is handed out")
class HandsOutAList(LampEnv):
    def _begin(self) -> str:
        self._rolls: list[str] = []
        return super()._begin()

    def _info(self) -> dict[str, Any]:
        return {**super()._info(), "observation_extras": getattr(self, "_rolls", [])}


@breaks(
    "info_immutable",
    "is now .*updates a dict that it has handed out",
    "step_results",
    "success",
    "invalid_is_noop",
    "fresh_restore",
    "envs_independent",
)
class UpdatesOneDict(LampEnv):
    def __init__(self) -> None:
        super().__init__()
        self._one: dict[str, Any] = {}

    def _info(self) -> dict[str, Any]:
        self._one.update(super()._info())
        return self._one


@breaks("info_immutable", "after the caller cleared an info, the next lacks .'goal'")
class BuildsOnTheLast(LampEnv):
    """Keeps the first info of an episode and copies the goal from it."""

    _kept: dict[str, Any] | None = None

    def _info(self) -> dict[str, Any]:
        info = super()._info()
        if self._kept is None or self._kept.get("task_id", self._task_id) != self._task_id:
            self._kept = info
            return info
        if self._taken == 0:
            self._kept = info
        elif "goal" not in self._kept:
            del info["goal"]
        return info


@breaks("nothing_privileged", r"info\['plan'\] .*name its key in public_keys=")
class ShowsThePlan(LampEnv):
    def _info(self) -> dict[str, Any]:
        return {**super()._info(), "plan": ("go east", "light the lamp")}


class Engine:
    """Something that holds the truth."""

    def __eq__(self, other: object) -> bool:
        return type(other) is Engine

    __hash__ = None  # type: ignore[assignment]


ENGINE = (Engine,)


@breaks("nothing_privileged", r"holds a type.*an object of the engine is handed out")
class ShowsTheEngine(LampEnv):
    def _info(self) -> dict[str, Any]:
        return {**super()._info(), "observation_extras": ENGINE}


@dataclasses.dataclass(frozen=True)
class View:
    """The true state."""

    state: tuple[Any, ...]
    solution: tuple[str, ...]


class WithView(LampEnv):
    """A lamp env with a sound privileged view."""

    def privileged(self) -> Any:
        return View(self._state, ("light", f"lamp {self._lamp}"))


@breaks("nothing_privileged", "is the field 'solution' of privileged")
class ShowsTheSolution(WithView):
    def _info(self) -> dict[str, Any]:
        return {**super()._info(), "observation_extras": ("light", f"lamp {self._lamp}")}


@breaks("privileged_view", "the view dict can be changed")
class MutableView(LampEnv):
    def privileged(self) -> Any:
        return {"room": self._state[0]}


@dataclasses.dataclass
class OpenView:
    room: int


@breaks("privileged_view", "the view OpenView can be changed")
class AssignableView(LampEnv):
    def privileged(self) -> Any:
        return OpenView(self._state[0])


@breaks("privileged_view", "asking for the view changed the episode")
class ViewRolls(WithView):
    def privileged(self) -> Any:
        self.np_random.random()
        return super().privileged()
