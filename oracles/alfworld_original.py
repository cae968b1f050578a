"""ALFWorld's own two experts as oracles: the hand-coded one and the planner.

Both are the original packages' code (extra ``reference``), here for comparison with
`oracles.alfworld_explorer` and `oracles.alfworld_planner`, and for whoever wants to repeat work
that was done with them. Both are privileged: the hand-coded expert also reads facts that a player
cannot know, as "one of the two is in a drawer already".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from agent_envs.alfworld import engine
from agent_envs.alfworld.generations import MOVE
from agent_envs.alfworld.goals import won
from agent_envs.alfworld.model import Game, PrivilegedView, State
from agent_envs.alfworld.text import intro
from agent_envs.errors import UnsupportedGame
from oracles.alfworld_pursuit import Pursuit, pursue
from oracles.base import Decision, History, Plan, PlanStatus

if TYPE_CHECKING:
    from agent_envs.alfworld.original.experts import Expert

FILLER = "look"
"""What ALFWorld's wrapper answers where the expert has nothing that is admissible."""


@dataclass(frozen=True, slots=True)
class Trail:
    """Where the hand-coded expert stands: what it noted, up to the answer to `last`."""

    expert: Expert | None
    last: str | None = None
    """The last command, whose answer comes next; None at the start of an episode."""
    problem: str = ""
    """Why there is no expert."""


class OriginalHandCoded:
    """ALFWorld's ``HandCodedTWAgent`` on the native engine.

    It runs along from the start of an episode, as in the original: over the student's steps it is
    asked at each, and goes by what the student did. A status other than FOUND is the answer where
    its command is not admissible (UNSUPPORTED, with the command), where its code breaks off
    (UNSUPPORTED) and after `max_steps` answers (TIMEOUT).

    Args:
        budget_s: not needed, an answer takes about a millisecond; for `trainer.worlds.oracles`.
        seed: of its draws, as `random.seed` at the start of the episode would be in the original.
        repaired: whether it notes what it puts down (`agent_envs.alfworld.original.experts`);
            False: as it is shipped.
        filler: answer as ALFWorld's wrapper does: ``look`` first, and ``look`` wherever the
            expert's command is not admissible, as if the expert had said so.
        max_steps: answers that it may give in an episode; the original's is 200.
    """

    privileged = True

    def __init__(
        self,
        budget_s: float | None = None,
        *,
        seed: int = 0,
        repaired: bool = True,
        filler: bool = False,
        max_steps: int = 200,
    ) -> None:
        self.budget_s = budget_s
        self.seed, self.repaired, self.filler, self.max_steps = seed, repaired, filler, max_steps

    def start(self, view: PrivilegedView, history: History) -> Trail:
        """Run the expert over the student's steps.

        Raises:
            MissingExtra: the original packages are not installed, or do not work together.
        """
        from agent_envs.alfworld.original.experts import begin

        problem = _not_for_originals(view)
        if problem:
            return Trail(None, problem=problem)
        game = view.game
        try:
            expert = begin(game, self.seed, repaired=self.repaired, max_steps=self.max_steps)
        except UnsupportedGame as error:
            return Trail(None, problem=str(error))
        trail, state, text = Trail(expert), game.start, intro(game, game.start)
        for item in history:
            _, trail = self._ask(trail, game, state, text)
            state, text, _ = engine.step(game, state, item.action)
            trail = replace(trail, last=item.action)
        if state != view.state:
            return Trail(None, problem="the record does not lead from the start to this state")
        return trail

    def act(self, state: Trail, view: PrivilegedView, observation: str) -> tuple[Decision, Trail]:
        """The expert's next command, with the current observation as the answer to the last."""
        problem = state.problem or _not_for_originals(view)
        if problem:
            return Decision(PlanStatus.UNSUPPORTED, None, problem), state
        if won(view.game, view.state):
            return Decision(PlanStatus.ALREADY_DONE, None), state
        decision, trail = self._ask(state, view.game, view.state, observation)
        if decision.action is None:
            return decision, state
        return decision, replace(trail, last=decision.action)

    def _ask(
        self, trail: Trail, game: Game, state: State, observation: str
    ) -> tuple[Decision, Trail]:
        from agent_envs.alfworld.original.experts import OutOfSteps, answer, observe

        assert trail.expert is not None
        if self.filler and not trail.last:
            read = observe(trail.expert, observation)
            return Decision(PlanStatus.FOUND, FILLER), replace(trail, expert=read)
        command, expert, failure = answer(trail.expert, game, state, observation, trail.last or "")
        trail = replace(trail, expert=expert)
        if failure is not None:
            late = isinstance(failure, OutOfSteps)
            status = PlanStatus.TIMEOUT if late else PlanStatus.UNSUPPORTED
            return Decision(status, None, str(failure)), trail
        if command not in engine.admissible(game, state):
            if self.filler:
                return Decision(PlanStatus.FOUND, FILLER), trail
            detail = f"the expert says {command!r}, which is not admissible"
            return Decision(PlanStatus.UNSUPPORTED, None, detail), trail
        return Decision(PlanStatus.FOUND, command), trail


class OriginalPlanner:
    """ALFWorld's planner expert: Fast Downward through the original engine, from any state.

    Each search runs in a process of its own, which takes seconds to start. As a closed-loop oracle
    it follows its plan for as long as the world does what the plan expects, where the original
    plans anew at every step.

    Args:
        budget_s: seconds that the search behind one `act` may take, the start of the process
            apart, then TIMEOUT. None: no limit.
    """

    privileged = True

    def __init__(self, budget_s: float | None = 60.0) -> None:
        self.budget_s = budget_s

    def plan(
        self, view: PrivilegedView, horizon: int | None = None, budget_s: float | None = None
    ) -> Plan:
        """All commands from the viewed state to the goal.

        Args:
            view: ``env.unwrapped.privileged()``.
            horizon: steps that may be taken. A longer plan is OVER_BUDGET, attached whole. None:
                no limit (`view.steps_left` is not read).
            budget_s: seconds for the search, as for the constructor. None: no limit.

        UNSOLVABLE is the planner's own word: its search came to an end without a plan.

        Raises:
            MissingExtra: the original packages are not installed, or do not work together.
            DataError: the planner's process died.
        """
        from agent_envs.alfworld.original.planner_process import PlannerTimeout, plan_in_process
        from agent_envs.alfworld.original.problem_at import payload_at

        problem = _not_for_originals(view)
        if problem:
            return Plan(PlanStatus.UNSUPPORTED, (), problem)
        game, state = view.game, view.state
        if won(game, state):
            return Plan(PlanStatus.ALREADY_DONE, ())
        try:
            commands, names = plan_in_process(payload_at(game, state), budget_s)
        except PlannerTimeout:
            return Plan(PlanStatus.TIMEOUT, (), f"no plan within the budget of {budget_s} s")
        if not commands:
            return Plan(PlanStatus.UNSOLVABLE, (), "the original's planner finds no plan")
        own = dict(zip((*game.rec_ids, *game.obj_ids), (*game.recs, *game.objs), strict=True))
        spelling = {names[name]: own[name] for name in own}
        actions = tuple(_respelled(command, spelling) for command in commands)
        for command in actions:
            state, _, accepted = engine.step(game, state, command)
            if not accepted:
                detail = f"the plan has {command!r}, which is not admissible there"
                return Plan(PlanStatus.UNSUPPORTED, (), detail)
        if not won(game, state):
            return Plan(PlanStatus.UNSUPPORTED, (), "the plan does not reach the goal")
        if horizon is not None and len(actions) > horizon:
            detail = f"the plan has {len(actions)} commands, {horizon} may be taken"
            return Plan(PlanStatus.OVER_BUDGET, actions, detail)
        return Plan(PlanStatus.FOUND, actions)

    def start(self, view: PrivilegedView, history: History) -> Pursuit | None:
        """Nothing is planned yet; the history is not needed, since the view says it all."""
        return None

    def act(
        self, state: Pursuit | None, view: PrivilegedView, observation: str
    ) -> tuple[Decision, Pursuit | None]:
        """The next command of a plan from the viewed state.

        OVER_BUDGET if the plan is longer than `view.steps_left`; its first command is attached.
        """
        return pursue(state, view, lambda horizon: self.plan(view, horizon, self.budget_s))


def _respelled(command: str, names: dict[str, str]) -> str:
    """`command` with each name ("mug 1") replaced."""
    words = command.split(" ")
    found, place = [], 0
    while place < len(words):
        name = " ".join(words[place : place + 2])
        found.append(names.get(name, words[place]))
        place += 2 if name in names else 1
    return " ".join(found)


def _not_for_originals(view: Any) -> str:
    """Why the original experts cannot be asked; empty: they can."""
    if not isinstance(view, PrivilegedView):
        return (
            f"the original experts need a PrivilegedView of ALFWorld, found {type(view).__name__}; "
            "pass env.unwrapped.privileged()"
        )
    if view.game.generation != MOVE.name:
        return (
            f"the original experts know the commands of ALFWorld 0.4, this game is of the "
            f"generation {view.game.generation!r}"
        )
    return ""
