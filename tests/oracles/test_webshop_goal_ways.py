"""What is in the goal oracle's way, and how it finds a product all the same."""

from __future__ import annotations

from itertools import product
from typing import Any

import gymnasium
import pytest

from agent_envs.webshop.engine import Rules, engine_of
from agent_envs.webshop.model import Goal, Page, Session
from agent_envs.webshop.shop import Shop
from oracles import Plan, PlanStatus
from tests.oracles.goal_shelf import ORACLE, SIZES, bought, mugs, view
from tests.oracles.toy_shop import goal_for, item, on_item, shop_of

COMPAT = Rules(compat=True)


@pytest.fixture(scope="module")
def shelf() -> Shop:
    return mugs()


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
