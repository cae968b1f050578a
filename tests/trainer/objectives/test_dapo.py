"""DAPO: which groups are kept, when sampling stops, and the overlong ramp."""

from __future__ import annotations

import math

import pytest
import torch
from torch import tensor
from torch.testing import assert_close

from trainer.objectives.dapo import (
    SamplingPlan,
    informative_groups,
    overlong_penalty,
    plan_sampling,
)
from trainer.objectives.groups import GroupError


def f64(values):
    """A float64 tensor of exactly these values; tensor(values).double() rounds to float32."""
    return torch.tensor(values, dtype=torch.float64)


def kept(rewards, uids, tids):
    reward = rewards if isinstance(rewards, torch.Tensor) else f64(rewards)
    uid, keep = informative_groups(reward, tensor(uids), tensor(tids))
    return dict(zip(uid.tolist(), keep.tolist(), strict=True))


def test_groups_with_two_outcomes_are_kept():
    # 9: one win, one loss. 2: two wins of different length. 5: two losses. 7: a lone win.
    rewards = [10.0, 0, 10, 0, 10, 0, 0, 10]
    got = kept(rewards, [9, 9, 2, 2, 2, 5, 5, 7], [0, 1, 2, 3, 3, 4, 5, 6])
    assert got == {2: False, 5: False, 7: False, 9: True}


def test_the_outcome_is_the_sum_and_not_a_single_reward():
    # 1 + 0 and 0 + 1 are equal; 1 + 1 and 1 + 0 are not.
    got = kept([1.0, 0, 0, 1, 1, 1, 1, 0], [0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 2, 2, 3, 3])
    assert got == {0: False, 1: True}


def test_rows_may_come_in_any_order():
    rewards, uids, tids = (
        tensor([10.0, 0, 0, 0, 3]),
        tensor([4, 4, 1, 1, 1]),
        tensor([0, 1, 2, 3, 3]),
    )
    p = tensor([4, 1, 2, 0, 3])
    straight, shuffled = (
        informative_groups(rewards, uids, tids),
        informative_groups(rewards[p], uids[p], tids[p]),
    )
    assert straight[0].tolist() == shuffled[0].tolist() == [1, 4]
    assert straight[1].tolist() == shuffled[1].tolist() == [True, True]


def test_rounding_is_no_difference():
    # 0.1 + 0.2 is not 0.3 in binary
    assert kept([0.1, 0.2, 0.3], [0, 0, 0], [0, 0, 1]) == {0: False}
    assert kept(tensor([9.025] * 8), [0] * 8, list(range(8))) == {0: False}
    assert kept([0.0, 1e-7], [0, 0], [0, 1]) == {0: True}
    assert kept([], [], []) == {}


def test_filter_refusals():
    with pytest.raises(ValueError, match="NaN or infinite"):
        kept([0.0, math.nan], [0, 0], [0, 1])
    with pytest.raises(ValueError, match="equal length"):
        kept([0.0], [0, 0], [0, 1])
    with pytest.raises(GroupError, match="more than one group"):
        kept([0.0, 1.0], [0, 1], [0, 0])


FIRST = {"a": True, "b": False, "c": True}
SECOND = {"d": False, "e": True, "f": True}


def test_too_few_groups_mean_again():
    expected = SamplingPlan(status="again", groups=("a", "c"), missing=1, informative=2, sampled=3)
    assert plan_sampling([FIRST], 3) == expected
    assert plan_sampling([FIRST], 3, flavor="code") == expected


def test_nothing_sampled_yet():
    assert plan_sampling([], 2) == SamplingPlan("again", (), 2, 0, 0)


def test_a_full_batch_is_cut_to_size_in_the_paper_only():
    assert plan_sampling([FIRST, SECOND], 3) == SamplingPlan("full", ("a", "c", "e"), 0, 4, 6)
    code = plan_sampling([FIRST, SECOND], 3, flavor="code")
    assert code == SamplingPlan("full", ("a", "c", "e", "f"), 0, 4, 6)


def test_exactly_enough_is_full():
    assert plan_sampling([FIRST], 2) == SamplingPlan("full", ("a", "c"), 0, 2, 3)
    assert plan_sampling([FIRST], 2, max_rounds=1).status == "full"


def test_at_the_limit_the_paper_has_a_short_batch():
    plan = plan_sampling([FIRST, SECOND], 5, max_rounds=2)
    assert plan == SamplingPlan("exhausted", ("a", "c", "e", "f"), 1, 4, 6)
    none = plan_sampling([{"x": False}], 1, max_rounds=1)
    assert none == SamplingPlan("exhausted", (), 1, 0, 1)


def test_at_the_limit_code_keeps_the_last_round_whole():
    plan = plan_sampling([FIRST, SECOND], 5, max_rounds=2, flavor="code")
    assert plan == SamplingPlan("exhausted", ("a", "c", "d", "e", "f"), 1, 4, 6)
    # also where it was not needed
    plan = plan_sampling([FIRST, SECOND], 3, max_rounds=2, flavor="code")
    assert plan == SamplingPlan("full", ("a", "c", "d", "e", "f"), 0, 4, 6)
    only = plan_sampling([FIRST], 3, max_rounds=1, flavor="code")
    assert only == SamplingPlan("exhausted", ("a", "b", "c"), 1, 2, 3)


def test_ten_rounds_by_default():
    rounds = [{i: False} for i in range(10)]
    assert plan_sampling(rounds[:9], 1).status == "again"
    assert plan_sampling(rounds, 1).status == "exhausted"
    with pytest.raises(ValueError, match="Found 11 rounds, but max_rounds=10"):
        plan_sampling([*rounds, {10: True}], 1)


def test_a_plan_changes_no_input():
    rounds = [dict(FIRST), dict(SECOND)]
    plan_sampling(rounds, 3, flavor="code", max_rounds=2)
    assert rounds == [FIRST, SECOND]


def test_plan_refusals():
    with pytest.raises(GroupError, match="'a' of round 2 occurs in an earlier round"):
        plan_sampling([FIRST, {"a": False}], 3)
    with pytest.raises(ValueError, match="wanted and max_rounds must be >= 1, found 0 and 10"):
        plan_sampling([FIRST], 0)
    with pytest.raises(ValueError, match="found 1 and 0"):
        plan_sampling([], 1, max_rounds=0)
    with pytest.raises(ValueError, match="flavor must be one of"):
        plan_sampling([FIRST], 1, flavor="code_traj")


def test_overlong_ramp_by_hand():
    tokens = tensor([0, 59, 60, 61, 70, 99, 100])
    got = overlong_penalty(tokens, max_len=100, buffer=40)
    assert_close(got.tolist(), [0.0, 0.0, 0.0, -0.025, -0.25, -0.975, -1.0], rtol=1e-14, atol=0)
    assert got.dtype == torch.float64
    assert str(got[0].item()) == "0.0"
    double = overlong_penalty(tokens, max_len=100, buffer=40, factor=2.0)
    assert_close(double, 2 * got, rtol=1e-14, atol=0)
    assert overlong_penalty(tokens, max_len=100, buffer=40, factor=0.0).abs().max() == 0.0


def test_beyond_the_limit_the_flavours_differ():
    tokens = tensor([100, 120, 1000])
    options = {"max_len": 100, "buffer": 40, "factor": 0.5}
    assert overlong_penalty(tokens, **options).tolist() == [-0.5, -0.5, -0.5]
    code = overlong_penalty(tokens, **options, flavor="code")
    assert code.tolist() == [-0.5, -0.75, -11.75]


def test_narrowest_and_widest_ramp():
    tokens = tensor([0, 1, 3, 4])
    assert overlong_penalty(tokens, max_len=4, buffer=1).tolist() == [0.0, 0.0, 0.0, -1.0]
    assert overlong_penalty(tokens, max_len=4, buffer=4).tolist() == [0.0, -0.25, -0.75, -1.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buffer": 0}, "1 <= buffer <= max_len, found 0 and 10"),
        ({"buffer": 11}, "found 11 and 10"),
        ({"factor": -0.1}, "factor must be finite and >= 0"),
        ({"factor": math.inf}, "factor must be finite"),
        ({"factor": math.nan}, "factor must be finite"),
        ({"flavor": "verl"}, "flavor must be one of"),
        ({"tokens_M": tensor([3, -1])}, ">= 0, found -1"),
        ({"tokens_M": tensor([[3]])}, "one-dimensional"),
    ],
)
def test_overlong_refusals(options, message):
    arguments = {"tokens_M": tensor([3]), "max_len": 10, "buffer": 2, **options}
    with pytest.raises(ValueError, match=message):
        overlong_penalty(**arguments)
