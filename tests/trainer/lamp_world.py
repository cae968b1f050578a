"""A world that the trainer has never heard of: what somebody's own environment needs to join.

The env is the lamp of `tests.agent_envs.lamp_env` with a privileged view; tasks and oracle are
written here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium

from oracles.base import Decision, History, Plan, PlanStatus
from tests.agent_envs.lamp_env import LampEnv
from trainer.worlds.environments import Environment, register_environment

ENV_ID = "TestOpenLamp-v0"


class OpenLampEnv(LampEnv):
    env_id = ENV_ID

    def privileged(self) -> tuple[int, int, bool]:
        """Room, room of the lamp, whether it is lit."""
        room, _, lit = self._state
        return room, self._lamp, lit


@dataclass(frozen=True)
class LampRef:
    split: str
    task_type: str = "lamp"


class LampTasks:
    """Eight tasks to train on, four to evaluate on."""

    source = "the lamps of the tests"
    manifest_hash = "0" * 64
    splits = ("dark", "train")

    def task_ids(
        self, split: str | None = None, task_types: Sequence[str] | None = None
    ) -> tuple[str, ...]:
        ids = tuple(f"house{i}/lamp{i % 6}" for i in range(12))
        return {None: ids, "train": ids[:8], "dark": ids[8:]}.get(split, ())

    def meta(self, task_id: str) -> LampRef:
        return LampRef("train" if task_id in self.task_ids("train") else "dark")


class Walker:
    """Walks to the lamp and lights it."""

    privileged = True

    def __init__(self, budget_s: float | None) -> None:
        self.budget_s = budget_s

    def plan(self, view: Any, horizon: int | None, budget_s: float | None) -> Plan:
        room, lamp, lit = view
        if lit:
            return Plan(PlanStatus.ALREADY_DONE, ())
        way = ("go east",) * (lamp - room) + ("go west",) * (room - lamp) + ("light the lamp",)
        fits = horizon is None or len(way) <= horizon
        return Plan(PlanStatus.FOUND if fits else PlanStatus.OVER_BUDGET, way)

    def start(self, view: Any, history: History) -> None:
        return None

    def act(self, state: None, view: Any, observation: str) -> tuple[Decision, None]:
        plan = self.plan(view, None, None)
        return Decision(plan.status, plan.actions[0] if plan.actions else None), None


if ENV_ID not in gymnasium.registry:
    gymnasium.register(ENV_ID, entry_point=f"{__name__}:OpenLampEnv")
    register_environment(
        ENV_ID,
        Environment(
            open=lambda config: LampTasks(),
            options=lambda config, tasks, split: {"n_tasks": 12},
            held_out=("dark",),
            oracles={"walker": f"{__name__}:Walker"},
        ),
    )
