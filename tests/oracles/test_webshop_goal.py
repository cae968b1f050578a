"""The WebShop oracle in small shops, beside a search that tries everything.

Promises:
1. The plan's purchase is worth as much as any of the goal's product that the steps allow, and
   takes the fewest commands. Where the best of it takes too many steps, nothing that can be bought
   in time is worth more.
2. Each command is admissible or fits a template when it is taken; asking changes nothing; the same
   view gives the same plan.
3. Whatever keeps the reward below 1.0 is named.
4. A status says what is wrong: never a filler command.

On the published goals it is tested in test_webshop_goal_shop.py.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from random import Random

import pytest

from agent_envs.webshop.engine import engine_of, start
from agent_envs.webshop.model import Goal, Page, Session
from agent_envs.webshop.shop import Shop
from oracles import Plan, Planner, PlanStatus
from oracles.webshop_routes import query_for
from tests.oracles.goal_shelf import ORACLE, bought, mugs, view
from tests.oracles.toy_shop import everything, goal_for, item, on_item, shop_of
from tests.support import full_count


@pytest.fixture(scope="module")
def shelf() -> Shop:
    return mugs()


def sessions(shop: Shop, goal: Goal, draw: Random, steps: int) -> Session:
    """Where a random walk gets to."""
    engine, session = engine_of(shop), start()
    for _ in range(steps):
        page = engine.view(session)
        commands = [c for c in page.commands if c != "click[buy now]"]
        if session.page == Page.INDEX:
            commands = [f"search[{draw.choice(['mug', 'blue mug', 'hose', 'plain mug', 'x'])}]"]
        after = engine.advance(session, page, draw.choice(commands))
        assert after is not None
        session = after
    return session


def test_equals_trying_everything(shelf: Shop) -> None:
    """From random pages, for random goals, with few steps left and with many."""
    engine, draw, short, instead = engine_of(shelf), Random(3), 0, 0
    asins = ["B00000000A", "B00000000B", "B00000000C", "B00000000D", "B000000015", "B00000000Z"]
    wanted = [
        (),
        ("sky blue", "small"),
        (("color", "white"), ("size", "large")),
        (("color", "dark red"), ("size", "11 oz"), ("style", "small")),
        ("small", "large"),
        ("pink",),
    ]
    for _ in range(full_count(60, 600)):
        goal = goal_for(shelf, draw.choice(asins), draw.choice(wanted))
        number = shelf.catalogue.number_of(goal.asin)
        session = sessions(shelf, goal, draw, draw.randrange(8))
        query = query_for(engine, goal, number)
        assert query is not None
        left = draw.randrange(1, 7)
        seen = view(shelf, goal, session, left)
        found = everything(engine, goal, session, [query], 7)
        own = {  # of the goal's product: reward -> fewest steps
            purchase.reward: steps
            for steps in sorted(found, reverse=True)
            for purchase in found[steps]
            if purchase.product == number
        }
        plan = ORACLE.plan(seen, left)
        best = max(own)
        if own[best] <= left:
            assert plan.status is PlanStatus.FOUND
            purchase = bought(seen, plan)
            assert (purchase.product, purchase.reward) == (number, best)
            assert len(plan.actions) == own[best]
            assert bool(plan.detail) == (best < 1)
            continue
        in_time = [(p.reward, -steps) for steps in range(1, left + 1) for p in found.get(steps, ())]
        most = max(in_time, default=(0.0, 0))
        if most[0] > 0:
            instead += 1
            assert plan.status is PlanStatus.FOUND
            assert (bought(seen, plan).reward, -len(plan.actions)) == most
            assert f"{own[best]} steps, {left} may be taken" in plan.detail
        else:
            short += 1
            assert plan.status is PlanStatus.OVER_BUDGET
            assert len(plan.actions) == own[best]
            assert bought(seen, plan).reward == best
    assert min(short, instead) >= 5


def test_ways_from_every_kind_of_page(shelf: Shop) -> None:
    goal = goal_for(shelf, "B00000000A", ("sky blue", "large"))
    find = ("search[blue ceramic mug]", "click[b00000000a]")
    pick = ("click[sky blue]", "click[large]", "click[buy now]")
    sub = {"page": Page.SUB, "sub": "Features"}
    other = on_item(shelf, "B00000000B", "blue mug")
    listed = Session(Page.RESULTS, "blue mug", 1)
    cases: list[tuple[Session, tuple[str, ...]]] = [
        (start(), (*find, *pick)),
        (on_item(shelf, "B00000000A"), pick),
        (on_item(shelf, "B00000000A", **sub), ("click[< prev]", *pick)),
        (listed, ("click[b00000000a]", *pick)),
        (listed._replace(number=2), ("click[< prev]", "click[b00000000a]", *pick)),
        (other, ("click[< prev]", "click[b00000000a]", *pick)),
        (other._replace(**sub), ("click[< prev]", "click[< prev]", "click[b00000000a]", *pick)),
        (other._replace(query="hose"), ("click[back to search]", *find, *pick)),
        (Session(Page.RESULTS, "nothing", 7), ("click[back to search]", *find, *pick)),
    ]
    assert shelf.catalogue.number_of("B00000000A") in shelf.index.search("blue mug")[:10]
    for session, expected in cases:
        plan = ORACLE.plan(view(shelf, goal, session))
        assert (plan.status, plan.actions, plan.detail) == (PlanStatus.FOUND, expected, "")


def test_what_is_selected_already(shelf: Shop) -> None:
    goal = goal_for(shelf, "B00000000A", ("sky blue", "large"))

    def rest(*options: tuple[str, str]) -> tuple[str, ...]:
        session = on_item(shelf, "B00000000A", options=options)
        return ORACLE.plan(view(shelf, goal, session)).actions

    assert rest(("color", "white"), ("size", "small")) == (
        "click[sky blue]",
        "click[large]",
        "click[buy now]",
    )
    assert rest(("color", "sky blue")) == ("click[large]", "click[buy now]")
    assert rest(("size", "large"), ("color", "sky blue")) == ("click[buy now]",)
    # A wrong value of a group that does not matter stays.
    sizes = goal._replace(options=(("size", "large"),))
    session = on_item(shelf, "B00000000A", options=(("color", "white"),))
    assert ORACLE.plan(view(shelf, sizes, session)).actions == ("click[large]", "click[buy now]")


def test_one_click_for_two_wanted_options() -> None:
    shop = shop_of([item("B00000000A", "Mug", {"a": ["red", "red large", "large"], "b": ["red"]})])
    goal = goal_for(shop, "B00000000A", (("kind", "red large"), ("size", "large")))
    plan = ORACLE.plan(view(shop, goal, on_item(shop, "B00000000A")))
    # "red large" is read as "red", a word of the first pair only; "large" is in both pairs
    assert plan.actions == ("click[large]", "click[buy now]")
    assert bought(view(shop, goal, on_item(shop, "B00000000A")), plan).reward == 1.0


# --------------------------------------------------------------------------------- statuses


def test_many_wanted_options() -> None:
    names = [f"{first}{second}{first}" for first in "bcdfgh" for second in "klmp"]
    groups = {name: [name * 2, f"other {name * 2}x"] for name in names}
    shop = shop_of([item("B00000000A", "Mug", groups), item("B00000000B", "Hose")])
    goal = goal_for(shop, "B00000000A", tuple((name, name * 2) for name in names))
    seen = view(shop, goal, left=None)
    plan = ORACLE.plan(seen, budget_s=60.0)
    assert (plan.status, plan.detail, len(plan.actions)) == (PlanStatus.FOUND, "", 2 + 24 + 1)
    assert bought(seen, plan).reward == 1.0


def test_what_is_found_when_time_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"a": ["elm large", "oak"], "b": ["elm oak", "fir"]}
    shop = shop_of([item("B00000000A", "Mug", values), item("B00000000B", "Hose")])
    goal = goal_for(shop, "B00000000A", ("elm", "oak", "fir", "large", "no such"))
    seen = view(shop, goal, on_item(shop, "B00000000A"))
    whole = ORACLE.plan(seen)
    assert "time ran out" not in whole.detail
    calls = itertools.count()
    monkeypatch.setattr("oracles.webshop_goal._clock", lambda _: lambda: next(calls) >= 2)
    plan = ORACLE.plan(seen)
    assert plan.status is PlanStatus.FOUND
    assert plan.detail.startswith("time ran out, so another purchase may be worth more; ")
    assert 0 < bought(seen, plan).reward <= bought(seen, whole).reward


def test_statuses(shelf: Shop) -> None:
    goal = goal_for(shelf, "B00000000A", ("sky blue", "large"))
    whole = ORACLE.plan(view(shelf, goal))
    assert isinstance(ORACLE, Planner)
    assert ORACLE.plan(view(shelf, goal), 5) == whole
    for steps in (0, 1, 2):  # the shortest purchase takes three
        plan = ORACLE.plan(view(shelf, goal), steps)
        assert (plan.status, plan.actions) == (PlanStatus.OVER_BUDGET, whole.actions)
        assert plan.detail == (
            f"the best purchase of 'B00000000A' takes 5 steps, {steps} may be taken"
        )
    plan = ORACLE.plan(view(shelf, goal), budget_s=0.0)
    assert (plan.status, plan.actions) == (PlanStatus.TIMEOUT, ())
    assert "budget of 0.0 s" in plan.detail
    over = on_item(shelf, "B00000000A", page=Page.DONE)
    plan = ORACLE.plan(view(shelf, goal, over), budget_s=0.0)
    assert (plan.status, plan.actions) == (PlanStatus.UNSOLVABLE, ())
    assert "worth 0.5000" in plan.detail
    full = over._replace(options=(("color", "sky blue"), ("size", "large")))
    assert ORACLE.plan(view(shelf, goal, full)) == Plan(PlanStatus.ALREADY_DONE, ())
    for strange in (None, "page", goal):
        plan = ORACLE.plan(strange)  # type: ignore[arg-type]
        assert (plan.status, plan.actions) == (PlanStatus.UNSUPPORTED, ())
        decision, state = ORACLE.act(None, strange, "")  # type: ignore[arg-type]
        assert (decision.status, decision.action, state) == (PlanStatus.UNSUPPORTED, None, None)


def test_worthless_in_itself(shelf: Shop) -> None:
    """The goal's product is worth nothing to this goal; a product at hand is."""
    goal = goal_for(shelf, "B00000000Z")._replace(name="Travel Mug", price_upper=40.0)
    seen = view(shelf, goal, Session(Page.RESULTS, "mug", 1))
    plan = ORACLE.plan(seen)
    assert plan.status is PlanStatus.FOUND
    assert plan.detail.startswith("'B00000000Z' itself is worth nothing (type counts 0 (title ")
    assert bought(seen, plan).reward == 1.0


def test_closed_loop_follows_and_recovers(shelf: Shop) -> None:
    goal = goal_for(shelf, "B00000000A", ("sky blue", "large"))
    engine, session, left = engine_of(shelf), start(), 15
    state = ORACLE.start(view(shelf, goal), ())
    said = []
    strays = {1: "click[b00000000b]", 4: "click[white]", 5: "click[features]"}
    for turn in range(15):
        seen = view(shelf, goal, session, left)
        decision, state = ORACLE.act(state, seen, "")
        assert decision.status is PlanStatus.FOUND
        assert decision.action == ORACLE.plan(seen, left).actions[0]
        command = strays.get(turn, decision.action)
        assert command is not None
        said.append(command)
        after = engine.advance(session, engine.view(session), command)
        assert after is not None
        session, left = after, left - 1
        if session.page == Page.DONE:
            break
    assert engine.purchase(goal, session).reward == 1.0
    assert said == [
        "search[blue ceramic mug]",
        "click[b00000000b]",
        "click[< prev]",
        "click[b00000000a]",
        "click[white]",
        "click[features]",
        "click[< prev]",
        "click[sky blue]",
        "click[large]",
        "click[buy now]",
    ]


def test_state_of_another_goal_or_budget_is_not_followed(shelf: Shop) -> None:
    goal = goal_for(shelf, "B00000000A", ("sky blue", "large"))
    first = view(shelf, goal)
    decision, state = ORACLE.act(None, first, "")
    assert state is not None
    here = replace(first, session=state.expected)
    assert ORACLE.act(state, here, "")[0].action == "click[b00000000a]"
    other = replace(here, goal=goal_for(shelf, "B00000000B", ("white",)))
    assert ORACLE.act(state, other, "")[0].action != "click[b00000000a]"
    short = replace(here, steps_left=3)
    decision, _ = ORACLE.act(state, short, "")
    assert (decision.status, decision.action) == (PlanStatus.FOUND, "click[b00000000a]")
    assert "no step is left" in decision.detail
    hopeless = replace(here, steps_left=1)
    decision, _ = ORACLE.act(state, hopeless, "")
    assert (decision.status, decision.action) == (PlanStatus.OVER_BUDGET, "click[b00000000a]")
