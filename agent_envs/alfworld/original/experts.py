"""ALFWorld's hand-coded expert (package `alfworld`, extra ``reference``) as a function of values.

The classes are the original's own. What is new is around them: the expert reads the native
engine's texts, commands and facts, which are the original's word for word; a point of it is a
value, so that asking twice gives the same answer; and its draws come from a generator that the
point carries, where the original draws from the global one.

The hand-coded expert takes note of what it puts down by the word ``put`` in its last command. Since
ALFWorld 0.4 it says ``move``, so it believes for the rest of the episode that it still holds the
first thing that it took. `Expert.repaired` reads ``move X to Y`` as the ``put`` of before 0.4, for
that note only.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from types import ModuleType
from typing import Any, NamedTuple

from agent_envs.alfworld.engine import admissible
from agent_envs.alfworld.goals import won
from agent_envs.alfworld.model import Game, State, TaskType, bits
from agent_envs.alfworld.original.packages import check_versions
from agent_envs.alfworld.original.textworld_engine import ENGINE_LOCK, load_packages
from agent_envs.errors import UnsupportedGame

MAX_STEPS = 200
"""Answers that ALFWorld's wrapper allows the expert in an episode."""
LAMP = "desklamp"


class Fact(NamedTuple):
    """One thing that is so, in the form in which the expert reads facts."""

    name: str
    names: tuple[str, ...]


class OutOfSteps(Exception):
    """The expert has given as many answers as it may."""


class ExpertFailed(Exception):
    """The expert's code broke off; the message says how."""


@dataclass(frozen=True, slots=True)
class Expert:
    """A point of the expert in an episode. A value: nothing changes what it holds."""

    agent: Any
    """The original's ``HandCodedTWAgent``; never asked itself, only copies of it."""
    draws: tuple[Any, ...]
    """`random.Random.getstate`."""


def task_params(game: Game) -> dict[str, str]:
    """What the expert reads of a game's ``traj_data.json``, from the goal itself.

    Raises:
        UnsupportedGame: the game has nothing of the class that the goal asks for.
    """
    goal = game.goal
    obj = next(bits(goal.objects), None)
    rec = next(bits(goal.receptacles), None)
    if obj is None or rec is None:
        raise UnsupportedGame("The game lacks what its goal asks for, so the class is not known.")
    look = goal.kind is TaskType.LOOK
    return {
        "task_type": goal.kind.value,
        "object_target": game.objs[obj].split()[0],
        "parent_target": "" if look else game.recs[rec].split()[0],
        "toggle_target": LAMP if look else "",
    }


def facts(game: Game, state: State) -> list[Fact]:
    """The facts that the expert asks for: what is held, where things are, what was done to them.

    In the order of the ids; the original's order is that of a set, so it changes from process to
    process. It matters only in a task for two where things of the wanted class are in several
    receptacles of the wanted class: the expert looks at the first fact.
    """
    found = []
    if state.held >= 0:
        found.append(Fact("holds", ("agent 1", game.objs[state.held])))
    for obj, name in enumerate(game.objs):
        for rec, mask in enumerate(state.contents):
            if mask >> obj & 1:
                found.append(Fact("inreceptacle", (name, game.recs[rec])))
    done = (("isclean", state.clean), ("ishot", state.hot), ("iscool", state.cool))
    found.extend(Fact(name, (game.objs[obj],)) for name, mask in done for obj in bits(mask))
    return found


def begin(game: Game, seed: int, *, repaired: bool = True, max_steps: int = MAX_STEPS) -> Expert:
    """The expert at the start of an episode.

    Args:
        seed: of its draws, as `random.seed` would start the original's.
        repaired: whether it notes what it puts down.
        max_steps: answers that it may give, then `OutOfSteps`.

    Raises:
        MissingExtra: the packages are not installed, or do not work together.
        UnsupportedGame: see `task_params`.
    """
    params = task_params(game)
    with ENGINE_LOCK:
        module = _expert_module()
        agent = module.HandCodedTWAgent(max_steps=max_steps)
        policy = agent.get_task_policy(params)
        agent.task_params = params
        agent.policy = (_repaired(policy) if repaired else policy)(params, max_steps=max_steps)
    return Expert(agent, Random(seed).getstate())


def observe(expert: Expert, observation: str) -> Expert:
    """The expert once it has read the first observation, which is all that it does at a reset."""
    with ENGINE_LOCK:
        agent = copy.deepcopy(expert.agent)
        agent.observe(observation)
    return replace(expert, agent=agent)


def answer(
    expert: Expert, game: Game, state: State, observation: str, last: str
) -> tuple[str | None, Expert, Exception | None]:
    """What the expert says at `state`.

    Args:
        observation: the answer of the game to `last`.
        last: the command before; empty: none.

    Returns:
        Its command, which need not be admissible; or None and why there is none: `OutOfSteps`
        or `ExpertFailed`. In any case the expert as it is afterwards.
    """
    seen: Mapping[str, Any] = {
        "feedback": observation,
        "facts": facts(game, state),
        "admissible_commands": list(admissible(game, state)),
        "won": won(game, state),
    }
    rng = Random()
    rng.setstate(expert.draws)
    command: str | None = None
    failure: Exception | None = None
    with ENGINE_LOCK:
        module = _expert_module()
        agent = copy.deepcopy(expert.agent)
        with _drawing_from(rng):
            try:
                command = str(agent.act(seen, 0, seen["won"], last))
            except module.HandCodedAgentTimeout:
                failure = OutOfSteps(f"the expert gives no more than {agent.max_steps} answers")
            except Exception as error:  # it checks nothing, and fails anywhere
                failure = ExpertFailed(f"the expert broke off: {type(error).__name__}: {error}")
    return command, Expert(agent, rng.getstate()), failure


@cache
def _expert_module() -> ModuleType:
    check_versions()
    load_packages()  # leaves no traces of the import in the process
    from alfworld.agents import expert

    module: ModuleType = expert
    return module


@contextmanager
def _drawing_from(rng: Random) -> Iterator[None]:
    """Let the expert's module draw from `rng`; whoever else uses `random` notices nothing."""
    from alfworld.agents.expert import handcoded_expert as module

    before, module.random = module.random, rng
    try:
        yield
    finally:
        module.random = before


@cache
def _repaired(policy: type[Any]) -> type[Any]:
    """The policy that reads ``move`` as ``put`` where it notes what happened."""

    def update_state_tracking(self: Any, game_state: Mapping[str, Any], last_action: str) -> None:
        policy.update_state_tracking(self, game_state, as_put(last_action))

    body = {"update_state_tracking": update_state_tracking}
    return type(f"Repaired{policy.__name__}", (policy,), body)


def as_put(command: str) -> str:
    """``move X to Y`` as it was written before ALFWorld 0.4; any other command as it is.

    >>> as_put("move mug 1 to desk 2"), as_put("go to desk 2")
    ('put mug 1 in/on desk 2', 'go to desk 2')
    """
    verb, _, rest = command.partition(" ")
    thing, to, place = rest.partition(" to ")
    return f"put {thing} in/on {place}" if verb == "move" and to else command
