"""An optimal planner for ALFWorld that plans from any state, not only from the start.

Privileged: it reads the true state, objects the student has never seen included. With `as_seen` it
reads the student's own record instead and plans in the world that was seen
(`oracles.alfworld_as_seen`). The search is in `oracles.alfworld_search`; how ALFWorld works is
described in docs/alfworld.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from agent_envs.alfworld.goals import won
from agent_envs.alfworld.model import PrivilegedView
from agent_envs.errors import InvalidOption
from oracles.alfworld_as_seen import NotSeen, believed, checked, missing
from oracles.alfworld_errands import commands, dead_end
from oracles.alfworld_plans import shortest_plans
from oracles.alfworld_pursuit import Pursuit, pursue
from oracles.alfworld_search import ErrandSearch, SearchTimeout
from oracles.alfworld_seen import Seen, fold, fold_history
from oracles.base import Decision, History, Plan, PlanStatus

RISK = 0.02
"""Chance of a refusal above which the as-seen planner looks before it acts."""


@dataclass(frozen=True, slots=True)
class Following:
    """Where the as-seen planner stands: what is known, up to the answer to `command`."""

    seen: Seen
    command: str | None
    """The last command, whose answer comes next; None at the start of an episode."""
    valid: bool = True


class ALFWorldPlanner:
    """Plans with the fewest commands, from every state of every game the engine accepts.

    The same state always gives the same plan. As a closed-loop oracle it follows its plan for as
    long as the world does what the plan expects, and plans anew otherwise.

    Args:
        budget_s: seconds that the search behind one `act` may take, then TIMEOUT. None: no limit.
        as_seen: plan with what the student has seen and nothing else. The oracle is then not
            privileged: `plan` and `plans` take `oracles.alfworld_as_seen.seen_so_far(history,
            observation)` for a view, `act` reads the observation alone and does not know how many
            steps are left. Plans are the shortest in the world as it was seen. Where that does not
            suffice the status is UNSUPPORTED, never UNSOLVABLE, which is proven.
    """

    privileged: bool = True

    def __init__(self, budget_s: float | None = 2.0, *, as_seen: bool = False) -> None:
        self.budget_s = budget_s
        self.as_seen = as_seen
        self.privileged = not as_seen

    def plan(
        self,
        view: PrivilegedView | Seen,
        horizon: int | None = None,
        budget_s: float | None = None,
    ) -> Plan:
        """All commands from the viewed state to the goal.

        Args:
            view: ``env.unwrapped.privileged()``; with `as_seen` a `Seen`.
            horizon: steps that may be taken. A longer plan is OVER_BUDGET, attached whole. None:
                no limit (`view.steps_left` is not read).
            budget_s: seconds for the search, measured in wall-clock time. None: no limit. 0 or
                less: TIMEOUT unless the goal holds already.
        """
        return self._plan(view, horizon, budget_s, _deadline(budget_s))[0]

    def plans(
        self,
        view: PrivilegedView | Seen,
        limit: int,
        horizon: int | None = None,
        budget_s: float | None = None,
    ) -> tuple[Plan, ...]:
        """Up to `limit` different plans, each as short as any; the first is that of `plan`.

        The others follow in alphabetical order of their commands. Without a plan the only entry
        tells why, as `plan` does. A last entry with TIMEOUT and no commands says that the budget
        ran out before the list was complete; otherwise fewer than `limit` are all that there are.

        Args:
            view: as for `plan`.
            limit: the most plans wanted, at least 1.
            horizon: as for `plan`, for each.
            budget_s: seconds for all of them together.

        Raises:
            InvalidOption: `limit` is no whole number above 0.
        """
        if type(limit) is not int or limit < 1:
            raise InvalidOption(f"limit is {limit!r}; give a whole number of plans, at least 1.")
        deadline = _deadline(budget_s)
        plan, world = self._plan(view, horizon, budget_s, deadline)
        if world is None or not plan.actions:
            return (plan,)
        found: list[Plan] = []
        try:
            for actions in shortest_plans(world.game, world.state, plan.actions, deadline):
                found.append(replace(plan, actions=actions))
                if len(found) == limit:
                    break
        except SearchTimeout:
            detail = f"{len(found)} found within the budget of {budget_s} s; there may be more"
            found.append(Plan(PlanStatus.TIMEOUT, (), detail))
        return tuple(found)

    def _plan(
        self, view: Any, horizon: int | None, budget_s: float | None, deadline: float | None
    ) -> tuple[Plan, PrivilegedView | None]:
        """The plan and the world that it was made in, the believed one with `as_seen`."""
        try:
            if self.as_seen and isinstance(view, Seen):
                world = believed(view)
            elif not self.as_seen and isinstance(view, PrivilegedView):
                world = view
            else:
                return Plan(PlanStatus.UNSUPPORTED, (), self._not_a_view(view)), None
            game, state = world.game, world.state
            if won(game, state):
                return Plan(PlanStatus.ALREADY_DONE, ()), world
            errands = ErrandSearch(game, state, deadline).run()
        except NotSeen as error:
            return Plan(PlanStatus.UNSUPPORTED, (), str(error)), None
        except SearchTimeout:
            detail = f"no result within the budget of {budget_s} s"
            return Plan(PlanStatus.TIMEOUT, (), detail), None
        if errands is None:
            if self.as_seen:
                return Plan(PlanStatus.UNSUPPORTED, (), missing(world)), world
            return Plan(PlanStatus.UNSOLVABLE, (), dead_end(game, state)), world
        actions = commands(game, state, errands)
        if horizon is not None and len(actions) > horizon:
            detail = f"the shortest plan has {len(actions)} commands, {horizon} may be taken"
            return Plan(PlanStatus.OVER_BUDGET, actions, detail), world
        return Plan(PlanStatus.FOUND, actions), world

    def start(self, view: Any, history: History) -> Pursuit | Following | None:
        """Nothing is planned yet. The history is needed with `as_seen` alone: else the view says
        it all."""
        return Following(*fold_history(history)) if self.as_seen else None

    def act(
        self, state: Pursuit | Following | None, view: Any, observation: str
    ) -> tuple[Decision, Pursuit | Following | None]:
        """The next command of a shortest plan from the viewed state.

        OVER_BUDGET if the plan is longer than `view.steps_left`; its first command is attached.
        With `as_seen` a ``look``, ``examine`` or ``inventory`` may come first, where the command
        would be refused if something not seen yet were not as expected.
        """
        if self.as_seen:
            before = state if isinstance(state, Following) else Following(*fold_history(()))
            return self._act_as_seen(before, observation)
        pursuit = state if isinstance(state, Pursuit) else None
        return pursue(pursuit, view, lambda horizon: self.plan(view, horizon, self.budget_s))

    def _act_as_seen(self, before: Following, observation: str) -> tuple[Decision, Following]:
        seen = fold(before.seen, before.command, observation, before.valid)
        plan = self.plan(seen, None, self.budget_s)
        if not plan.actions:
            return Decision(plan.status, None, plan.detail), Following(seen, None)
        command = checked(seen, plan.actions[0], RISK)
        return Decision(plan.status, command, plan.detail), Following(seen, command)

    def _not_a_view(self, view: Any) -> str:
        if self.as_seen:
            return (
                f"the ALFWorld planner with as_seen needs what was seen, found "
                f"{type(view).__name__}; pass oracles.alfworld_as_seen.seen_so_far(history, "
                "observation)"
            )
        return (
            f"the ALFWorld planner needs a PrivilegedView of ALFWorld, found "
            f"{type(view).__name__}; pass env.unwrapped.privileged()"
        )


def as_seen_planner(budget_s: float | None = 2.0) -> ALFWorldPlanner:
    """The planner that knows what the student has seen, for configs that name a factory."""
    return ALFWorldPlanner(budget_s, as_seen=True)


def _deadline(budget_s: float | None) -> float | None:
    return None if budget_s is None else perf_counter() + budget_s
