"""KL estimators (O22): signs, masks, gradients, and the refused combination."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import tensor
from torch.testing import assert_close

from trainer.objectives import KL_KINDS, check_kl_placement, kl_loss, kl_per_token


def test_estimators_by_hand():
    new, ref = tensor([[math.log(0.5)]]).double(), tensor([[math.log(0.25)]]).double()
    # d = ref - new = -log 2
    log2 = math.log(2)
    assert_close(kl_per_token(new, ref, kind="k1").item(), log2)
    assert_close(kl_per_token(new, ref, kind="k2").item(), log2**2 / 2)
    assert_close(kl_per_token(new, ref, kind="k3").item(), 0.5 + log2 - 1)
    assert_close(kl_per_token(ref, new, kind="k1").item(), -log2)


@given(st.floats(-60, 0), st.floats(-60, 0), st.sampled_from([torch.float32, torch.float64]))
def test_o22_k3_is_never_negative_and_bounded(new, ref, dtype):
    a, b = tensor([[new]], dtype=dtype), tensor([[ref]], dtype=dtype)
    assert 0.0 <= kl_per_token(a, b).item() <= 10.0
    assert 0.0 <= kl_per_token(a, b, clamp=None).item() < math.inf


def test_all_estimators_have_the_exact_kl_as_mean_except_k2():
    p = tensor([0.5, 0.3, 0.2]).double()
    q = tensor([0.4, 0.35, 0.25]).double()
    exact = (p * (p / q).log()).sum()
    for kind in ("k1", "k3"):
        estimate = (p * kl_per_token(p.log()[None], q.log()[None], kind=kind)[0]).sum()
        assert_close(estimate, exact)


@pytest.mark.parametrize("kind", ["k2", "k3"])
def test_o22_gradient_by_finite_differences_on_five_tokens(kind):
    g = torch.Generator().manual_seed(0)
    logits = torch.randn((2, 3, 5), generator=g).double()
    ids = torch.randint(5, (2, 3), generator=g)
    ref = torch.randn((2, 3, 5), generator=g).double().log_softmax(-1)
    ref = ref.gather(-1, ids[..., None])[..., 0]
    mask = tensor([[1, 1, 0], [0, 1, 1]])

    def loss_of(x):
        return kl_loss(x.log_softmax(-1).gather(-1, ids[..., None])[..., 0], ref, mask, kind=kind)

    leaf = logits.clone().requires_grad_()
    loss_of(leaf).backward()
    h = 1e-6
    for index in torch.cartesian_prod(*map(torch.arange, logits.shape)).tolist():
        up, down = logits.clone(), logits.clone()
        up[tuple(index)] += h
        down[tuple(index)] -= h
        slope = (loss_of(up) - loss_of(down)) / (2 * h)
        assert_close(leaf.grad[tuple(index)], slope, atol=1e-8, rtol=1e-6)
    assert leaf.grad[mask == 0].abs().max() == 0.0


@pytest.mark.parametrize("kind", ["k2", "k3"])
@pytest.mark.parametrize("junk", [1e6, math.inf, -math.inf, math.nan])
def test_o22_garbage_in_padding_changes_nothing(kind, junk):
    g = torch.Generator().manual_seed(1)
    new = -torch.rand((3, 4), generator=g).double()
    ref = -torch.rand((3, 4), generator=g).double()
    mask = tensor([[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]).bool()
    outcomes = []
    for fill in (False, True):
        a, b = new.clone(), ref.clone()
        if fill:
            a[~mask], b[~mask] = junk, -junk
        a.requires_grad_()
        loss = kl_loss(a, b, mask, kind=kind)
        loss.backward()
        outcomes.append((loss.item(), a.grad))
    assert outcomes[0][0] == outcomes[1][0] > 0
    assert torch.equal(outcomes[0][1], outcomes[1][1])
    assert outcomes[1][1][~mask].abs().max() == 0.0


def test_o27_empty_mask_is_exactly_zero():
    new = torch.full((2, 2), math.nan, requires_grad=True)
    loss = kl_loss(new, torch.zeros(2, 2), torch.zeros(2, 2))
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(new.grad, torch.zeros(2, 2))


def test_o22_k1_in_the_loss_is_refused_with_its_reason():
    with pytest.raises(ValueError, match="does not contain the reference"):
        kl_loss(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1), kind="k1")
    for kind in KL_KINDS:
        check_kl_placement(kind, "reward")
    check_kl_placement("k3", "loss")
    with pytest.raises(ValueError, match="Unknown KL estimator"):
        check_kl_placement("k4", "reward")
    with pytest.raises(ValueError, match="placement"):
        check_kl_placement("k3", "advantage")
    with pytest.raises(ValueError, match="Unknown KL estimator"):
        kl_per_token(torch.zeros(1, 1), torch.zeros(1, 1), kind="abs")


def test_o22_k1_may_be_negative_and_nothing_warns(recwarn):
    new, ref = tensor([[-2.0, -1.0]]), tensor([[-1.0, -3.0]])
    assert kl_per_token(new, ref, kind="k1").tolist() == [[-1.0, 2.0]]
    assert kl_per_token(new[:, :1], ref[:, :1], kind="k1").mean() < 0
    assert kl_per_token(new, ref, kind="k3").min() >= 0
    assert not recwarn.list


def test_k1_gradient_ignores_the_reference_which_is_the_reason():
    gradients = []
    for ref in (-1.0, -9.0):
        new = tensor([[-2.0, -3.0]]).requires_grad_()
        kl_per_token(new, torch.full((1, 2), ref), kind="k1").sum().backward()
        gradients.append(new.grad.tolist())
    assert gradients[0] == gradients[1] == [[1.0, 1.0]]


def test_clamp_limits_the_value_and_stops_the_gradient():
    new = tensor([[-9.0, -1.0]]).double().requires_grad_()
    value = kl_per_token(new, tensor([[-1.0, -1.5]]).double())
    value.sum().backward()
    assert value[0, 0].item() == 10.0  # exp(8) - 9 otherwise
    assert new.grad[0, 0] == 0.0
    assert_close(new.grad[0, 1].item(), 1 - math.exp(-0.5))
