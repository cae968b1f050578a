"""Whitening: values by hand, constant batches, masks, and rows weighted by tokens."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor
from torch.testing import assert_close

from trainer.objectives.whitening import whiten, whiten_rows


def f64(values):
    """A float64 tensor of exactly these values; tensor(values).double() rounds to float32."""
    return torch.tensor(values, dtype=torch.float64)


VALUE = f64([[1.0, 2.0, 9.0], [6.0, 9.0, 9.0]])
MASK = tensor([[1, 1, 0], [1, 0, 0]])


def test_whitened_by_hand():
    # 1, 2, 6: mean 3, variance (4 + 1 + 9) / 2 = 7
    scale = math.sqrt(7 + 1e-8)
    expected = f64([[-2 / scale, -1 / scale, 0.0], [3 / scale, 0.0, 0.0]])
    assert_close(whiten(VALUE, MASK), expected, rtol=1e-14, atol=0)
    kept = torch.where(MASK.bool(), expected + 3, 0.0)
    assert_close(whiten(VALUE, MASK, shift_mean=False), kept, rtol=1e-14, atol=0)


def test_eps_is_added_to_the_variance():
    # 0, 2: mean 1, variance 2
    got = whiten_rows(tensor([0.0, 2.0]), tensor([1, 1]), eps=2.0)
    assert got.tolist() == [-0.5, 0.5]
    # A variance of the size of the default eps: 5e-9
    small = whiten_rows(f64([0.0, 1e-4]), tensor([1, 1]))
    assert_close(small[1].item(), 5e-5 / math.sqrt(5e-9 + 1e-8), rtol=1e-12, atol=0)


@pytest.mark.parametrize("junk", [1e30, -1e30, math.inf, -math.inf, math.nan])
def test_masked_values_change_no_bit(junk):
    dirty = VALUE.masked_fill(MASK == 0, junk)
    assert torch.equal(whiten(dirty, MASK), whiten(VALUE, MASK))
    rows = whiten_rows(tensor([1.0, junk, 2.0]), tensor([2, 0, 1]))
    assert torch.equal(rows, whiten_rows(tensor([1.0, 0.0, 2.0]), tensor([2, 0, 1])))
    assert rows[1] == 0.0
    assert whiten_rows(tensor([1.0, junk, 2.0]), tensor([2, 0, 1]), shift_mean=False)[1] == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.1, 9.025, -7.3, 1e6])
def test_constant_values_give_exactly_zero(value, dtype):
    mask = torch.arange(7) < tensor([[7], [3], [0]])
    constant = torch.full((3, 7), value, dtype=dtype).masked_fill(~mask, 5.0)
    got = whiten(constant, mask)
    assert got.dtype == torch.float64
    assert torch.equal(got, torch.zeros(3, 7, dtype=torch.float64))
    kept = whiten(constant, mask, shift_mean=False)
    assert_close(kept[mask], constant[mask].double(), rtol=1e-15, atol=0)


def test_the_constant_test_is_relative_above_one_and_absolute_below():
    one = tensor([1, 1])

    def zero(low, high):
        return whiten_rows(f64([low, high]), one).tolist() == [0.0, 0.0]

    assert zero(1e6, 1e6 + 0.009)
    assert not zero(1e6, 1e6 + 0.011)
    assert zero(-1e6 - 0.009, -1e6)
    assert zero(0.0, 0.9e-8)
    assert not zero(0.0, 1e-8)  # the limit itself is not constant
    assert not zero(0.0, 1.1e-8)


def test_one_valid_token_and_none():
    single = tensor([[4.0, 9.0]])
    assert whiten(single, tensor([[1, 0]])).tolist() == [[0.0, 0.0]]
    assert whiten(single, tensor([[1, 0]]), shift_mean=False).tolist() == [[4.0, 0.0]]
    assert whiten(single, tensor([[0, 0]]), shift_mean=False).tolist() == [[0.0, 0.0]]
    assert whiten(torch.zeros(0, 3), torch.zeros(0, 3)).shape == (0, 3)


def test_two_tokens_of_two_rows_are_enough():
    got = whiten_rows(tensor([1.0, 3.0]), tensor([1, 1]))
    assert_close(got.tolist(), [-1 / math.sqrt(2 + 1e-8), 1 / math.sqrt(2 + 1e-8)])


def test_values_far_from_zero_lose_nothing():
    got = whiten(VALUE + 1e7, MASK)
    assert_close(got, whiten(VALUE, MASK), rtol=1e-9, atol=1e-9)


def test_result_is_detached():
    value = VALUE.clone().requires_grad_()
    assert not whiten(value, MASK).requires_grad
    assert not whiten_rows(value[:, 0], tensor([1, 1]), shift_mean=False).requires_grad


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 4)), min_size=1, max_size=6),
    shift_mean=st.booleans(),
)
def test_rows_count_once_per_token(rows, shift_mean):
    value, tokens = (tensor(column) for column in zip(*rows, strict=True))
    mask = torch.arange(4) < tokens[:, None]
    spread = value.double()[:, None].expand(-1, 4)
    by_token = whiten(spread, mask, shift_mean=shift_mean)
    by_row = whiten_rows(value.double(), tokens, shift_mean=shift_mean)
    assert_close(by_token, torch.where(mask, by_row[:, None], 0.0), rtol=1e-10, atol=1e-12)
    flat = by_token[mask]
    if shift_mean and flat.numel():
        assert abs(flat.mean()) < 1e-12
        if flat.abs().max() > 0:
            assert_close(flat.var().item(), 1.0, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: whiten(torch.zeros(2, 3), torch.zeros(2, 2)), "one shape"),
        (lambda: whiten(torch.zeros(2), torch.zeros(2)), "one shape"),
        (lambda: whiten(torch.zeros(1, 2), tensor([[1.0, 0.5]])), "only 0 and 1"),
        (lambda: whiten(torch.zeros(1, 2), torch.ones(1, 2), eps=0.0), "eps must be positive"),
        (lambda: whiten(torch.zeros(1, 2), torch.ones(1, 2), eps=math.nan), "eps must be"),
        (lambda: whiten(tensor([[1.0, math.nan]]), torch.ones(1, 2)), "NaN or infinite"),
        (lambda: whiten_rows(tensor([math.inf]), tensor([1])), "NaN or infinite"),
        (lambda: whiten_rows(torch.zeros(2), tensor([1, -1])), ">= 0, found -1"),
        (lambda: whiten_rows(torch.zeros(2), tensor([1])), "equal length"),
    ],
)
def test_wrong_inputs_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
