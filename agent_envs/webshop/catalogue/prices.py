"""Prices and price limits that the original draws anew each time; here each has a key.

The original draws the price of a product whose price is a range, and the limit of a goal, from
the global random numbers, so two constructions of its shop agree on a third of the limits. Here
they follow from a seed and the name of what is drawn, in any process and in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from agent_envs.draws import Draws
from agent_envs.webshop.model import NO_LIMIT

STEPS = tuple(10.0 * i for i in range(1, 100))
"""The limits that a goal can name."""


def resolve_price(seed: int, asin: str, low: float, high: float) -> float:
    """The price of a product that costs between `low` and `high`: uniform, one draw a product."""
    if low == high:
        return low
    return low + (high - low) * Draws("price", seed, asin).unit()


def limit_candidates(price: float) -> tuple[float, ...]:
    """The first four multiples of 10 above `price`, up to 990.

    >>> limit_candidates(20.0), limit_candidates(985.0)
    ((30.0, 40.0, 50.0, 60.0), (990.0,))
    """
    return tuple(step for step in STEPS if step > price)[:4]


def draw_limit(seed: int, kind: str, asin: str, number: int, price: float) -> float:
    """The larger of a random pair of the candidates; `NO_LIMIT` where there is no pair.

    As in the original, all combinations of options of one instruction share a limit.

    Args:
        seed: the price seed.
        kind: of goal, "human" or "synthetic".
        asin: of the wanted product.
        number: of the instruction among those of the product and kind.
        price: of the wanted product.
    """
    candidates = limit_candidates(price)
    if len(candidates) < 2:
        return NO_LIMIT
    pairs = tuple(combinations(candidates, 2))
    return max(Draws("limit", seed, kind, asin, number).choice(pairs))


def limit_text(limit: float) -> str:
    """What an instruction says of its limit, with the comma before it; "" for none.

    >>> limit_text(40.0)
    ', and price lower than 40.00 dollars'
    """
    return "" if limit == NO_LIMIT else f", and price lower than {limit:.2f} dollars"


def goal_text(instruction: str, options: Sequence[tuple[str, str]], limit: float) -> str:
    """The sentence of a synthetic goal.

    >>> goal_text("Find me desks", [("color", "red"), ("size", "xl")], 40.0)
    'Find me desks with color: red, and size: xl, and price lower than 40.00 dollars'
    """
    wishes = ", and ".join(f"{name}: {value}" for name, value in options)
    return instruction + (f" with {wishes}" if wishes else "") + limit_text(limit)
