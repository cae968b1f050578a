"""Paired comparisons over seeds: differences, Student's t intervals. Pure; no torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Difference of two arms over seeds that they share.

    Attributes:
        mean: of the differences, one a seed.
        low, high: 95 % Student's t interval of the mean; `None` with fewer than two seeds.
        seeds: how many.
    """

    mean: float
    low: float | None
    high: float | None
    seeds: int

    def as_dict(self) -> dict[str, Any]:
        """Plain data for a result file."""
        return asdict(self)


def paired_difference(left: Sequence[float], right: Sequence[float]) -> PairedDifference:
    """Mean of left - right with its 95 % interval: d +- t(0.975, n - 1) * s / sqrt(n).

    Pairing takes out what seeds have in common (games, warm start), so the interval is about the
    arms. It assumes that differences scatter about normally, which a handful of seeds cannot show.

    Args:
        left, right: one figure a seed, in the same order of seeds.

    Raises:
        ValueError: lengths differ or are 0.
    """
    if len(left) != len(right) or not left:
        raise ValueError(f"paired figures need equal lengths above 0: {len(left)}, {len(right)}")
    differences = [a - b for a, b in zip(left, right, strict=True)]
    mean = statistics.fmean(differences)
    n = len(differences)
    if n < 2:
        return PairedDifference(mean, None, None, n)
    half = t_quantile(n - 1) * statistics.stdev(differences) / math.sqrt(n)
    return PairedDifference(mean, mean - half, mean + half, n)


def t_quantile(degrees: int, coverage: float = 0.95) -> float:
    """The t with P(|T| <= t) = coverage for Student's T with so many degrees of freedom.

    Found by bisection on the density's integral (Simpson's rule); good to about 1e-9.

    >>> round(t_quantile(4), 3)
    2.776

    Raises:
        ValueError: no degree of freedom, or a coverage outside (0, 1).
    """
    if degrees < 1 or not 0.0 < coverage < 1.0:
        raise ValueError(f"degrees={degrees} must be 1 or more, coverage={coverage} in (0, 1)")
    low, high = 0.0, 1.0
    while _central_mass(high, degrees) < coverage:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        if _central_mass(middle, degrees) < coverage:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _central_mass(t: float, degrees: int) -> float:
    """P(|T| <= t), with x = sqrt(v) * tan(u): then the integrand is a power of a cosine."""
    scale = math.exp(
        math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2) - 0.5 * math.log(math.pi)
    )
    edge = math.atan(t / math.sqrt(degrees))
    n = 400
    step = edge / n
    total = sum(
        (1 if i in (0, n) else 4 if i % 2 else 2) * math.cos(i * step) ** (degrees - 1)
        for i in range(n + 1)
    )
    return 2 * scale * total * step / 3
