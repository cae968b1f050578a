"""All shortest plans of ALFWorld: which commands bring the goal one step nearer, and then which.

The search for one plan tells how far the goal is from any state; a command is on a shortest way if
the goal is one step nearer after it. So nothing is enumerated but shortest plans, and all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from agent_envs.alfworld import engine
from agent_envs.alfworld.goals import won
from agent_envs.alfworld.model import Game, State
from oracles.alfworld_errands import commands
from oracles.alfworld_search import ErrandSearch


def distance(game: Game, state: State, deadline: float | None = None) -> int | None:
    """Commands of a shortest plan from `state`; None if the goal cannot be reached.

    Raises:
        SearchTimeout: the deadline passed.
    """
    if won(game, state):
        return 0
    errands = ErrandSearch(game, state, deadline).run()
    return None if errands is None else len(commands(game, state, errands))


def shortest_plans(
    game: Game, state: State, first: tuple[str, ...], deadline: float | None = None
) -> Iterator[tuple[str, ...]]:
    """`first`, a shortest plan from `state`, then all other shortest plans in alphabetical order.

    Raises:
        SearchTimeout: the deadline (a value of `time.perf_counter`) passed. What was yielded by
            then is sound.
    """
    yield first
    known: dict[State, int | None] = {}

    def nearer(at: State, left: int) -> Iterator[tuple[str, ...]]:
        if left == 0:
            yield ()
            return
        for command in engine.admissible(game, at):
            following, _, _ = engine.step(game, at, command)
            if following not in known:
                known[following] = distance(game, following, deadline)
            if known[following] == left - 1:
                for rest in nearer(following, left - 1):
                    yield (command, *rest)

    for plan in nearer(state, len(first)):
        if plan != first:
            yield plan
