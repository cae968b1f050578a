"""Gradients of the policy and KL losses by finite differences, for each option and reduction."""

from __future__ import annotations

import math

import pytest
import torch
from torch import tensor
from torch.testing import assert_close

from trainer.objectives import (
    AGGREGATIONS,
    Denominators,
    aggregate,
    clipped_surrogate,
    kl_loss,
    policy_loss,
)

CLIPS = {
    "plain": {"dual_clip": None},
    "clip higher": {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": None},
    "dual clip": {"dual_clip": 1.5},
}

# Log-ratios on both sides of each clip and of the dual clip, for both signs of the advantage.
LOG_RATIO = tensor(
    [
        [0.05, -0.05, 0.22, -0.3, 0.6, 9.0],
        [0.05, -0.05, 0.22, -0.3, 0.6, 9.0],
        [-0.1, 0.7, 9.0, 9.0, 9.0, 9.0],
        [9.0, 9.0, 9.0, 9.0, 9.0, 9.0],
    ]
).double()
MASK = LOG_RATIO < 5
ADV = torch.cat([torch.full((1, 6), 1.3), torch.full((1, 6), -0.7), torch.ones(2, 6)]).double()
OLD = -torch.rand((4, 6), generator=torch.Generator().manual_seed(0)).double()
COUNTS = Denominators.of(MASK, length=7)


def policy(new, **options):
    return policy_loss(new, OLD, ADV, MASK, **options)[0]


@pytest.mark.parametrize("clip", CLIPS.values(), ids=list(CLIPS))
@pytest.mark.parametrize("how", AGGREGATIONS)
def test_policy_loss_by_finite_differences(how, clip):
    def loss_of(new):
        return policy(new, aggregation=how, denominators=COUNTS, **clip)

    assert torch.autograd.gradcheck(loss_of, ((OLD + LOG_RATIO).requires_grad_(),))


@pytest.mark.parametrize(
    ("clip", "moved"),
    [
        # 1.25 = e^0.22 lies between 1.2 and 1.28; e^0.6 = 1.82 is above 1.5.
        ("plain", [[1, 1, 0, 1, 0], [1, 1, 1, 0, 1]]),
        ("clip higher", [[1, 1, 1, 1, 0], [1, 1, 1, 0, 1]]),
        ("dual clip", [[1, 1, 0, 1, 0], [1, 1, 1, 0, 0]]),
    ],
)
def test_which_tokens_have_a_gradient(clip, moved):
    new = (OLD + LOG_RATIO).requires_grad_()
    policy(new, **CLIPS[clip]).backward()
    assert (new.grad[:2, :5] != 0).long().tolist() == moved
    # Where it flows it is -A * rho over the number of tokens.
    expected = (-ADV * LOG_RATIO.exp() / MASK.sum())[:2, :5] * tensor(moved)
    assert_close(new.grad[:2, :5], expected)


def test_old_log_probs_and_advantages_are_constants():
    leaves = [x.clone().requires_grad_() for x in (OLD + LOG_RATIO, OLD, ADV)]
    policy_loss(*leaves, MASK)[0].backward()
    assert leaves[0].grad.abs().max() > 0
    assert leaves[1].grad is None
    assert leaves[2].grad is None


@pytest.mark.parametrize("kind", ["k2", "k3"])
@pytest.mark.parametrize("how", AGGREGATIONS)
def test_kl_loss_by_finite_differences(how, kind):
    def loss_of(new):
        return kl_loss(new, OLD, MASK, kind=kind, aggregation=how, denominators=COUNTS)

    assert torch.autograd.gradcheck(loss_of, ((OLD + LOG_RATIO).requires_grad_(),))


@pytest.mark.parametrize("kind", ["k2", "k3"])
def test_kl_gradient_by_hand_and_the_reference_is_a_constant(kind):
    new, ref = (OLD + LOG_RATIO).requires_grad_(), OLD.clone().requires_grad_()
    kl_loss(new, ref, MASK, kind=kind).backward()
    slope = LOG_RATIO if kind == "k2" else 1 - (-LOG_RATIO).exp()
    assert_close(new.grad, (slope / MASK.sum()).masked_fill(~MASK, 0.0))
    assert ref.grad is None


def test_aggregations_by_finite_differences_and_by_hand():
    value = LOG_RATIO.clone().requires_grad_()
    coefficients = {
        "token-mean": [1 / 12] * 3,
        "seq-mean-token-mean": [1 / 15, 1 / 15, 1 / 6],
        "seq-mean-token-sum": [1 / 3] * 3,
        "seq-mean-token-sum-norm": [1 / 7] * 3,
        "dr_grpo": [1 / 21] * 3,
    }
    assert set(coefficients) == set(AGGREGATIONS)
    for how, rows in coefficients.items():

        def loss_of(x, how=how):
            return aggregate(x.square(), MASK, how, COUNTS)

        assert torch.autograd.gradcheck(loss_of, (value,))
        value.grad = None
        aggregate(value, MASK, how, COUNTS).backward()
        assert_close(value.grad, tensor([*rows, 0.0]).double()[:, None] * MASK)


def losses(new, old, adv, mask, how, counts):
    """Policy and KL loss of one micro-batch, in one sum."""
    options = {"aggregation": how, "denominators": counts}
    total = policy_loss(new, old, adv, mask, clip_high=0.28, **options)[0]
    for kind in ("k2", "k3"):
        total = total + kl_loss(new, old, mask, kind=kind, **options)
    return total


@pytest.mark.parametrize("how", AGGREGATIONS)
@pytest.mark.parametrize("cut", [[1, 1, 1, 1], [3, 1], [1, 3], [0, 2, 2]])
def test_any_cut_into_micro_batches_adds_up(how, cut):
    def run(parts):
        leaf, total, start = (OLD + LOG_RATIO).requires_grad_(), 0.0, 0
        for n in parts:
            rows = slice(start, start + n)
            start += n
            loss = losses(leaf[rows], OLD[rows], ADV[rows], MASK[rows], how, COUNTS)
            loss.backward()
            total += loss.item()
        return total, leaf.grad

    whole, parts = run([4]), run(cut)
    assert_close(parts[0], whole[0], rtol=1e-12, atol=0)
    assert_close(parts[1], whole[1], rtol=1e-12, atol=1e-15)
    assert whole[1][MASK].abs().min() > 0


@pytest.mark.parametrize("how", AGGREGATIONS)
@pytest.mark.parametrize("junk", [1e30, -1e30, math.inf, -math.inf, math.nan])
def test_absurd_values_outside_the_mask(how, junk):
    outcomes = []
    for fill in (None, junk):
        new, old, adv = OLD + LOG_RATIO, OLD.clone(), ADV.clone()
        if fill is not None:
            new[~MASK], old[~MASK], adv[~MASK] = fill, -fill, fill
        new.requires_grad_()
        loss = losses(new, old, adv, MASK, how, COUNTS)
        loss.backward()
        outcomes.append((loss.item(), new.grad))
    assert outcomes[0][0] == outcomes[1][0]
    assert torch.equal(outcomes[0][1], outcomes[1][1])
    assert outcomes[1][1][~MASK].abs().max() == 0.0


def test_per_token_losses_by_hand():
    got, stats = clipped_surrogate(OLD + LOG_RATIO, OLD, ADV, MASK, dual_clip=1.5)
    e = math.exp
    assert_close(
        got[:2, :5].tolist(),
        [
            [-1.3 * e(0.05), -1.3 * e(-0.05), -1.3 * 1.2, -1.3 * e(-0.3), -1.3 * 1.2],
            [0.7 * e(0.05), 0.7 * e(-0.05), 0.7 * e(0.22), 0.7 * 0.8, 0.7 * 1.5],
        ],
    )
    assert got[~MASK].abs().max() == 0.0
    # Row 0: e^.22 and e^.6 clipped above; row 1: e^-.3 clipped below; row 2: e^.7 above.
    assert stats.metrics()["clipfrac"] == 4 / 12
    assert stats.metrics()["dual_clipfrac"] == 1 / 12
