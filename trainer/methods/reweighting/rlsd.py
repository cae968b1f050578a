"""RLSD in a run: every token of a reply, weighted by a teacher that knows a solution.

The maths is in `trainer.auxiliary.rlsd`. The weights compare the teacher with the policy that made
the rollouts, so they are fixed before the first optimiser step of an iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from oracles.base import PlanStatus
from trainer.auxiliary.feedback_context import Section
from trainer.auxiliary.rlsd import rlsd_advantages
from trainer.errors import ConfigError
from trainer.methods.protocol import Rollouts, Setup
from trainer.methods.reweighting.base import Reweighting
from trainer.methods.reweighting.feedback import Sections, context_turns, success_sections
from trainer.models.policy import pad_rows
from trainer.objectives import dense_ids
from trainer.rollouts.data import Segment, Turn
from trainer.worlds.oracles import make_planner

__all__ = ["Rlsd"]

PLAN_TITLE = "Commands that solve this task from its beginning:"


class Rlsd(Reweighting):
    """See `trainer.methods.reweighting.base` and `trainer.auxiliary.rlsd`."""

    name = "rlsd"

    def __init__(self, setup: Setup, section: Any) -> None:
        self.kind = section.teacher
        super().__init__(setup, section)
        self._rollouts = Rollouts(0, (), ())
        self._plans: dict[str, str] = {}
        if section.context == "plan":
            if setup.make_env is None:
                raise ConfigError(
                    "auxiliary.rlsd.context=plan needs an environment to plan in, and these turns "
                    "come without one. Use context=success."
                )
            self._env = setup.make_env()
            self._planner = make_planner(section.oracle_budget_s, setup.config.env.id)

    def contexts(self, rollouts: Rollouts) -> Sequence[Sections]:
        if self.section.context == "plan":
            # Once for each task, in the order of the turns.
            tasks = dict.fromkeys(turn.task_id for turn in rollouts.turns)
            plans = {task: self._plan(task) for task in tasks}
            return [plans[turn.task_id] for turn in rollouts.turns]
        told = context_turns(self.setup.student, rollouts.turns)
        return success_sections(told, self.section.rendering, self.section.context_steps)

    @property
    def of_episode(self) -> bool:
        return True  # a solution, from the beginning to the end

    def weighed(self, turn: Turn) -> tuple[bool, ...]:
        return (True,) * len(turn.response_ids)

    def prepare(self, rollouts: Rollouts, model: Any) -> None:
        super().prepare(rollouts, model)
        self._rollouts = rollouts

    def shaped(self, advantages: Sequence[Tensor]) -> Sequence[Tensor]:
        if not self.scored:
            return advantages
        # Turns that joined the groups later were not sampled by the policy and stay as they are.
        count = len(self._rollouts.turns)
        own, joined = list(advantages[:count]), list(advantages[count:])
        sizes = [row.numel() for row in own]
        adv_M_T = pad_rows([row.tolist() for row in own], torch.float64)
        width = adv_M_T.shape[1]
        teacher, _, on_M = self.rows(range(count))
        behaviour = [_behaviour(segment) for segment in self._rollouts.segments]
        result = rlsd_advantages(
            adv_M_T,
            pad_rows(behaviour, torch.float64, width=width),
            pad_rows([row.tolist() for row in teacher], torch.float64, width=width),
            pad_rows([[1] * size for size in sizes], torch.bool, width=width),
            on_M,
            alpha=self.alpha,
            clip=self.section.clip,
            rollout_filter=self.section.rollout_filter,
            uid_B=dense_ids([turn.uid for turn in self._rollouts.turns]),
        )
        self.measure(result.stats)
        return [*(row[:size] for row, size in zip(result.adv, sizes, strict=True)), *joined]

    def _plan(self, task_id: str) -> Sections:
        """The planner's way from the beginning of a task; empty where it finds none.

        Answers are kept, but not "out of time": that says nothing about the task, and a resumed
        run, which has no answers yet, would ask again. So it is asked once in every iteration.
        """
        text = self._plans.get(task_id)
        if text is None:
            self._env.reset(options={"task_id": task_id})
            world: Any = self._env.unwrapped
            # A solution that is longer than an episode is still one.
            plan = self._planner.plan(world.privileged(), None, self.section.oracle_budget_s)
            lines = [f"Step {i}: {command}" for i, command in enumerate(plan.actions, 1)]
            text = "\n".join(lines)
            if plan.status is not PlanStatus.TIMEOUT:
                self._plans[task_id] = text
        return (Section(PLAN_TITLE, text),) if text else ()


def _behaviour(segment: Segment) -> list[float]:
    return [x for x, keep in zip(segment.logprobs, segment.loss_mask, strict=True) if keep]
