"""Policy loss and its reductions: values by hand, masks, and micro-batches.

Promises:
1. O27: with every token masked the loss is 0.0, backward works and the gradient is exactly 0.
2. O29: what stands at masked positions changes the loss by not one bit, and gets gradient 0.
3. O23: cutting the batch changes neither loss nor gradient, in any reduction mode.
4. The gradient is that of the formula (finite differences).
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor
from torch.testing import assert_close

from trainer.objectives import (
    AGGREGATIONS,
    Denominators,
    aggregate,
    aggregation_coefficients,
    clipped_surrogate,
    policy_loss,
    weighted_nll,
    weighted_row_sum,
)

LENGTHS = [1, 3, 8, 13, 21, 27, 34, 40]


def batch(seed: int = 0, dtype: torch.dtype = torch.float64):
    """Eight sequences of 1 to 40 tokens: new, old, advantage, mask; new and old differ."""
    g = torch.Generator().manual_seed(seed)
    shape = (len(LENGTHS), max(LENGTHS))
    old = -2 * torch.rand(shape, generator=g, dtype=torch.float64)
    new = old + 0.5 * torch.randn(shape, generator=g, dtype=torch.float64)
    adv = torch.randn((shape[0], 1), generator=g, dtype=torch.float64).expand(shape)
    mask = torch.arange(shape[1]) < tensor(LENGTHS)[:, None]
    return new.to(dtype), old.to(dtype), adv.to(dtype), mask


def test_clipped_loss_by_hand():
    # rho = 2 and 1/2 with A = +1, -1
    log2 = math.log(2)
    new = tensor([[log2, -log2, log2, -log2]]).double()
    adv = tensor([[1.0, 1.0, -1.0, -1.0]]).double()
    per_token, stats = clipped_surrogate(new, torch.zeros_like(new), adv, torch.ones_like(new))
    # A>0: -min(2, 1.2), -min(.5, .8); A<0: max(2, 1.2), max(.5, .8)
    assert_close(per_token, tensor([[-1.2, -0.5, 2.0, 0.8]]).double())
    assert stats.metrics()["clipfrac"] == 0.5
    assert_close(stats.metrics()["kl_old"], ((2 - 1 - log2) * 2 + (0.5 - 1 + log2) * 2) / 4)


def test_dual_clip_caps_bad_actions_only():
    new = tensor([[math.log(9.0), math.log(9.0)]]).double()
    adv = tensor([[-2.0, 2.0]]).double()
    mask = torch.ones_like(new)
    with_dual, stats = clipped_surrogate(new, torch.zeros_like(new), adv, mask)
    without, _ = clipped_surrogate(new, torch.zeros_like(new), adv, mask, dual_clip=None)
    assert_close(with_dual, tensor([[6.0, -2.4]]).double())  # cap 3 * 2
    assert_close(without, tensor([[18.0, -2.4]]).double())
    assert stats.metrics()["dual_clipfrac"] == 0.5


def test_clip_higher_leaves_more_room_above():
    new = tensor([[math.log(1.26)]]).double()
    one = torch.ones_like(new)
    loss, stats = policy_loss(new, torch.zeros_like(new), one, one, clip_high=0.28)
    assert_close(loss.item(), -1.26)
    assert stats.metrics()["clipfrac"] == 0.0
    assert_close(policy_loss(new, torch.zeros_like(new), one, one)[0].item(), -1.2)


def test_each_reduction_by_hand():
    value = tensor([[1.0, 2.0, 9.0], [4.0, 9.0, 9.0], [9.0, 9.0, 9.0]]).double()
    mask = tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0]])
    counts = Denominators.of(mask, length=10)
    assert counts == Denominators(tokens=3, sequences=2, length=10)
    got = {how: aggregate(value, mask, how, counts).item() for how in AGGREGATIONS}
    assert got == pytest.approx(
        {
            "token-mean": 7 / 3,
            "seq-mean-token-mean": (1.5 + 4) / 2,
            "seq-mean-token-sum": 7 / 2,
            "seq-mean-token-sum-norm": 7 / 10,
            "dr_grpo": 7 / 20,
        },
        rel=1e-14,
    )


@pytest.mark.parametrize("how", AGGREGATIONS)
@pytest.mark.parametrize("cut", [[8], [2, 2, 2, 2], [1] * 8, [5, 3]])
def test_o23_any_cut_gives_the_same_loss_and_gradient(how, cut):
    logits = torch.randn((8, 11), generator=torch.Generator().manual_seed(1)).double()
    _, old, adv, mask = batch()
    labels = torch.randint(11, mask.shape, generator=torch.Generator().manual_seed(2))
    counts = Denominators.of(mask, length=64)

    def run(parts):
        table = logits.clone().requires_grad_()
        total, start = 0.0, 0
        for n in parts:
            rows = slice(start, start + n)
            width = max(LENGTHS[rows])  # each micro-batch is padded to its own width
            start += n
            lab = labels[rows, :width]
            logp = table.log_softmax(-1)[torch.arange(8)[rows]][:, None].expand(-1, width, -1)
            new = logp.gather(-1, lab[..., None])[..., 0]
            loss, _ = policy_loss(
                new,
                old[rows, :width],
                adv[rows, :width],
                mask[rows, :width],
                aggregation=how,
                denominators=counts,
            )
            loss.backward()
            total += loss.item()
        return total, table.grad

    whole, gradient = run([8])
    part, part_gradient = run(cut)
    assert abs(whole) > 1e-6
    assert_close(part, whole, rtol=1e-12, atol=1e-13)
    assert_close(part_gradient, gradient, rtol=1e-11, atol=1e-13)


def test_o23_single_precision_cut_agrees_too():
    new, old, adv, mask = batch(dtype=torch.float32)
    counts = Denominators.of(mask)

    def gradient(size):
        leaf = new.clone().requires_grad_()
        for i in range(0, 8, size):
            rows = slice(i, i + size)
            policy_loss(leaf[rows], old[rows], adv[rows], mask[rows], denominators=counts)[
                0
            ].backward()
        return leaf.grad

    assert_close(gradient(8), gradient(1), atol=1e-5, rtol=0)
    assert_close(gradient(8), gradient(2), atol=1e-5, rtol=0)


def test_statistics_of_parts_add_up():
    new, old, adv, mask = batch()
    whole = policy_loss(new, old, adv, mask)[1]
    parts = (
        policy_loss(new[:3], old[:3], adv[:3], mask[:3])[1]
        + policy_loss(new[3:], old[3:], adv[3:], mask[3:])[1]
    )
    assert parts.metrics() == pytest.approx(whole.metrics(), rel=1e-12)
    assert 0.1 < whole.metrics()["clipfrac"] < 0.9


@pytest.mark.parametrize("how", AGGREGATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_o27_every_token_masked(how, dtype):
    new, old, adv, _ = batch(dtype=dtype)
    new = new.clone()
    new[0, 0], new[1, 1], new[2, 2] = math.inf, -math.inf, math.nan
    new.requires_grad_()
    adv = adv.clone()
    adv[3, 3] = math.nan
    empty = torch.zeros_like(new, dtype=torch.bool)
    counts = Denominators.of(empty, length=40)
    loss, stats = policy_loss(new, old, adv, empty, aggregation=how, denominators=counts)
    loss.backward()
    assert loss.item() == 0.0
    assert new.grad is not None
    assert torch.equal(new.grad, torch.zeros_like(new))
    assert stats.metrics() == {"clipfrac": 0.0, "dual_clipfrac": 0.0, "kl_old": 0.0}


def test_o27_no_rows_at_all():
    empty = torch.zeros(0, 4, requires_grad=True)
    loss, _ = policy_loss(empty, empty, empty, torch.zeros(0, 4))
    loss.backward()
    assert loss.item() == 0.0


@pytest.mark.parametrize("how", AGGREGATIONS)
@pytest.mark.parametrize("junk", [1e6, -1e6, math.inf, -math.inf, math.nan])
def test_o29_masked_positions_change_no_bit_and_get_no_gradient(how, junk):
    new, old, adv, mask = batch()
    mask[2, 4] = False  # a hole inside the sequence
    counts = Denominators.of(mask, length=40)
    results = []
    for fill in (None, junk):
        a, b, c = (x.clone() for x in (new, old, adv))
        if fill is not None:
            for x in (a, b, c):
                x[~mask] = fill
        a.requires_grad_()
        loss, _ = policy_loss(a, b, c, mask, aggregation=how, denominators=counts)
        loss.backward()
        results.append((loss.item(), a.grad))
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])
    assert torch.equal(results[1][1][~mask], torch.zeros(int((~mask).sum()), dtype=new.dtype))
    assert (results[1][1][mask] != 0).any()


def test_o29_changing_the_label_of_a_masked_position():
    logits = torch.randn((2, 5, 7), generator=torch.Generator().manual_seed(4)).double()
    labels = torch.randint(7, (2, 5), generator=torch.Generator().manual_seed(5))
    mask = tensor([[0, 1, 1, 0, 0], [0, 0, 1, 1, 0]])
    losses = []
    for shift in (0, 3):
        leaf = logits.clone().requires_grad_()
        ids = torch.where(mask.bool(), labels, (labels + shift) % 7)
        logp = leaf.log_softmax(-1).gather(-1, ids[..., None])[..., 0]
        adv = torch.full_like(logp, 0.7)
        loss, _ = policy_loss(logp, logp.detach() - 0.05, adv, mask)
        loss.backward()
        losses.append(loss.item())
        assert leaf.grad[mask == 0].abs().max() == 0.0
        assert (leaf.grad[mask == 1].abs().amax(-1) > 0).all()
    assert losses[0] == losses[1]


def test_gradient_by_finite_differences():
    new, old, adv, mask = batch(seed=7)
    rows = slice(0, 4)
    new, old, adv, mask = new[rows, :13], old[rows, :13], adv[rows, :13].clone(), mask[rows, :13]
    adv[:2] = -adv[:2].abs()  # both signs, so that clip and dual clip act
    adv[2:] = adv[2:].abs()
    new[0, 0] = old[0, 0] + 2.0  # dual clip
    leaf = new.clone().requires_grad_()

    def loss_of(x):
        return policy_loss(x, old, adv, mask, aggregation="seq-mean-token-mean")[0]

    loss_of(leaf).backward()
    assert leaf.grad is not None
    h = 1e-6
    for b, t in mask.nonzero().tolist():
        up, down = new.clone(), new.clone()
        up[b, t] += h
        down[b, t] -= h
        slope = (loss_of(up) - loss_of(down)) / (2 * h)
        assert_close(leaf.grad[b, t], slope, atol=1e-8, rtol=1e-6)
    assert leaf.grad[0, 0] == 0.0
    assert (leaf.grad[mask] == 0).any()
    assert (leaf.grad[mask] != 0).any()


def test_at_equal_policies_it_is_the_policy_gradient():
    new, _, adv, mask = batch()
    leaf = new.clone().requires_grad_()
    loss, stats = policy_loss(leaf, new, adv, mask)
    loss.backward()
    expected = torch.where(mask, -adv / mask.sum(), torch.zeros_like(adv))
    assert_close(leaf.grad, expected)
    assert stats.metrics()["clipfrac"] == 0.0
    assert stats.metrics()["kl_old"] == 0.0


def test_huge_ratios_do_not_poison_the_gradient():
    new = tensor([[0.0, 0.0, -1.0]]).requires_grad_()
    old = tensor([[-200.0, -200.0, -1.0]])
    loss, _ = policy_loss(new, old, tensor([[-1.0, 1.0, 1.0]]), torch.ones(1, 3))
    loss.backward()
    assert_close(loss.item(), (3.0 - 1.2 - 1.0) / 3, rtol=1e-6, atol=0)
    assert new.grad.tolist() == [[0.0, 0.0, pytest.approx(-1 / 3)]]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_row_sums_over_any_partition(data):
    n = data.draw(st.integers(1, 6))
    labels = data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    seed = data.draw(st.integers(0, 10_000))
    g = torch.Generator().manual_seed(seed)
    value = torch.randn((n, 5), generator=g).double()
    mask = torch.rand((n, 5), generator=g) < 0.6
    how = data.draw(st.sampled_from(AGGREGATIONS))
    counts = Denominators.of(mask, length=9)
    parts = [tensor([i for i in range(n) if labels[i] == k], dtype=torch.int64) for k in range(3)]
    total = sum(aggregate(value[p], mask[p], how, counts).item() for p in parts)
    assert_close(total, aggregate(value, mask, how, counts).item(), rtol=1e-10, atol=1e-12)
    split = [Denominators.of(mask[p], length=9) for p in parts]
    assert split[0] + split[1] + split[2] == counts


def test_weighted_nll_skips_impossible_tokens_but_not_nan():
    logp = tensor([[-1.0, -math.inf], [-2.0, -3.0], [-math.inf, -4.0]]).double().requires_grad_()
    mask = tensor([[1, 1], [1, 1], [0, 1]])
    loss = weighted_nll(logp, mask, tensor([0.5, 0.25, 0.125]).double())
    loss.backward()
    assert loss.item() == 0.25 * 5 + 0.125 * 4
    assert logp.grad.tolist() == [[0.0, 0.0], [-0.25, -0.25], [0.0, -0.125]]
    broken = tensor([[math.nan]])
    assert math.isnan(weighted_nll(broken, torch.ones(1, 1), torch.ones(1)).item())
    assert weighted_nll(broken, torch.ones(1, 1), torch.zeros(1)).item() == 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: policy_loss(m, m, m[:, :1], m), "one shape"),
        (lambda m: policy_loss(m, m, m, m * 0.5), "only 0 and 1"),
        (lambda m: policy_loss(m, m, m, m, dual_clip=1.0), "dual_clip"),
        (lambda m: policy_loss(m, m, m, m, clip_low=1.0), "clip_low"),
        (lambda m: policy_loss(m, m, m, m, aggregation="mean"), "Unknown aggregation"),
        (lambda m: policy_loss(m, m, m, m, aggregation="dr_grpo"), "constant length"),
        (lambda m: policy_loss(m, m, m, m, denominators=Denominators(1, 1)), "whole"),
        (lambda m: weighted_row_sum(m, m, torch.ones(2, 1)), "one coefficient per row"),
        (lambda m: aggregation_coefficients(m[0], "token-mean", Denominators(9, 9)), "shape"),
        (lambda m: Denominators(1, 1, 5) + Denominators(1, 1, 6), "lengths 5 and 6"),
    ],
)
def test_wrong_inputs_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.ones(2, 3))
