"""Following a plan for as long as the world does what the plan expects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agent_envs.alfworld import engine
from agent_envs.alfworld.model import Game, PrivilegedView, State
from oracles.base import Decision, Plan, PlanStatus

__all__ = ["Pursuit", "pursue"]


@dataclass(frozen=True, slots=True)
class Pursuit:
    """A plan under way: what is left of it, valid while the world is in `expected`."""

    game: Game
    expected: State
    rest: tuple[str, ...]


def pursue(
    pursuit: Pursuit | None, view: PrivilegedView, plan: Callable[[int | None], Plan]
) -> tuple[Decision, Pursuit | None]:
    """The next command: of the plan under way if it still holds, else of a new one.

    Args:
        pursuit: None: there is no plan yet.
        view: the state now; anything else is left to `plan`, which says what is wrong with it.
        plan: makes a plan from here for a horizon, the steps left (None: no limit).

    Returns:
        A decision, and what to pass on. OVER_BUDGET comes with the first command of the plan.
    """
    seen = isinstance(view, PrivilegedView)
    if (
        pursuit is not None
        and pursuit.rest
        and seen
        and pursuit.game is view.game
        and pursuit.expected == view.state
        and (view.steps_left is None or len(pursuit.rest) <= view.steps_left)
    ):
        actions, status, detail = pursuit.rest, PlanStatus.FOUND, ""
    else:
        made = plan(view.steps_left if seen else None)
        actions, status, detail = made.actions, made.status, made.detail
        if not actions:
            return Decision(status, None, detail), None
    expected, _, _ = engine.step(view.game, view.state, actions[0])
    return Decision(status, actions[0], detail), Pursuit(view.game, expected, actions[1:])
