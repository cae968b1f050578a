"""The ALFWorld planner against exhaustive search of whole games, state by state.

Promises:
1. On every state within six commands of the start, a plan is exactly as long as the true distance,
   and UNSOLVABLE is said exactly where no sequence of commands wins.
2. A dead end of a published game is one: everything that can be reached from there was visited.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from agent_envs.alfworld.games import GameSet
from agent_envs.alfworld.goals import won
from agent_envs.alfworld.households.generator import generate_game_set
from agent_envs.alfworld.households.spec import SMALL, HouseholdSpec
from agent_envs.alfworld.model import Game, State, TaskType
from oracles import PlanStatus
from oracles.alfworld_planner import ALFWorldPlanner
from tests.oracles.exhaustive import Easier, within
from tests.oracles.toy import House, Obj, Rec, random_house, random_walk, run_plan, view
from tests.support import full_count

PLANNER = ALFWorldPlanner()
ODD = replace(SMALL, extras=True)
"""With receptacles at one spot, objects listed twice, and things that nothing can take back."""


def check_all(game: Game, states: list[State], limit: int) -> Counter[PlanStatus] | None:
    """Statuses of the plans from `states`, each proven; None if the game is too large."""
    easier = Easier(game)
    distances = easier.distances({easier.state(game.start)}, limit)
    if distances is None:
        return None
    statuses: Counter[PlanStatus] = Counter()
    for state in states:
        plan = PLANNER.plan(view(game, state))
        distance = distances.get(easier.state(state))
        if plan.status is PlanStatus.UNSOLVABLE:
            assert distance is None
        elif plan.status is PlanStatus.ALREADY_DONE:
            assert distance == 0
        else:
            assert plan.status is PlanStatus.FOUND
            assert len(plan.actions) == distance
            assert won(game, run_plan(game, state, plan.actions))
        statuses[plan.status] += 1
    return statuses


@pytest.mark.parametrize("spec", [SMALL, ODD], ids=["plain", "odd"])
def test_every_state_within_six_steps_of_small_generated_games(spec: HouseholdSpec) -> None:
    wanted, limit = full_count(4, 30), full_count(4_000, 100_000)
    games = generate_game_set(11, {"train": 48}, spec)
    proven, statuses = 0, Counter[PlanStatus]()
    for task_id in games.task_ids()[:: full_count(5, 1)]:
        if proven == wanted:
            break
        game = games.load(task_id)
        found = check_all(game, within(game, 6), limit)
        if found is not None:
            proven += 1
            statuses += found
    assert proven == wanted
    assert statuses[PlanStatus.FOUND] > 500 * proven
    print(f"{proven} games, {dict(statuses)}")


@pytest.mark.parametrize("task", TaskType)
def test_every_state_within_six_steps_of_odd_houses(task: TaskType) -> None:
    """Also of houses where much cannot be done, so that both answers occur."""
    statuses = Counter[PlanStatus]()
    proven = 0
    for seed in range(full_count(10, 60)):
        game = random_house(task, 1000 + seed).game()
        found = check_all(game, within(game, 6), full_count(3_000, 100_000))
        if found is not None:
            proven += 1
            statuses += found
    assert proven >= full_count(5, 50)
    assert statuses[PlanStatus.FOUND] > 60
    assert statuses[PlanStatus.UNSOLVABLE] > 20
    print(f"{proven} houses, {dict(statuses)}")


def test_the_search_that_the_planner_is_compared_with() -> None:
    """By hand: two rooms' worth of a game whose distances can be counted on the fingers."""
    shelf, cabinet = Rec("Shelf", 1, ("Mug", "Pen")), Rec("Cabinet", 2, ("Mug",), openable=True)
    game = House(TaskType.PICK, [shelf, cabinet], [Obj("Mug", (0,)), Obj("Pen", (0,))]).game()
    easier = Easier(game)
    distances = easier.distances({easier.state(game.start)})
    assert distances is not None
    assert distances[easier.state(game.start)] == 5  # go to, take, go to, open, move
    assert min(distances.values()) == 0
    assert easier.distances({easier.state(game.start)}, limit=3) is None
    assert Easier(game, doors=False).distances({easier.state(game.start)}) is not None
    stuck = House(TaskType.PICK, [shelf, replace(cabinet, holds=())], [Obj("Mug", (0,))]).game()
    assert Easier(stuck).distances({Easier(stuck).state(stuck.start)}) == {}


@pytest.mark.data
def test_o15_five_thousand_random_states_win_or_are_proven_dead_ends(real_games: GameSet) -> None:
    ids = real_games.task_ids()
    each, step = full_count(3, 8), full_count(9, 1)
    outcomes: Counter[str] = Counter()
    for number, task_id in enumerate(ids[::step]):
        game = real_games.load(task_id)
        easier, rng = Easier(game, doors=False), Random(f"dead ends/{number}")
        for _ in range(each):
            state = random_walk(game, rng, rng.randint(1, 40))
            plan = PLANNER.plan(view(game, state))
            if plan.status is not PlanStatus.UNSOLVABLE:
                assert won(game, run_plan(game, state, plan.actions)), task_id
                outcomes["won"] += 1
                continue
            assert plan.detail
            visited = easier.distances({easier.state(state)}, limit=full_count(20_000, 100_000))
            if visited is None:
                outcomes["dead end, too many states"] += 1
            else:
                assert visited == {}, task_id  # nothing that wins can be reached
                outcomes["dead end, proven"] += 1
    assert sum(outcomes.values()) >= full_count(200, 5_000)
    assert outcomes["dead end, proven"] >= full_count(1, 20)
    assert outcomes["dead end, too many states"] <= outcomes["dead end, proven"] // 10
    print(dict(outcomes))
