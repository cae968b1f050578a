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
from itertools import product
from random import Random
from typing import Any

import gymnasium
import pytest

from agent_envs.webshop.engine import Rules, engine_of, start
from agent_envs.webshop.model import Goal, Page, PrivilegedShop, Purchase, Session
from agent_envs.webshop.shop import Shop
from oracles import Plan, Planner, PlanStatus
from oracles.webshop_goal import WebShopGoalOracle
from oracles.webshop_routes import query_for
from tests.oracles.toy_shop import everything, goal_for, item, on_item, shop_of
from tests.support import full_count

ORACLE = WebShopGoalOracle()
COMPAT = Rules(compat=True)
SIZES = {"size": ["small", "large"]}
COLOURS = {"color": ["sky blue", "white", "dark red"]}


def view(
    shop: Shop,
    goal: Goal,
    session: Session | None = None,
    left: int | None = 15,
    rules: Rules | None = None,
) -> PrivilegedShop:
    return PrivilegedShop(shop, goal, start() if session is None else session, left, rules)


def bought(seen: PrivilegedShop, plan: Plan) -> Purchase:
    """Carry out a plan, every command of which must be on the page or be a search on the first."""
    assert isinstance(seen.shop, Shop)
    rules = seen.rules if isinstance(seen.rules, Rules) else Rules()
    engine, session = engine_of(seen.shop, rules), seen.session
    for command in plan.actions:
        assert session.page != Page.DONE
        page = engine.view(session)
        if command.startswith("search["):
            assert session.page == Page.INDEX
        else:
            assert command in page.commands
        after = engine.advance(session, page, command)
        assert after is not None
        session = after
    assert session.page == Page.DONE
    return engine.purchase(seen.goal, session)


@pytest.fixture(scope="module")
def shelf() -> Shop:
    """Mugs, some alike, with options that overlap."""
    return shop_of(
        [
            item("B00000000A", "Blue Ceramic Mug", {**COLOURS, **SIZES}),
            item("B00000000B", "Tall Glass Mug", {"size": ["small", "11 oz"], **COLOURS}),
            item("B00000000C", "Travel Mug", price="$35.00"),
            item("B00000000D", "Mug Rack for Walls", {"style": ["small", "sky blue"]}),
            *[item(f"B0000000{i:02}", f"Plain Mug No {i}", SIZES) for i in range(10, 24)],
            item("B00000000Z", "Garden Hose", query="hoses", path="Garden › Hoses"),
        ]
    )


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


# ------------------------------------------------------------------------ what is in the way


def reason(shop: Shop, goal: Goal, rules: Rules | None = None) -> str:
    seen = view(shop, goal, rules=rules)
    plan = ORACLE.plan(seen, 15)
    assert plan.status is PlanStatus.FOUND
    worth = bought(seen, plan).reward
    assert worth < 1
    head, _, reasons = plan.detail.partition("; ")
    assert head == f"the purchase is worth {worth:.4f}"
    return reasons


def test_each_term_is_named(shelf: Shop) -> None:
    goal = goal_for(shelf, "B00000000A", ("sky blue",))
    assert reason(shelf, goal._replace(price_upper=12.0)) == "price 12.50 is above the cap 12.00"
    assert (
        reason(shelf, goal._replace(attributes=("hand painted", "made of oak")))
        == "attribute 'made of oak' is not matched"
    )
    alien = goal._replace(name="alpha beta gamma delta mug", query="x", product_category="")
    assert reason(shelf, alien) == "type counts 0.5 (title score 0.200)"
    assert reason(shelf, goal._replace(options=("huge",))) == (
        "option 'huge': not offered, under any spelling that counts"
    )
    both = goal._replace(options=(("color", "white"), ("color", "sky blue")))
    assert reason(shelf, both) == (
        "option 'color': 'white': 'color' holds one value, 'sky blue' is worth as much"
    )


def test_values_that_are_read_as_colours() -> None:
    shop = shop_of([item("B00000000A", "Rug", {"shape": ["rectangular", "round"]})])
    goal = goal_for(shop, "B00000000A", (("shape", "rectangular"),))
    assert reason(shop, goal) == (
        "option 'shape': 'rectangular': offered, but read as 'tan', which does not count as a match"
    )
    assert ORACLE.plan(view(shop, goal)).actions == (
        "search[rug]",
        "click[b00000000a]",
        "click[buy now]",
    )


def test_brackets_are_out_of_reach_only_where_the_original_is_followed() -> None:
    shop = shop_of([item("B00000000A", "Mug", {"set": ["2 pack [oak]", "1 pack"]})])
    goal = goal_for(shop, "B00000000A", (("set", "2 pack [oak]"),))
    assert reason(shop, goal, COMPAT) == (
        "option 'set': '2 pack [oak]': '2 pack [oak]' cannot be clicked"
    )
    plan = ORACLE.plan(view(shop, goal))
    assert "click[2 pack [oak]]" in plan.actions
    assert bought(view(shop, goal), plan).reward == 1.0


def test_a_text_that_two_groups_have() -> None:
    """It is selected in the last group, which then cannot hold another value."""
    shop = shop_of([item("B00000000A", "Mug", {"cup": ["oak", "elm"], "lid": ["oak", "fir"]})])
    goal = goal_for(shop, "B00000000A", (("cup", "oak"), ("lid", "fir")))
    # The pair ("lid", "fir") wants "fir"; "oak" can be selected for the lid only.
    assert reason(shop, goal) in (
        "option 'cup': 'oak': 'oak' stands in several groups and is selected in 'lid' only",
        "option 'lid': 'fir': 'lid' holds one value, 'oak' is worth as much",
    )
    # One alone is met, since groups do not count.
    alone = goal._replace(options=(("cup", "oak"),))
    assert bought(view(shop, alone), ORACLE.plan(view(shop, alone))).reward == 1.0


def test_a_value_with_the_text_of_a_button() -> None:
    shop = shop_of([item("B00000000A", "Mug", {"gift": ["buy now", "features", "none"]})])
    for text in ("buy now", "features"):
        goal = goal_for(shop, "B00000000A", (("gift", text),))
        assert f"{text!r} cannot be clicked" in reason(shop, goal)


def test_no_step_is_left_for_an_option(shelf: Shop) -> None:
    goal = goal_for(shelf, "B00000000A", ("sky blue", "large"))
    seen = view(shelf, goal, on_item(shelf, "B00000000A"), 2)
    plan = ORACLE.plan(seen, 2)
    assert plan == Plan(
        PlanStatus.FOUND,
        ("click[sky blue]", "click[buy now]"),
        "the best purchase of 'B00000000A' takes 3 steps, 2 may be taken; the purchase is worth "
        "0.7500; option 'large': no step is left to select 'large'",
    )
    assert bought(seen, plan).reward == 0.75


# ------------------------------------------------------------------------------- finding it


def test_products_that_share_a_title() -> None:
    """Of equal documents a search lists the first by asin; other words tell products apart."""
    alike = [item(f"B0000000{i:02}", "Plain Mug", SIZES) for i in range(10, 35)]
    special = item("B0000000ZZ", "Plain Mug", {"size": ["small", "enormous"]})
    shop = shop_of([*alike, special])
    plan = ORACLE.plan(view(shop, goal_for(shop, "B0000000ZZ", ("enormous",))))
    assert plan.actions == (
        "search[plain mug size small enormous]",
        "click[b0000000zz]",
        "click[enormous]",
        "click[buy now]",
    )
    seen = view(shop, goal_for(shop, "B000000034", ("large",)))
    plan = ORACLE.plan(seen, 15)  # 25th of its kind: third page
    assert plan.actions[1:4] == ("click[next >]", "click[next >]", "click[b000000034]")
    assert bought(seen, plan).reward == 1.0


def test_a_product_that_no_search_lists() -> None:
    shop = shop_of([item(f"B000000{i:03}", "Plain Mug", SIZES) for i in range(100, 170)])
    goal = goal_for(shop, "B000000169", ("large",))
    plan = ORACLE.plan(view(shop, goal))
    assert plan.status is PlanStatus.FOUND
    assert plan.detail == (
        "no search that was tried lists 'B000000169', or its page cannot be used; "
        "'B000000100' is bought instead"
    )
    assert bought(view(shop, goal), plan).reward == 1.0
    # From its own page it is bought all the same.
    at_it = view(shop, goal, on_item(shop, "B000000169"))
    assert ORACLE.plan(at_it).actions == ("click[large]", "click[buy now]")
    assert ORACLE.plan(at_it).detail == ""


def test_a_product_that_the_shop_has_not(shelf: Shop) -> None:
    goal = goal_for(shelf, "B0MISSING0", ("large",))  # with the title of the first mug
    plan = ORACLE.plan(view(shelf, goal))
    assert plan.status is PlanStatus.FOUND
    assert plan.detail == "the shop has no product 'B0MISSING0'; 'B000000010' is bought instead"
    nothing = goal._replace(name="zzz", query="zzz", product_category="", instruction="zzz")
    plan = ORACLE.plan(view(shelf, nothing))
    assert (plan.status, plan.actions) == (PlanStatus.UNSUPPORTED, ())
    assert plan.detail == (
        "the shop has no product 'B0MISSING0', and no other product on the pages looked at is "
        "worth anything"
    )


def test_titles_that_cannot_be_said() -> None:
    shop = shop_of([item("B00000000A", "Mug [2\nPack] <r> Oak"), item("B00000000B", "Hose")])
    for rules in (Rules(), COMPAT):
        goal = goal_for(shop, "B00000000A")._replace(instruction="find me a zzz")
        seen = view(shop, goal, rules=rules)
        plan = ORACLE.plan(seen)
        assert plan.actions[0] == "search[mug 2 pack r oak]"
        assert bought(seen, plan).reward == 1.0
    long = shop_of([item("B00000000A", "mug " + "word " * 3000), item("B00000000B", "Hose")])
    goal = goal_for(long, "B00000000A")._replace(instruction="find me a zzz")
    plan = ORACLE.plan(view(long, goal))
    assert plan.status is PlanStatus.FOUND
    assert 900 < len(plan.actions[0]) <= 1009


def test_searches_as_the_student_could() -> None:
    """With the words of the instruction, where they list the product on the first page."""
    shop = shop_of([item("B00000000A", "Mug Of Oak"), item("B00000000B", "Hose")])
    goal = goal_for(shop, "B00000000A")._replace(
        instruction="Find me oak mug with color: red, and price lower than 20.00 dollars"
    )
    assert ORACLE.plan(view(shop, goal)).actions[0] == "search[oak mug with color: red]"
    other = goal._replace(instruction="Find me hose, and price lower than 20.00 dollars")
    assert ORACLE.plan(view(shop, other)).actions[0] == "search[mug of oak]"


def test_random_results_of_the_original(shelf: Shop) -> None:
    """With <r>, only the products in sight are certain."""
    engine = engine_of(shelf, COMPAT)
    listed = Session(Page.RESULTS, "<r>", 1, draw=5)
    shown = engine.view(listed).products
    for number in range(len(shelf.catalogue)):
        goal = goal_for(shelf, shelf.catalogue.asin(number))
        actions = ORACLE.plan(view(shelf, goal, listed, rules=COMPAT)).actions
        link = f"click[{goal.asin.lower()}]"
        assert (actions[0] == link) == (number in shown)
        assert (actions[0] == "click[back to search]") == (number not in shown)
        later = Session(Page.ITEM, "<r>", 1, shown[0], visited=(shown[0],))
        if number != shown[0]:
            actions = ORACLE.plan(view(shelf, goal, later, rules=COMPAT)).actions
            assert actions[0] == "click[back to search]"


def test_queries_that_lead_the_original_astray() -> None:
    """Names of pages in a query turn "< Prev" elsewhere; a route that fails hides no other."""
    shop = shop_of([item(f"B0000000{i:02}", f"Mug No {i}", SIZES) for i in range(10, 40)])
    short = 0
    for words in ("search_results", "item_page", "item_sub_page", "done"):
        query = f"mug {words}"
        shown = engine_of(shop, COMPAT).hits(query)[:10]
        for sub, target, number in product(("", "Features"), ("B000000039", None), (1, 2)):
            asin = shop.catalogue.asin(shown[3]) if target is None else target
            goal = goal_for(shop, asin, ("large",))
            here = on_item(shop, shop.catalogue.asin(shown[0]), query, number=number)
            if sub:
                here = here._replace(page=Page.SUB, sub=sub)
            seen = view(shop, goal, here, rules=COMPAT)
            plan = ORACLE.plan(seen)
            assert (plan.status, plan.detail) == (PlanStatus.FOUND, "")
            assert bought(seen, plan).reward == 1.0
            short += plan.actions[0] == "click[< prev]"
    assert short >= 5


def test_the_longer_route_where_the_shorter_is_refused() -> None:
    env = gymnasium.make(
        "SeroWebShop-v0", data="generated:small", split=None, compat=True, max_steps=40
    )
    unwrapped: Any = env.unwrapped
    for seed in range(2, 6):
        env.reset(seed=seed)
        _, _, _, _, info = env.step("search[lamp search_results]")
        env.step(info["admissible_actions"][-1])
        env.step("click[description]")
        plan = ORACLE.plan(unwrapped.privileged(), 30)
        assert (plan.status, plan.detail) == (PlanStatus.FOUND, "")
        reward = 0.0
        for command in plan.actions:
            _, reward, _, _, _ = env.step(command)  # type: ignore[assignment]
        assert reward == 1.0


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
