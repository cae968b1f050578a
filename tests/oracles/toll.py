"""A road where every step costs something, for tests of branches that are cut short."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

import agent_envs
from oracles import Decision, History, PlanStatus
from oracles.walks import Walk, walks


class Toll(agent_envs.TextEnv):
    """Gold lies at 5 to 7; a step costs 0.1."""

    data_revision = "toll-1"
    ends: ClassVar[frozenset[str]] = frozenset(("success", "fell"))
    trap: ClassVar[str | None] = None
    """`view` or `step`: what fails at place 2."""
    edge: ClassVar[bool] = False
    """Whether who goes left of the start falls."""
    bonus = 0.0
    """No part of the state: the least score."""

    def __init__(self, max_steps: int | None = 12) -> None:
        super().__init__(max_steps=max_steps)
        self._place = self._gold = 0

    def privileged(self) -> Any:
        if self.trap == "view" and self._place == 2:
            raise RuntimeError("no view of place 2")
        return self._place, self._gold

    def _task_ids(self) -> Sequence[str]:
        return ("gold5", "gold6", "gold7")

    def _load(self, task_id: str) -> None:
        self._gold = int(task_id.removeprefix("gold"))

    def _begin(self) -> str:
        self._place = 0
        return self._sign()

    def _sign(self) -> str:
        return f"Place {self._place}, gold at {self._gold}."

    def _admissible(self) -> tuple[str, ...]:
        return ("left", "right", "dig")

    def _apply(self, command: str) -> tuple[str, float, str | None, float, bool]:
        if command not in self._admissible():
            return self.refusal, -0.1, None, self.bonus, False
        if command == "dig":
            won = self._place == self._gold
            score = max(float(won), self.bonus)
            return "Dug.", float(won) or -0.1, "success" if won else None, score, True
        if self.trap == "step" and command == "right" and self._place == 2:
            raise RuntimeError("no way on")
        if self.edge and command == "left" and not self._place:
            return "You fall.", 0.0, "fell", 0.0, True
        self._place = min(8, max(0, self._place + (1 if command == "right" else -1)))
        return self._sign(), -0.1, None, self.bonus, True

    def _engine_state(self) -> tuple[Any, ...]:
        return (self._place,)

    def _set_engine_state(self, task_id: str, state: tuple[Any, ...]) -> None:
        self._load(task_id)
        (self._place,) = state

    def _info_static(self) -> Mapping[str, Any]:
        return {
            "task_type": "dig",
            "split": "train",
            "goal": "dig up the gold",
            "action_templates": (),
            "provenance": agent_envs.FrozenDict(engine="1", data_revision=self.data_revision),
        }


class Digger:
    """Goes to the gold and digs."""

    privileged = True

    def start(self, view: Any, history: History) -> None:
        return None

    def act(self, state: None, view: Any, observation: str) -> tuple[Decision, None]:
        place, gold = view
        command = "dig" if place == gold else "right" if place < gold else "left"
        return Decision(PlanStatus.FOUND, command), None


class Backwards(Digger):
    """Goes away from the gold."""

    def act(self, state: None, view: Any, observation: str) -> tuple[Decision, None]:
        return Decision(PlanStatus.FOUND, "left"), None


def _left(observation: str, info: Mapping[str, Any], generator: np.random.Generator) -> str:
    return "left"


def _astray(observation: str, info: Mapping[str, Any], generator: np.random.Generator) -> str:
    return "right" if generator.random() < 0.5 else "left"


def leftwards(env: Toll) -> Iterator[Walk]:
    return walks(env, _left, 0)


def astray(env: Toll) -> Iterator[Walk]:
    return walks(env, _astray, 0)
