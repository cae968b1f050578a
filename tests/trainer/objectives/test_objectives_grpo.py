"""GRPO advantages: hand-worked numbers, the flavours, and the ways groups go wrong."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor
from torch.testing import assert_close

from trainer.objectives import GroupError, grpo_advantages


def one_step_each(rewards, uids=None, **options):
    """Advantages of trajectories that last one well-formed step."""
    n = len(rewards)
    uid = torch.zeros(n, dtype=torch.int64) if uids is None else tensor(uids)
    reward = rewards if isinstance(rewards, torch.Tensor) else tensor(rewards).double()
    return grpo_advantages(reward, torch.ones(n).bool(), uid, torch.arange(n), **options)


# Two wins (1 and 2 steps, the second with a malformed reply) and one loss of 3 steps.
REWARD = tensor([10.0, 0.0, 10.0, 0.0, 0.0, 0.0])
VALID = tensor([True, False, True, True, True, True])
UID = tensor([4, 4, 4, 4, 4, 4])
TID = tensor([0, 1, 1, 2, 2, 2])
T = tensor([0, 0, 1, 0, 1, 2])


def flavour(name, **options):
    return grpo_advantages(REWARD, VALID, UID, TID, T, flavor=name, **options)


def test_one_winner_in_four():
    # mean 1/4, unbiased variance (9 + 3 * 1) / 16 / 3 = 1/4
    expected = [0.75 / (0.5 + 1e-6)] + 3 * [-0.25 / (0.5 + 1e-6)]
    assert_close(one_step_each([1.0, 0, 0, 0]).tolist(), expected, rtol=1e-12, atol=0)


def test_paper_flavour_by_hand():
    # R = 10, 9.9, 0: one score per trajectory
    mean = 19.9 / 3
    std = math.sqrt(((10 - mean) ** 2 + (9.9 - mean) ** 2 + mean**2) / 2) + 1e-6
    a, b, c = (10 - mean) / std, (9.9 - mean) / std, -mean / std
    assert_close(flavour("paper").tolist(), [a, b, b, c, c, c], rtol=1e-6, atol=0)


def test_code_flavour_by_hand():
    # pool: all six rows, the penalty stays on its own row
    score = [10, 9.9, 10, 0, 0, 0]
    mean = sum(score) / 6
    std = math.sqrt(sum((s - mean) ** 2 for s in score) / 5) + 1e-6
    assert_close(flavour("code").tolist(), [(s - mean) / std for s in score], rtol=1e-6, atol=0)


def test_code_traj_flavour_by_hand():
    # pool: the first rows 10, 9.9, 0; the winner's second row is scored 10 against that pool
    pool = [10, 9.9, 0]
    mean = sum(pool) / 3
    std = math.sqrt(sum((s - mean) ** 2 for s in pool) / 2) + 1e-6
    expected = [(s - mean) / std for s in [10, 9.9, 10, 0, 0, 0]]
    assert_close(flavour("code_traj").tolist(), expected, rtol=1e-6, atol=0)


def test_without_deviation_it_is_dr_grpo():
    mean = 19.9 / 3
    got = flavour("paper", use_std=False).tolist()
    assert_close(got, [10 - mean] + 2 * [9.9 - mean] + 3 * [-mean], rtol=1e-6, atol=0)


def test_code_flavour_sums_to_zero_over_rows_and_paper_over_trajectories():
    assert abs(flavour("code").sum()) < 1e-12
    assert abs(flavour("paper")[[0, 1, 3]].sum()) < 1e-12
    assert abs(flavour("paper").sum()) > 0.5


@pytest.mark.parametrize("name", ["paper", "code", "code_traj"])
def test_o19_two_groups_of_four_shuffled(name):
    generator = torch.Generator().manual_seed(0)
    rows = [(u, 4 * u + i, t) for u in range(2) for i in range(4) for t in range(1 + i)]
    uid, tid, t = (tensor(column) for column in zip(*rows, strict=True))
    reward = torch.rand(len(rows), generator=generator, dtype=torch.float64)
    valid = torch.rand(len(rows), generator=generator) < 0.7
    straight = grpo_advantages(reward, valid, uid, tid, t, flavor=name)
    # Two groups at once equal each group alone.
    first = uid == 0
    alone = grpo_advantages(
        reward[first], valid[first], uid[first], tid[first], t[first], flavor=name
    )
    assert_close(straight[first], alone, rtol=1e-12, atol=1e-12)
    for _ in range(5):
        p = torch.randperm(len(rows), generator=generator)
        shuffled = grpo_advantages(reward[p], valid[p], uid[p], tid[p], t[p], flavor=name)
        assert_close(shuffled, straight[p], rtol=1e-12, atol=1e-12)


def test_group_ids_need_not_be_dense_or_sorted():
    rewards = [1.0, 5.0, 0.0, 5.0, 0.0, 2.0]
    a = one_step_each(rewards, [0, 1, 0, 1, 0, 1])
    b = one_step_each(rewards, [10**12, -7, 10**12, -7, 10**12, -7])
    assert a.tolist() == b.tolist()


@pytest.mark.parametrize("name", ["paper", "code", "code_traj"])
@pytest.mark.parametrize("use_std", [True, False])
def test_o19_group_of_one_is_zero_and_not_nan(name, use_std):
    got = one_step_each([10.0, 0.0], [0, 1], flavor=name, use_std=use_std)
    assert got.tolist() == [0.0, 0.0]


def test_raw_singleton_reproduces_public_code_on_request_only():
    assert_close(one_step_each([10.0], flavor="code", singleton="raw").item(), 10 / (1 + 1e-6))
    assert one_step_each([10.0], flavor="code", singleton="raw", use_std=False).item() == 10.0
    with pytest.raises(ValueError, match="'paper' a lone trajectory has advantage 0"):
        one_step_each([10.0], singleton="raw")


@pytest.mark.parametrize("name", ["paper", "code", "code_traj"])
@pytest.mark.parametrize(
    "rewards", [[1.0, 0, 0, 0], [0.35] * 7 + [1.0], [0.1] * 8, [9.025] * 8, [1e6] * 3]
)
def test_o18_float32_rewards_give_the_float64_advantages(name, rewards):
    low = one_step_each(tensor(rewards, dtype=torch.float32), flavor=name)
    high = one_step_each(tensor(rewards, dtype=torch.float64), flavor=name)
    assert low.dtype == torch.float64
    assert torch.isfinite(low).all()
    assert (low.abs() <= 10).all()
    assert_close(low, high, atol=1e-4, rtol=0)
    if len(set(rewards)) == 1:
        assert low.tolist() == [0.0] * len(rewards)


def test_code_traj_reads_the_first_step_by_time_not_by_row():
    # Trajectory 0 has its malformed reply at t = 1, listed first.
    reward, valid = tensor([0.0, 1, 0, 0]), tensor([False, True, True, True])
    uid, tid, t = tensor([0, 0, 0, 0]), tensor([0, 0, 1, 1]), tensor([1, 0, 0, 1])
    by_time = grpo_advantages(reward, valid, uid, tid, t, flavor="code_traj")
    ordered = [1, 0, 2, 3]
    expected = grpo_advantages(reward[ordered], valid[ordered], uid, tid, flavor="code_traj")
    assert by_time[ordered].tolist() == expected.tolist()
    assert by_time[0] < by_time[1]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_paper_flavour_equals_a_slow_loop(data):
    groups = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    rows, tid = [], 0
    for u, n in enumerate(groups):
        for _ in range(n):
            for _ in range(data.draw(st.integers(1, 4))):
                reward = data.draw(st.sampled_from([0.0, 0.5, 1.0, 10.0]))
                rows.append((reward, data.draw(st.booleans()), u, tid))
            tid += 1
    reward, valid, uid, tid_M = (tensor(column) for column in zip(*rows, strict=True))
    got = grpo_advantages(reward.double(), valid, uid, tid_M).tolist()

    score: dict[int, float] = {}
    group_of: dict[int, int] = {}
    for r, v, u, i in rows:
        score[i] = score.get(i, 0.0) + r - (0.0 if v else 0.1)
        group_of[i] = u
    for row, (_, _, u, i) in enumerate(rows):
        pool = [score[j] for j in score if group_of[j] == u]
        mean = sum(pool) / len(pool)
        if len(pool) == 1 or max(pool) - min(pool) < 1e-8:
            assert got[row] == 0.0
        else:
            std = math.sqrt(sum((s - mean) ** 2 for s in pool) / (len(pool) - 1))
            assert abs(got[row] - (score[i] - mean) / (std + 1e-6)) < 1e-6


def test_result_is_detached_and_empty_batches_work():
    reward = tensor([1.0, 0.0], requires_grad=True)
    assert not one_step_each(reward).requires_grad
    empty = torch.zeros(0, dtype=torch.int64)
    for name in ("paper", "code", "code_traj"):
        got = grpo_advantages(torch.zeros(0), empty.bool(), empty, empty, flavor=name)
        assert got.shape == (0,)


def test_refusals_name_the_problem():
    with pytest.raises(ValueError, match="flavor must be one of"):
        one_step_each([1.0, 0.0], flavor="verl")
    with pytest.raises(ValueError, match="NaN or infinite"):
        one_step_each([1.0, math.nan])
    with pytest.raises(ValueError, match="equal length"):
        grpo_advantages(torch.zeros(2), torch.ones(2).bool(), torch.zeros(2), torch.zeros(1))
    with pytest.raises(GroupError, match="more than one group"):
        grpo_advantages(torch.zeros(2), torch.ones(2).bool(), tensor([0, 1]), tensor([5, 5]))
