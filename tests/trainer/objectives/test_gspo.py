"""GSPO: sequence ratios and loss by hand, gradients, masks and micro-batches."""

from __future__ import annotations

import math

import pytest
import torch
from torch import tensor
from torch.testing import assert_close

from trainer.objectives.aggregate import Denominators
from trainer.objectives.gspo import gspo_loss, sequence_log_ratio


def f64(values):
    """A float64 tensor of exactly these values; tensor(values).double() rounds to float32."""
    return torch.tensor(values, dtype=torch.float64)


LENGTHS = [1, 3, 5, 2]
WIDE = {"clip_low": 0.3, "clip_high": 0.4}


def batch(seed: int = 0, dtype: torch.dtype = torch.float64):
    """Four sequences of 1 to 5 tokens: new, old, advantage (one a row), mask."""
    g = torch.Generator().manual_seed(seed)
    old = -2 * torch.rand((4, 5), generator=g, dtype=torch.float64)
    new = old + 0.3 * torch.randn((4, 5), generator=g, dtype=torch.float64)
    adv = f64([0.7, -1.1, 0.4, -0.6])[:, None].expand(4, 5)
    mask = torch.arange(5) < tensor(LENGTHS)[:, None]
    return new.to(dtype), old.to(dtype), adv.to(dtype), mask


def one(log_ratio, adv=1.0, **options):
    """Loss, gradient and statistics of one row whose old log-probs are -1."""
    new = (f64([log_ratio]) - 1.0).requires_grad_()
    old, advantage = torch.full_like(new, -1.0), torch.full_like(new, adv)
    loss, stats = gspo_loss(new, old, advantage, torch.ones_like(new), **options)
    loss.backward()
    return loss.item(), new.grad[0].tolist(), stats


def test_sequence_ratio_is_the_mean_over_the_rows_tokens():
    new = f64([[0.5, -0.1, 9.0], [0.2, 9.0, 9.0], [9.0, 9.0, 9.0]])
    mask = tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0]])
    got = sequence_log_ratio(new, torch.zeros_like(new), mask)
    assert_close(got.tolist(), [0.2, 0.2, 0.0], rtol=1e-14, atol=0)
    assert got.dtype == torch.float64


def test_sequence_ratio_is_limited_above_only():
    new = tensor([[9.9], [10.0], [10.1], [-50.0]])
    got = sequence_log_ratio(new, torch.zeros_like(new), torch.ones_like(new))
    assert_close(got.tolist(), [9.9, 10.0, 10.0, -50.0], rtol=1e-6, atol=0)
    assert got[2] == 10.0


def test_loss_by_hand():
    # ratios e^0.2 and e^-0.1; A = 2 is inside the wide clip, A = -1 too
    new = f64([[0.3, 0.1, 0.0], [-0.1, 0.0, 0.0]])
    mask = tensor([[1, 1, 0], [1, 0, 0]])
    adv = f64([[2.0], [-1.0]]).expand(2, 3)
    loss, stats = gspo_loss(new, torch.zeros_like(new), adv, mask, **WIDE)
    assert_close(loss.item(), (-2 * math.exp(0.2) + math.exp(-0.1)) / 2, rtol=1e-14, atol=0)
    assert stats.metrics()["clipfrac"] == 0.0
    # with the default clip both are outside, but the clip acts on neither side that helps
    loss, stats = gspo_loss(new, torch.zeros_like(new), adv, mask)
    assert_close(loss.item(), (-2 * 1.0004 + 0.9997) / 2, rtol=1e-14, atol=0)
    assert_close(stats.metrics()["clipfrac"], 1.0)


@pytest.mark.parametrize(
    ("log_s", "adv", "expected", "acts"),
    [
        (5e-4, 1.0, -1.0004, True),
        (3.5e-4, 1.0, -math.exp(3.5e-4), False),
        (-0.5, 1.0, -math.exp(-0.5), False),
        (-3.5e-4, -1.0, 0.9997, True),
        (-2.5e-4, -1.0, math.exp(-2.5e-4), False),
        (0.5, -1.0, math.exp(0.5), False),
        (2.0, -1.0, math.exp(2.0), False),  # no dual clip at 3
    ],
)
def test_default_clip_and_its_gradient(log_s, adv, expected, acts):
    loss, grad, stats = one([log_s, log_s], adv)
    assert_close(loss, expected, rtol=1e-12, atol=0)
    slope = 0.0 if acts else -adv * math.exp(log_s) / 2
    assert_close(grad, [slope, slope], rtol=1e-12, atol=0)
    assert float(stats.clipped) == (2.0 if acts else 0.0)
    assert float(stats.dual_clipped) == 0.0
    assert float(stats.tokens) == 2.0


def test_statistics_by_hand():
    _, _, stats = one([0.5, -0.1])
    per_token = [math.exp(0.5) - 1.5, math.exp(-0.1) - 0.9]
    assert_close(float(stats.kl_old), sum(per_token), rtol=1e-12, atol=0)
    assert stats.metrics()["clipfrac"] == 1.0
    _, _, stats = one([30.0, -30.0])
    assert_close(float(stats.kl_old), math.exp(20) - 21 + math.exp(-20) + 19, rtol=1e-12, atol=0)


def test_the_limit_of_the_ratio_has_no_gradient():
    loss, grad, _ = one([12.0, 10.0], -1.0)
    assert_close(loss, math.exp(10), rtol=1e-12, atol=0)
    assert grad == [0.0, 0.0]
    assert one([10.0], -1.0)[1] == [0.0]
    loss, grad, _ = one([9.0, 10.0], -1.0)
    assert_close(loss, math.exp(9.5), rtol=1e-12, atol=0)
    assert_close(grad, [math.exp(9.5) / 2] * 2, rtol=1e-12, atol=0)


def test_at_equal_policies_it_is_the_policy_gradient():
    new, _, adv, mask = batch(dtype=torch.float32)
    leaf = new.clone().requires_grad_()
    loss, stats = gspo_loss(leaf, new, adv, mask)
    loss.backward()
    # exactly: the value of the trick is 1, not 1 up to rounding of new
    assert_close(loss.item(), -adv[:, 0].double().mean().item(), rtol=2e-7, atol=0)
    per_row = adv / (4 * mask.sum(-1, keepdim=True))
    assert_close(leaf.grad, torch.where(mask, -per_row, 0.0))
    assert stats.metrics() == {"clipfrac": 0.0, "dual_clipfrac": 0.0, "kl_old": 0.0}


def test_gradient_by_finite_differences():
    new, old, adv, mask = batch(seed=2)
    inputs = new.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: gspo_loss(x, old, adv, mask, **WIDE)[0], inputs)
    leaf = new.clone().requires_grad_()
    gspo_loss(leaf, old, adv, mask, **WIDE)[0].backward()
    assert (leaf.grad[mask] != 0).any()


def test_advantages_that_differ_within_a_row_weigh_their_own_tokens():
    new = f64([[0.1, 0.3]]).requires_grad_()
    adv = f64([[1.0, 3.0]])
    loss, _ = gspo_loss(new, torch.zeros(1, 2), adv, torch.ones(1, 2), **WIDE)
    loss.backward()
    s = math.exp(0.2)
    assert_close(loss.item(), -2 * s, rtol=1e-12, atol=0)
    assert_close(new.grad[0].tolist(), [-s / 2, -1.5 * s], rtol=1e-12, atol=0)


def test_only_the_new_log_probs_get_a_gradient():
    new, old, adv, mask = (x.clone() for x in batch())
    for leaf in (new, old, adv):
        leaf.requires_grad_()
    loss, stats = gspo_loss(new, old, adv, mask, **WIDE)
    loss.backward()
    assert new.grad is not None
    assert old.grad is None
    assert adv.grad is None
    assert not stats.kl_old.requires_grad
    assert not stats.clipped.requires_grad
    assert not sequence_log_ratio(new, old, mask).requires_grad


@pytest.mark.parametrize("cut", [[1, 1, 1, 1], [3, 1], [2, 2]])
def test_micro_batches_add_up(cut):
    new, old, adv, mask = batch()
    counts = Denominators.of(mask)

    def run(parts):
        leaf = new.clone().requires_grad_()
        total, stats, start = 0.0, None, 0
        for n in parts:
            width = max(LENGTHS[start : start + n])
            rows = (slice(start, start + n), slice(0, width))
            loss, part = gspo_loss(
                leaf[rows], old[rows], adv[rows], mask[rows], denominators=counts, **WIDE
            )
            loss.backward()
            total += loss.item()
            stats = part if stats is None else stats + part
            start += n
        return total, leaf.grad, stats

    whole, part = run([4]), run(cut)
    assert abs(whole[0]) > 1e-3
    assert_close(part[0], whole[0], rtol=1e-12, atol=0)
    assert_close(part[1], whole[1], rtol=1e-12, atol=1e-15)
    assert part[2].metrics() == pytest.approx(whole[2].metrics(), rel=1e-12)


def test_rows_may_come_in_any_order():
    new, old, adv, mask = batch()
    p = tensor([2, 0, 3, 1])
    a = gspo_loss(new, old, adv, mask)[0]
    assert_close(gspo_loss(new[p], old[p], adv[p], mask[p])[0], a, rtol=1e-12, atol=0)


@pytest.mark.parametrize("junk", [1e30, -1e30, math.inf, -math.inf, math.nan])
def test_masked_positions_change_no_bit_and_get_no_gradient(junk):
    new, old, adv, mask = batch()
    mask[2, 1] = False  # a hole inside the sequence
    results = []
    for fill in (0.0, junk):
        a, b, c = (x.masked_fill(~mask, fill) for x in (new, old, adv))
        a.requires_grad_()
        loss, stats = gspo_loss(a, b, c, mask, **WIDE)
        loss.backward()
        results.append((loss.item(), stats.metrics(), a.grad))
    assert results[0][:2] == results[1][:2]
    assert torch.equal(results[0][2], results[1][2])
    assert results[1][2][~mask].abs().max() == 0.0
    assert results[1][2][mask].abs().max() > 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_token_masked(dtype):
    new, old, adv, _ = (x.clone() for x in batch(dtype=dtype))
    new[0, 0], new[1, 1], old[2, 2], adv[3, 3] = math.inf, math.nan, -math.inf, math.nan
    new.requires_grad_()
    loss, stats = gspo_loss(new, old, adv, torch.zeros(4, 5))
    loss.backward()
    assert loss.item() == 0.0
    assert loss.dtype == dtype
    assert torch.equal(new.grad, torch.zeros_like(new))
    assert stats.metrics() == {"clipfrac": 0.0, "dual_clipfrac": 0.0, "kl_old": 0.0}


def test_an_impossible_token_does_not_poison_the_others():
    new = f64([[-math.inf, -1.0], [-1.0, -1.0]]).requires_grad_()
    old = torch.full((2, 2), -1.0).double()
    for adv in (1.0, -1.0):
        new.grad = None
        loss, _ = gspo_loss(new, old, torch.full((2, 2), adv).double(), torch.ones(2, 2))
        loss.backward()
        # s = 0 in the first row
        assert_close(loss.item(), (0.0 - 1.0) / 2 if adv > 0 else (0.9997 + 1.0) / 2)
        assert new.grad.tolist() == [[0.0, 0.0], [-adv / 4, -adv / 4]]


def test_nan_is_not_hidden():
    new = tensor([[math.nan, -1.0]])
    assert math.isnan(gspo_loss(new, new * 0, torch.ones(1, 2), torch.ones(1, 2))[0].item())


def test_single_precision_clips_where_double_does():
    # s = 1.00039 and 1.00041 with log-probs near -20
    for log_s, acts in ((3.9e-4, 0.0), (4.1e-4, 1.0)):
        old = torch.full((1, 64), -20.0, dtype=torch.float64)
        new = (old + log_s).float()
        one_ = torch.ones(1, 64)
        stats = gspo_loss(new, old.float(), one_, one_)[1]
        assert stats.metrics()["clipfrac"] == acts


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: gspo_loss(m, m, m[:, :1], m), "one shape"),
        (lambda m: gspo_loss(m, m, m, m * 0.5), "only 0 and 1"),
        (lambda m: gspo_loss(m, m, m, m, clip_low=1.0), "Need 0 <= clip_low < 1"),
        (lambda m: gspo_loss(m, m, m, m, clip_low=-0.1), "Need 0 <= clip_low < 1"),
        (lambda m: gspo_loss(m, m, m, m, clip_high=-0.1), "found 0.0003 and -0.1"),
        (lambda m: gspo_loss(m, m, m, m, clip_high=math.nan), "clip_high >= 0"),
        (lambda m: gspo_loss(m, m, m, m, denominators=Denominators(1, 1)), "whole"),
        (lambda m: gspo_loss(m, m[:1], m, m), "one shape"),
        (lambda m: gspo_loss(m, m, m, m[:1]), "one shape"),
        (lambda m: sequence_log_ratio(m[:1], m, m), "one shape"),
        (lambda m: sequence_log_ratio(m, m[:1], m), "one shape"),
        (lambda m: sequence_log_ratio(m, m, m[:1]), "one shape"),
    ],
)
def test_wrong_inputs_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.ones(2, 3))


def test_the_loss_has_the_dtype_of_the_new_log_probs():
    new, old, adv, mask = batch()
    loss, stats = gspo_loss(new.float(), old, adv, mask, **WIDE)
    assert loss.dtype == torch.float32
    assert {x.dtype for x in (stats.tokens, stats.clipped, stats.dual_clipped, stats.kl_old)} == {
        torch.float64
    }
    assert_close(loss.item(), gspo_loss(new, old, adv, mask, **WIDE)[0].item(), rtol=1e-6, atol=0)
    low = sequence_log_ratio(new.float(), old, mask)
    assert_close(low, sequence_log_ratio(new.float().double(), old, mask), rtol=0, atol=0)
    both = sequence_log_ratio(new.float(), old.float(), mask)
    exact = sequence_log_ratio(new.float().double(), old.float().double(), mask)
    assert_close(both, exact, rtol=0, atol=0)


def test_clip_may_be_zero():
    m = torch.ones(1, 2)
    assert gspo_loss(m, m, m, m, clip_low=0.0, clip_high=0.0)[0].item() == -1.0
