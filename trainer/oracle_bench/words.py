"""What a figure of `sero bench oracle` is in words, and how its values are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Figure", "Section", "microseconds", "number", "percent", "wins_of"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: a short name, its value, and what it means, as one sentence."""

    name: str
    value: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Section:
    """Figures that answer one question; `key` names it."""

    key: str
    title: str
    question: str
    figures: tuple[Figure, ...]


def percent(share: float | None, digits: int = 1) -> str:
    """A share for people.

    >>> percent(0.256), percent(1.0), percent(None), percent(0.00004), percent(0.0)
    ('25.6 %', '100 %', '–', '< 0.1 %', '0 %')
    """
    if share is None:
        return "–"
    if share in (0, 1):
        return f"{share:.0%}".replace("%", " %")
    if abs(share) < 0.5 * 10 ** -(digits + 2):
        return f"< {10**-digits:.{digits}f} %"
    return f"{100 * share:.{digits}f} %"


def microseconds(value: float | None) -> str:
    """A time for people.

    >>> microseconds(12.34), microseconds(3456.0), microseconds(2.5e6), microseconds(None)
    ('12 µs', '3.5 ms', '2.5 s', '–')
    """
    if value is None:
        return "–"
    if value < 1e3:
        return f"{value:.0f} µs"
    return f"{value / 1e3:.1f} ms" if value < 1e6 else f"{value / 1e6:.1f} s"


def wins_of(share: Mapping[str, Any], count: str) -> str:
    n = share[count]
    if not n:
        return "–"
    interval = f"{100 * share['low']:.1f}–{100 * share['high']:.1f} %"
    return f"{share['wins']} of {n}, {percent(share['share'])} (95 % interval {interval})"


def number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}g}"
