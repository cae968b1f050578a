"""Rooms, scripted oracles and patched environments for the tests of branches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium

import agent_envs
from agent_envs.alfworld.games import GameSet
from agent_envs.alfworld.model import TaskType
from oracles import Decision, History, HistoryItem, PlanStatus
from oracles.branch import Branch, RootRecord, run
from tests.oracles.toy import House, Obj, Rec

Env = gymnasium.Env[str, str]
SOLUTION = (
    "go to shelf 1",
    "take mug 1 from shelf 1",
    "go to cabinet 1",
    "open cabinet 1",
    "move mug 1 to cabinet 1",
)


def house(mug_in: int = 0) -> House:
    """Two shelves with doors, a cabinet; the mug is on one of the shelves."""
    return House(
        TaskType.PICK,
        [
            Rec("Cabinet", 2, ("Mug",), openable=True),
            Rec("Shelf", 3, ("Mug",), openable=True),
            Rec("Shelf", 1, ("Mug",), openable=True),
        ],
        [Obj("Mug", (mug_in,)), Obj("Pen", (2,)), Obj("Pen", (1,))],
    )


def open_house() -> House:
    return House(
        TaskType.PICK,
        [Rec("Shelf", 1, ("Mug",)), Rec("Cabinet", 2, ("Mug",), openable=True)],
        [Obj("Mug", (0,)), Obj("TeddyBear", (0,))],
    )


def make(*houses: House, max_steps: int | None = 20) -> Env:
    games = GameSet.from_games(
        [(f"train/{h.task}-{i}/trial", "train", h.payload()) for i, h in enumerate(houses)]
    )
    return gymnasium.make("SeroALFWorld-v0", data=games, max_steps=max_steps)


def rolled_out(*commands: str, max_steps: int | None = 20) -> tuple[Env, History, RootRecord]:
    """An env after `commands`, with the student's record."""
    env = make(open_house(), max_steps=max_steps)
    observation, info = env.reset(seed=0)
    history = []
    for command in commands:
        before = observation
        observation, _, _, _, info = env.step(command)
        history.append(HistoryItem(before, command, info["command_valid"]))
    return env, tuple(history), RootRecord(observation, info["admissible_actions"])


@dataclass
class Scripted:
    """Says what it is told, one item after the other, and remembers what it was given."""

    script: tuple[Any, ...]
    privileged: bool = False

    def __post_init__(self) -> None:
        self.seen: list[tuple[Any, str]] = []
        self.history: History | None = None

    def start(self, view: Any, history: History) -> int:
        self.history = history
        return 0

    def act(self, state: int, view: Any, observation: str) -> tuple[Any, int]:
        self.seen.append((view, observation))
        item = self.script[state]
        if isinstance(item, BaseException):
            raise item
        if isinstance(item, str):
            item = Decision(PlanStatus.FOUND, item)
        return item, state + 1


def branch_at(
    script: tuple[Any, ...], *commands: str, check: bool = True, **options: Any
) -> tuple[Branch, Scripted]:
    env, history, record = rolled_out(*commands)
    oracle = Scripted(script)
    expected = record if check else None
    branch = run(
        agent_envs.fork(env),
        agent_envs.snapshot(env),
        oracle,
        history=history,
        expected=expected,
        **options,
    )
    return branch, oracle


class Patched(gymnasium.Wrapper[str, str, str, str]):
    """Changes what comes back from a step."""

    def __init__(self, env: Env, change: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> None:
        super().__init__(env)
        self.change = change

    def step(self, action: str) -> Any:
        return self.change(self.env.step(action))


agent_envs.register_stateless_wrapper(Patched)
