"""CHORD, LUFFY and step-DPO: three other ways to learn from an oracle's replies."""

from __future__ import annotations

import math

import pytest
import torch
from torch import tensor
from torch.autograd import gradcheck
from torch.testing import assert_close

from trainer.auxiliary.chord import chord_mix, chord_mu, chord_phi_loss, chord_token_weights
from trainer.auxiliary.luffy import luffy_loss, luffy_shape
from trainer.auxiliary.step_dpo import ScoredReplies, step_dpo_loss
from trainer.objectives.aggregate import Denominators

INF = math.inf
P = tensor([[0.5, 0.25, 0.8], [0.1, 0.9, 0.3]], dtype=torch.float64)
MASK = tensor([[1, 1, 1], [1, 1, 0]])
ADV = tensor([[1.0, -2.0, 0.5], [3.0, -1.0, 7.0]], dtype=torch.float64)


def leaf(values):
    return values.clone().requires_grad_()


def test_chord_weights_by_hand():
    logp = leaf(P.log())
    got = chord_token_weights(logp)
    assert_close(got, P * (1 - P))
    assert not got.requires_grad
    assert chord_token_weights(tensor([0.0, -INF])).tolist() == [0.0, 0.0]
    # near certainty: 1 - p = 1e-6 keeps its digits in float32
    near = chord_token_weights(tensor([-1e-6], dtype=torch.float32)).item()
    assert near == pytest.approx(1e-6, rel=1e-5)


def test_chord_loss_by_hand():
    logp = leaf(P.log())
    loss = chord_phi_loss(logp, MASK)
    weight = (P * (1 - P))[MASK.bool()]
    assert loss.item() == pytest.approx((-weight * P[MASK.bool()].log()).sum().item() / 5)
    loss.backward()
    # the weight is a constant, and does not enter the denominator
    assert_close(logp.grad, -P * (1 - P) * MASK / 5)
    summed = chord_phi_loss(P.log(), MASK, aggregation="seq-mean-token-sum").item()
    assert summed == pytest.approx(loss.item() * 5 / 2)


def test_chord_gradient_by_finite_differences_of_its_frozen_form():
    frozen = P * (1 - P) * MASK
    assert gradcheck(lambda x: -(frozen * x).sum() / 5, (leaf(P.log()),))


def test_impossible_tokens_add_nothing_to_chord():
    logp = P.log()
    logp[0, 1] = -INF
    logp.requires_grad_()
    loss = chord_phi_loss(logp, MASK)
    loss.backward()
    rest = chord_phi_loss(P.log(), tensor([[1, 0, 1], [1, 1, 0]]), denominators=Denominators(5, 2))
    assert loss.item() == pytest.approx(rest.item(), rel=1e-14)
    assert logp.grad[0, 1] == 0
    assert torch.isfinite(logp.grad).all()


def test_mu_cosine_by_hand():
    def mu(step):
        return chord_mu(step, warmup_steps=10, decay_steps=20)

    assert mu(0) == 0.0
    assert mu(5) == pytest.approx(0.45)
    assert mu(9) == pytest.approx(0.81)
    assert mu(10) == pytest.approx(0.9)
    assert mu(15) == pytest.approx(0.05 + 0.85 * (1 + math.sqrt(0.5)) / 2)
    assert mu(20) == pytest.approx(0.475)
    assert mu(29) == pytest.approx(0.05 + 0.85 * (1 + math.cos(math.pi * 19 / 20)) / 2)
    assert mu(30) == mu(10**6) == 0.05


def test_mu_linear_and_edges():
    def mu(step, **options):
        return chord_mu(step, decay_steps=4, peak=0.8, valley=0.4, shape="linear", **options)

    assert [mu(i) for i in range(6)] == pytest.approx([0.8, 0.7, 0.6, 0.5, 0.4, 0.4])
    assert mu(1, warmup_steps=2) == pytest.approx(0.4)
    assert mu(3, warmup_steps=2) == pytest.approx(0.7)
    assert chord_mu(0, decay_steps=0) == 0.05
    assert chord_mu(0, decay_steps=1) == 0.9
    assert chord_mu(3, decay_steps=0, warmup_steps=4) == pytest.approx(0.675)
    assert chord_mu(0, decay_steps=3, peak=1.0, valley=1.0) == 1.0
    assert chord_mu(5, decay_steps=3, peak=0.0, valley=0.0) == 0.0


def test_mu_refusals():
    for bad in ({"step": -1}, {"decay_steps": -1}, {"warmup_steps": -1}):
        with pytest.raises(ValueError, match="must not be negative"):
            chord_mu(**{"step": 0, "decay_steps": 3, **bad})
    for bad in ({"peak": 1.001}, {"valley": -0.001}, {"peak": 0.3, "valley": 0.4}):
        with pytest.raises(ValueError, match="0 <= valley <= peak <= 1"):
            chord_mu(0, decay_steps=3, **bad)
    with pytest.raises(ValueError, match="'cosine' or 'linear'"):
        chord_mu(0, decay_steps=3, shape="step")


def test_mix():
    base, sft = leaf(tensor(2.0)), leaf(tensor(10.0, dtype=torch.float64))
    mixed = chord_mix(base, sft, 0.25)
    assert mixed.item() == pytest.approx(4.0)
    mixed.backward()
    assert (base.grad.item(), sft.grad.item()) == pytest.approx((0.75, 0.25))
    infinite = tensor(INF)
    assert chord_mix(base, infinite, 0.0) is base
    assert chord_mix(infinite, sft, 1.0) is sft
    for mu in (-0.001, 1.001, math.nan):
        with pytest.raises(ValueError, match=r"mu must lie in \[0, 1\]"):
            chord_mix(base, sft, mu)


def test_luffy_shape_by_hand():
    logp = leaf(P.log())
    got = luffy_shape(logp)
    assert_close(got, P / (P + 0.1))
    got.sum().backward()
    assert_close(logp.grad, 0.1 * P / (P + 0.1) ** 2)
    assert_close(luffy_shape(P.log(), gamma=0.5), P / (P + 0.5))
    assert gradcheck(luffy_shape, (leaf(P.log()),))
    never = leaf(tensor([-INF, -400.0], dtype=torch.float64))
    luffy_shape(never).sum().backward()
    assert luffy_shape(never).tolist()[0] == 0.0
    assert never.grad.tolist()[0] == 0.0
    for gamma in (0.0, -0.1, INF, math.nan):
        with pytest.raises(ValueError, match="gamma must be positive"):
            luffy_shape(P.log(), gamma=gamma)


def test_luffy_loss_by_hand():
    logp, adv = leaf(P.log()), leaf(ADV)
    loss = luffy_loss(logp, adv, MASK)
    assert loss.item() == pytest.approx(-(P / (P + 0.1) * ADV)[MASK.bool()].sum().item() / 5)
    loss.backward()
    assert_close(logp.grad, -0.1 * P / (P + 0.1) ** 2 * ADV * MASK / 5)
    assert adv.grad is None
    other = luffy_loss(P.log(), ADV, MASK, gamma=0.5, aggregation="seq-mean-token-sum")
    assert other.item() == pytest.approx(-(P / (P + 0.5) * ADV)[MASK.bool()].sum().item() / 2)
    assert gradcheck(lambda x: luffy_loss(x, ADV, MASK), (leaf(P.log()),))


@pytest.mark.parametrize("bad", [1e30, INF, -INF, math.nan])
def test_masked_tokens_change_nothing(bad):
    outside = MASK == 0
    dirty, adv = P.log().masked_fill(outside, bad), ADV.masked_fill(outside, bad)
    for loss, wild in (
        (lambda x: chord_phi_loss(x, MASK), lambda x: chord_phi_loss(x, MASK)),
        (lambda x: luffy_loss(x, ADV, MASK), lambda x: luffy_loss(x, adv, MASK)),
    ):
        a, b = leaf(P.log()), leaf(dirty)
        x, y = loss(a), wild(b)
        assert x.item() == y.item()
        x.backward()
        with torch.autograd.set_detect_anomaly(True):  # no NaN on the way either
            y.backward()
        assert a.grad.tolist() == b.grad.tolist()


def test_empty_masks_give_exact_zero():
    none = torch.zeros(2, 3)
    for loss in (lambda x: chord_phi_loss(x, none), lambda x: luffy_loss(x, ADV, none)):
        x = torch.full((2, 3), math.nan, requires_grad=True)
        value = loss(x)
        value.backward()
        assert value.item() == 0.0
        assert (x.grad == 0).all()


def test_parts_of_a_step_add_up():
    counts = Denominators.of(MASK)
    for aggregation in ("token-mean", "seq-mean-token-mean"):
        options = {"aggregation": aggregation, "denominators": counts}
        for loss in (
            lambda i, o=options: chord_phi_loss(P.log()[i], MASK[i], **o),
            lambda i, o=options: luffy_loss(P.log()[i], ADV[i], MASK[i], **o),
        ):
            whole = loss(tensor([1, 0]))
            assert_close(loss(slice(0, 1)) + loss(slice(1, 2)), whole, rtol=1e-13, atol=0)


def test_shapes_are_checked():
    with pytest.raises(ValueError, match=r"one shape \(B, T\)"):
        chord_phi_loss(P.log(), MASK[:, :2])
    with pytest.raises(ValueError, match="adv_B_T"):
        luffy_loss(P.log(), ADV[:, :2], MASK)


# Step-DPO. Pair 0: chosen -0.5 (ref -0.8), rejected -2.2 (ref -1.8): 0.3 - -0.4 = 0.7
# Pair 1: chosen -4 (ref -1), rejected -1 (ref -3): -3 - 2 = -5
CHOSEN = tensor([[-0.2, -0.3], [-4.0, 9.0]], dtype=torch.float64)
CHOSEN_REF = tensor([[-0.4, -0.4], [-1.0, 9.5]], dtype=torch.float64)
CHOSEN_MASK = tensor([[1, 1], [1, 0]])
REJECTED = tensor([[-1.0, -1.2, 5.0], [-0.5, -0.25, -0.25]], dtype=torch.float64)
REJECTED_REF = tensor([[-0.9, -0.9, 6.0], [-1.0, -1.0, -1.0]], dtype=torch.float64)
REJECTED_MASK = tensor([[1, 1, 0], [1, 1, 1]])


def pairs(chosen=CHOSEN, rejected=REJECTED, chosen_mask=CHOSEN_MASK, rejected_mask=REJECTED_MASK):
    return (
        ScoredReplies(chosen, CHOSEN_REF, chosen_mask),
        ScoredReplies(rejected, REJECTED_REF, rejected_mask),
    )


def nls(x):
    return math.log1p(math.exp(-x))


def test_step_dpo_by_hand():
    assert step_dpo_loss(*pairs()).item() == pytest.approx((nls(0.07) + nls(-0.5)) / 2, rel=1e-12)
    got = step_dpo_loss(*pairs(), beta=2.0).item()
    assert got == pytest.approx((nls(1.4) + nls(-10.0)) / 2, rel=1e-12)


def test_step_dpo_gradient():
    chosen, rejected, ref = leaf(CHOSEN), leaf(REJECTED), leaf(CHOSEN_REF)
    left = ScoredReplies(chosen, ref, CHOSEN_MASK)
    step_dpo_loss(left, ScoredReplies(rejected, REJECTED_REF, REJECTED_MASK)).backward()
    # -beta * sigmoid(-margin) on every chosen token, + on every rejected one; 2 pairs
    a = 0.1 / (1 + math.exp(0.07)) / 2
    b = 0.1 / (1 + math.exp(-0.5)) / 2
    assert_close(chosen.grad, tensor([[-a, -a], [-b, 0.0]], dtype=torch.float64))
    assert_close(rejected.grad, tensor([[a, a, 0.0], [b, b, b]], dtype=torch.float64))
    assert ref.grad is None
    assert gradcheck(lambda c, r: step_dpo_loss(*pairs(c, r)), (leaf(CHOSEN), leaf(REJECTED)))


def test_step_dpo_drops_pairs_without_tokens_or_with_impossible_ones():
    only_first = nls(0.07)
    half = tensor([[1, 1], [0, 0]])
    assert step_dpo_loss(*pairs(chosen_mask=half)).item() == pytest.approx(only_first)
    half = tensor([[1, 1, 0], [0, 0, 0]])
    assert step_dpo_loss(*pairs(rejected_mask=half)).item() == pytest.approx(only_first)
    # an impossible token leaves the pair in the denominator, as in the other imitation losses
    for side in ("chosen", "rejected"):
        values = {"chosen": leaf(CHOSEN), "rejected": leaf(REJECTED)}
        values[side] = values[side].detach().clone()
        values[side][1, 0] = -INF
        values[side].requires_grad_()
        loss = step_dpo_loss(*pairs(**values))
        loss.backward()
        assert loss.item() == pytest.approx(only_first / 2)
        assert (values[side].grad[1] == 0).all()
        assert (values[side].grad[0, :2] != 0).all()


@pytest.mark.parametrize("bad", [1e30, INF, -INF, math.nan])
def test_step_dpo_masked_tokens_change_nothing(bad):
    clean = step_dpo_loss(*pairs()).item()
    left = [x.masked_fill(CHOSEN_MASK == 0, bad) for x in (CHOSEN, CHOSEN_REF)]
    right = [x.masked_fill(REJECTED_MASK == 0, bad) for x in (REJECTED, REJECTED_REF)]
    left[0].requires_grad_()
    loss = step_dpo_loss(ScoredReplies(*left, CHOSEN_MASK), ScoredReplies(*right, REJECTED_MASK))
    with torch.autograd.set_detect_anomaly(True):
        loss.backward()
    assert loss.item() == clean
    assert left[0].grad[1, 1] == 0
    assert torch.isfinite(left[0].grad).all()


def test_step_dpo_parts_add_up_and_empty_is_zero():
    left, right = pairs()
    whole = step_dpo_loss(left, right).item()
    parts = [
        step_dpo_loss(
            ScoredReplies(*(x[i] for x in left)), ScoredReplies(*(x[i] for x in right)), n_pairs=2
        ).item()
        for i in (slice(0, 1), slice(1, 2))
    ]
    assert sum(parts) == pytest.approx(whole, rel=1e-13)
    assert step_dpo_loss(left, right, n_pairs=8).item() == pytest.approx(whole / 4)
    chosen = leaf(CHOSEN * math.nan)
    none = step_dpo_loss(*pairs(chosen, chosen_mask=torch.zeros(2, 2)))
    none.backward()
    assert none.item() == 0.0
    assert (chosen.grad == 0).all()


def test_step_dpo_keeps_the_dtype_and_very_wrong_pairs_finite():
    left, right = pairs()
    low = step_dpo_loss(
        ScoredReplies(CHOSEN.float(), CHOSEN_REF, CHOSEN_MASK),
        ScoredReplies(REJECTED.float(), REJECTED_REF, REJECTED_MASK),
    )
    assert low.dtype == torch.float32
    assert low.item() == pytest.approx(step_dpo_loss(left, right).item(), rel=1e-6)
    wrong = leaf(CHOSEN - 1e4)
    loss = step_dpo_loss(*pairs(wrong))
    loss.backward()
    assert loss.item() == pytest.approx((0.1 * (2e4 - 0.7) + 0.1 * (1e4 + 5)) / 2, rel=1e-9)
    assert torch.isfinite(wrong.grad).all()


def test_step_dpo_refusals():
    left, right = pairs()
    for beta in (0.0, -0.1, INF, math.nan):
        with pytest.raises(ValueError, match="beta must be positive"):
            step_dpo_loss(left, right, beta=beta)
    with pytest.raises(ValueError, match="as many chosen as rejected replies, found 1 and 2"):
        step_dpo_loss(ScoredReplies(*(x[:1] for x in left)), right)
    with pytest.raises(ValueError, match="n_pairs=1 is below the 2 pairs"):
        step_dpo_loss(left, right, n_pairs=1)
    with pytest.raises(ValueError, match=r"one shape \(B, T\)"):
        step_dpo_loss(left._replace(ref=CHOSEN_REF[:, :1]), right)
    for bad in (INF, -INF, math.nan):
        ref = CHOSEN_REF.clone()
        ref[0, 0] = bad
        with pytest.raises(ValueError, match="reference log-prob of a chosen reply"):
            step_dpo_loss(left._replace(ref=ref), right)
    with pytest.raises(ValueError, match="reference log-prob of a rejected reply"):
        step_dpo_loss(left, right._replace(ref=REJECTED_REF * INF))
