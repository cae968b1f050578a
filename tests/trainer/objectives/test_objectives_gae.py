"""GAE over trained tokens (O21): hand-worked numbers, holes in the mask, and ends of episodes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor
from torch.testing import assert_close

from trainer.objectives.gae import episode_gae, gae


def row(*values):
    return tensor([list(values)]).double()


def random_rows(seed=0, rows=5, width=7):
    g = torch.Generator().manual_seed(seed)
    reward = torch.randn((rows, width), generator=g).double()
    value = torch.randn((rows, width), generator=g).double()
    mask = torch.rand((rows, width), generator=g) < 0.7
    return reward, value, mask


def textbook(reward, value, mask, gamma, lam, final=0.0):
    """A_t = sum_l (gamma lam)^l delta_{t+l}, written as a double sum over one row."""
    steps = [t for t, keep in enumerate(mask.tolist()) if keep]
    r = [float(reward[t]) for t in steps]
    v = [float(value[t]) for t in steps] + [final]
    out = [0.0] * len(mask)
    for i, t in enumerate(steps):
        for j in range(i, len(steps)):
            delta = r[j] + gamma * v[j + 1] - v[j]
            out[t] += (gamma * lam) ** (j - i) * delta
    return out


def test_three_tokens_by_hand():
    # deltas with gamma 1/2: 1 + 3/2 - 2 = 1/2, 0 + 4/2 - 3 = -1, 8 + 0 - 4 = 4; decay 1/8
    adv, ret = gae(row(1, 0, 8), row(2, 3, 4), row(1, 1, 1), gamma=0.5, lam=0.25)
    assert adv.tolist() == [[0.5 + (-1 + 4 / 8) / 8, -1 + 4 / 8, 4.0]]
    assert ret.tolist() == [[0.4375 + 2, -0.5 + 3, 8.0]]
    assert adv.dtype == ret.dtype == torch.float64


def test_without_options_it_is_the_sum_of_later_rewards_minus_the_value():
    adv, ret = gae(row(1, 2, 4), row(10, 20, 30), row(1, 1, 1))
    assert adv.tolist() == [[7.0 - 10, 6.0 - 20, 4.0 - 30]]
    assert ret.tolist() == [[7.0, 6.0, 4.0]]


def test_truncation_bootstraps_and_termination_does_not():
    ones = torch.ones(2, 2)
    reward = tensor([[0.0, 1.0], [0.0, 1.0]])
    value = tensor([[2.0, 4.0], [2.0, 4.0]])
    adv, ret = gae(reward, value, ones, gamma=0.5, lam=0.5, bootstrap_B=tensor([8.0, 0.0]))
    # last token: 1 + 8/2 - 4 = 1 when cut off, 1 - 4 = -3 when ended; first: 0 + 4/2 - 2 = 0
    assert adv.tolist() == [[0.25, 1.0], [-0.75, -3.0]]
    assert ret.tolist() == [[2.25, 5.0], [1.25, 1.0]]
    assert_close(gae(reward, value, ones, gamma=0.5, lam=0.5)[0][1], adv[1])


def test_the_slot_after_the_last_token_is_not_bootstrapped_from():
    # Public code with the mask shifted by one would add gamma * (1 - lambda) * 7 = 0.35.
    clean = gae(row(0, 1, 0), row(1, 2, 0), row(1, 1, 0), gamma=1.0, lam=0.95)
    dirty = gae(row(0, 1, 0), row(1, 2, 7), row(1, 1, 0), gamma=1.0, lam=0.95)
    assert dirty[0].tolist() == clean[0].tolist() == [[1.0 + 0.95 * -1.0, -1.0, 0.0]]
    assert dirty[1].tolist() == clean[1].tolist()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    gamma=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    lam=st.sampled_from([0.0, 0.3, 0.95, 1.0]),
    cut=st.booleans(),
)
def test_o21_equals_a_textbook_double_sum(seed, gamma, lam, cut):
    reward, value, mask = random_rows(seed)
    final = tensor([3.0, -2.0, 0.5, 1.0, 9.0]).double() if cut else None
    adv, ret = gae(reward, value, mask, gamma=gamma, lam=lam, bootstrap_B=final)
    for b in range(5):
        last = 0.0 if final is None else float(final[b])
        expected = tensor(textbook(reward[b], value[b], mask[b], gamma, lam, last)).double()
        assert_close(adv[b], expected, rtol=1e-5, atol=1e-6)
        assert_close(ret[b], (adv[b] + value[b]) * mask[b], rtol=1e-12, atol=1e-12)


def test_o21_lambda_zero_is_the_td_error_and_lambda_one_the_return_minus_value():
    reward, value, _ = random_rows(3, rows=1, width=4)
    ones = torch.ones(1, 4)
    r, v = reward[0].tolist(), [*value[0].tolist(), 0.0]
    td = [r[t] + 0.9 * v[t + 1] - v[t] for t in range(4)]
    assert_close(gae(reward, value, ones, gamma=0.9, lam=0.0)[0][0].tolist(), td)
    tail = [sum(0.9 ** (k - t) * r[k] for k in range(t, 4)) - v[t] for t in range(4)]
    assert_close(gae(reward, value, ones, gamma=0.9, lam=1.0)[0][0].tolist(), tail)


@pytest.mark.parametrize("junk", [1e6, 1e30, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_o21_masked_tokens_inserted_anywhere_change_nothing(junk, place):
    reward, value = [0.5, 0.0, 10.0], [1.0, 2.0, 4.0]
    options = {"gamma": 0.9, "lam": 0.8}
    clean, target = gae(row(*reward), row(*value), row(1, 1, 1), **options)
    mask = [1, 1, 1]
    for _ in range(2):
        reward.insert(place, junk)
        value.insert(place, junk)
        mask.insert(place, 0)
    adv, ret = gae(row(*reward), row(*value), row(*mask), **options)
    keep = row(*mask).bool()
    assert adv[keep].tolist() == clean[0].tolist()
    assert ret[keep].tolist() == target[0].tolist()
    assert adv[~keep].tolist() == ret[~keep].tolist() == [0.0, 0.0]


def test_o21_a_terminal_reward_before_masked_tokens_arrives_undecayed():
    adv, _ = gae(row(10, 0, 0, 0), row(0, 0, 0, 0), row(1, 0, 0, 0), gamma=0.5, lam=0.5)
    assert adv[0, 0].item() == 10.0


def test_rows_are_independent_and_their_order_is_irrelevant():
    reward, value, mask = random_rows(8)
    mask[2] = False
    adv, ret = gae(reward, value, mask, gamma=0.9, lam=0.8)
    p = tensor([3, 1, 4, 0, 2])
    again = gae(reward[p], value[p], mask[p], gamma=0.9, lam=0.8)
    assert again[0].tolist() == adv[p].tolist()
    assert again[1].tolist() == ret[p].tolist()
    assert adv[2].tolist() == ret[2].tolist() == [0.0] * 7


def test_nothing_to_train_and_no_gradient():
    for shape in ((0, 3), (2, 0), (2, 3)):
        adv, ret = gae(torch.ones(shape), torch.ones(shape), torch.zeros(shape))
        assert adv.tolist() == ret.tolist() == torch.zeros(shape).tolist()
    leaf = row(1, 2).requires_grad_()
    adv, ret = gae(leaf, leaf, row(1, 1), bootstrap_B=leaf[0, :1])
    assert not adv.requires_grad
    assert not ret.requires_grad


def test_single_precision_values_are_computed_in_double():
    value = tensor([[0.1, 0.2]], dtype=torch.float32)
    adv, _ = gae(torch.zeros(1, 2), value, torch.ones(1, 2), gamma=0.9, lam=0.0)
    assert adv[0, 0].item() == 0.9 * float(value[0, 1]) - float(value[0, 0])


def test_episodes_in_a_line_with_discounts_of_their_own():
    # Two episodes, 0 0 0 and 5; the discount differs from step to step.
    got = episode_gae(
        tensor([1.0, 2.0, 3.0, 4.0]),
        tensor([8.0, 4.0, 2.0, 1.0]),
        episode_K=tensor([0, 0, 0, 5]),
        final_K=tensor([100.0, 100.0, 16.0, 32.0]),
        gamma_K=tensor([0.5, 0.25, 0.125, 0.0625]),
        lam_K=tensor([0.5, 1.0, 9.0, 9.0]),
    )
    third = 3 + 0.125 * 16 - 2
    second = 2 + 0.25 * 2 - 4 + 0.25 * third
    first = 1 + 0.5 * 4 - 8 + 0.25 * second
    assert got.tolist() == [first, second, third, 4 + 0.0625 * 32 - 1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: gae(m, m[:, :1], m), "one shape"),
        (lambda m: gae(m, m, m * 0.5), "only 0 and 1"),
        (lambda m: gae(m, m, m, gamma=1.01), r"gamma must lie in \[0, 1\], found 1.01"),
        (lambda m: gae(m, m, m, gamma=math.nan), "gamma must lie"),
        (lambda m: gae(m, m, m, lam=-0.01), r"lam must lie in \[0, 1\], found -0.01"),
        (lambda m: gae(m * math.nan, m, m), "reward_B_T has a NaN"),
        (lambda m: gae(m, m * math.inf, m), "value_B_T has a NaN or infinite entry; drop"),
        (lambda m: gae(m, m, m, bootstrap_B=tensor([0, math.inf])), "bootstrap_B has a NaN"),
        (lambda m: gae(m, m, m, bootstrap_B=torch.ones(3)), r"\(2,\), found \(3,\)"),
    ],
)
def test_wrong_inputs_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.ones(2, 3))
