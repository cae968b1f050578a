"""The student's side of a branch: what it would have seen at each state of it.

Prompts for branch states are built from these values and from nothing else, so that a branch is
seen exactly as a rollout is: the student's own history up to the root, then the branch's
observations with the oracle's commands, and a step counter that runs on.
"""

from __future__ import annotations

from dataclasses import dataclass

from oracles.base import History, HistoryItem
from oracles.branch import Branch


@dataclass(frozen=True, slots=True)
class StudentView:
    """What the student sees before it acts. Holds nothing privileged."""

    goal: str
    observation: str
    admissible: tuple[str, ...]
    action_templates: tuple[str, ...]
    history: History
    """Everything before `observation`, oldest first."""
    step: int
    """Steps taken before this one."""


def history_at(branch: Branch, k: int) -> History:
    """The student's record before step `k` of `branch` (0-based; ``len(steps)``: at its end)."""
    if not 0 <= k <= len(branch.steps):
        raise IndexError(
            f"A branch of {len(branch.steps)} steps has no history before step {k}; "
            f"give 0 to {len(branch.steps)}."
        )
    return branch.history + tuple(
        HistoryItem(step.observation, step.action, step.command_valid) for step in branch.steps[:k]
    )


def student_views(branch: Branch) -> tuple[StudentView, ...]:
    """One view per step of `branch`, each before the oracle's command of that step."""
    history = branch.history
    views = []
    for k, step in enumerate(branch.steps):
        views.append(
            StudentView(
                goal=branch.goal,
                observation=step.observation,
                admissible=step.admissible,
                action_templates=step.action_templates,
                history=history,
                step=branch.root_step + k,
            )
        )
        history = (*history, HistoryItem(step.observation, step.action, step.command_valid))
    return tuple(views)
