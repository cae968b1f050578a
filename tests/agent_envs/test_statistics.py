"""Intervals of means; those of shares are tested where they are used, too.

Promises:
1. The bounds are quantiles of the means of samples with replacement, the same for the same seed.
2. Nothing, and what is not finite, has no interval.
"""

from __future__ import annotations

import numpy as np
import pytest

from agent_envs.statistics import bootstrap_mean, wilson


def test_wilson_at_a_half() -> None:
    assert wilson(50, 100) == pytest.approx((0.4038315, 0.5961685), abs=1e-6)
    assert wilson(0, 0) == (0.0, 1.0)


def test_the_interval_is_that_of_the_bootstrap() -> None:
    values = [0.0] * 30 + [1.0] * 70
    mean, low, high = bootstrap_mean(values, 3, purpose="test")
    assert mean == 0.7
    # of a binomial with n = 100, p = 0.7: the 2.5 % and 97.5 % quantiles are 0.61 and 0.79
    assert low == pytest.approx(0.61, abs=0.011)
    assert high == pytest.approx(0.79, abs=0.011)
    assert (mean, low, high) == bootstrap_mean(values, 3, purpose="test")
    assert (low, high) != bootstrap_mean(np.linspace(0, 1, 100).tolist(), 3, purpose="test")[1:]
    assert bootstrap_mean([0.1] * 7, 0, purpose="test") == pytest.approx((0.1, 0.1, 0.1))
    narrow = bootstrap_mean(values, 3, purpose="test", level=0.5)
    assert low < narrow[1] < mean < narrow[2] < high
    # more values than are drawn at a time
    many = bootstrap_mean([0.0, 1.0] * 300_000, 0, purpose="test", draws=20)
    assert many[1] == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("values", [[], [float("nan")], [1.0, float("inf")]])
def test_no_interval_of_nothing(values: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        bootstrap_mean(values, 0, purpose="test")
    with pytest.raises(ValueError, match="level"):
        bootstrap_mean([1.0], 0, purpose="test", level=1.0)
