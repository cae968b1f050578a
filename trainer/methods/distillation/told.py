"""Pairs of the student's prompt and that of a teacher who was told something.

What may be told: a won rollout of the same task, what the environment answered, or the oracle's
plan from the state of the turn. All of it goes into the teacher's prompt and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import agent_envs
from agent_envs import Snapshot
from agent_envs.errors import SeroError
from trainer.auxiliary.feedback_context import TITLES, Section
from trainer.methods.distillation.distributions import Pair
from trainer.methods.privileged import Conversations, rescored, with_sections
from trainer.methods.protocol import Rollouts, Setup
from trainer.methods.reweighting.feedback import Sections, context_turns, success_sections
from trainer.rollouts.data import Turn
from trainer.worlds.oracles import make_planner

__all__ = ["Contexts", "Told", "told_pairs"]

PLAN_TITLE = "Commands that solve the task from here:"


@dataclass(frozen=True, slots=True)
class Told:
    """What became of an iteration's contexts.

    Attributes:
        pairs: by turn; turns without a context are missing.
        turns: that could be distilled.
        offered: of these, turns that had a context before it was shortened.
        truncated: contexts that were shortened or, where too little was left, dropped.
    """

    pairs: dict[int, Pair]
    turns: int
    offered: int
    truncated: int

    def metrics(self, name: str) -> dict[str, float | None]:
        """Share of turns whose teacher was told something, and share of shortened contexts."""
        return {
            f"{name}/context_share": len(self.pairs) / self.turns if self.turns else None,
            f"{name}/truncated_share": self.truncated / self.offered if self.offered else None,
        }


def told_pairs(
    setup: Setup,
    rollouts: Rollouts,
    sections: Sequence[Sections],
    max_tokens: int | None,
    of_episode: Callable[[Sections], bool] = lambda sections: False,
) -> Told:
    """Pairs of the turns that have sections.

    Args:
        sections: of each turn; empty: the turn is left out.
        max_tokens: limit of the teacher's prompt; None: that of the student's.
        of_episode: whether these sections are the same for a whole episode. In chat such ones
            stand at its beginning, others before the reply that is scored.
    """
    student = setup.student
    limit = student.max_prompt_tokens if max_tokens is None else max_tokens
    pairs: dict[int, Pair] = {}
    trained = [i for i, segment in enumerate(rollouts.segments) if segment.trained]
    truncated = 0
    talks = Conversations(student, rollouts.turns)
    for i in trained:
        turn = rollouts.turns[i]
        prompt = with_sections(
            student,
            turn,
            sections[i],
            max_tokens=limit,
            said=talks.before(i),
            first=of_episode(sections[i]),
        )
        truncated += prompt.truncated
        if prompt.on:
            pairs[i] = Pair(rollouts.segments[i], rescored(turn, prompt, i))
    return Told(pairs, len(trained), sum(bool(sections[i]) for i in trained), truncated)


class Contexts:
    """What a teacher is told about each turn, as a config section with `context` says.

    Plans need an environment: without one there are none.
    """

    def __init__(self, setup: Setup, section: Any) -> None:
        self.setup = setup
        self.section = section
        self._env: Any = None
        if section.context == "plan" and setup.make_env is not None:
            self._env = setup.make_env()  # its own: plans never disturb a rollout
            self._planner = make_planner(section.oracle_budget_s, setup.config.env.id)

    def told(self, rollouts: Rollouts) -> Told:
        """The iteration's pairs."""
        sections = self.sections(rollouts)
        whole = self.section.context == "success"
        limit = self.section.max_prompt_tokens
        return told_pairs(self.setup, rollouts, sections, limit, lambda _: whole)

    def sections(self, rollouts: Rollouts) -> list[Sections]:
        """For each turn; empty where there is nothing to tell."""
        section = self.section
        if section.context == "plan":
            return [
                _titled(PLAN_TITLE, "" if snapshot is None else self._plan(turn, snapshot))
                for turn, snapshot in zip(rollouts.turns, _snapshots(rollouts), strict=True)
            ]
        turns = context_turns(self.setup.student, rollouts.turns)
        if section.context == "success":
            return success_sections(turns, section.rendering, section.context_steps)
        return [_titled(TITLES["feedback"], turn.feedback or "") for turn in turns]

    def _plan(self, turn: Turn, snapshot: Snapshot) -> str:
        """The planner's commands from a turn's state; empty where it has none."""
        if self._env is None:
            return ""
        try:
            observation, _ = agent_envs.restore(self._env, snapshot)
        except SeroError:
            return ""
        if observation != turn.observation:
            return ""
        # Without a horizon: a way that takes longer than the steps left is still the way.
        plan = self._planner.plan(
            self._env.unwrapped.privileged(), None, self.section.oracle_budget_s
        )
        shown = plan.actions[: self.section.context_steps]
        return "\n".join(f"{place}. {action}" for place, action in enumerate(shown, 1))


def _snapshots(rollouts: Rollouts) -> list[Snapshot | None]:
    """The state before each turn; None where there is no record of it."""
    kept = [s for trajectory in rollouts.trajectories for s in trajectory.snapshots]
    if len(kept) == len(rollouts.turns):
        return list(kept)
    return [
        None if turn.snapshot is None else Snapshot.from_bytes(turn.snapshot)
        for turn in rollouts.turns
    ]


def _titled(title: str, text: str) -> Sections:
    return (Section(title, text),) if text.strip() else ()
