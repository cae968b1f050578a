"""The ALFWorld planner on published and generated games, beside the original engine for some.

Promises:
1. Plans are as long as the walkthroughs that the games carry, and as breadth-first search's.
2. They win from the start and from anywhere else, in the words of the game's own generation, in
   our engine and in the original.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from agent_envs.alfworld.games import GameSet
from agent_envs.alfworld.generations import GENERATIONS, Generation
from agent_envs.alfworld.goals import won
from agent_envs.alfworld.households.generator import generate_game_set
from agent_envs.alfworld.households.spec import SMALL, STANDARD, HouseholdSpec
from agent_envs.alfworld.model import State
from agent_envs.alfworld.original.lockstep import lockstep
from agent_envs.alfworld.original.lockstep_walks import MixedWalk
from agent_envs.alfworld.original.textworld_engine import TextWorldGame
from oracles import PlanStatus
from oracles.alfworld_planner import ALFWorldPlanner
from tests.agent_envs.alfworld.household import toy
from tests.agent_envs.alfworld.traps import GOALS
from tests.oracles.toy import random_walk, run_plan, shortest_length, view
from tests.support import full_count

PLANNER = ALFWorldPlanner()


@pytest.fixture(scope="module")
def older_games(real_data: Path) -> GameSet:
    """The published games of the generation before 0.4."""
    return GameSet.from_path(real_data / "alfworld_games_old.tar.xz")


@pytest.mark.data
def test_o15_plans_of_older_games_win(older_games: GameSet) -> None:
    """Every command is listed and accepted, from the start and from random states."""
    puts = 0
    assert len(older_games) == 18
    for number, task_id in enumerate(older_games.task_ids()):
        game = older_games.load(task_id)
        plan = PLANNER.plan(view(game), 50)
        assert plan.status is PlanStatus.FOUND
        assert won(game, run_plan(game, game.start, plan.actions)), task_id
        assert not any(action.startswith("move ") for action in plan.actions)
        puts += sum(action.startswith("put ") and " in/on " in action for action in plan.actions)
        state = random_walk(game, Random(number), 20)
        again = PLANNER.plan(view(game, state))
        if again.status is PlanStatus.FOUND:
            assert won(game, run_plan(game, state, again.actions))
    assert puts >= 15  # all tasks but the three with a lamp put something down


@pytest.mark.reference
@pytest.mark.data
def test_plans_of_older_games_win_in_the_original(reference: None, older_games: GameSet) -> None:
    ids = sorted(
        older_games.task_ids(), key=lambda name: len(older_games.payload(name)["pddl_problem"])
    )
    for task_id in ids[: full_count(3, 18)]:
        game = older_games.load(task_id)
        assert game.generation == "put"
        plan = PLANNER.plan(view(game)).actions
        with TextWorldGame(older_games.payload(task_id)) as original:
            result = lockstep(task_id, game, original, MixedWalk(game, 0, first=plan), len(plan))
            assert result.differences == ()  # texts, lists, and won after each command
            assert result.situations["won"] == 1, task_id  # by the last one
            assert original.step("look").won


@pytest.mark.parametrize("generation", GENERATIONS.values(), ids=lambda one: one.name)
def test_o1_plans_are_spelled_as_the_game_says(generation: Generation) -> None:
    """The household of oddities: a plan in one wording is that in the other, spelled anew."""
    today, own = toy(GOALS["heat"]), toy(GOALS["heat"], generation.name)
    put, joint = generation.put
    plan = PLANNER.plan(view(own)).actions
    assert won(own, run_plan(own, own.start, plan))
    assert f"{put} apple 1 {joint} sinkbasin 1" in plan
    respelled = [
        action.replace("move ", f"{put} ").replace(" to sinkbasin", f" {joint} sinkbasin")
        if action.startswith("move ")
        else action
        for action in PLANNER.plan(view(today)).actions
    ]
    assert list(plan) == respelled


@pytest.mark.data
def test_o15_published_games_plans_equal_the_walkthroughs(real_games: GameSet) -> None:
    ids = real_games.task_ids()
    assert len(ids) == 634
    for task_id in ids[:: full_count(8, 1)]:
        game = real_games.load(task_id)
        plan = PLANNER.plan(view(game), 50)
        assert plan.status is PlanStatus.FOUND
        assert game.walkthrough is not None
        assert len(plan.actions) == len(game.walkthrough), task_id
        assert won(game, run_plan(game, game.start, plan.actions))


@pytest.mark.data
def test_o15_fresh_plans_from_random_states_succeed(real_games: GameSet) -> None:
    for number, task_id in enumerate(real_games.task_ids()[:: full_count(20, 1)]):
        game = real_games.load(task_id)
        rng = Random(number)
        for _ in range(20):
            state = random_walk(game, rng, rng.randint(1, 40))
            plan = PLANNER.plan(view(game, state))
            if plan.status is PlanStatus.UNSOLVABLE:
                # a random walk may pick up what fits nowhere; hands are then full for ever
                assert not any(mask >> state.held & 1 for mask in game.can_hold)
            else:
                assert won(game, run_plan(game, state, plan.actions))


@pytest.mark.data
def test_published_games_from_random_states_equal_breadth_first_search(
    real_games: GameSet,
) -> None:
    """Breadth-first search with the other objects left out, where the plan is short."""
    checked = 0
    for number, task_id in enumerate(real_games.task_ids()):
        if checked == full_count(6, 60):
            break
        game = real_games.load(task_id)
        state = random_walk(game, Random(number), 12)
        plan = PLANNER.plan(view(game, state))
        if plan.status is not PlanStatus.FOUND or not 4 <= len(plan.actions) <= 5:
            continue
        keep = game.goal.objects | game.goal.lamps
        if state.held >= 0:
            keep |= 1 << state.held

        def simplify(node: State, keep: int = keep) -> State:
            return node._replace(
                contents=tuple(mask & keep for mask in node.contents),
                at=(0,) * len(node.at),
                removed=(0,) * len(node.removed),
                on=0,
                sliced=0,
            )

        limit = len(plan.actions) - 1
        assert shortest_length(game, state, limit, simplify) is None, task_id
        checked += 1
    assert checked == full_count(6, 60)


@pytest.mark.parametrize("spec", [SMALL, STANDARD], ids=["small", "standard"])
def test_generated_games_plans_equal_the_walkthroughs(spec: HouseholdSpec) -> None:
    """The generator finds its walkthroughs by a search of its own."""
    count = full_count(20, 200)
    games = generate_game_set(5, {"train": count, "valid_unseen": count}, spec)
    assert len(games) == 2 * count
    for task_id in games.task_ids():
        game = games.load(task_id)
        plan = PLANNER.plan(view(game))
        assert game.walkthrough is not None
        assert len(plan.actions) == len(game.walkthrough), task_id
        assert won(game, run_plan(game, game.start, plan.actions))
