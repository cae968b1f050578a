"""Faults of the original that ``compat=True`` brings back; docs/webshop.md lists them.

Each is something that agents can run into but that no published number rests on, so by default
the env does the sensible thing instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from agent_envs.webshop.model import Page

RANDOM = "<r>"
RANDOM_RESULTS = 50


class Searched(Protocol):
    """What the magic words look through."""

    def __len__(self) -> int: ...

    def numbers_in(self, category: str) -> Sequence[int]: ...

    def with_query(self, query: str) -> Sequence[int]: ...

    def with_attribute(self, attribute: str) -> Sequence[int]: ...


def draws(query: str) -> bool:
    """Whether a query shows random products."""
    return query.partition(" ")[0] == RANDOM


def magic_results(catalogue: Searched, query: str, draw: int) -> tuple[int, ...] | None:
    """Products that a query with a magic first word finds; None for any other query.

    ``<r>``: random ones, ``<c> category`` (one word): a category, ``<q> phrase`` and
    ``<a> attribute``: those with this search phrase or attribute. The original fails on ``<a>``
    and on a bare ``<c>``; here they find what they name.

    Args:
        catalogue: the products.
        query: lower-cased.
        draw: key of the random ones: the same key, the same products.
    """
    word, *others = query.split(" ")
    rest = " ".join(others).strip()
    if word == RANDOM:
        count = len(catalogue)
        return tuple(Random(draw).sample(range(count), min(RANDOM_RESULTS, count)))
    if word == "<c>":
        return tuple(catalogue.numbers_in(others[0].strip() if others else ""))
    if word == "<q>":
        return tuple(catalogue.with_query(rest))
    if word == "<a>":
        return tuple(catalogue.with_attribute(rest))
    return None


def page_in(address: str) -> Page:
    """The page that the original takes an address for: the first name that occurs in it.

    The query is a part of the address, so one that holds such a name leads it astray.
    """
    for name, page in _NAMES:
        if name in address:
            return page
    return Page.INDEX


_NAMES = (
    ("search_results", Page.RESULTS),
    ("item_page", Page.ITEM),
    ("item_sub_page", Page.SUB),
    ("done", Page.DONE),
)


def cumulated(weights_N: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """float64 (N + 1,): sums of the first 0, 1, ... N weights, for `drawn_goal`."""
    return np.concatenate(([0.0], np.cumsum(weights_N)))


def drawn_goal(sums: NDArray[np.float64], share: float) -> int:
    """Number of the goal that the original draws by weight.

    It is off by one: goal ``i`` has the weight of goal ``i - 1``, goal 0 is never drawn, and the
    last one has two weights.

    >>> [drawn_goal(cumulated([1, 1, 1, 1]), share) for share in (0.1, 0.3, 0.6, 0.9)]
    [1, 2, 3, 3]

    Args:
        sums: of weights, see `cumulated`.
        share: where in [0, 1) of the sum of all weights.
    """
    place = int(np.searchsorted(sums, share * sums[-1], side="right"))
    return min(place, len(sums) - 2)
