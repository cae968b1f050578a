"""The form of raw data that the original loads, and numbers that stand for products."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from agent_envs.draws import Draws

_DIGITS = "0123456789BCDFGHJKLMNPQRSTVWXYZ"
"""No vowels, so that no words come out."""
_LENGTH = 8
_STEP = 527_115_684_739
"""Not a multiple of 31, the number of digits; far from round, so that all places change."""
PREFIX = "G0"
"""Real numbers start with B or with a digit."""


class RawProduct(NamedTuple):
    """One product and what is asked about it, as in the original's three files."""

    asin: str
    product: dict[str, Any]
    attributes: dict[str, Any]
    """attributes and, with a synthetic goal, instruction and instruction_attributes."""
    human: list[dict[str, Any]]
    """Human-like instructions; most products have none."""


@lru_cache
def _offset(seed: int) -> int:
    draws = Draws("asin", seed)
    return sum(draws.below(len(_DIGITS)) * len(_DIGITS) ** i for i in range(_LENGTH))


def asin_of(seed: int, index: int) -> str:
    """A product number of ten characters; no two products of a shop share one.

    >>> asin_of(0, 0) != asin_of(0, 1), len(asin_of(0, 10**9))
    (True, 10)
    """
    # Multiplication by a number without a common factor is one-to-one.
    number = (index * _STEP + _offset(seed)) % len(_DIGITS) ** _LENGTH
    digits = ""
    for _ in range(_LENGTH):
        number, digit = divmod(number, len(_DIGITS))
        digits += _DIGITS[digit]
    return PREFIX + digits


def raw_product(
    *,
    asin: str,
    name: str,
    description: str,
    bullets: list[str] | str,
    pricing: str,
    category: str,
    query: str,
    path: str,
    options: Sequence[tuple[str, Sequence[str]]],
    rating: float | str,
    page: int,
) -> dict[str, Any]:
    """A product with the keys that the original reads, and some that its files have besides."""
    return {
        "name": name,
        "full_description": description,
        "pricing": pricing,
        "images": [""],
        "product_category": path,
        "average_rating": rating,
        "small_description": bullets,
        "customization_options": {
            group: [{"value": value} for value in values] for group, values in options
        },
        "asin": asin,
        "category": category,
        "query": query,
        "page": page,
    }
