"""RLOO advantages: the leave-one-out mean by hand and by a slow loop, and its flavours."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor
from torch.testing import assert_close

from trainer.objectives.groups import GroupError
from trainer.objectives.rloo import rloo_advantages


def f64(values):
    """A float64 tensor of exactly these values; tensor(values).double() rounds to float32."""
    return torch.tensor(values, dtype=torch.float64)


# Two wins (1 and 2 steps, the second with a malformed reply) and one loss of 3 steps.
REWARD = tensor([10.0, 0.0, 10.0, 0.0, 0.0, 0.0])
VALID = tensor([True, False, True, True, True, True])
UID = tensor([4, 4, 4, 4, 4, 4])
TID = tensor([0, 1, 1, 2, 2, 2])
T = tensor([0, 0, 1, 0, 1, 2])


def flavour(name, **options):
    return rloo_advantages(REWARD, VALID, UID, TID, T, flavor=name, **options).tolist()


def one_step_each(rewards, uids=None, **options):
    """Advantages of trajectories that last one well-formed step."""
    n = len(rewards)
    uid = torch.zeros(n, dtype=torch.int64) if uids is None else tensor(uids)
    reward = rewards if isinstance(rewards, torch.Tensor) else f64(rewards)
    return rloo_advantages(reward, torch.ones(n).bool(), uid, torch.arange(n), **options)


def test_one_winner_in_four_beats_the_other_three():
    got = one_step_each([3.0, 0, 0, 0]).tolist()
    assert_close(got, [3.0, -1.0, -1.0, -1.0], rtol=1e-14, atol=0)


def test_paper_flavour_leaves_out_a_trajectory():
    # R = 10, 9.9, 0; each minus the mean of the other two
    a, b, c = 10 - 9.9 / 2, 9.9 - 10 / 2, -19.9 / 2
    assert_close(flavour("paper"), [a, b, b, c, c, c], rtol=1e-6, atol=0)
    assert flavour("paper") == rloo_advantages(REWARD, VALID, UID, TID).tolist()


def test_code_flavour_leaves_out_a_turn():
    score = [10, 9.9, 10, 0, 0, 0]
    expected = [s - (sum(score) - s) / 5 for s in score]
    assert_close(flavour("code"), expected, rtol=1e-6, atol=0)


def test_code_traj_flavour_pools_first_turns():
    # pool 10, 9.9, 0, factor 3 / 2; the winner's second turn is scored 10 against it
    expected = [1.5 * (s - 19.9 / 3) for s in [10, 9.9, 10, 0, 0, 0]]
    assert_close(flavour("code_traj"), expected, rtol=1e-6, atol=0)


def test_code_traj_reads_the_first_step_by_time():
    # In time order the first turn of trajectory 0 is the well-formed one.
    reward, valid = tensor([0.0, 1, 0]), tensor([False, True, True])
    uid, tid, t = tensor([0, 0, 0]), tensor([0, 0, 1]), tensor([1, 0, 0])
    got = rloo_advantages(reward, valid, uid, tid, t, flavor="code_traj")
    assert_close(got.tolist(), [2 * (0.9 - 0.5), 1.0, -1.0], rtol=1e-12, atol=0)


def test_penalty_is_a_tenth_by_default_and_an_option():
    valid = tensor([True, False])
    arguments = tensor([0.0, 0.0]), valid, tensor([0, 0]), tensor([0, 1])
    assert_close(rloo_advantages(*arguments).tolist(), [0.1, -0.1], rtol=1e-14, atol=0)
    assert rloo_advantages(*arguments, penalty=2.0).tolist() == [2.0, -2.0]


@pytest.mark.parametrize("name", ["paper", "code", "code_traj"])
def test_groups_of_different_size_take_their_own_factor(name):
    got = one_step_each([2.0, 0.0, 3.0, 0.0, 0.0, 7.0], [5, 5, 1, 1, 1, 3], flavor=name)
    assert_close(got.tolist(), [2.0, -2.0, 3.0, -1.5, -1.5, 0.0], rtol=1e-14, atol=0)


@pytest.mark.parametrize("name", ["paper", "code", "code_traj"])
def test_group_of_one_is_zero_and_raw_only_on_request(name):
    assert one_step_each([10.0, 0.0], [0, 1], flavor=name).tolist() == [0.0, 0.0]
    if name == "paper":
        with pytest.raises(ValueError, match="'paper' a lone trajectory has advantage 0"):
            one_step_each([10.0], flavor=name, singleton="raw")
    else:
        assert one_step_each([10.0], flavor=name, singleton="raw").item() == 10.0


@pytest.mark.parametrize("name", ["paper", "code", "code_traj"])
@pytest.mark.parametrize("rewards", [[0.1] * 8, [9.025] * 8, [1e6] * 3])
def test_constant_float32_groups_are_exactly_zero(name, rewards):
    low = one_step_each(tensor(rewards, dtype=torch.float32), flavor=name)
    assert low.dtype == torch.float64
    assert low.tolist() == [0.0] * len(rewards)


@pytest.mark.parametrize("name", ["paper", "code", "code_traj"])
def test_rows_may_come_in_any_order(name):
    generator = torch.Generator().manual_seed(3)
    rows = [(u, 4 * u + i, t) for u in range(3) for i in range(u + 1) for t in range(1 + i)]
    uid, tid, t = (tensor(column) for column in zip(*rows, strict=True))
    reward = torch.rand(len(rows), generator=generator, dtype=torch.float64)
    valid = torch.rand(len(rows), generator=generator) < 0.7
    straight = rloo_advantages(reward, valid, uid, tid, t, flavor=name)
    assert straight.abs().max() > 0.1
    for _ in range(3):
        p = torch.randperm(len(rows), generator=generator)
        shuffled = rloo_advantages(reward[p], valid[p], uid[p], tid[p], t[p], flavor=name)
        assert_close(shuffled, straight[p], rtol=1e-12, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_it_is_the_mean_of_the_others(data):
    rows, tid = [], 0
    for u, n in enumerate(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))):
        for _ in range(n):
            for _ in range(data.draw(st.integers(1, 3))):
                reward = data.draw(st.sampled_from([0.0, 0.5, 1.0, 10.0]))
                rows.append((reward, data.draw(st.booleans()), u, tid))
            tid += 1
    reward, valid, uid, tid_M = (tensor(column) for column in zip(*rows, strict=True))
    paper = rloo_advantages(reward.double(), valid, uid, tid_M).tolist()
    code = rloo_advantages(reward.double(), valid, uid, tid_M, flavor="code").tolist()
    total: dict[int, float] = {}
    score: dict[int, float] = {}
    group: dict[int, int] = {}
    for r, v, u, i in rows:
        total[i] = total.get(i, 0.0) + r
        score[i] = score.get(i, 0.0) + r - (0.0 if v else 0.1)
        group[i] = u
    turn = [total[i] - (0.0 if v else 0.1) for _, v, _, i in rows]
    for k, (_, _, u, i) in enumerate(rows):
        others = [score[j] for j in score if group[j] == u and j != i]
        expected = score[i] - sum(others) / len(others) if others else 0.0
        assert abs(paper[k] - expected) < 1e-9
        siblings = [turn[j] for j in range(len(rows)) if rows[j][2] == u and j != k]
        expected = turn[k] - sum(siblings) / len(siblings) if siblings else 0.0
        assert abs(code[k] - expected) < 1e-9


def test_result_is_detached_and_empty_batches_work():
    assert not one_step_each(tensor([1.0, 0.0], requires_grad=True)).requires_grad
    empty = torch.zeros(0, dtype=torch.int64)
    for name in ("paper", "code", "code_traj"):
        got = rloo_advantages(torch.zeros(0), empty.bool(), empty, empty, flavor=name)
        assert got.shape == (0,)


def test_refusals_name_the_problem():
    with pytest.raises(ValueError, match="flavor must be one of"):
        one_step_each([1.0, 0.0], flavor="verl")
    with pytest.raises(ValueError, match="singleton must be"):
        one_step_each([1.0, 0.0], singleton="one")
    with pytest.raises(ValueError, match="NaN or infinite"):
        one_step_each([1.0, math.nan])
    with pytest.raises(GroupError, match="more than one group"):
        rloo_advantages(torch.zeros(2), torch.ones(2).bool(), tensor([0, 1]), tensor([5, 5]))
