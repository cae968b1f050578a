"""How to get from where a shopper is to the pages of products, with the fewest clicks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from agent_envs.webshop.actions import (
    BACK_TO_SEARCH,
    NEXT,
    PREVIOUS,
    SEARCH,
    click,
    parse,
)
from agent_envs.webshop.compat import draws
from agent_envs.webshop.engine import Engine
from agent_envs.webshop.model import Goal, Page, Product, Session
from agent_envs.webshop.pages import PAGE_SIZE

QUERY_LIMIT = 1000
"""Characters of a query, cut at a space."""

FAR = 5
"""Pages of results that are turned at most; a search finds no more than five."""

# What every instruction says, and none means: a request, and the price limit.
_WISH = re.compile(r"^find me |, and price lower than [\d.]+ dollars$", re.IGNORECASE)
_UNSAYABLE = re.compile(r"[\[\]<>\s]+")
# The published prompts count a reply with one of these as malformed.
_CJK = re.compile("[\u4e00-\u9fff]+")


class Route(NamedTuple):
    """Commands that lead to the item page of a product."""

    product: int
    commands: tuple[str, ...]


def routes(engine: Engine, session: Session, query: str | None) -> list[Route]:
    """The shortest route to every product that can be reached, shortest first.

    Looked at are the open product, the results at hand, and the results of `query`, searched for
    from the first page.

    Args:
        engine: of the shop.
        session: where the shopper is; not after a purchase.
        query: what to search for, or None.
    """
    ordered = sorted(_all_routes(engine, session, query), key=lambda route: len(route.commands))
    shortest: dict[int, Route] = {}
    for route in ordered:
        shortest.setdefault(route.product, route)
    return list(shortest.values())


def _all_routes(engine: Engine, session: Session, query: str | None) -> Iterator[Route]:
    back: tuple[str, ...] = ()  # to the results at hand
    if session.page == Page.SUB:
        back = (click(PREVIOUS),)
    if session.page in (Page.ITEM, Page.SUB):
        yield Route(session.product, back)
        back = (*back, click(PREVIOUS))
    if session.page != Page.INDEX and session.query is not None:
        if engine.rules.compat and draws(session.query):
            # Random results are others after each click; only those in sight are certain.
            for product in engine.view(session).products:
                yield Route(product, (click(engine.shop.catalogue.asin(product).lower()),))
        else:
            found = engine.hits(session.query)
            yield from _listed(engine, found, session.number, back)
    if query is not None:
        first = () if session.page == Page.INDEX else (click(BACK_TO_SEARCH),)
        yield from _listed(engine, engine.hits(query), 1, (*first, f"{SEARCH}[{query}]"))


def _listed(
    engine: Engine, found: tuple[int, ...], number: int, before: tuple[str, ...]
) -> Iterator[Route]:
    """Routes to products of a list of results, from page `number` of it."""
    for page in range(max(number - FAR, 1), number + FAR + 1):
        turns = [click(NEXT) if page > number else click(PREVIOUS)] * abs(page - number)
        for product in found[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]:
            link = click(engine.shop.catalogue.asin(product).lower())
            yield Route(product, (*before, *turns, link))


def follow(engine: Engine, session: Session, commands: Iterable[str]) -> Session | None:
    """Where the commands lead; None if one of them is refused."""
    for command in commands:
        after = engine.advance(session, engine.view(session), command)
        if after is None:
            return None
        session = after
    return session


def query_for(engine: Engine, goal: Goal, number: int | None) -> str | None:
    """The query that lists the wanted product on the earliest page; the first of its kind.

    Tried in turn: the words of the instruction, which the student knows as well, so that a policy
    that learns from the oracle can come to search like it; the title, the title with the options,
    all that the search knows of the product; first without ideographs. Where no query finds the
    product, or the shop does not have it, the first query. None if nothing can be searched for.
    """
    product = None if number is None else engine.shop.catalogue[number]
    best: tuple[int, str] | None = None
    first: str | None = None
    for query in _queries(goal, product):
        if first is None:
            first = query
        found = engine.hits(query)
        if number is None or number not in found:
            continue
        page = found.index(number) // PAGE_SIZE
        if best is None or page < best[0]:
            best = page, query
        if page == 0:
            break
    return first if best is None else best[1]


def _queries(goal: Goal, product: Product | None) -> Iterator[str]:
    texts = [_WISH.sub("", goal.instruction), goal.name]
    if product is not None:
        options = " ".join(f"{group} {' '.join(values)}" for group, values in product.options)
        bullets = " ".join(product.bullets[:1])
        texts[1:] = [
            product.title,
            f"{product.title} {options}",
            f"{product.title} {product.description} {bullets} {options}",
        ]
    for query in dict.fromkeys(
        [_sayable(_CJK.sub(" ", text)) for text in texts] + [_sayable(text) for text in texts]
    ):
        if parse(f"{SEARCH}[{query}]") == (SEARCH, query):
            yield query


def _sayable(text: str) -> str:
    """`text` as a query of the same words: without brackets, line breaks and angle brackets."""
    query = _UNSAYABLE.sub(" ", text.lower()).strip()
    return query if len(query) <= QUERY_LIMIT else query[:QUERY_LIMIT].rpartition(" ")[0]
