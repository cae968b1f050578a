"""A world whose best command is known in every state: three rooms, two switches each.

A task names two switches, to be pressed in order. Rooms are in a row, so there is one shortest way;
a wrong switch blows the fuse, and everything has to be pressed again. Going where there is no way
is refused. What is shown tells the whole state, so rollouts of one task meet in the same states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium

from agent_envs.core import TextEnv
from agent_envs.errors import SnapshotMismatch, TaskNotFound
from oracles.base import Decision, History, Plan, PlanStatus
from trainer.worlds.environments import Environment, register_environment

ENV_ID = "TestSwitches-v0"
ROOMS = ("cellar", "hall", "attic")
COLOURS = ("red", "blue")
COMMANDS = ("go up", "go down", "press red", "press blue")

State = tuple[int, int]  # room, switches pressed
Wanted = tuple[tuple[int, str], ...]  # room and colour of each switch, in order

# Start room and the two switches; best commands are as often up as down, and red as blue.
TASKS: Mapping[str, tuple[int, Wanted]] = {
    f"{ROOMS[start]}: {colour} {ROOMS[room]}, {other} {ROOMS[goal]}": (
        start,
        ((room, colour), (goal, other)),
    )
    for start, room, colour, goal, other in (
        (0, 0, "blue", 1, "red"),
        (2, 2, "red", 1, "blue"),
        (1, 2, "red", 2, "blue"),
        (1, 0, "blue", 0, "red"),
        (1, 1, "blue", 2, "red"),
        (1, 1, "red", 0, "blue"),
        (0, 1, "red", 2, "blue"),
        (2, 1, "blue", 0, "red"),
    )
}
HELD_OUT = 2


def best(state: State, wanted: Wanted) -> str:
    """The command that leads to the goal soonest; there is one in every state."""
    room, done = state
    target, colour = wanted[done]
    if room == target:
        return f"press {colour}"
    return "go up" if target > room else "go down"


def way(state: State, wanted: Wanted) -> tuple[str, ...]:
    """All commands from `state` to the goal."""
    commands = []
    while state[1] < len(wanted):
        commands.append(best(state, wanted))
        state = after(state, commands[-1], wanted)
    return tuple(commands)


def after(state: State, command: str, wanted: Wanted) -> State:
    """The state that an accepted command leads to."""
    room, done = state
    verb, what = command.split()
    if verb == "go":
        return room + (1 if what == "up" else -1), done
    return room, done + 1 if wanted[done] == (room, what) else 0


def goal_of(wanted: Wanted) -> str:
    """The task in words."""
    (room, colour), (last, other) = wanted
    return f"press {colour} in the {ROOMS[room]}, then {other} in the {ROOMS[last]}."


class SwitchEnv(TextEnv):
    """See the module. A task id states start and switches."""

    env_id = ENV_ID

    def __init__(self, max_steps: int | None = 6, render_mode: str | None = None) -> None:
        super().__init__(max_steps=max_steps, render_mode=render_mode)
        self._wanted: Wanted = ()
        self._state: State = (0, 0)

    def privileged(self) -> tuple[State, Wanted]:
        return self._state, self._wanted

    def _task_ids(self) -> Sequence[str]:
        return tuple(TASKS)

    def _load(self, task_id: str) -> None:
        if task_id not in TASKS:
            raise TaskNotFound.among(task_id, tuple(TASKS), self.env_id)
        self._wanted = TASKS[task_id][1]

    def _begin(self) -> str:
        assert self._task_id is not None
        self._state = (TASKS[self._task_id][0], 0)
        return self._shown()

    def _shown(self) -> str:
        room, done = self._state
        return f"You are in the {ROOMS[room]}. {done} pressed."

    def _apply(self, command: str) -> tuple[str, float, str | None, float, bool]:
        if command not in self._admissible():
            return f"Nothing happens. {self._shown()}", 0.0, None, self._score, False
        done = self._state[1]
        self._state = after(self._state, command, self._wanted)
        if self._state[1] == len(self._wanted):
            return "The light is on.", 1.0, "success", 1.0, True
        score = self._state[1] / len(self._wanted)
        blown = command.startswith("press") and self._state[1] <= done
        return ("The fuse blows. " * blown) + self._shown(), 0.0, None, score, True

    def _admissible(self) -> tuple[str, ...]:
        room = self._state[0]
        up = COMMANDS[:1] if room < len(ROOMS) - 1 else ()
        down = COMMANDS[1:2] if room > 0 else ()
        return (*up, *down, *COMMANDS[2:])

    def _engine_state(self) -> tuple[Any, ...]:
        return self._state

    def _set_engine_state(self, task_id: str, state: tuple[Any, ...]) -> None:
        if len(state) != 2 or [type(x) for x in state] != [int, int]:
            raise SnapshotMismatch(f"{state!r} is no state of {task_id}.")
        if not 0 <= state[0] < len(ROOMS) or not 0 <= state[1] <= 2:
            raise SnapshotMismatch(f"{state!r} is not possible in {task_id}.")
        self._load(task_id)
        self._state = (state[0], state[1])

    def _info_static(self) -> Mapping[str, Any]:
        return {
            "task_type": "switches",
            "split": "train",
            "goal": goal_of(self._wanted),
            "action_templates": (),
            "provenance": {"engine": "switches", "data_revision": self.data_revision},
        }

    @property
    def data_revision(self) -> str:
        return "switches-1"


@dataclass(frozen=True)
class SwitchRef:
    split: str
    task_type: str = "switches"


class SwitchTasks:
    """Six tasks to train on, two to evaluate on."""

    source = "the switches of the tests"
    manifest_hash = "1" * 64
    splits = ("held_out", "train")

    def task_ids(
        self, split: str | None = None, task_types: Sequence[str] | None = None
    ) -> tuple[str, ...]:
        ids = tuple(TASKS)
        return {None: ids, "train": ids[:-HELD_OUT], "held_out": ids[-HELD_OUT:]}.get(split, ())

    def meta(self, task_id: str) -> SwitchRef:
        return SwitchRef("train" if task_id in self.task_ids("train") else "held_out")


class Electrician:
    """Knows the best command in every state."""

    privileged = True

    def __init__(self, budget_s: float | None = None) -> None:
        self.budget_s = budget_s

    def plan(self, view: Any, horizon: int | None, budget_s: float | None) -> Plan:
        commands = way(*view)
        if not commands:
            return Plan(PlanStatus.ALREADY_DONE, ())
        fits = horizon is None or len(commands) <= horizon
        return Plan(PlanStatus.FOUND if fits else PlanStatus.OVER_BUDGET, commands)

    def start(self, view: Any, history: History) -> None:
        return None

    def act(self, state: None, view: Any, observation: str) -> tuple[Decision, None]:
        plan = self.plan(view, None, None)
        return Decision(plan.status, plan.actions[0] if plan.actions else None), None


if ENV_ID not in gymnasium.registry:
    gymnasium.register(ENV_ID, entry_point=f"{__name__}:SwitchEnv")
    register_environment(
        ENV_ID,
        Environment(
            open=lambda config: SwitchTasks(),
            options=lambda config, tasks, split: {},
            held_out=("held_out",),
            oracles={"electrician": f"{__name__}:Electrician"},
        ),
    )
