"""A small shop made by hand, whose products are awkward in every way that pages care about."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

import gymnasium

from agent_envs.webshop.shop import Shop

DESKS = tuple(f"B0DESK{number:04d}" for number in range(13))
"""Products that "desk" finds: two pages of results. The first one is plain."""
ODD = "B0ODD00001"
"""Titles, bullets and options that collide, are blank, or hold brackets and quotes."""
BARE = "B0BARE0001"
"""No options, no description, no bullets; its price is a range."""

COLOURS = ("red", "navy blue", "7\" x 9'", "café")
ODD_OPTIONS: dict[str, list[str]] = {
    "Color": ["Red", "Blue", "red", "2 pack [blue]", "a/b"],
    "SIZE": ["blue", "buy now", "attributes", "search", "next >", "two\nlines", ""],
    "color": [],
}


def raw(asin: str, name: str, **changes: Any) -> dict[str, Any]:
    """A product as the original's file has it."""
    return {
        "asin": asin,
        "name": name,
        "full_description": f"All about {name}.",
        "small_description": ["Sturdy", "Easy to clean"],
        "pricing": "$10.00",
        "images": ["https://images.example/1.jpg"],
        "category": "garden",
        "query": "Desks ",
        "product_category": "Home › Furniture › Desks",
        "customization_options": {},
        **changes,
    }


def _options(groups: dict[str, list[str]]) -> dict[str, list[dict[str, str]]]:
    return {group: [{"value": value} for value in values] for group, values in groups.items()}


@cache
def raws() -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]:
    """The three files of the shop."""
    products = [
        raw(
            asin,
            f"Writing Desk No. {number}",
            pricing=f"${20 + number}.50",
            customization_options=_options({"Color": list(COLOURS), "Size": ["S", "M"]})
            if number % 2 == 0
            else {},
        )
        for number, asin in enumerate(DESKS)
    ]
    odd = {group: values for group, values in ODD_OPTIONS.items() if values}
    products += [
        raw(
            ODD,
            "  Odd <b>“Lamp”</b> & Co™ ",
            full_description=" \t",
            small_description=["", "One & only", "\n ", " <i>x</i> "],
            customization_options=_options(odd),
            query="lamps",
            category="electronics",
            product_category="",
        ),
        raw(
            BARE,
            "Bare Shelf",
            full_description="",
            small_description=[],
            pricing="$3.00 - $7.50",
            query="shelves",
        ),
    ]
    attributes: dict[str, Any] = {
        asin: {"attributes": ["easy clean", f"desk {asin[-2:]}"]} for asin in (*DESKS, ODD, BARE)
    }
    for asin in (*DESKS[:6], ODD, BARE):
        attributes[asin] |= {
            "instruction": f"Find me easy clean goods, as {asin}",
            "instruction_attributes": ["easy clean"],
        }
    humans = {
        DESKS[number]: [
            {
                "instruction": f"i want desk number {number}.",
                "instruction_attributes": ["easy clean"],
                "instruction_options": ["red"] if number % 2 == 0 else [],
            }
        ]
        for number in range(9)
    }
    return products, attributes, humans


@cache
def shop() -> Shop:
    """The shop; one object for all tests."""
    return Shop.from_raw(*raws(), source="by hand")


def make(**options: Any) -> gymnasium.Env[str, str]:
    """An env of the shop."""
    return gymnasium.make("SeroWebShop-v0", **{"data": shop(), **options})


QUERIES = ("desk", "odd lamp", "shelf", "nothing of the kind", "<r>", "desk search_results")


def action(info: dict[str, Any], rng: Random) -> str:
    """Something to do: mostly a click or a search, at times nonsense."""
    listed = info["admissible_actions"]
    draw = rng.random()
    if draw < 0.1:
        return rng.choice(("", "click[nowhere]", "search[]", "SEARCH[desk]", "click[search]"))
    if not listed or draw < 0.25:
        return f"search[{rng.choice(QUERIES)}]"
    chosen: str = rng.choice(listed)
    return chosen


def walk(env: gymnasium.Env[str, str], info: dict[str, Any], rng: Random, steps: int) -> list[Any]:
    """Play; a finished episode is followed by `reset()`."""
    trace: list[Any] = []
    for _ in range(steps):
        said = action(info, rng)
        trace.append((said, *env.step(said)))
        info = trace[-1][-1]
        if info["stop_reason"] is not None:
            trace.append(env.reset())
            info = trace[-1][-1]
    return trace


def buy(env: Any) -> list[str]:
    """Actions that buy all that the goal of a running episode asks for."""
    view = env.unwrapped.privileged()
    number = view.shop.catalogue.number_of(view.goal.asin)
    product = view.shop.catalogue[number]
    wanted = [value if isinstance(value, str) else value[1] for value in view.goal.options]
    found = view.shop.index.search(product.title)
    assert number in found[:10]
    clicks = [product.asin.lower(), *wanted, "buy now"]
    return [f"search[{product.title}]", *(f"click[{text}]" for text in clicks)]
