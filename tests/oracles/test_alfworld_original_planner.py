"""The original's planner, asked from any state."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from agent_envs.alfworld import engine
from agent_envs.alfworld.compile import compile_game
from agent_envs.alfworld.games import GameSet
from agent_envs.alfworld.goals import won
from agent_envs.alfworld.model import Game, State, TaskType
from agent_envs.alfworld.naming import renamed
from agent_envs.alfworld.original.planner_process import plan_in_process
from agent_envs.alfworld.original.problem_at import payload_at
from agent_envs.errors import DataError
from oracles import PlanStatus
from oracles.alfworld_original import OriginalPlanner
from oracles.alfworld_planner import ALFWorldPlanner
from tests.oracles.explored import messy_walk
from tests.oracles.original_support import small_game
from tests.oracles.toy import House, Obj, Rec, view
from tests.support import full_count

pytestmark = pytest.mark.reference

# ------------------------------------------------------------------ the planner


@pytest.mark.data
def test_a_game_file_from_any_state_says_the_same(real_games: GameSet) -> None:
    for number, task_id in enumerate(real_games.task_ids()[:: full_count(40, 1)]):
        game = real_games.load(task_id)
        state, _, _ = messy_walk(game, Random(number), 15)
        again = compile_game(payload_at(game, state))
        for name in (
            "task_type", "task_sentence", "recs", "rec_ids", "objs", "obj_ids", "openable",
            "pickupable", "cleanable", "heatable", "coolable", "toggleable", "sliceable",
            "receptacle_object", "knife", "can_hold", "sinks", "microwaves", "fridges", "inner",
            "goal",
        ):  # fmt: skip
            assert getattr(again, name) == getattr(game, name), (task_id, name)
        assert places(again, again.start) == places(game, state)
        # a location without anything is none of the file's
        plain = {"loc": 0, "at": (), "removed": ()}
        assert again.start._replace(**plain) == state._replace(**plain), task_id


def places(game: Game, state: State) -> tuple[Any, ...]:
    """Where everything is, by the names of the locations."""
    at = {game.locs[loc]: mask for loc, mask in enumerate(state.at) if mask}
    return game.locs[state.loc], [game.locs[loc] for loc in game.rec_loc if loc >= 0], at


@pytest.mark.data
def test_the_planner_wins_from_where_a_messy_student_stands(
    reference: None, real_games: GameSet
) -> None:
    # Full: every 53rd game, where the search may take minutes; else two where it takes none.
    ids = real_games.task_ids()[5::53] if full_count(0, 1) else real_games.task_ids()[:301:300]
    found = 0
    for number, task_id in enumerate(ids):
        game = renamed(real_games.load(task_id), 7) if number % 2 else real_games.load(task_id)
        state, _, _ = messy_walk(game, Random(number), 12)
        plan = OriginalPlanner().plan(view(game, state), None, full_count(300, 60))
        ours = ALFWorldPlanner().plan(view(game, state))
        if plan.status is PlanStatus.TIMEOUT:
            continue
        assert plan.status is ours.status, (task_id, plan.detail)
        assert len(plan.actions) >= len(ours.actions)
        for command in plan.actions:
            state, _, accepted = engine.step(game, state, command)
            assert accepted
        if plan.status is PlanStatus.FOUND:
            assert won(game, state)
            found += 1
    assert found >= full_count(2, 4)


def test_the_planner_follows_its_plan_and_counts_steps(reference: None) -> None:
    game = small_game(TaskType.PICK)
    planner = OriginalPlanner()
    seen = view(game)
    plan = planner.plan(seen, 1)
    assert plan.status is PlanStatus.OVER_BUDGET
    assert len(plan.actions) > 1
    decision, state = planner.act(planner.start(seen, ()), seen, "")
    assert decision.action == plan.actions[0]
    after, _, _ = engine.step(game, game.start, plan.actions[0])
    planner.budget_s = 0.0  # so that a new search would be a TIMEOUT
    decision, state = planner.act(state, view(game, after), "")
    assert decision.action == plan.actions[1]
    decision, state = planner.act(state, seen, "")
    assert (decision.status, decision.action, state) == (PlanStatus.TIMEOUT, None, None)


def test_the_planner_stops_at_its_budget_and_at_dead_ends(reference: None) -> None:
    game = small_game(TaskType.TWO)
    assert OriginalPlanner().plan(view(game), None, 1e-9).status is PlanStatus.TIMEOUT
    stuck = House(
        TaskType.PICK,
        [Rec("Shelf", 1, ("Mug",)), Rec("Cabinet", 2, ("Mug",))],
        [Obj("Mug", (0,)), Obj("TeddyBear")],
        held=1,
    ).game()
    assert OriginalPlanner().plan(view(stuck)).status is PlanStatus.UNSOLVABLE
    assert ALFWorldPlanner().plan(view(stuck)).status is PlanStatus.UNSOLVABLE


def test_a_planner_that_dies_says_why(reference: None) -> None:
    payload = {**payload_at(small_game(TaskType.PICK), small_game(TaskType.PICK).start)}
    payload["pddl_problem"] = payload["pddl_problem"].replace("(inReceptacle", "(within")
    with pytest.raises(DataError, match=r"ended without an answer: .*UnsupportedGame"):
        plan_in_process(payload, 30.0)
