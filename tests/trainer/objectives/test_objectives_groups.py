"""Group ids and statistics."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from trainer.objectives import (
    GroupError,
    check_groups,
    dense_ids,
    group_stats,
    normalise,
)


def test_dense_ids_number_keys_by_first_appearance():
    assert dense_ids(["b", "a", "b", ("x", 1), "a"]).tolist() == [0, 1, 0, 2, 1]


def test_statistics_of_two_interleaved_groups():
    value = torch.tensor([1.0, 10.0, 3.0, 10.0, 5.0])
    stats = group_stats(value, torch.tensor([0, 1, 0, 1, 0]), 3)
    assert stats.count.tolist() == [3, 2, 0]
    assert stats.mean.tolist() == [3.0, 10.0, 0.0]
    # 1, 3, 5: squared deviations 4 + 0 + 4 over n - 1 = 2
    assert stats.std.tolist() == [2.0, 0.0, 0.0]
    assert stats.constant.tolist() == [False, True, True]
    population = group_stats(value, torch.tensor([0, 1, 0, 1, 0]), 3, ddof=0)
    assert_close(population.std[0].item(), math.sqrt(8 / 3))


def test_constant_guard_is_relative_above_one_and_absolute_below():
    group = torch.zeros(2, dtype=torch.int64)

    def constant(low: float, high: float) -> bool:
        value = torch.tensor([low, high], dtype=torch.float64)
        return bool(group_stats(value, group, 1).constant[0])

    assert constant(0.0, 0.9e-8)
    assert not constant(0.0, 1.1e-8)
    assert constant(1000.0, 1000.0 + 0.9e-5)
    assert not constant(-1000.0, -1000.0 + 1.1e-5)


@given(exponent=st.integers(0, 49), size=st.integers(2, 40), dtype=st.sampled_from(["32", "64"]))
def test_a_constant_group_is_exactly_zero_for_discounted_wins(exponent, size, dtype):
    # float32 statistics get about half of these wrong, by up to 0.65.
    score = torch.full((size,), 10 * 0.95**exponent, dtype=getattr(torch, f"float{dtype}"))
    group = torch.zeros(size, dtype=torch.int64)
    stats = group_stats(score, group, 1)
    assert normalise(score, group, stats).tolist() == [0.0] * size


def test_a_row_outside_a_constant_pool_is_zero_not_huge():
    stats = group_stats(torch.tensor([10.0, 10.0]), torch.tensor([0, 0]), 1)
    out = normalise(torch.tensor([10.0, 9.9]), torch.tensor([0, 0]), stats)
    assert out.tolist() == [0.0, 0.0]


def test_o19_batch_of_unique_ids_is_refused():
    with pytest.raises(GroupError, match="All 3 trajectories"):
        check_groups(torch.tensor([5, 5, 6, 7]), torch.tensor([0, 0, 1, 2]))
    check_groups(torch.tensor([5, 5, 6]), torch.tensor([0, 1, 2]))
    check_groups(torch.tensor([], dtype=torch.int64), torch.tensor([], dtype=torch.int64))


def test_o19_a_trajectory_in_two_groups_is_refused():
    with pytest.raises(GroupError, match="Trajectory id 3 occurs"):
        check_groups(torch.tensor([0, 0, 1]), torch.tensor([3, 4, 3]))


@pytest.mark.parametrize(
    "call",
    [
        lambda: group_stats(torch.zeros(2, 2), torch.zeros(2, dtype=torch.int64), 1),
        lambda: group_stats(torch.zeros(3), torch.zeros(2, dtype=torch.int64), 1),
        lambda: group_stats(torch.zeros(2), torch.zeros(2, dtype=torch.int64), 1, ddof=2),
        lambda: check_groups(torch.zeros(2), torch.zeros(3)),
    ],
)
def test_wrong_shapes_and_options_are_refused(call):
    with pytest.raises(ValueError):
        call()
