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

BACK = 3
"""Clicks on "< Prev" that are tried; two lead from a sub page to the results."""

# What every instruction says, and none means: a request, and the price limit.
_WISH = re.compile(r"^find me |, and price lower than [\d.]+ dollars$", re.IGNORECASE)
_UNSAYABLE = re.compile(r"[\[\]<>\s]+")
# The published prompts count a reply with one of these as malformed.
_CJK = re.compile("[\u4e00-\u9fff]+")


class Route(NamedTuple):
    """Commands that lead to the item page of a product."""

    product: int
    commands: tuple[str, ...]
    on_page: Session
    """Where they lead."""


def routes(
    engine: Engine, session: Session, query: str | None, product: int | None = None
) -> Iterator[Route]:
    """Routes to products, shortest first, each followed before it is given. Several may lead to
    one product.

    Looked at are the open product, the results at hand, and the results of `query`, searched for
    from the first page.

    Args:
        engine: of the shop.
        session: where the shopper is; not after a purchase.
        query: what to search for, or None.
        product: to this one only.
    """
    candidates = sorted(_candidates(engine, session, query), key=lambda way: len(way[1]))
    for number, commands in candidates:
        if product is None or number == product:
            on_page = follow(engine, session, commands)
            if on_page is not None and (on_page.page, on_page.product) == (Page.ITEM, number):
                yield Route(number, commands, on_page)


_Candidate = tuple[int, tuple[str, ...]]


def _candidates(engine: Engine, session: Session, query: str | None) -> Iterator[_Candidate]:
    here: Session | None = session
    back: tuple[str, ...] = ()
    random = (
        engine.rules.compat and session.query is not None and draws(session.query)
    )  # random results are others after each click; only those in sight are certain
    while here is not None and here.page in (Page.ITEM, Page.SUB):
        if here.page == Page.ITEM:
            yield here.product, back
        if here.query is None or len(back) == BACK:
            here = None
        else:  # where this leads compat may tell by the query's text
            here, back = follow(engine, here, (click(PREVIOUS),)), (*back, click(PREVIOUS))
    if here is not None and here.page == Page.RESULTS and here.query is not None:
        if not random:
            yield from _listed(engine, engine.hits(here.query), here.number, back)
        elif not back:
            for product in engine.view(here).products:
                yield product, (click(engine.shop.catalogue.asin(product).lower()),)
    if query is not None:
        first = () if session.page == Page.INDEX else (click(BACK_TO_SEARCH),)
        yield from _listed(engine, engine.hits(query), 1, (*first, f"{SEARCH}[{query}]"))


def _listed(
    engine: Engine, found: tuple[int, ...], number: int, before: tuple[str, ...]
) -> Iterator[_Candidate]:
    """Ways to products of a list of results, from page `number` of it."""
    for page in range(max(number - FAR, 1), number + FAR + 1):
        turns = [click(NEXT) if page > number else click(PREVIOUS)] * abs(page - number)
        for product in found[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]:
            link = click(engine.shop.catalogue.asin(product).lower())
            yield product, (*before, *turns, link)


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
