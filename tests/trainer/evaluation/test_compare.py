"""Paired comparisons over seeds, against values from printed tables and by hand."""

from __future__ import annotations

import pytest

from trainer.evaluation.compare import paired_difference, t_quantile


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [(1, 12.706205), (2, 4.302653), (4, 2.776445), (9, 2.262157), (30, 2.042272), (120, 1.979930)],
)
def test_quantiles_are_those_of_the_tables(degrees: int, expected: float) -> None:
    assert t_quantile(degrees) == pytest.approx(expected, abs=1e-6)
    assert t_quantile(degrees, 0.99) > t_quantile(degrees)


def test_by_hand() -> None:
    # Differences 1, 2, 3: mean 2, s = 1, half width 4.302653 / sqrt(3) = 2.484138.
    result = paired_difference([3.0, 5.0, 4.0], [2.0, 3.0, 1.0])
    assert result.mean == pytest.approx(2.0)
    assert result.low == pytest.approx(2.0 - 2.484138, abs=1e-6)
    assert result.high == pytest.approx(2.0 + 2.484138, abs=1e-6)
    assert result.seeds == 3


def test_pairing_takes_out_what_seeds_share() -> None:
    base = [0.1, 0.5, 0.9, 0.3]
    result = paired_difference([b + 0.2 for b in base], base)
    assert result.low == pytest.approx(0.2)
    assert result.high == pytest.approx(0.2)


def test_one_seed_has_no_interval() -> None:
    result = paired_difference([0.4], [0.1])
    assert (result.low, result.high) == (None, None)
    assert result.mean == pytest.approx(0.3)


@pytest.mark.parametrize(("left", "right"), [([], []), ([1.0], [1.0, 2.0])])
def test_unequal_or_no_seeds_are_refused(left: list[float], right: list[float]) -> None:
    with pytest.raises(ValueError, match="equal lengths"):
        paired_difference(left, right)


def test_quantile_refuses_nonsense() -> None:
    with pytest.raises(ValueError, match="degrees"):
        t_quantile(0)
    with pytest.raises(ValueError, match="coverage"):
        t_quantile(3, 1.0)
