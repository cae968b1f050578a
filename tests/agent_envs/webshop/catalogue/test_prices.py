"""Prices in a range and price limits, drawn by key."""

from __future__ import annotations

from collections import Counter

import pytest

from agent_envs.webshop.catalogue.prices import (
    draw_limit,
    goal_text,
    limit_candidates,
    limit_text,
    resolve_price,
)
from agent_envs.webshop.model import NO_LIMIT


@pytest.mark.parametrize(
    ("price", "candidates"),
    [
        (0.0, (10, 20, 30, 40)),
        (9.99, (10, 20, 30, 40)),
        (10.0, (20, 30, 40, 50)),
        (12.5, (20, 30, 40, 50)),
        (955.0, (960, 970, 980, 990)),
        (969.99, (970, 980, 990)),
        (979.0, (980, 990)),
        (980.0, (990,)),
        (990.0, ()),
        (5000.0, ()),
    ],
)
def test_candidates(price: float, candidates: tuple[float, ...]) -> None:
    assert limit_candidates(price) == candidates


def test_no_pair_no_limit() -> None:
    assert draw_limit(0, "synthetic", "A", 0, 980.0) == NO_LIMIT == 1_000_000
    assert limit_text(NO_LIMIT) == ""


def test_limits_are_the_larger_of_a_uniform_pair() -> None:
    """Of the six pairs of 20, 30, 40, 50 the larger is 30 once, 40 twice, 50 three times."""
    n = 6000
    drawn = Counter(draw_limit(1, "human", f"A{i}", 0, 12.0) for i in range(n))
    assert set(drawn) == {30.0, 40.0, 50.0}
    for limit, share in ((30.0, 1 / 6), (40.0, 2 / 6), (50.0, 3 / 6)):
        assert abs(drawn[limit] / n - share) < 0.025  # 4 standard deviations


def test_every_part_of_the_key_counts() -> None:
    asins = [f"A{i}" for i in range(64)]
    base = [draw_limit(0, "human", asin, 0, 12.0) for asin in asins]
    assert base == [draw_limit(0, "human", asin, 0, 12.0) for asin in asins]
    assert base != [draw_limit(1, "human", asin, 0, 12.0) for asin in asins]
    assert base != [draw_limit(0, "synthetic", asin, 0, 12.0) for asin in asins]
    assert base != [draw_limit(0, "human", asin, 1, 12.0) for asin in asins]


def test_prices_are_uniform_in_their_range() -> None:
    drawn = sorted(resolve_price(0, f"A{i}", 20.0, 60.0) for i in range(4000))
    assert 20 <= drawn[0] < 20.2
    assert 59.8 < drawn[-1] < 60
    # Kolmogorov: the largest gap to the uniform distribution, 1.63 / sqrt(n) at 1 %
    gap = max(abs((x - 20) / 40 - i / 4000) for i, x in enumerate(drawn))
    assert gap < 1.63 / 4000**0.5


def test_ranges_the_other_way_round_and_of_one_price() -> None:
    assert 6.0 <= resolve_price(3, "A", 8.0, 6.0) <= 8.0
    assert resolve_price(3, "A", 8.0, 8.0) == 8.0


def test_sentences() -> None:
    assert goal_text("Find desks", [], 40.0) == "Find desks, and price lower than 40.00 dollars"
    assert goal_text("Find desks", [("a", "b")], NO_LIMIT) == "Find desks with a: b"
    assert goal_text("", [], NO_LIMIT) == ""
