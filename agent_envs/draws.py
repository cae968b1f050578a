"""Random draws that are the same in every process and on every Python version."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from random import Random
from typing import TypeVar

T = TypeVar("T")


class Draws:
    """Random draws from one stream.

    Only `random.Random.random` promises a sequence that never changes, so everything else is
    built on it.

    >>> Draws("a", 1).below(1000) == Draws("a", 1).below(1000)
    True
    """

    __slots__ = ("unit",)

    def __init__(self, *key: object) -> None:
        """Open the stream named by `key` (strings and integers)."""
        digest = blake2b(repr(key).encode(), digest_size=16).digest()
        self.unit: Callable[[], float] = Random(int.from_bytes(digest, "big")).random

    def below(self, n: int) -> int:
        """A uniform integer in [0, n)."""
        return int(self.unit() * n)

    def chance(self, p: float) -> bool:
        """True with probability `p`."""
        return self.unit() < p

    def choice(self, items: Sequence[T]) -> T:
        """A uniform element of a non-empty sequence."""
        return items[int(self.unit() * len(items))]

    def weighted(self, items: Sequence[T], weights: Sequence[float]) -> T:
        """An element of a non-empty sequence with probability proportional to its weight."""
        left = self.unit() * sum(weights)
        for item, weight in zip(items, weights, strict=True):
            left -= weight
            if left < 0:
                return item
        return items[-1]

    def count(self, low: int, mean: float, high: int) -> int:
        """An integer in [low, high] with the given mean, spread wider than a binomial."""
        if high <= low:
            return low
        p = (mean - low) / (high - low)
        p = 2 * p * self.unit() if p <= 0.5 else 1 - 2 * (1 - p) * self.unit()
        return low + sum(self.unit() < p for _ in range(high - low))

    def from_counts(self, counts: Mapping[T, float]) -> T:
        """A key of a non-empty mapping with probability proportional to its value."""
        return self.weighted(tuple(counts), tuple(counts.values()))

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """The items in a uniformly random order (Fisher and Yates)."""
        out = list(items)
        for i in range(len(out) - 1, 0, -1):
            j = self.below(i + 1)
            out[i], out[j] = out[j], out[i]
        return out

    def some(self, items: Sequence[T], number: int) -> list[T]:
        """So many of the items (or all), every choice and order equally likely."""
        out = list(items)
        number = min(number, len(out))
        for i in range(number):
            j = i + int(self.unit() * (len(out) - i))
            out[i], out[j] = out[j], out[i]
        return out[:number]
