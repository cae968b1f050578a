"""The words that generated shops are made of, read from the JSON files beside this module."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from agent_envs.draws import Draws
from agent_envs.webshop.generated.spec import CATEGORIES

DATA = Path(__file__).parent / "data"

SHARES = {"beauty": 238, "electronics": 229, "garden": 216, "fashion": 200, "grocery": 117}
"""Products by category among the 1,000 of the public set."""


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """A line of goods: everything that products of one search phrase have in common."""

    category: str
    query: str
    path: str
    """Category path, the line itself last."""
    nouns: tuple[str, ...]
    """What its products are called, the usual name first."""
    some: str
    """What stands before the noun in a sentence: "a", "some" or "a pair of"."""
    styles: tuple[str, ...]
    materials: tuple[str, ...]
    contains: bool
    """Whether products come with their materials (grocery) or consist of them (furniture)."""
    uses: tuple[str, ...]
    features: tuple[str, ...]
    """Attributes that stand before a noun: "easy to clean"."""
    parts: tuple[str, ...]
    """Attributes that follow "with": "rubber sole"."""
    options: tuple[tuple[str, str, float], ...]
    """Group, name of its list of values, share of products that have it."""
    price: tuple[float, float]
    """Median and spread (standard deviation of the logarithm)."""


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """Everything that does not depend on the line."""

    features: Mapping[str, Sequence[str]]
    """Attribute -> sentences that explain it."""
    parts: frozenset[str]
    """The attributes that follow "with"."""
    excluded: Mapping[str, frozenset[str]]
    """Attribute -> those that no product has beside it."""
    ordered: Mapping[str, tuple[str, ...]]
    """Option values of which products have a run, smallest first."""
    unordered: Mapping[str, tuple[str, ...]]
    general: Mapping[str, Any]


@cache
def read(name: str) -> Any:
    """The content of a data file."""
    return json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))


@cache
def words() -> Words:
    """Attributes, option values and sentences."""
    features, options = read("features"), read("options")
    excluded: dict[str, set[str]] = {}
    for group in features["exclusive"]:
        for name in group:
            excluded.setdefault(name, set()).update(set(group) - {name})
    return Words(
        features=features["is"] | features["with"],
        parts=frozenset(features["with"]),
        excluded={name: frozenset(others) for name, others in excluded.items()},
        ordered={name: tuple(values) for name, values in options["ordered"].items()},
        unordered={name: tuple(values) for name, values in options["any"].items()},
        general=read("general"),
    )


@cache
def lines(categories: tuple[str, ...] = CATEGORIES) -> tuple[tuple[Line, ...], tuple[float, ...]]:
    """All lines of goods, and the running total of their shares of the products."""
    found: list[Line] = []
    weights: list[float] = []
    for category in categories:
        here = [
            _line(category, kind, query)
            for kind in read(category).values()
            for query in kind["items"]
        ]
        popular = [0.3 + 3 * Draws("popular", line.query).unit() ** 2 for line in here]
        total = sum(popular)
        found += here
        weights += [SHARES[category] * weight / total for weight in popular]
    return tuple(found), tuple(accumulate(weights))


def _line(category: str, kind: Mapping[str, Any], query: str) -> Line:
    about = {**kind, **kind.get("only", {}).get(query, {})}
    nouns = tuple(kind["items"][query])
    taken = {query, *(noun.lower() for noun in nouns)}
    return Line(
        category=category,
        query=query,
        path=f"{kind['path']} › {title(query)}",
        nouns=nouns,
        some=about.get("some", "a"),
        styles=tuple(kind["styles"]),
        materials=tuple(about["materials"]),
        contains=kind["material"] == "with",
        uses=tuple(about["uses"]),
        features=tuple(about["is"]),
        # "headboards with headboard" says nothing
        parts=tuple(part for part in about["with"] if not _within(part, taken)),
        options=tuple((group, values, share) for group, values, share in about["options"]),
        price=(about["price"][0], about["price"][1]),
    )


def _within(part: str, names: set[str]) -> bool:
    return any(part in name or name in part for name in names)


@lru_cache(4096)
def title(phrase: str) -> str:
    """Capital letters as in a title.

    >>> title("men's t-shirts with v neck")
    "Men's T-Shirts With V Neck"
    """
    return " ".join("-".join(_capital(part) for part in word.split("-")) for word in phrase.split())


_SPELT = {"usb": "USB", "tv": "TV", "hdmi": "HDMI", "led": "LED", "gps": "GPS", "bpa": "BPA",
          "uv": "UV", "gmo": "GMO", "vr": "VR", "dvd": "DVD"}  # fmt: skip


def _capital(word: str) -> str:
    return _SPELT.get(word) or word[:1].upper() + word[1:]
