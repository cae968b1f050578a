"""Seeded walks through a shop, chosen from what a page offers: for both sides of a comparison.

Step by step, with the odds that the original's speed was recorded with:

- first page: search for 2 to 5 words of the instruction;
- results: a product 65 %, next page 15 %, previous page 10 %, else back to search;
- product: an option 45 %, a sub page 25 %, buy 15 %, back to the results 10 %, else back to search;
- sub page: back to the product 80 %, else back to search.

Where a page lacks what was drawn (no previous page, no options), the next kind in the list is
taken. Nothing but the page decides, so where two engines show the same pages, the walks are equal.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from agent_envs.webshop.actions import BUTTONS

SUB_PAGES = ("description", "features", "reviews")
_FILLER = {
    "and",
    "the",
    "for",
    "with",
    "that",
    "are",
    "looking",
    "find",
    "need",
    "want",
    "than",
    "lower",
    "price",
    "dollars",
}
_REDRAWS = 100


def words_of(instruction: str) -> list[str]:
    """The words of an instruction that queries are made of.

    >>> words_of("i need a red shoe, and price lower than 40.00 dollars")
    ['red', 'shoe']
    """
    words = re.findall(r"[a-z0-9]+", instruction.lower())
    return [w for w in words if len(w) > 2 and w not in _FILLER] or ["product"]


@dataclass(frozen=True, slots=True)
class Page:
    """What is seen after an action."""

    observation: str
    reward: float
    done: bool
    has_search_bar: bool
    clickables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Walk:
    """Actions on one goal and the pages that they led to, the first of them after the reset."""

    task_id: str
    actions: list[str] = field(default_factory=list)
    pages: list[Page] = field(default_factory=list)


class Shopper:
    """Chooses actions.

    Args:
        instruction: what the shopper reads.
        rng: decides. Its own state is all that a shopper remembers.
        seen: queries that are not to be searched for again, as far as the words allow; the new
            ones are added.
    """

    def __init__(self, instruction: str, rng: random.Random, seen: set[str] | None = None) -> None:
        self._words = words_of(instruction)
        self._rng = rng
        self._seen = seen

    def choose(self, has_search_bar: bool, clickables: Sequence[str]) -> str:
        """The next action on a page with these clickables (without ``click[]``)."""
        if has_search_bar:
            return f"search[{self._query()}]"
        draw = self._rng.random()
        others = [text for text in clickables if text not in BUTTONS]
        if "next >" in clickables:
            return self._on_results(draw, clickables, others)
        if "buy now" in clickables:
            return self._on_product(draw, others)
        return click("< prev" if draw < 0.8 else "back to search")

    def _on_results(self, draw: float, clickables: Sequence[str], products: list[str]) -> str:
        if draw < 0.65 and products:
            return click(self._rng.choice(products))
        if draw < 0.8:
            return click("next >")
        if draw < 0.9 and "< prev" in clickables:
            return click("< prev")
        return click("back to search")

    def _on_product(self, draw: float, values: list[str]) -> str:
        # An action with brackets inside is not understood, in the original as here.
        options = [value for value in values if "[" not in value and "]" not in value]
        if draw < 0.45 and options:
            return click(self._rng.choice(options))
        if draw < 0.7:
            return click(self._rng.choice(SUB_PAGES))
        if draw < 0.85:
            return click("buy now")
        return click("< prev" if draw < 0.95 else "back to search")

    def _query(self) -> str:
        for _ in range(_REDRAWS):
            size = min(len(self._words), self._rng.randint(2, 5))
            query = " ".join(self._rng.sample(self._words, size))
            if self._seen is None:
                break
            if query not in self._seen:
                self._seen.add(query)
                break
        return query


def click(text: str) -> str:
    """The action that clicks on `text`."""
    return f"click[{text}]"


def texts(actions: Sequence[str]) -> tuple[str, ...]:
    """The texts that actions of the form ``click[...]`` click on.

    >>> texts(("click[< prev]", "click[b09]"))
    ('< prev', 'b09')
    """
    return tuple(action[6:-1] for action in actions)
