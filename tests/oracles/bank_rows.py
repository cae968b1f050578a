"""Rows and banks for the tests of banks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import agent_envs
from oracles import Decision, History, PlanStatus
from oracles.alfworld_planner import ALFWorldPlanner
from oracles.bank import (
    BankHeader,
    BankRow,
    PolicyEnd,
    header_of,
    write_bank,
)
from oracles.branch import RootRecord, run
from oracles.branches import EnvRecipe
from tests.oracles.rooms import SOLUTION, Scripted, make, open_house, rolled_out

WASTE = ("look", "inventory", "look")


def row(
    *commands: str,
    oracle: Any = None,
    max_steps: int | None = 20,
    horizon: int | None = None,
    own: tuple[str, ...] = WASTE,
    expected: RootRecord | None = None,
) -> BankRow:
    """A branch from after `commands`, where the policy goes on with `own`."""
    env, history, record = rolled_out(*commands, max_steps=max_steps)
    snapshot = agent_envs.snapshot(env)
    record = expected or record
    branch = run(
        make(open_house(), max_steps=max_steps),
        snapshot,
        oracle or ALFWorldPlanner(),
        horizon,
        history=history,
        expected=record,
    )
    rewards, info = [], {"success": False, "score": 0.0}
    for command in own:
        _, reward, _, _, info = env.step(command)
        rewards.append(float(reward))
    end = PolicyEnd(own, tuple(rewards), bool(info["success"]), float(info["score"]))
    return BankRow(branch, record, end, "planner", "waster", 7, len(commands), horizon)


class Thinking:
    privileged = False

    def start(self, view: Any, history: History) -> int:
        return 0

    def act(self, state: int, view: Any, observation: str) -> tuple[Decision, int]:
        return Decision(PlanStatus.FOUND, "look", thought="ich schaue, „überall“ 🕯"), state


NO_WAY = Decision(PlanStatus.UNSOLVABLE, None, "there is no mug")


def rows() -> list[BankRow]:
    """Branches of every kind that an env can repeat."""
    return [
        row(),
        row("go to cabinet 1", "nonsense"),
        row(*SOLUTION[:4], own=SOLUTION[4:]),  # the policy won
        row(oracle=Thinking(), horizon=2),
        row("look", horizon=3),
        row(oracle=Scripted(("look", NO_WAY))),
        row(oracle=Scripted(("fly",))),
        row(oracle=Scripted((Decision(PlanStatus.FOUND, None),))),
        row(oracle=Scripted(("look", RuntimeError("lost")))),
        row(*["look"] * 18, own=("look", "look"), oracle=Thinking()),
        row(expected=RootRecord("another room", ())),
    ]


def env_of(max_steps: int | None = 20) -> Callable[[], Any]:
    return lambda: make(open_house(), max_steps=max_steps)


def header(**changes: Any) -> BankHeader:
    recipe = EnvRecipe("SeroALFWorld-v0", {"data": "the toy house", "max_steps": 20})
    found = header_of(env_of()(), recipe, oracle="planner", policy="waster", seed=7)
    return replace(found, **changes)


def written(path: Path) -> Path:
    """A bank of all `rows` at `path`."""
    write_bank(path, header(), rows())
    return path
