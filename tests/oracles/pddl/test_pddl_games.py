"""The native ALFWorld planner beside optimal search by Fast Downward: equally long plans.

From the start the problem is the game file's own; from the middle of an episode it is made from
the engine's state, so rules and state are read twice, by programs that share nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from agent_envs.alfworld.games import GameSet
from agent_envs.alfworld.goals import won
from agent_envs.alfworld.households.generator import generate_game_set
from agent_envs.alfworld.households.spec import SMALL, STANDARD
from agent_envs.alfworld.model import Game, State
from oracles import PlanStatus
from oracles.alfworld_planner import ALFWorldPlanner
from oracles.pddl import simulator
from oracles.pddl.fast_downward import solve_task
from oracles.pddl.native import native_task
from oracles.pddl.oracle import PDDLOracle
from oracles.pddl.task import read_task
from tests.oracles.toy import random_walk, run_plan, view
from tests.support import full_count

PLANNER = ALFWorldPlanner(None)
AMPLE = 600.0


def _spread(games: GameSet, number: int) -> Iterator[tuple[GameSet, str]]:
    ids = games.task_ids()
    for task_id in ids[:: max(1, len(ids) // number)][:number]:
        yield games, task_id


def forty(real: GameSet) -> list[tuple[GameSet, str]]:
    """Ten small ones, ten of standard size, twenty published ones; all task types."""
    small, standard = [generate_game_set(11, {"train": 10}, spec) for spec in (SMALL, STANDARD)]
    if full_count(0, 1):
        return [*_spread(small, 10), *_spread(standard, 10), *_spread(real, 20)]
    return [(games, games.task_ids()[n]) for games, n in ((small, 4), (standard, 9), (real, 300))]


def _unfinished(game: Game, rng: Random) -> State:
    """A state after some random commands from which the goal can still be reached."""
    while True:
        state = random_walk(game, rng, rng.randint(3, 25))
        if PLANNER.plan(view(game, state)).status is PlanStatus.FOUND:
            return state


@pytest.mark.data
def test_native_plans_are_as_short_as_optimal_search(
    fast_downward: None, real_games: GameSet
) -> None:
    chosen = forty(real_games)
    assert len(chosen) == full_count(3, 40)
    lengths, types = [], set()
    for number, (games, task_id) in enumerate(chosen):
        game, payload = games.load(task_id), games.payload(task_id)
        types.add(game.task_type)
        task = read_task(payload["pddl_domain"], payload["pddl_problem"])
        state = _unfinished(game, Random(number))
        for where, own in ((game.start, task), (state, native_task(game, state))):
            solution = solve_task(own, search="optimal", budget_s=AMPLE, memory_mb=None)
            assert solution.status is PlanStatus.FOUND, (task_id, solution.detail)
            plan = PLANNER.plan(view(game, where))
            lengths.append((task_id, len(plan.actions), len(solution.operators)))
    print(f"\n{len(lengths)} states of {len(chosen)} games, lengths", [n for _, n, _ in lengths])
    assert [row for row in lengths if row[1] != row[2]] == []
    assert len(types) >= full_count(2, 6)


@pytest.mark.data
def test_commands_win_in_the_native_engine(fast_downward: None, real_games: GameSet) -> None:
    """Of the default search and of the optimal one, from the middle of an episode."""
    task_id = real_games.task_ids()[5]
    game = real_games.load(task_id)
    state = _unfinished(game, Random(3))
    shortest = len(PLANNER.plan(view(game, state)).actions)
    for oracle in (PDDLOracle(), PDDLOracle(optimal=True)):
        plan = oracle.plan(view(game, state), None, AMPLE)
        assert plan.status is PlanStatus.FOUND
        assert won(game, run_plan(game, state, plan.actions))
        assert len(plan.actions) >= shortest
        assert not oracle.optimal or len(plan.actions) == shortest


def test_the_state_as_facts_is_that_of_the_game_file() -> None:
    """What the rules read of the file's first facts is what is made from the engine's state."""
    games = generate_game_set(4, {"train": 6}, SMALL)
    for task_id in games.task_ids():
        game, payload = games.load(task_id), games.payload(task_id)
        task = read_task(payload["pddl_domain"], payload["pddl_problem"])
        made = native_task(game, game.start)
        moving = {"inreceptacle", "objectatlocation", "opened", "holds", "holdsany", "istoggled"}
        moving |= {"isclean", "ishot", "iscool", "issliced", "ison", "openable", "pickupable"}
        for predicate in moving:
            assert {fact for fact in made.init if fact[0] == predicate} == {
                fact for fact in task.init if fact[0] == predicate
            }
        assert not simulator.won(task, task.init)
        assert not simulator.won(made, made.init)
