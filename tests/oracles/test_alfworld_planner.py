"""The ALFWorld planner against the engine and breadth-first search, on small odd houses.

Promises:
1. A plan is as short as any: equal to breadth-first search from every kind of state.
2. Each command of a plan is admissible when it is taken, none is refused, the last one wins.
3. Unsolvable is proven and says why; timeout is another answer; a plan that is too long is
   flagged and whole.
4. The same state gives the same plan; asking changes nothing.

On whole games it is tested in test_alfworld_planner_games.py.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from agent_envs.alfworld import engine
from agent_envs.alfworld.goals import won
from agent_envs.alfworld.model import Game, State, TaskType
from oracles import Plan, Planner, PlanStatus, alfworld_planner, alfworld_search
from oracles.alfworld_planner import ALFWorldPlanner
from tests.oracles.toy import (
    House,
    Obj,
    Rec,
    random_house,
    random_walk,
    run_plan,
    shortest_length,
    view,
    world_changing,
)
from tests.support import full_count

PLANNER = ALFWorldPlanner()


def check_optimal(game: Game, state: State) -> PlanStatus:
    plan = PLANNER.plan(view(game, state))
    if plan.status is PlanStatus.FOUND:
        assert won(game, run_plan(game, state, plan.actions))
        # nothing shorter
        assert shortest_length(game, state, limit=len(plan.actions) - 1) is None
    elif plan.status is PlanStatus.UNSOLVABLE:
        assert plan.actions == ()
        assert plan.detail
        assert shortest_length(game, state) is None
    else:
        assert plan.status is PlanStatus.ALREADY_DONE
        assert plan.actions == ()
        assert won(game, state)
    return plan.status


@pytest.mark.parametrize("task", TaskType)
def test_equals_breadth_first_search_on_odd_houses(task: TaskType) -> None:
    statuses: list[PlanStatus] = []
    for seed in range(full_count(60, 500)):
        game = random_house(task, seed).game()
        rng = Random(seed)
        statuses.append(check_optimal(game, game.start))
        for _ in range(3):
            statuses.append(check_optimal(game, random_walk(game, rng, rng.randint(1, 20))))
    # the sample is worth something only if it holds both kinds
    assert statuses.count(PlanStatus.FOUND) > len(statuses) // 3
    assert statuses.count(PlanStatus.UNSOLVABLE) > 5


SHELF = ("Mug", "Pen")


def two_step_house(**changes: Any) -> House:
    """A mug on shelf 0 (location 1), an empty cabinet (location 2); the agent stands apart."""
    house = House(
        TaskType.PICK,
        [Rec("Shelf", 1, SHELF), Rec("Cabinet", 2, ("Mug",), openable=True)],
        [Obj("Mug", (0,))],
    )
    return replace(house, **changes)


def plan_of(house: House) -> tuple[str, ...]:
    plan = PLANNER.plan(view(house.game()))
    assert plan.status is PlanStatus.FOUND
    return plan.actions


def test_opens_only_what_is_closed() -> None:
    house = two_step_house()
    assert plan_of(house) == (
        "go to shelf 1",
        "take mug 1 from shelf 1",
        "go to cabinet 1",
        "open cabinet 1",
        "move mug 1 to cabinet 1",
    )
    house.recs[1].opened = True
    assert "open cabinet 1" not in plan_of(house)


def test_receptacles_at_one_location_need_no_go_to() -> None:
    house = two_step_house(agent=1)
    house.recs[1].loc = 1
    assert plan_of(house) == (
        "take mug 1 from shelf 1",
        "open cabinet 1",
        "move mug 1 to cabinet 1",
    )


def test_a_useless_object_in_hand_is_dropped_on_the_way() -> None:
    house = two_step_house(held=1)
    house.objs.append(Obj("Pen"))
    assert plan_of(house) == (
        "go to shelf 1",
        "move pen 1 to shelf 1",
        "take mug 1 from shelf 1",
        "go to cabinet 1",
        "open cabinet 1",
        "move mug 1 to cabinet 1",
    )


def test_dropping_into_the_target_saves_opening_it_twice() -> None:
    # Only cabinets hold the pen. Cabinet 1 is the last id, so rec 1 is "cabinet 1".
    house = two_step_house(held=1, agent=2)
    house.objs.append(Obj("Pen"))
    house.recs[0].holds = ("Mug",)
    house.recs[1].holds = ("Mug", "Pen")
    assert plan_of(house) == (
        "open cabinet 1",
        "move pen 1 to cabinet 1",
        "go to shelf 1",
        "take mug 1 from shelf 1",
        "go to cabinet 1",
        "move mug 1 to cabinet 1",
    )


@pytest.mark.parametrize("flags", [("pickupable",), ()], ids=["loose", "fixed"])
def test_dropping_into_the_target_of_two_objects(flags: tuple[str, ...]) -> None:
    """The pen fits into three closed places; only the cabinet with a mug is needed later."""
    house = House(
        TaskType.TWO,
        [
            Rec("Cabinet", 2, ("Mug", "Pen"), openable=True),
            Rec("Cabinet", 3, ("Mug", "Pen"), openable=True),
            Rec("Drawer", 4, ("Pen",), openable=True),
            Rec("Shelf", 1, ("Mug",)),
        ],
        [Obj("Mug", (1,), flags), Obj("Mug", (3,)), Obj("Pen")],
        held=2,
    )
    # numbers count down in the order of ids: the second cabinet is "cabinet 1"
    assert plan_of(house) == (
        "go to cabinet 1",
        "open cabinet 1",
        "move pen 1 to cabinet 1",
        "go to shelf 1",
        "take mug 1 from shelf 1",
        "go to cabinet 1",
        "move mug 1 to cabinet 1",
    )


def test_dead_end_of_full_hands_names_the_object() -> None:
    house = two_step_house()
    house.objs.append(Obj("TeddyBear", (0,)))
    game = house.game()
    state = run_free(game, "go to shelf 1", "take teddybear 1 from shelf 1")
    plan = PLANNER.plan(view(game, state))
    assert plan.status is PlanStatus.UNSOLVABLE
    assert plan.actions == ()
    assert "hands are full of 'teddybear 1'" in plan.detail


def run_free(game: Game, *commands: str) -> State:
    state = game.start
    for command in commands:
        state, _, accepted = engine.step(game, state, command)
        assert accepted, command
    return state


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("no object", "no wanted object can be picked up"),
        ("no room", "no receptacle of the wanted kind can hold"),
        ("no sink", "no sink to clean"),
    ],
)
def test_unsolvable_says_why(change: str, reason: str) -> None:
    house = House(
        TaskType.CLEAN,
        [Rec("Shelf", 1, SHELF), Rec("Cabinet", 2, ("Mug",)), Rec("SinkBasin", 3)],
        [Obj("Mug", (0,), ("pickupable", "cleanable"))],
    )
    assert plan_of(house)[2:4] == ("go to sinkbasinbasin 1", "clean mug 1 with sinkbasinbasin 1")
    if change == "no object":
        house.objs[0].flags = ("cleanable",)
    elif change == "no room":
        house.recs[1].holds = ()
    else:
        house.recs[2].kind = "Shelf"
    plan = PLANNER.plan(view(house.game()))
    assert plan.status is PlanStatus.UNSOLVABLE
    assert reason in plan.detail


def test_an_object_listed_twice_is_cleaned_in_hand() -> None:
    """Taken from the shelf it stays listed in the cabinet, so cleaning it wins."""
    house = House(
        TaskType.CLEAN,
        [Rec("Shelf", 1, SHELF), Rec("Cabinet", 2, ("Mug",)), Rec("SinkBasin", 3)],
        [Obj("Mug", (0, 1), ("pickupable", "cleanable"))],
    )
    assert plan_of(house) == (
        "go to shelf 1",
        "take mug 1 from shelf 1",
        "go to sinkbasinbasin 1",
        "clean mug 1 with sinkbasinbasin 1",
    )


def test_an_object_already_cool_is_not_cooled_again() -> None:
    house = House(
        TaskType.COOL,
        [Rec("Fridge", 1, SHELF, openable=True), Rec("Cabinet", 2, ("Mug",))],
        [Obj("Mug", (0,), ("pickupable", "coolable", "isCool"))],
    )
    assert plan_of(house) == (
        "go to fridge 1",
        "open fridge 1",
        "take mug 1 from fridge 1",
        "go to cabinet 1",
        "move mug 1 to cabinet 1",
    )


def test_a_lamp_used_before_is_only_visited() -> None:
    house = House(
        TaskType.LOOK,
        [Rec("Shelf", 1, SHELF), Rec("Desk", 2)],
        [Obj("Mug", (0,)), Obj("DeskLamp", (1,), ("toggleable",))],
    )
    game = house.game()
    state = run_free(game, "go to desk 1", "use desklamp 1")
    plan = PLANNER.plan(view(game, state))
    assert plan.actions == ("go to shelf 1", "take mug 1 from shelf 1", "go to desk 1")


def test_a_lamp_that_is_wanted_itself_does_not_light_from_the_hand() -> None:
    def planned(*lamps: Obj, held: int | None = None) -> Plan:
        recs = [Rec("Shelf", 1, ("DeskLamp",)), Rec("Drawer", 2, ("DeskLamp",))]
        game = House(TaskType.LOOK, recs, list(lamps), held=held).game()
        desk_lamps = (1 << len(lamps)) - 1
        game = replace(game, goal=replace(game.goal, objects=desk_lamps))
        check_optimal(game, game.start)
        return PLANNER.plan(view(game))

    both = ("pickupable", "toggleable")
    assert planned(Obj("DeskLamp", (0,), both)).status is PlanStatus.UNSOLVABLE
    assert planned(Obj("DeskLamp", (0,), both), Obj("DeskLamp", (1,), both)).actions == (
        "go to drawer 1",
        "take desklamp 1 from drawer 1",
        "go to shelf 1",
        "use desklamp 2",
    )
    # the one in hand is the only one that works: it is put down, the other is looked at
    broken = Obj("DeskLamp", (0,), ("pickupable",))
    assert planned(broken, Obj("DeskLamp", (), both), held=1).actions == (
        "go to shelf 1",
        "move desklamp 1 to shelf 1",
        "take desklamp 2 from shelf 1",
        "use desklamp 1",
    )


def test_two_objects_with_one_in_hand_and_one_placed() -> None:
    house = House(
        TaskType.TWO,
        [Rec("Shelf", 1, SHELF), Rec("Cabinet", 2, ("Mug",)), Rec("Cabinet", 3, ("Mug",))],
        [Obj("Mug", (0,)), Obj("Mug", (2,))],
    )
    game = house.game()
    names = game.recs  # which of the two is "cabinet 1" is the engine's business
    there = names[next(r for r in game.goal_recs if game.start.contents[r])]
    state = run_free(game, "go to shelf 1")
    mug = next(c for c in world_changing(game, state) if c.startswith("take"))
    state, _, _ = engine.step(game, state, mug)
    name = mug.split(" from ")[0].removeprefix("take ")
    assert PLANNER.plan(view(game, state)).actions == (
        f"go to {there}",
        f"move {name} to {there}",
    )


def test_done_and_won_states() -> None:
    game = two_step_house().game()
    end = run_plan(game, game.start, PLANNER.plan(view(game)).actions)
    assert PLANNER.plan(view(game, end), 50, 0.0).status is PlanStatus.ALREADY_DONE


def test_o15_plan_longer_than_the_horizon_is_flagged_and_whole() -> None:
    game = two_step_house().game()
    plan = PLANNER.plan(view(game), horizon=5)
    assert plan.status is PlanStatus.FOUND
    flagged = PLANNER.plan(view(game), horizon=4)
    assert flagged.status is PlanStatus.OVER_BUDGET
    assert flagged.actions == plan.actions
    assert "5 commands" in flagged.detail
    assert PLANNER.plan(view(game), horizon=0).status is PlanStatus.OVER_BUDGET
    decision, _ = PLANNER.act(None, view(game, steps_left=4), "")
    assert decision.status is PlanStatus.OVER_BUDGET
    assert decision.action == plan.actions[0]


def oversized(solvable: bool = True) -> Game:
    """Hundreds of mugs and cabinets: two of the first to bring into one of the second."""
    count = 300
    holds = ("Mug",) if solvable else ()
    recs = [Rec("Shelf", i + 1, SHELF, openable=True) for i in range(count)]
    recs += [Rec("Cabinet", count + 1 + i, holds, openable=True) for i in range(count)]
    return House(TaskType.TWO, recs, [Obj("Mug", (i,)) for i in range(count)]).game()


def test_o16_timeout_is_not_unsolvable(monkeypatch: pytest.MonkeyPatch) -> None:
    game, stuck = oversized(), oversized(solvable=False)
    assert len(PLANNER.plan(view(game)).actions) == 11
    assert PLANNER.plan(view(stuck)).status is PlanStatus.UNSOLVABLE
    assert PLANNER.plan(view(two_step_house().game()), budget_s=0.0).status is PlanStatus.TIMEOUT

    # A clock that moves one second each time somebody looks at it.
    looks: list[float] = []

    def clock() -> float:
        looks.append(float(len(looks)))
        return looks[-1]

    monkeypatch.setattr(alfworld_planner, "perf_counter", clock)
    monkeypatch.setattr(alfworld_search, "perf_counter", clock)
    plan = PLANNER.plan(view(game), budget_s=20.0)
    assert (plan.status, plan.actions) == (PlanStatus.TIMEOUT, ())
    assert len(looks) == 21  # it stopped at the first look past the deadline
    decision, state = ALFWorldPlanner(budget_s=5.0).act(None, view(game), "")
    assert (decision.status, decision.action, state) == (PlanStatus.TIMEOUT, None, None)
    assert PLANNER.plan(view(game), budget_s=1e9).status is PlanStatus.FOUND


def test_same_state_same_plan() -> None:
    for task in TaskType:
        house = random_house(task, 3)
        first = PLANNER.plan(view(house.game()))
        assert PLANNER.plan(view(house.game())) == first
        assert ALFWorldPlanner().plan(view(house.game())) == first


def test_something_else_than_a_view_is_unsupported() -> None:
    assert isinstance(PLANNER, Planner)
    plan = PLANNER.plan(None)  # type: ignore[arg-type]
    assert plan.status is PlanStatus.UNSUPPORTED
    assert "NoneType" in plan.detail
    decision, _ = PLANNER.act(None, None, "")  # type: ignore[arg-type]
    assert (decision.status, decision.action) == (PlanStatus.UNSUPPORTED, None)


def test_acting_follows_the_plan_and_replans_when_the_world_differs() -> None:
    game = two_step_house(objs=[Obj("Mug", (0,)), Obj("Mug", (0,))]).game()
    plan = PLANNER.plan(view(game))
    state, pursuit, taken = game.start, PLANNER.start(view(game), ()), []
    while not won(game, state):
        decision, pursuit = PLANNER.act(pursuit, view(game, state, 10), "")
        assert decision.action is not None
        taken.append(decision.action)
        state, _, _ = engine.step(game, state, decision.action)
        if len(taken) == 2:  # somebody else moves the agent away
            state, _, _ = engine.step(game, state, "go to cabinet 1")
            state, _, _ = engine.step(game, state, "open cabinet 1")
    assert tuple(taken) == (*plan.actions[:2], plan.actions[4])
