"""SDAR's three gates, and that its loss is SEED's."""

from __future__ import annotations

import math

import pytest
import torch
from torch import tensor
from torch.testing import assert_close

from trainer.auxiliary.sdar import sdar_gate, sdar_loss
from trainer.auxiliary.seed import seed_opd_loss
from trainer.objectives import Denominators

STUDENT = tensor([[-1.0, -2.0, -5.0]], dtype=torch.float64)
TEACHER = STUDENT + tensor([[0.2, -0.6, 3.0]], dtype=torch.float64)
ENTROPY = tensor([[0.5, 0.1, 77.0]], dtype=torch.float64)
MASK = tensor([[1, 1, 0]])


def sigma(x):
    return 1.0 / (1.0 + math.exp(-x))


@pytest.mark.parametrize(
    ("kind", "scores"),
    [
        ("gap", [0.2, -0.6]),
        ("entropy", [0.5, 0.1]),
        # 1 - 0.5 * 0.8 and 1 - 0.9 * 1.6
        ("soft_or", [0.6, -0.44]),
    ],
)
@pytest.mark.parametrize("beta", [None, 2.0])
def test_gates_by_hand(kind, scores, beta):
    options = {} if beta is None else {"beta": beta}
    gate = sdar_gate(STUDENT, TEACHER, MASK, kind=kind, entropy_B_T=ENTROPY, **options)
    expected = [sigma((5.0 if beta is None else beta) * x) for x in scores]
    assert_close(gate[0].tolist(), [*expected, 0.0], rtol=1e-12, atol=0)
    student = STUDENT.clone().requires_grad_()
    loss, stats = sdar_loss(student, TEACHER, MASK, gate=kind, entropy_B_T=ENTROPY, **options)
    loss.backward()
    assert loss.item() == pytest.approx((expected[0] * 0.2 - expected[1] * 0.6) / 2)
    assert_close(student.grad, -gate / 2, rtol=1e-12, atol=0)
    assert stats.gate.item() == pytest.approx(sum(expected))


def test_gap_is_the_default_and_equals_seed():
    options = {"gate_center": "half", "aggregation": "seq-mean-token-sum", "beta": 3.0}
    a, a_stats = sdar_loss(STUDENT, TEACHER, MASK, **options)
    b, b_stats = seed_opd_loss(STUDENT, TEACHER, MASK, **options)
    assert a.item() == b.item()
    assert a_stats.metrics() == b_stats.metrics()
    assert sdar_loss(STUDENT, TEACHER, MASK)[0].item() == seed_opd_loss(STUDENT, TEACHER, MASK)[0]
    assert torch.equal(
        sdar_gate(STUDENT, TEACHER, MASK)[:, :2],
        sdar_gate(STUDENT, TEACHER, MASK, kind="gap")[:, :2],
    )


def test_step_counts_and_mean_are_passed_on():
    counts = Denominators(tokens=8, sequences=4)
    whole, _ = sdar_loss(STUDENT, TEACHER, MASK)
    part, _ = sdar_loss(STUDENT, TEACHER, MASK, denominators=counts)
    assert part.item() == pytest.approx(whole.item() / 4)
    centred, _ = sdar_loss(STUDENT, TEACHER, MASK, gate_center="mean", gate_mean=0.25)
    expected = (sigma(1.0) - 0.25) * 0.2 - (sigma(-3.0) - 0.25) * 0.6
    assert centred.item() == pytest.approx(expected / 2)


@pytest.mark.parametrize("kind", ["gap", "entropy", "soft_or"])
@pytest.mark.parametrize("absurd", [1e30, math.inf, math.nan])
def test_masked_entries_change_nothing(kind, absurd):
    student, teacher, entropy = STUDENT.clone(), TEACHER.clone(), ENTROPY.clone()
    student[0, 2] = teacher[0, 2] = entropy[0, 2] = absurd
    student.requires_grad_()
    loss, _ = sdar_loss(student, teacher, MASK, gate=kind, entropy_B_T=entropy)
    clean, _ = sdar_loss(STUDENT, TEACHER, MASK, gate=kind, entropy_B_T=ENTROPY)
    loss.backward()
    assert loss.item() == clean.item()
    assert student.grad[0, 2] == 0.0
    assert torch.isfinite(student.grad).all()


@pytest.mark.parametrize("kind", ["gap", "entropy", "soft_or"])
def test_gates_are_constants(kind):
    student, teacher, entropy = (x.clone().requires_grad_() for x in (STUDENT, TEACHER, ENTROPY))
    assert not sdar_gate(student, teacher, MASK, kind=kind, entropy_B_T=entropy).requires_grad


@pytest.mark.parametrize("kind", ["gap", "entropy", "soft_or"])
def test_empty_mask_is_exactly_zero(kind):
    student = torch.full((1, 3), -math.inf, requires_grad=True)
    loss, _ = sdar_loss(student, TEACHER, 0 * MASK, gate=kind, entropy_B_T=ENTROPY)
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(student.grad, torch.zeros(1, 3))


def test_range_of_the_entropy():
    rounded = tensor([[1.00005, 0.0, 0.0]], dtype=torch.float64)
    sdar_gate(STUDENT, TEACHER, MASK, kind="soft_or", entropy_B_T=rounded)
    large = tensor([[1.0002, 0.0, 0.0]], dtype=torch.float64)
    with pytest.raises(ValueError, match=r"outside \[0, 1\].*log\(vocabulary size\)"):
        sdar_gate(STUDENT, TEACHER, MASK, kind="soft_or", entropy_B_T=large)
    nats = tensor([[9.0, 0.0, 0.0]], dtype=torch.float64)
    sdar_gate(STUDENT, TEACHER, MASK, kind="entropy", entropy_B_T=nats)
    for wrong in (-0.01, math.nan):
        bad = tensor([[wrong, 0.0, 0.0]], dtype=torch.float64)
        for kind in ("entropy", "soft_or"):
            with pytest.raises(ValueError, match="found an entropy outside"):
                sdar_gate(STUDENT, TEACHER, MASK, kind=kind, entropy_B_T=bad)
    with pytest.raises(ValueError, match=r"outside \[0, inf\]"):
        sdar_gate(STUDENT, TEACHER, MASK, kind="entropy", entropy_B_T=-nats)


def test_refusals():
    with pytest.raises(ValueError, match="Unknown gate 'and'"):
        sdar_gate(STUDENT, TEACHER, MASK, kind="and")
    with pytest.raises(ValueError, match="'entropy' needs entropy_B_T"):
        sdar_gate(STUDENT, TEACHER, MASK, kind="entropy")
    with pytest.raises(ValueError, match="beta must be finite"):
        sdar_gate(STUDENT, TEACHER, MASK, kind="entropy", entropy_B_T=ENTROPY, beta=-1.0)
    with pytest.raises(ValueError, match="entropy_B_T"):
        sdar_gate(STUDENT, TEACHER, MASK, kind="entropy", entropy_B_T=ENTROPY[:, :2])
    with pytest.raises(ValueError, match="one shape"):
        sdar_gate(STUDENT, TEACHER[:, :2], MASK, kind="entropy", entropy_B_T=ENTROPY)
