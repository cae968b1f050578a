"""A shelf of products for the goal oracle."""

from __future__ import annotations

from agent_envs.webshop.engine import Rules, engine_of, start
from agent_envs.webshop.model import Goal, Page, PrivilegedShop, Purchase, Session
from agent_envs.webshop.shop import Shop
from oracles import Plan
from oracles.webshop_goal import WebShopGoalOracle
from tests.oracles.toy_shop import item, shop_of

ORACLE = WebShopGoalOracle()


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


def mugs() -> Shop:
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
