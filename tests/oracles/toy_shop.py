"""A small shop by hand, and the best that can be bought in it, by trying everything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agent_envs.webshop.engine import Engine
from agent_envs.webshop.model import Goal, Page, Purchase, Session
from agent_envs.webshop.shop import Shop


def item(
    asin: str,
    title: str,
    options: Mapping[str, Sequence[str]] | None = None,
    *,
    price: str = "$12.50",
    text: str = "",
    query: str = "mugs",
    path: str = "Home & Kitchen › Dining › Mugs",
) -> dict[str, Any]:
    """A product as the original's files have it."""
    groups = {
        name: [{"value": value, "is_selected": False} for value in values]
        for name, values in (options or {}).items()
    }
    return {
        "asin": asin,
        "name": title,
        "full_description": text,
        "small_description": ["dishwasher safe"],
        "pricing": price,
        "images": ["http://localhost/none.jpg"],
        "category": "garden",
        "query": query,
        "product_category": path,
        "customization_options": groups,
    }


def shop_of(items: Iterable[dict[str, Any]], attributes: Sequence[str] = ("hand painted",)) -> Shop:
    """A shop in memory in which every product has the same attributes."""
    listed = list(items)
    own = {entry["asin"]: {"attributes": list(attributes)} for entry in listed}
    return Shop.from_raw(listed, own)


def goal_for(
    shop: Shop,
    asin: str,
    options: tuple[str, ...] | tuple[tuple[str, str], ...] = (),
    attributes: tuple[str, ...] = ("hand painted",),
    cap: float | None = 20.0,
) -> Goal:
    """A goal for a product of the shop, or for one that it does not have."""
    number = shop.catalogue.number_of(asin)
    product = shop.catalogue[0 if number is None else number]
    return Goal(
        asin=asin,
        category=product.category,
        query=product.query,
        name=product.title,
        product_category=product.product_category,
        instruction="find me a mug",
        attributes=attributes,
        price_upper=cap,
        options=options,
    )


def on_item(shop: Shop, asin: str, query: str = "mug", **changes: Any) -> Session:
    """A session on the page of a product that `query` was searched for."""
    number = shop.catalogue.number_of(asin)
    assert number is not None
    return Session(Page.ITEM, query, 1, number, "", (), (number,))._replace(**changes)


def everything(
    engine: Engine, goal: Goal, session: Session, searches: Sequence[str], steps: int
) -> dict[int, list[Purchase]]:
    """All purchases that can be made, by the number of steps that they take at least.

    Breadth first over the engine's own commands, and `searches` on the first page.
    """
    found: dict[int, list[Purchase]] = {}
    frontier, seen = {_plain(session)}, {_plain(session)}
    for taken in range(1, steps + 1):
        following = set()
        for here in frontier:
            view = engine.view(here)
            commands = list(view.commands)
            if here.page == Page.INDEX:
                commands += [f"search[{query}]" for query in searches]
            for command in commands:
                after = engine.advance(here, view, command)
                assert after is not None, command
                after = _plain(after)
                if after in seen:
                    continue
                seen.add(after)
                if after.page == Page.DONE:
                    found.setdefault(taken, []).append(engine.purchase(goal, after))
                else:
                    following.add(after)
        frontier = following
    return found


def _plain(session: Session) -> Session:
    """What matters of a session: not which products were visited, nor the order of options."""
    return session._replace(visited=(), options=tuple(sorted(session.options)))
