"""The critic's loss and its explained variance."""

from __future__ import annotations

import math

import pytest
import torch
from torch import tensor
from torch.testing import assert_close

from trainer.objectives import AGGREGATIONS, Denominators
from trainer.objectives.value import explained_variance, value_loss


def ones(n):
    return torch.ones(1, n)


def batch(seed=0, rows=6, width=5):
    g = torch.Generator().manual_seed(seed)
    old = torch.randn((rows, width), generator=g).double()
    value = old + torch.randn((rows, width), generator=g).double()
    target = old + 2 * torch.randn((rows, width), generator=g).double()
    length = torch.randint(1, width + 1, (rows,), generator=g)
    return value, old, target, torch.arange(width) < length[:, None]


def test_clipped_loss_by_hand():
    # old 0, return 2, clip 1/2: within the clip; past it towards the return; away from it
    value = tensor([[0.25, 1.0, -1.0]]).double().requires_grad_()
    loss, stats = value_loss(value, torch.zeros(1, 3), torch.full((1, 3), 2.0), ones(3))
    loss.backward()
    assert loss.item() == (1.75**2 + 1.5**2 + 3.0**2) / 3
    assert_close(value.grad, tensor([[-3.5, 0.0, -6.0]]).double() / 3)
    assert stats.metrics() == {
        "value_clipfrac": 1 / 3,
        "value_error": (1.75**2 + 1.0 + 9.0) / 3,
    }


def test_both_sides_of_the_clip_and_no_half():
    value, old = tensor([[-3.0, 3.0]]), torch.zeros(1, 2)
    target = tensor([[-4.0, 4.0]])
    loss, stats = value_loss(value, old, target, ones(2), clip=1.0)
    assert loss.item() == 9.0  # (1 - 4)^2, although v itself is only 1 away
    assert stats.metrics() == {"value_clipfrac": 1.0, "value_error": 1.0}
    free, stats = value_loss(value, old, target, ones(2), clip=None)
    assert free.item() == 1.0
    assert stats.metrics() == {"value_clipfrac": 0.0, "value_error": 1.0}


def test_defaults():
    value, old, target, mask = batch()
    loss = value_loss(value, old, target, mask)[0]
    named = value_loss(value, old, target, mask, clip=0.5, aggregation="token-mean")[0]
    assert loss.item() == named.item()
    assert loss.item() != value_loss(value, old, target, mask, clip=0.6)[0].item()
    other = value_loss(value, old, target, mask, aggregation="seq-mean-token-mean")[0]
    assert loss.item() != other.item()


def test_an_unmoved_critic_has_the_gradient_of_the_squared_error():
    value, _, target, mask = batch()
    leaf = value.clone().requires_grad_()
    loss, stats = value_loss(leaf, value, target, mask)
    loss.backward()
    assert_close(leaf.grad, 2 * (value - target) * mask / mask.sum())
    assert stats.clipped == 0


@pytest.mark.parametrize("clip", [0.5, None])
@pytest.mark.parametrize("how", AGGREGATIONS)
def test_gradient_by_finite_differences(how, clip):
    value, old, target, mask = batch(1)
    counts = Denominators.of(mask, length=9)

    def loss_of(x):
        return value_loss(x, old, target, mask, clip=clip, aggregation=how, denominators=counts)[0]

    assert torch.autograd.gradcheck(loss_of, (value.requires_grad_(),))


def test_old_values_and_returns_are_constants():
    value, old, target, mask = batch()
    leaves = [x.clone().requires_grad_() for x in (value, old, target)]
    value_loss(*leaves, mask)[0].backward()
    assert leaves[0].grad.abs().max() > 0
    assert leaves[1].grad is None
    assert leaves[2].grad is None


@pytest.mark.parametrize("how", AGGREGATIONS)
def test_micro_batches_add_up(how):
    value, old, target, mask = batch(2)
    counts = Denominators.of(mask, length=9)

    def run(size):
        leaf, total, stats = value.clone().requires_grad_(), 0.0, None
        for i in range(0, 6, size):
            rows = slice(i, i + size)
            loss, part = value_loss(
                leaf[rows],
                old[rows],
                target[rows],
                mask[rows],
                aggregation=how,
                denominators=counts,
            )
            loss.backward()
            total += loss.item()
            stats = part if stats is None else stats + part
        return total, leaf.grad, stats

    whole, parts = run(6), run(2)
    assert_close(parts[0], whole[0], rtol=1e-12, atol=0)
    assert_close(parts[1], whole[1], rtol=1e-12, atol=1e-14)
    assert parts[2].metrics() == pytest.approx(whole[2].metrics(), rel=1e-12)
    assert 0 < whole[2].metrics()["value_clipfrac"] < 1
    assert int(parts[2].tokens) == int(mask.sum())


@pytest.mark.parametrize("junk", [1e30, math.inf, -math.inf, math.nan])
def test_masked_tokens_change_no_bit_and_get_no_gradient(junk):
    mask = batch()[3]
    mask[0, 0] = False
    outcomes = []
    for fill in (None, junk):
        tensors = [x.clone() for x in batch()[:3]]
        if fill is not None:
            for x in tensors:
                x[~mask] = fill
        leaf = tensors[0].requires_grad_()
        loss, stats = value_loss(*tensors, mask)
        loss.backward()
        outcomes.append((loss.item(), stats.metrics(), leaf.grad))
    assert outcomes[0][:2] == outcomes[1][:2]
    assert torch.equal(outcomes[0][2], outcomes[1][2])
    assert outcomes[1][2][~mask].abs().max() == 0.0


def test_every_token_masked():
    leaf = torch.full((2, 2), math.nan, requires_grad=True)
    loss, stats = value_loss(leaf, leaf, leaf, torch.zeros(2, 2))
    loss.backward()
    assert loss.item() == 0.0
    assert leaf.grad.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert stats.metrics() == {"value_clipfrac": 0.0, "value_error": 0.0}


def test_dtype_is_that_of_the_values():
    value, old, target, mask = batch()
    loss, stats = value_loss(value.float(), old, target, mask)
    assert loss.dtype == torch.float32
    assert stats.squared_error.dtype == torch.float64
    assert stats.tokens.dtype == stats.clipped.dtype == torch.float64


def test_statistics_of_one_token_and_of_none():
    value, target = tensor([[3.0, 9.0]]), tensor([[1.0, 0.0]])
    stats = value_loss(value, torch.zeros(1, 2), target, tensor([[1, 0]]), clip=2.0)[1]
    assert stats.metrics() == {"value_clipfrac": 0.0, "value_error": 4.0}
    none = value_loss(value, target, target, torch.zeros(1, 2))[1]
    assert (stats + none).metrics() == stats.metrics()
    with pytest.raises(AttributeError):
        stats.tokens = none.tokens


# ---------------------------------------------------------------------------- explained variance


def test_explained_variance_by_hand():
    target = tensor([[1.0, 2.0, 3.0, 4.0, 777.0]])
    mask = tensor([[1, 1, 1, 1, 0]])
    # errors 0, 1, 0, 1: variance 1/4 against 5/4 (both over n)
    assert explained_variance(target - tensor([[0.0, 1, 0, 1, 0]]), target, mask) == 0.8
    assert explained_variance(target, target, mask) == 1.0
    assert explained_variance(target - 5, target, mask) == 1.0  # a constant error costs nothing
    assert explained_variance(torch.full((1, 5), 2.0), target, mask) == 0.0
    assert explained_variance(-target, target, mask) == -3.0


def test_explained_variance_where_there_is_nothing_to_explain():
    value = torch.arange(3.0)[None]
    assert explained_variance(value, torch.full((1, 3), 0.1), ones(3)) is None
    assert explained_variance(value, value, tensor([[1, 0, 0]])) is None
    assert explained_variance(value, value, torch.zeros(1, 3)) is None
    assert explained_variance(value, value, tensor([[1, 1, 0]])) == 1.0

    def within(low, high):
        target = tensor([[low, high]], dtype=torch.float64)
        return explained_variance(torch.zeros(1, 2), target, ones(2)) is None

    assert within(0.0, 0.9e-8)
    assert not within(0.0, 1e-8)
    assert not within(0.0, 1.1e-8)
    assert within(-1000.0, -1000.0 - 0.9e-5)
    assert not within(-1000.0, -1000.0 - 1.1e-5)


def test_explained_variance_ignores_masked_tokens_and_keeps_double_precision():
    target = tensor([[1e8, 1e8 + 10, math.nan]], dtype=torch.float64)
    value = tensor([[0.0, 5.0, math.inf]])
    assert_close(explained_variance(value, target, tensor([[1, 1, 0]])), 0.75)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: value_loss(m, m, m[:, :1], m), "one shape"),
        (lambda m: value_loss(m, m[:1], m, m), "one shape"),
        (lambda m: value_loss(m, m, m, m * 0.5), "only 0 and 1"),
        (lambda m: value_loss(m, m, m, m, clip=0.0), "clip must be positive .or None., found 0.0"),
        (lambda m: value_loss(m, m, m, m, clip=math.nan), "clip must be positive"),
        (lambda m: value_loss(m, m, m, m, aggregation="mean"), "Unknown aggregation"),
        (lambda m: value_loss(m, m, m, m, denominators=Denominators(1, 1)), "whole"),
        (lambda m: explained_variance(m, m[:, :1], m), "one shape"),
        (lambda m: explained_variance(m * math.nan, m, m), "value_B_T has a NaN"),
        (lambda m: explained_variance(m, m * math.inf, m), "return_B_T has a NaN"),
    ],
)
def test_wrong_inputs_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.ones(2, 3))


def test_rounding_is_no_clipping() -> None:
    """old + (v - old) is not always v, and a value within the clip is not clipped."""
    generator = torch.Generator().manual_seed(0)
    value, old = 0.05 * torch.randn(2, 1, 10_000, generator=generator)
    assert float((value - old).abs().max()) < 0.5
    inside = old + (value - old).clamp(-0.5, 0.5)
    assert bool((inside.square() > value.square()).any())
    _, stats = value_loss(value, old, torch.zeros_like(value), torch.ones_like(value))
    assert stats.clipped == 0
