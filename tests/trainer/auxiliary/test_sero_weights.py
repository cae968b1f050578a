"""Gate, returns, z, reachability weights and root choice, by hand."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.auxiliary import (
    Rollout,
    choose_root,
    effective_depth,
    effective_sample_size,
    gate,
    log_z,
    match_depth_decay,
    reach_weights,
    success_return,
    suffix_return,
)

INF = math.inf
GROUP = [Rollout(True, 5), Rollout(False, 10), Rollout(False, 3), Rollout(True, 7)]


@pytest.mark.parametrize(
    ("own", "oracle", "c_R", "valid", "expected"),
    [
        (0, 1, 1, True, 1.0),
        (1, 1, 1, True, 0.0),
        (1, 0, 1, True, 0.0),
        (0.25, 0.5, 1, True, 0.25),
        (0.25, 0.5, 0.5, True, 0.5),
        (0, 10, 10, True, 1.0),
        (0, 30, 10, True, 1.0),
        (0, 1, 1, False, 0.0),
        (math.nan, 1, 1, True, 0.0),
        (0, INF, 1, True, 0.0),
        (-INF, 1, 1, True, 0.0),
    ],
)
def test_gate(own, oracle, c_R, valid, expected):
    assert gate(own, oracle, c_R, valid) == expected


def test_gate_refuses_a_soft_validity_and_a_useless_scale():
    with pytest.raises(ValueError, match="soft v_r"):
        gate(0, 1, 1, 0.5)  # type: ignore[arg-type]
    for c_R in (0.0, -1.0, math.nan, INF):
        with pytest.raises(ValueError, match="c_R"):
            gate(0, 1, c_R)


def test_returns_share_the_horizon():
    assert suffix_return([1, 2, 4, 8], t=1, horizon=3) == 6
    assert suffix_return([1, 2, 4, 8], t=1, horizon=50, gamma=0.5) == 2 + 2 + 2
    assert suffix_return([1, 2], t=2, horizon=50) == 0
    assert suffix_return([1, 2], t=5, horizon=3) == 0
    assert [success_return(True, step, 50) for step in (1, 50, 51)] == [1.0, 1.0, 0.0]
    assert success_return(False, 3, 50) == 0.0
    with pytest.raises(ValueError, match="negative"):
        suffix_return([1], t=-1, horizon=3)


def test_log_z_is_the_geometric_mean_in_double_precision():
    assert log_z([-1.0, -3.0]) == -2.0
    assert log_z(torch.tensor([-1.0, -3.0], dtype=torch.float32)) == -2.0
    assert log_z([-0.5, -INF]) == -INF
    assert log_z([]) == 0.0
    assert math.isnan(log_z([math.nan, -1.0]))
    # A float32 sum of 2^24 + 1 ones would stop short.
    assert log_z(torch.full((1000,), -0.1, dtype=torch.float64)) == pytest.approx(-0.1, rel=1e-15)


def test_weights_by_hand():
    logz = [-0.5, -0.25, -9.0]
    assert reach_weights(logz) == pytest.approx([1.0, math.exp(-0.5), math.exp(-0.75)], rel=1e-15)
    assert reach_weights(logz, "flat") == [1.0, 1.0, 1.0]
    assert reach_weights(logz, "root") == [1.0, 0.0, 0.0]
    assert reach_weights(logz, "depth", 0.5) == [1.0, 0.5, 0.25]
    assert reach_weights(logz, "depth", 0.0) == reach_weights(logz, "root")
    assert [reach_weights([], rule) for rule in ("sero", "flat", "root", "depth")] == [[]] * 4


def test_the_last_z_is_never_used_and_a_zero_ends_the_branch():
    assert reach_weights([-INF]) == [1.0]
    assert reach_weights([-0.3, -INF, -0.1, -0.1])[2:] == [0.0, 0.0]
    assert reach_weights([-INF, -INF, -0.1]) == [1.0, 0.0, 0.0]
    for bad in (math.nan, INF):
        with pytest.raises(ValueError, match="log z of step 1"):
            reach_weights([-0.1, bad, -0.1])


def test_long_prefixes_do_not_underflow_early():
    assert reach_weights([-0.5] * 1401)[1400] == pytest.approx(math.exp(-700), rel=1e-12)
    assert reach_weights([-800.0, -1.0])[1] == 0.0
    assert reach_weights([math.log(0.9)] * 50)[49] == pytest.approx(0.9**49, rel=1e-13)


@given(st.lists(st.floats(-20, 0), max_size=40))
def test_weights_start_at_one_and_never_grow(logz):
    weights = reach_weights(logz)
    assert len(weights) == len(logz)
    assert weights[:1] == ([1.0] if logz else [])
    assert all(a >= b >= 0 for a, b in pairwise(weights))
    assert effective_sample_size(weights) <= len(logz) * (1 + 1e-12)


def test_depth_and_sample_size():
    assert effective_depth([1.0, 0.5, 0.25]) == 1.75
    assert effective_sample_size([1.0, 0.5]) == pytest.approx(1.5**2 / 1.25)
    assert effective_depth([]) == effective_sample_size([]) == 0.0


@given(
    st.lists(st.lists(st.floats(-3, 0), max_size=12), min_size=1, max_size=6).filter(
        lambda bank: any(len(branch) > 1 for branch in bank)
    )
)
def test_matched_decay_has_the_mass_of_sero(bank):
    delta = match_depth_decay(bank)
    want = sum(effective_depth(reach_weights(branch)) for branch in bank)
    got = sum(effective_depth(reach_weights(branch, "depth", delta)) for branch in bank)
    assert got == pytest.approx(want, rel=1e-9)


def test_matched_decay_at_its_ends():
    # 1 + d + d^2 = 1 + 1/2 + 1/4 at d = 1/2
    assert match_depth_decay([[math.log(0.5)] * 3]) == pytest.approx(0.5, rel=1e-12)
    assert match_depth_decay([[0.0] * 5, [0.0]]) == 1.0
    assert match_depth_decay([[-INF] * 5]) == 0.0
    assert match_depth_decay([[-0.3], []]) == 0.0
    with pytest.raises(ValueError, match="empty bank"):
        match_depth_decay([])


def test_root_by_hand():
    assert choose_root(GROUP, 0.1, 0.55) == (1, 5)
    assert choose_root(GROUP, 0.5, 0.99) == (2, 2)
    assert choose_root(GROUP, 1.0, 1.0) == (2, 2)
    assert choose_root(GROUP, 0.9, 0.0, pool="any") == (3, 0)
    # 13 failed states; floor(.8 * 13) = 10 is the first of rollout 2
    assert choose_root(GROUP, 0.8, 0.0, scheme="uniform_state") == (2, 0)
    assert choose_root(GROUP, 0.1, 0.55, scheme="first") == (1, 0)
    assert choose_root(GROUP, 0.1, 0.55, scheme="last") == (1, 9)


def test_groups_without_a_root():
    assert choose_root([Rollout(True, 4)] * 3, 0.3, 0.3) is None
    assert choose_root([Rollout(True, 4)] * 3, 0.3, 0.3, pool="any") is None
    assert choose_root([Rollout(False, 0)], 0.0, 0.0) is None
    assert choose_root([Rollout(False, 0), Rollout(False, 2)], 0.0, 0.0) == (1, 0)
    assert choose_root([], 0.0, 0.0) is None


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        # half the draws go to each failed rollout, then evenly to its 10 or 3 states
        ("rollout_then_step", {1: [1 / 20] * 10, 2: [1 / 6] * 3}),
        ("uniform_state", {1: [1 / 13] * 10, 2: [1 / 13] * 3}),
    ],
)
def test_root_distribution(scheme, expected):
    n = 780  # a multiple of 2, 10, 3, 13: midpoints hit every cell exactly in proportion
    grid = [(i + 0.5) / n for i in range(n)]
    counts: Counter[tuple[int, int]] = Counter()
    for u1 in grid[:: 1 if scheme == "uniform_state" else 39]:
        for u2 in grid[::13]:
            root = choose_root(GROUP, u1, u2, scheme=scheme)
            assert root is not None
            counts[root] += 1
    total = sum(counts.values())
    for rollout, shares in expected.items():
        for step, share in enumerate(shares):
            assert counts[rollout, step] / total == pytest.approx(share, abs=1e-12)


@pytest.mark.parametrize(
    "call",
    [
        lambda: choose_root(GROUP, -0.1, 0.0),
        lambda: choose_root(GROUP, 0.0, 1.1),
        lambda: choose_root(GROUP, math.nan, 0.0),
        lambda: choose_root(GROUP, 0.0, 0.0, pool="won"),
        lambda: choose_root(GROUP, 0.0, 0.0, scheme="critical"),
        lambda: reach_weights([-0.1], "linear"),
        lambda: reach_weights([-0.1], "depth", 1.5),
    ],
)
def test_unknown_options_are_refused(call):
    with pytest.raises(ValueError):
        call()
