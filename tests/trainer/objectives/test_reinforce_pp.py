"""REINFORCE++: returns-to-go over masked tokens, whitening, and the group baseline."""

from __future__ import annotations

import math

import pytest
import torch
from torch import tensor
from torch.testing import assert_close

from trainer.objectives.groups import GroupError
from trainer.objectives.reinforce_pp import (
    reinforce_pp_advantages,
    reinforce_pp_baseline_advantages,
)
from trainer.objectives.whitening import whiten


def f64(values):
    """A float64 tensor of exactly these values; tensor(values).double() rounds to float32."""
    return torch.tensor(values, dtype=torch.float64)


# A win of two turns (the first malformed) and a loss of one; replies of 2, 1 and 3 tokens.
REWARD = f64([0.0, 10.0, 0.0])
VALID = tensor([False, True, True])
UID = tensor([0, 0, 0])
TID = tensor([7, 7, 3])
MASK = tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1]])
TOKENS = tensor([2, 1, 3])


def one_row(mask, score=4.0, **options):
    arguments = f64([score]), tensor([True]), tensor([0]), tensor([mask])
    return reinforce_pp_advantages(*arguments, **options)


def test_the_score_reaches_every_token_and_is_whitened_by_hand():
    adv, returns = reinforce_pp_advantages(REWARD, VALID, TID, MASK)
    assert returns.tolist() == [[9.9, 9.9, 0.0], [10.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    # six tokens: 9.9, 9.9, 10, 0, 0, 0
    mean = 29.8 / 6
    variance = (2 * (9.9 - mean) ** 2 + (10 - mean) ** 2 + 3 * mean**2) / 5
    scale = math.sqrt(variance + 1e-8)
    a, b, c = ((x - mean) / scale for x in (9.9, 10.0, 0.0))
    expected = f64([[a, a, 0.0], [b, 0.0, 0.0], [c, c, c]])
    assert_close(adv, expected, rtol=1e-12, atol=0)


def test_penalty_stays_on_its_own_turn():
    returns = reinforce_pp_advantages(REWARD, VALID, TID, MASK, penalty=2.5)[1]
    assert returns[:, 0].tolist() == [7.5, 10.0, 0.0]


def test_discount_per_valid_token():
    assert one_row([1, 1, 1], gamma=0.5)[1].tolist() == [[1.0, 2.0, 4.0]]
    assert one_row([1, 1, 1], gamma=0.0)[1].tolist() == [[0.0, 0.0, 4.0]]
    assert one_row([1, 1, 1])[1].tolist() == [[4.0, 4.0, 4.0]]


def test_a_hole_in_the_mask_neither_resets_nor_discounts():
    assert one_row([0, 1, 0, 0, 1, 0], gamma=0.5)[1].tolist() == [[0, 2.0, 0, 0, 4.0, 0]]
    kl = tensor([[9.0, 1.0, 9.0, 9.0, 2.0, 9.0]])
    got = one_row([0, 1, 0, 0, 1, 0], gamma=0.5, kl_M_T=kl, kl_coef=1.0)[1]
    # last valid 4 - 2; before it -1 + 2 / 2
    assert got.tolist() == [[0, 0.0, 0, 0, 2.0, 0]]


def test_kl_in_the_reward_by_hand():
    kl = tensor([[1.0, 2.0, -4.0]])
    adv, returns = one_row([1, 1, 1], kl_M_T=kl, kl_coef=0.5)
    # rewards -0.5, -1, 4 + 2
    assert returns.tolist() == [[4.5, 5.0, 6.0]]
    assert_close(adv, whiten(returns, torch.ones(1, 3)), rtol=0, atol=0)
    # with factor 0 it is not even read
    plain = one_row([1, 1, 1], kl_M_T=kl * math.nan)[1]
    assert plain.tolist() == [[4.0, 4.0, 4.0]]
    assert one_row([1], kl_M_T=tensor([[3.0]]), kl_coef=0.1)[1].item() == 4.0 - 0.1 * 3.0


def test_single_precision_rewards_are_computed_in_double():
    returns = reinforce_pp_advantages(REWARD.float(), VALID, TID, MASK)[1]
    assert returns.dtype == torch.float64
    assert returns[0, 0].item() == 9.9


@pytest.mark.parametrize("junk", [1e30, math.inf, -math.inf, math.nan])
def test_masked_kl_changes_no_bit(junk):
    kl = torch.full((3, 3), 0.25)
    dirty = kl.masked_fill(MASK == 0, junk)
    clean, other = (
        reinforce_pp_advantages(REWARD, VALID, TID, MASK, kl_M_T=k, kl_coef=0.1)
        for k in (kl, dirty)
    )
    assert torch.equal(clean[0], other[0])
    assert torch.equal(clean[1], other[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.1, 9.025, 1e6])
def test_equal_returns_give_exactly_zero(value, dtype):
    reward = torch.full((5,), value, dtype=dtype)
    adv, _ = reinforce_pp_advantages(
        reward, torch.ones(5).bool(), torch.arange(5), torch.ones(5, 4)
    )
    assert adv.dtype == torch.float64
    assert torch.equal(adv, torch.zeros(5, 4, dtype=torch.float64))


def test_rows_may_come_in_any_order():
    adv, returns = reinforce_pp_advantages(REWARD, VALID, TID, MASK)
    p = tensor([2, 0, 1])
    got = reinforce_pp_advantages(REWARD[p], VALID[p], TID[p], MASK[p])
    assert_close(got[0], adv[p], rtol=1e-12, atol=1e-12)
    assert torch.equal(got[1], returns[p])


def test_turns_without_tokens_and_empty_batches():
    adv, returns = one_row([0, 0])
    assert adv.tolist() == returns.tolist() == [[0.0, 0.0]]
    empty = torch.zeros(0, dtype=torch.int64)
    adv, _ = reinforce_pp_advantages(torch.zeros(0), empty.bool(), empty, torch.zeros(0, 3))
    assert adv.shape == (0, 3)


def test_results_are_detached():
    reward, kl = REWARD.clone().requires_grad_(), torch.ones(3, 3, requires_grad=True)
    adv, returns = reinforce_pp_advantages(reward, VALID, TID, MASK, kl_M_T=kl, kl_coef=0.1)
    assert not adv.requires_grad
    assert not returns.requires_grad
    got = reinforce_pp_baseline_advantages(reward, VALID, UID, TID, TOKENS)
    assert not got.requires_grad


def call(reward=REWARD, valid=VALID, tid=TID, mask=MASK, **options):
    return reinforce_pp_advantages(reward, valid, tid, mask, **options)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"mask": MASK[:2]}, "a mask of 3 rows, found 2"),
        ({"mask": MASK * 0.5}, "only 0 and 1"),
        ({"tid": TID[:2]}, "equal length"),
        ({"valid": VALID[:1]}, "equal length"),
        ({"reward": REWARD[:1], "mask": MASK[:1]}, "equal length"),
        ({"gamma": 1.01}, r"gamma must lie in \[0, 1\], found 1.01"),
        ({"gamma": -0.01}, "gamma must lie in"),
        ({"kl_coef": -0.1}, "kl_coef must be finite and >= 0"),
        ({"kl_coef": math.inf}, "kl_coef must be finite"),
        ({"kl_coef": 0.1}, "needs kl_M_T"),
        ({"kl_coef": 0.1, "kl_M_T": torch.ones(3, 2)}, "one shape"),
        ({"kl_coef": 0.1, "kl_M_T": torch.full((3, 3), math.nan)}, "NaN or infinite"),
        ({"reward": tensor([0.0, math.inf, 0.0])}, "drop that trajectory"),
    ],
)
def test_wrong_inputs_are_refused(broken, message):
    with pytest.raises(ValueError, match=message):
        call(**broken)


# ---- with the group baseline ----


def baseline(**options):
    return reinforce_pp_baseline_advantages(REWARD, VALID, UID, TID, TOKENS, **options).tolist()


def whitened(values, tokens):
    """Each value once per token, whitened; by hand."""
    n = sum(tokens)
    mean = sum(v * k for v, k in zip(values, tokens, strict=True)) / n
    variance = sum(k * (v - mean) ** 2 for v, k in zip(values, tokens, strict=True)) / (n - 1)
    return [(v - mean) / math.sqrt(variance + 1e-8) for v in values]


def test_paper_flavour_subtracts_the_mean_of_trajectories():
    # R = 9.9 (two turns), 0: mean 4.95
    expected = whitened([4.95, 4.95, -4.95], [2, 1, 3])
    assert_close(baseline(), expected, rtol=1e-12, atol=0)
    assert baseline() == baseline(flavor="paper")


def test_code_flavour_subtracts_the_mean_of_turns():
    expected = whitened([9.9 - 19.9 / 3, 10 - 19.9 / 3, -19.9 / 3], [2, 1, 3])
    assert_close(baseline(flavor="code"), expected, rtol=1e-12, atol=0)


def test_the_baseline_of_each_group_is_its_own():
    # Group means 1 and 10: the centred values are -1, 1, -5, 5. Dropping a mean changes that.
    got = reinforce_pp_baseline_advantages(
        tensor([0.0, 2.0, 5.0, 15.0]),
        torch.ones(4).bool(),
        tensor([1, 1, 0, 0]),
        torch.arange(4),
        tensor([1, 2, 1, 1]),
    )
    assert_close(got.tolist(), whitened([-1, 1, -5, 5], [1, 2, 1, 1]), rtol=1e-12, atol=0)


def test_code_traj_takes_the_first_turn_by_time():
    # First turns by time: the well-formed one (10) and 0; mean 5.
    expected = whitened([9.9 - 5, 5.0, -5.0], [2, 1, 3])
    got = baseline(flavor="code_traj", t_M=tensor([1, 0, 0]))
    assert_close(got, expected, rtol=1e-12, atol=0)


def test_penalty_default_and_option():
    arguments = torch.zeros(2), tensor([True, False]), tensor([0, 0]), tensor([0, 1])
    # With a lone pair, penalties of any size whiten to +-1/sqrt(2) up to eps: take one that small.
    for penalty, options in ((0.1, {}), (1e-4, {"penalty": 1e-4})):
        got = reinforce_pp_baseline_advantages(*arguments, tensor([1, 1]), **options)
        expected = whitened([penalty / 2, -penalty / 2], [1, 1])
        assert_close(got.tolist(), expected, rtol=1e-12, atol=0)


# Group 0: a win of 1 turn, a loss of 3. Group 1: two wins. Group 2: one trajectory.
MIXED = (
    tensor([10.0, 0.0, 0.0, 0.0, 10.0, 10.0, 10.0]),
    torch.ones(7).bool(),
    tensor([0, 0, 0, 0, 1, 1, 2]),
    tensor([0, 1, 1, 1, 2, 3, 4]),
    tensor([1, 1, 1, 1, 1, 1, 1]),
)


def test_constant_groups_and_groups_of_one_are_exactly_zero():
    got = reinforce_pp_baseline_advantages(*MIXED).tolist()
    # centred 5, -5, -5, -5, 0, 0, 0: the batch mean is not 0
    expected = whitened([5, -5, -5, -5, 0, 0, 0], [1] * 7)
    assert expected[4] > 0.3
    assert_close(got[:4], expected[:4], rtol=1e-12, atol=0)
    assert got[4:] == [0.0, 0.0, 0.0]
    kept = reinforce_pp_baseline_advantages(*MIXED, zero_constant=False).tolist()
    assert_close(kept, expected, rtol=1e-12, atol=0)


def test_a_turn_at_its_groups_mean_is_not_a_constant_group():
    arguments = tensor([0.0, 1.0, 2.0]), torch.ones(3).bool(), tensor([0, 0, 0]), tensor([0, 1, 2])
    got = reinforce_pp_baseline_advantages(*arguments, tensor([2, 1, 1])).tolist()
    assert_close(got, whitened([-1, 0, 1], [2, 1, 1]), rtol=1e-12, atol=0)
    assert got[1] > 0.2


def test_raw_score_of_a_pool_of_one_on_request_only():
    got = reinforce_pp_baseline_advantages(*MIXED, flavor="code", singleton="raw").tolist()
    # pool of group 0: 10, 0, 0, 0
    expected = whitened([7.5, -2.5, -2.5, -2.5, 0, 0, 10], [1] * 7)
    assert_close(got[:4] + got[6:], expected[:4] + expected[6:], rtol=1e-12, atol=0)
    assert got[4:6] == [0.0, 0.0]
    zero = reinforce_pp_baseline_advantages(*MIXED, flavor="code").tolist()
    assert zero[6] == 0.0
    with pytest.raises(ValueError, match="'paper' a lone trajectory has advantage 0"):
        reinforce_pp_baseline_advantages(*MIXED, singleton="raw")


@pytest.mark.parametrize("name", ["paper", "code", "code_traj"])
def test_constant_float32_groups_give_zero(name):
    reward = tensor([0.1] * 8 + [9.025] * 8, dtype=torch.float32)
    uid = torch.arange(16) // 8
    got = reinforce_pp_baseline_advantages(
        reward, torch.ones(16).bool(), uid, torch.arange(16), torch.arange(16), flavor=name
    )
    assert got.tolist() == [0.0] * 16


@pytest.mark.parametrize("name", ["paper", "code", "code_traj"])
def test_baseline_rows_may_come_in_any_order(name):
    t = tensor([0, 0, 1, 2, 0, 0, 0])
    reward, valid, uid, tid, _ = MIXED
    valid = tensor([True, True, False, True, True, True, True])
    tokens = torch.arange(7)
    straight = reinforce_pp_baseline_advantages(reward, valid, uid, tid, tokens, t, flavor=name)
    assert straight[0] == 0.0  # no tokens
    assert straight[1] < 0.0
    p = tensor([6, 3, 0, 5, 2, 1, 4])
    shuffled = reinforce_pp_baseline_advantages(
        reward[p], valid[p], uid[p], tid[p], tokens[p], t[p], flavor=name
    )
    assert_close(shuffled, straight[p], rtol=1e-12, atol=1e-12)


def test_baseline_refusals_and_empty_batch():
    empty = torch.zeros(0, dtype=torch.int64)
    got = reinforce_pp_baseline_advantages(torch.zeros(0), empty.bool(), empty, empty, empty)
    assert got.shape == (0,)
    with pytest.raises(ValueError, match="Token counts must be >= 0"):
        reinforce_pp_baseline_advantages(REWARD, VALID, UID, TID, tensor([1, -2, 1]))
    with pytest.raises(ValueError, match="equal length"):
        reinforce_pp_baseline_advantages(REWARD, VALID, UID, TID, TOKENS[:2])
    with pytest.raises(ValueError, match="flavor must be one of"):
        baseline(flavor="verl")
    with pytest.raises(GroupError, match="more than one group"):
        reinforce_pp_baseline_advantages(REWARD, VALID, tensor([0, 1, 0]), TID, TOKENS)
