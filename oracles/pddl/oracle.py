"""The `pddl` oracle: plans for any game whose rules are PDDL, from any state.

Privileged. For games that the native planner does not know it is the only planner; for the others
it is a second opinion, and a thousand times slower.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agent_envs.alfworld.generations import grammar_text
from agent_envs.alfworld.model import PrivilegedView
from agent_envs.alfworld.rules_view import RulesView
from agent_envs.errors import DataError, InvalidOption
from oracles.base import Decision, History, Plan, PlanStatus
from oracles.pddl.commands import read_templates, spelled
from oracles.pddl.conditions import Fact
from oracles.pddl.fast_downward import Solution, solve_task
from oracles.pddl.native import native_task
from oracles.pddl.simulator import applied, read_by_rules, won
from oracles.pddl.task import Task, read_task

Operator = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PDDLGame:
    """A state of a game, as this oracle plans in it."""

    task: Task
    templates: Mapping[str, str]
    """Action -> template of its command."""
    names: Mapping[str, str]
    """What the player reads for each object."""
    steps_left: int | None


@dataclass(frozen=True, slots=True)
class PDDLPursuit:
    """A plan under way: what is left of it, good while the world is in `expected`."""

    expected: frozenset[Fact]
    rest: tuple[Operator, ...]
    commands: tuple[str, ...]
    """Those of `rest`."""


class PDDLOracle:
    """Plans with Fast Downward (extra ``pddl``), in a process of its own.

    As a closed-loop oracle it follows its plan for as long as the world does what the rules say,
    and plans anew otherwise. The same state gives the same plan.

    Args:
        budget_s: seconds that the search behind one `act` may take, then TIMEOUT. None: no limit.
        optimal: plan with the fewest commands, which takes longer; else with few.
        memory_mb: megabytes that the search may take; then TIMEOUT. None: no limit.
        read: makes a `PDDLGame` of a view; None: of the two views of ALFWorld.
    """

    privileged = True

    def __init__(
        self,
        budget_s: float | None = 60.0,
        *,
        optimal: bool = False,
        memory_mb: int | None = 2048,
        read: Callable[[Any], PDDLGame] | None = None,
    ) -> None:
        self.budget_s = budget_s
        self.optimal = optimal
        self.memory_mb = memory_mb
        self._read = pddl_game if read is None else read

    def plan(self, view: Any, horizon: int | None = None, budget_s: float | None = None) -> Plan:
        """All commands from the viewed state to the goal.

        Args:
            view: ``env.unwrapped.privileged()``.
            horizon: steps that may be taken. A longer plan is OVER_BUDGET, attached whole; without
                `optimal` there may be a shorter one. None: no limit.
            budget_s: seconds of wall-clock time for the planner, translation included. None: no
                limit. 0 or less: TIMEOUT unless the goal holds already.

        Raises:
            MissingExtra: Fast Downward is not installed.
            FastDownwardFailed: it broke down.
        """
        plan, _, _ = self._planned(view, horizon, budget_s)
        return plan

    def start(self, view: Any, history: History) -> PDDLPursuit | None:
        """Nothing is planned yet; the history is not needed, since the view says it all."""
        return None

    def act(
        self, state: PDDLPursuit | None, view: Any, observation: str
    ) -> tuple[Decision, PDDLPursuit | None]:
        """The next command of a plan from the viewed state. Raises as `plan`.

        OVER_BUDGET if the plan is longer than `view.steps_left`; its first command is attached.
        """
        status, detail = PlanStatus.FOUND, ""
        game: PDDLGame | None = None
        if state is not None and state.rest:
            try:
                game = self._read(view)
            except DataError as error:
                return Decision(PlanStatus.UNSUPPORTED, None, str(error)), None
            left = game.steps_left
            too_long = left is not None and left < len(state.rest)
            if too_long or _read_facts(game.task) != state.expected:
                game = None
        if game is not None and state is not None:
            operators, commands = state.rest, state.commands
        else:
            horizon = getattr(view, "steps_left", None)
            plan, game, operators = self._planned(view, horizon, self.budget_s)
            status, commands, detail = plan.status, plan.actions, plan.detail
            if not commands or game is None:
                return Decision(status, None, detail), None
        following = applied(game.task, game.task.init, operators[0])
        pursuit = None
        if following is not None:
            expected = _read_facts(game.task.from_facts(following))
            pursuit = PDDLPursuit(expected, operators[1:], commands[1:])
        return Decision(status, commands[0], detail), pursuit

    def _planned(
        self, view: Any, horizon: int | None, budget_s: float | None
    ) -> tuple[Plan, PDDLGame | None, tuple[Operator, ...]]:
        try:
            game = self._read(view)
            if won(game.task, game.task.init):
                return Plan(PlanStatus.ALREADY_DONE, ()), game, ()
            solution = self._solved(game.task, budget_s)
            if solution.status is not PlanStatus.FOUND:
                return Plan(solution.status, (), solution.detail), game, ()
            operators = solution.operators
            commands = tuple(
                spelled(game.task, operator, game.templates, game.names) for operator in operators
            )
        except DataError as error:
            return Plan(PlanStatus.UNSUPPORTED, (), str(error)), None, ()
        if horizon is not None and len(commands) > horizon:
            which = "shortest plan" if self.optimal else "plan found"
            detail = f"the {which} has {len(commands)} commands, {horizon} may be taken"
            return Plan(PlanStatus.OVER_BUDGET, commands, detail), game, operators
        return Plan(PlanStatus.FOUND, commands), game, operators

    def _solved(self, task: Task, budget_s: float | None) -> Solution:
        search = "optimal" if self.optimal else "quick"
        return solve_task(task, search=search, budget_s=budget_s, memory_mb=self.memory_mb)


def pddl_game(view: Any) -> PDDLGame:
    """The task behind a view of ALFWorld, native or of the original engine.

    Raises:
        UnsupportedPDDL: the game's PDDL has a construct that is not planned for.
        DataError: its texts cannot be read.
        InvalidOption: no such view.
    """
    if isinstance(view, PrivilegedView):
        game = view.game
        names = dict(zip((*game.rec_ids, *game.obj_ids), (*game.recs, *game.objs), strict=True))
        templates = read_templates(grammar_text(None, game.generation))
        return PDDLGame(native_task(game, view.state), templates, names, view.steps_left)
    if isinstance(view, RulesView):
        task = read_task(view.domain, view.problem)
        known = task.domain.predicates
        facts = {tuple(word.lower() for word in fact) for fact in view.facts}
        task = task.from_facts(frozenset(fact for fact in facts if fact[0] in known))
        return PDDLGame(task, read_templates(view.grammar), view.names, view.steps_left)
    raise InvalidOption(
        f"The PDDL oracle needs a PrivilegedView or a RulesView, found {type(view).__name__}; pass "
        "env.unwrapped.privileged(), or give `read`."
    )


def _read_facts(task: Task) -> frozenset[Fact]:
    """The facts that the rules read: what else changes makes no difference."""
    wanted = read_by_rules(task)
    return frozenset(fact for fact in task.init if fact[0] in wanted)
