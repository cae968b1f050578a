"""The facts of one product: what it is, which attributes, options and price it has."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from agent_envs.draws import Draws
from agent_envs.webshop.generated.spec import ShopSpec
from agent_envs.webshop.generated.words import Line, Words, lines, read, words

VERSION = 1
"""Raised whenever the same seed gives another market shop."""
BRANDS = 3000
MOST_COMBINATIONS = 560
"""Largest number of option combinations of a product, each of which is a goal."""
FIRST = 3
"""The first products always have instructions, so that even tiny shops have goals."""

# From the public set of 1,000 products (benchmarks/generated_shop.py measures them).
INSTRUCTED = {
    "beauty": 90 / 238,
    "electronics": 63 / 229,
    "garden": 104 / 216,
    "fashion": 129 / 200,
    "grocery": 29 / 117,
}
MEAN_INSTRUCTED = 0.415
_ATTRIBUTES_TOLD = {2: 120, 3: 90, 4: 88, 5: 48, 6: 27, 7: 18, 8: 10, 9: 6, 10: 5, 11: 3}
_ATTRIBUTES_SILENT = {0: 185, 1: 191, 2: 69, 3: 44, 4: 42, 5: 22, 6: 12, 7: 9, 8: 6, 10: 5}
_OPTIONS = {"beauty": 0.34, "electronics": 0.22, "garden": 0.49, "fashion": 0.8, "grocery": 0.25}
"""Share of products with options."""
_FURTHER = {"beauty": 0.2, "electronics": 0.22, "garden": 0.4, "fashion": 0.8, "grocery": 0.28}
"""Share of these that also have the commonest of the other groups."""
_NO_PRICE = 0.089
_RANGE = 0.093
_VALUES = {2: 32, 3: 18, 4: 13, 5: 9, 6: 7, 7: 4, 8: 4, 10: 4, 14: 4, 20: 3, 31: 2, 44: 2}
_CLOTHES_VALUES = {2: 12, 3: 11, 4: 11, 5: 11, 6: 10, 7: 8, 8: 8, 10: 9, 14: 9, 20: 8, 31: 4, 45: 3}
_RUN = {2: 34, 3: 25, 4: 14, 5: 11, 6: 7, 8: 6, 10: 3}
_CLOTHES_RUN = {3: 8, 4: 14, 5: 28, 6: 22, 7: 12, 8: 10, 10: 6}


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """What there is to say about a product, before it is said."""

    line: Line
    brand: str
    noun: str
    style: str
    materials: tuple[str, ...]
    uses: tuple[str, ...]
    features: tuple[str, ...]
    """Also those that the list of attributes leaves out."""
    attributes: tuple[str, ...]
    wanted: tuple[str, ...]
    """Attributes that the synthetic instruction asks for; empty without one."""
    options: tuple[tuple[str, tuple[str, ...]], ...]
    prices: tuple[float, ...]
    """None, one, or the two ends of a range; dollars."""


def draw_facts(draws: Draws, spec: ShopSpec, index: int) -> Facts:
    """The facts of product number `index`.

    Args:
        draws: the product's own stream.
        spec: of the shop.
        index: from 0 up; only tells the first products from the others.
    """
    known, vocabulary = lines(spec.categories), words()
    line = known[0][bisect_right(known[1], draws.unit() * known[1][-1])]
    brand = brand_name(int(BRANDS * draws.unit() ** 2))
    # Drawn first and always, so that turning one knob leaves everything else as it is.
    told = draws.unit() < _share_told(spec, line) or index < FIRST
    counts = _ATTRIBUTES_TOLD if told else _ATTRIBUTES_SILENT
    number = draws.from_counts(counts)
    if line.category == "fashion":
        number = round(1.25 * number + draws.unit())
    materials = tuple(draws.some(line.materials, 1 + draws.chance(0.25)))
    uses = tuple(draws.some(line.uses, 1 + draws.below(4)))
    features = _features(line, vocabulary, 3 + draws.below(3) + number // 2, draws)
    attributes = _attributes(features, materials, uses, number, draws)
    return Facts(
        line=line,
        brand=brand,
        noun=draws.choice(line.nouns),
        style=draws.choice(line.styles),
        materials=materials,
        uses=uses,
        features=features,
        attributes=attributes,
        wanted=_wanted(attributes, features, draws) if told else (),
        options=_options(line, spec.groups, draws),
        prices=_prices(line, draws),
    )


def _share_told(spec: ShopSpec, line: Line) -> float:
    share = INSTRUCTED[line.category]
    if spec.instructed is None:
        return share
    return min(1.0, spec.instructed * share / MEAN_INSTRUCTED) if spec.instructed < 1 else 1.0


@lru_cache(BRANDS)
def brand_name(number: int) -> str:
    """A made-up brand; some are written in capital letters, as on a marketplace."""
    draws, syllables = Draws("brand", number), read("brands")
    middle = draws.choice(syllables["middles"]) if draws.chance(0.55) else ""
    name: str = draws.choice(syllables["starts"]) + middle + draws.choice(syllables["ends"])
    return name.upper() if draws.chance(0.2) else name


def _features(line: Line, vocabulary: Words, number: int, draws: Draws) -> tuple[str, ...]:
    """Attributes that may stand side by side, one in four of those that follow "with"."""
    chosen: list[str] = []
    banned: set[str] = set()
    plain, parts = draws.shuffled(line.features), draws.shuffled(line.parts)
    while (plain or parts) and len(chosen) < number:
        pool = parts if parts and (not plain or draws.chance(0.28)) else plain
        name = pool.pop()
        if name not in banned:
            chosen.append(name)
            banned |= vocabulary.excluded.get(name, frozenset())
    return tuple(chosen)


def _attributes(
    features: Sequence[str],
    materials: Sequence[str],
    uses: Sequence[str],
    number: int,
    draws: Draws,
) -> tuple[str, ...]:
    """A sample of what holds, as it would be found in the text of a page."""
    others = [*(name.lower() for name in materials), *(name.lower() for name in uses)]
    pool = [*features, *draws.some([name for name in others if name not in features], 2)]
    if number < len(pool):
        pool = draws.some(pool, number)
    return tuple(pool)


def _wanted(attributes: Sequence[str], features: Sequence[str], draws: Draws) -> tuple[str, ...]:
    """Two to four of the attributes, features first."""
    number = draws.from_counts({2: 38, 3: 37, 4: 25})
    order = sorted(draws.shuffled(attributes), key=lambda name: name not in features)
    return tuple(order[:number])


def _options(line: Line, groups: int, draws: Draws) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Groups in the order of a product page, with their values."""
    vocabulary, room = words(), MOST_COMBINATIONS
    out: list[tuple[str, tuple[str, ...]]] = []
    clothes = line.category == "fashion"
    some, most = draws.chance(_OPTIONS[line.category]), max(share for *_, share in line.options)
    first = draws.weighted(range(len(line.options)), [share for *_, share in line.options])
    for place, (group, name, share) in enumerate(line.options):
        there = draws.chance(_FURTHER[line.category] * share / most) or place == first
        if name in vocabulary.ordered:
            values, counts = vocabulary.ordered[name], _CLOTHES_RUN if clothes else _RUN
        else:
            values = vocabulary.unordered[name]
            counts = _CLOTHES_VALUES if clothes else _VALUES
        number = min(draws.from_counts(counts), len(values), room)
        if not (some and there) or number < 2 or len(out) == groups:
            continue
        if name in vocabulary.ordered:
            start = draws.below(len(values) - number + 1)
            chosen = values[start : start + number]
        else:
            chosen = tuple(draws.some(values, number))
        out.append((group, chosen))
        room //= number
    return tuple(out)


def _prices(line: Line, draws: Draws) -> tuple[float, ...]:
    median, spread = line.price
    normal = sum(draws.unit() for _ in range(6)) - 3.0  # standard deviation 1 / sqrt(2)
    price = median * math.exp(spread * 1.8 * normal)
    low = _ending(max(price, 1.5), draws)
    if draws.chance(_NO_PRICE):
        return ()
    if draws.chance(_RANGE):
        high = _ending(low * (1.04 + 1.5 * draws.unit() ** 2), draws)
        return (low, high) if high > low else (low,)
    return (low,)


def _ending(price: float, draws: Draws) -> float:
    """A price with an ending as shops like them, mostly .99."""
    cents = draws.from_counts({99: 60, 95: 8, 0: 8, 49: 4, 89: 3, -1: 17})
    return round(int(price) + (draws.below(100) if cents < 0 else cents) / 100, 2)
