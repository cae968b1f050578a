"""Intervals of shares and means, which every part reports in the same way."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from agent_envs.streams import stream

__all__ = ["bootstrap_mean", "wilson"]

_BLOCK = 1 << 20
"""Numbers drawn at a time."""


def wilson(successes: int, n: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Wilson score interval of a binomial share (Wilson 1927), 95 % by default.

    centre = (p + z^2/2n) / (1 + z^2/n), half = z/(1 + z^2/n) * sqrt(p(1-p)/n + z^2/4n^2).
    `n = 0` gives (0, 1): nothing is known.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"successes={successes} must lie in 0..n={n}.")
    if n == 0:
        return 0.0, 1.0
    p, z2 = successes / n, z * z
    scale = 1 + z2 / n
    centre = (p + z2 / (2 * n)) / scale
    half = z / scale * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    # At p = 0 and p = 1 one bound is exact; rounding must not push it past the edge.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return low, high


def bootstrap_mean(
    values: Sequence[float],
    seed: int,
    *,
    purpose: str,
    level: float = 0.95,
    draws: int = 10_000,
) -> tuple[float, float, float]:
    """(mean, low, high): the percentile bootstrap interval of a mean (Efron 1979).

    `draws` samples of the size of `values`, with replacement, from the stream of `seed` and
    `purpose`; the bounds are the (1 - level)/2 and (1 + level)/2 quantiles of their means. Values
    that are all equal give an interval without width.

    Raises:
        ValueError: no values, one that is not finite, or a level outside (0, 1).
    """
    if not values or not all(map(math.isfinite, values)):
        raise ValueError("A mean needs values, and all of them finite.")
    if not 0 < level < 1 or draws < 1:
        raise ValueError(f"level={level} must lie in (0, 1), draws={draws} must be at least 1.")
    array = np.asarray(values, dtype=np.float64)
    n = len(array)
    generator = stream(seed, purpose=purpose)
    rows = max(1, _BLOCK // n)
    means = np.concatenate(
        [
            array[generator.integers(n, size=(min(rows, draws - first), n))].mean(axis=1)
            for first in range(0, draws, rows)
        ]
    )
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    mean = math.fsum(values) / n
    # Equal values have one mean; summed in another way it may differ in the last bit.
    return mean, min(float(low), mean), max(float(high), mean)
