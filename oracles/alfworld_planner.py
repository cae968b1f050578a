"""An optimal planner for ALFWorld that plans from any state, not only from the start.

Privileged: it reads the true state, objects the student has never seen included. The search is in
`oracles.alfworld_search`; how ALFWorld works is described in docs/alfworld.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any

from agent_envs.alfworld import engine
from agent_envs.alfworld.goals import won
from agent_envs.alfworld.model import Game, PrivilegedView, State
from oracles.alfworld_errands import commands, dead_end
from oracles.alfworld_search import ErrandSearch, SearchTimeout
from oracles.base import Decision, History, Plan, PlanStatus


@dataclass(frozen=True, slots=True)
class Pursuit:
    """A plan under way: what is left of it, valid while the world is in `expected`."""

    game: Game
    expected: State
    rest: tuple[str, ...]


class ALFWorldPlanner:
    """Plans with the fewest commands, from every state of every game the engine accepts.

    The same state always gives the same plan. As a closed-loop oracle it follows its plan for as
    long as the world does what the plan expects, and plans anew otherwise.

    Args:
        budget_s: seconds that the search behind one `act` may take, then TIMEOUT. None: no limit.
    """

    privileged = True

    def __init__(self, budget_s: float | None = 2.0) -> None:
        self.budget_s = budget_s

    def plan(
        self, view: PrivilegedView, horizon: int | None = None, budget_s: float | None = None
    ) -> Plan:
        """All commands from the viewed state to the goal.

        Args:
            view: ``env.unwrapped.privileged()``.
            horizon: steps that may be taken. A longer plan is OVER_BUDGET, attached whole. None:
                no limit (`view.steps_left` is not read).
            budget_s: seconds for the search, measured in wall-clock time. None: no limit. 0 or
                less: TIMEOUT unless the goal holds already.
        """
        if not isinstance(view, PrivilegedView):
            return Plan(PlanStatus.UNSUPPORTED, (), _not_a_view(view))
        deadline = None if budget_s is None else perf_counter() + budget_s
        game, state = view.game, view.state
        if won(game, state):
            return Plan(PlanStatus.ALREADY_DONE, ())
        try:
            errands = ErrandSearch(game, state, deadline).run()
        except SearchTimeout:
            return Plan(PlanStatus.TIMEOUT, (), f"no result within the budget of {budget_s} s")
        if errands is None:
            return Plan(PlanStatus.UNSOLVABLE, (), dead_end(game, state))
        actions = commands(game, state, errands)
        if horizon is not None and len(actions) > horizon:
            detail = f"the shortest plan has {len(actions)} commands, {horizon} may be taken"
            return Plan(PlanStatus.OVER_BUDGET, actions, detail)
        return Plan(PlanStatus.FOUND, actions)

    def start(self, view: PrivilegedView, history: History) -> Pursuit | None:
        """Nothing is planned yet; the history is not needed, since the view says it all."""
        return None

    def act(
        self, state: Pursuit | None, view: PrivilegedView, observation: str
    ) -> tuple[Decision, Pursuit | None]:
        """The next command of a shortest plan from the viewed state.

        OVER_BUDGET if the plan is longer than `view.steps_left`; its first command is attached.
        """
        if (
            state is not None
            and state.rest
            and isinstance(view, PrivilegedView)
            and state.game is view.game
            and state.expected == view.state
            and (view.steps_left is None or len(state.rest) <= view.steps_left)
        ):
            actions, status, detail = state.rest, PlanStatus.FOUND, ""
        else:
            horizon = view.steps_left if isinstance(view, PrivilegedView) else None
            plan = self.plan(view, horizon, self.budget_s)
            actions, status, detail = plan.actions, plan.status, plan.detail
            if not actions:
                return Decision(status, None, detail), None
        expected, _, _ = engine.step(view.game, view.state, actions[0])
        return Decision(status, actions[0], detail), Pursuit(view.game, expected, actions[1:])


def _not_a_view(view: Any) -> str:
    return (
        f"the ALFWorld planner needs a PrivilegedView of ALFWorld, found {type(view).__name__}; "
        "pass env.unwrapped.privileged()"
    )
