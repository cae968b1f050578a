"""On-policy distillation: signs, stop-gradients, the batches of GKD, and what OPSD was not."""

from __future__ import annotations

import math

import pytest
import torch
from torch import tensor
from torch.autograd import gradcheck
from torch.testing import assert_close

from trainer.auxiliary.distill import (
    distillation_loss,
    gkd_loss,
    gkd_on_student,
    opd_advantages,
    opd_loss,
    opsd_legacy_loss,
    opsd_loss,
    rows_on,
    vopd_baseline,
)
from trainer.auxiliary.divergence import divergence, divergence_grad
from trainer.objectives.aggregate import Denominators

STUDENT = tensor([[-1.0, -2.0, -3.0], [-0.5, -4.0, -9.0]], dtype=torch.float64)
TEACHER = tensor([[-1.5, -0.5, -3.0], [-2.5, -1.0, -9.0]], dtype=torch.float64)
MASK = tensor([[1, 1, 1], [1, 1, 0]])
BASELINE = tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]], dtype=torch.float64)
# T - S: -0.5, 1.5, 0 | -2, 3
GAP = [[-0.5, 1.5, 0.0], [-2.0, 3.0, 0.0]]
ABSURD = [1e30, math.inf, -math.inf, math.nan]


def logits(seed, shape=(2, 3, 5)):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def leaf(values):
    return values.clone().requires_grad_()


def test_advantage_is_teacher_minus_student():
    got = opd_advantages(STUDENT, TEACHER, MASK)
    assert got.tolist() == GAP
    assert got.dtype == torch.float64
    with_baseline = opd_advantages(STUDENT, TEACHER, MASK, baseline_B_T=BASELINE)
    assert_close(with_baseline, (tensor(GAP).double() - BASELINE) * MASK)


def test_advantage_is_detached_and_float64():
    student, teacher, baseline = leaf(STUDENT), leaf(TEACHER), leaf(BASELINE)
    got = opd_advantages(student, teacher, MASK, baseline_B_T=baseline)
    assert not got.requires_grad
    low = tensor([[0.1]]), tensor([[-3.3]])
    got = opd_advantages(*low, tensor([[1]]))
    assert got.dtype == torch.float64
    assert got.item() == low[1].item() - low[0].item()
    # 0.1 + 2e-9 is lost in float32 only if the subtraction runs there
    fine = opd_advantages(STUDENT, STUDENT + 2e-9, MASK)
    assert fine[0, 0].item() == pytest.approx(2e-9, rel=1e-6)


def test_opd_gradient_is_student_minus_teacher_plus_baseline():
    student, teacher, baseline = leaf(STUDENT), leaf(TEACHER), leaf(BASELINE)
    loss = opd_loss(student, teacher, MASK)
    # sg[S - T] * S, mean of 5 tokens: (0.5 * -1 - 1.5 * -2 + 0 + 2 * -0.5 - 3 * -4) / 5
    assert loss.item() == pytest.approx((-0.5 + 3.0 - 1.0 + 12.0) / 5)
    loss.backward()
    assert_close(student.grad, -tensor(GAP).double() / 5)
    student.grad = None
    opd_loss(student, teacher, MASK, baseline_B_T=baseline).backward()
    assert_close(student.grad, (BASELINE - tensor(GAP).double()) * MASK / 5)
    assert teacher.grad is None
    assert baseline.grad is None


def test_opd_loss_and_advantage_form_agree():
    student = leaf(STUDENT)
    opd_loss(student, TEACHER, MASK).backward()
    advantage = opd_advantages(STUDENT, TEACHER, MASK)
    other = leaf(STUDENT)
    (-(other - other.detach()).exp() * advantage).sum().div(5).backward()
    assert_close(student.grad, other.grad)


def test_opd_gradient_by_finite_differences_of_its_frozen_form():
    factor = (STUDENT - TEACHER) * MASK
    other = leaf(STUDENT)
    opd_loss(other, TEACHER, MASK).backward()
    assert gradcheck(lambda x: (factor * x).sum() / 5, (leaf(STUDENT),))
    assert_close(other.grad, factor / 5)


def test_expected_gradient_is_that_of_the_reverse_kl_with_and_without_baseline():
    student, teacher = logits(0, (1, 1, 4)), logits(1, (1, 1, 4))
    probs = student.softmax(-1)[0, 0]
    one = torch.ones(1, 1)
    baseline = vopd_baseline(student, teacher, one)
    for b in (None, baseline):
        expected = torch.zeros(4, dtype=torch.float64)
        for token in range(4):
            x = leaf(student)
            S, T = x.log_softmax(-1)[..., token], teacher.log_softmax(-1)[..., token]
            opd_loss(S, T, one, baseline_B_T=b).backward()
            expected += probs[token] * x.grad[0, 0]
        assert_close(expected, divergence_grad(student, teacher, kind="rkl")[0, 0])
    # the advantage averages to 0 under the baseline
    advantage = opd_advantages(
        student.log_softmax(-1)[0], teacher.log_softmax(-1)[0], torch.ones(1, 4),
        baseline_B_T=baseline.expand(1, 4),
    )  # fmt: skip
    assert abs((probs * advantage).sum()) < 1e-14


def test_vopd_baseline_is_minus_the_reverse_kl():
    student, teacher = leaf(logits(0)), leaf(logits(1))
    got = vopd_baseline(student, teacher, MASK)
    assert_close(got, -divergence(student, teacher, kind="rkl").detach() * MASK)
    assert not got.requires_grad
    assert (got[MASK.bool()] < 0).all()


@pytest.mark.parametrize("bad", ABSURD)
def test_masked_tokens_change_nothing(bad):
    outside = MASK == 0
    wild = [x.masked_fill(outside, bad) for x in (STUDENT, TEACHER, BASELINE)]
    got = opd_advantages(wild[0], wild[1], MASK, baseline_B_T=wild[2])
    assert got.tolist() == opd_advantages(STUDENT, TEACHER, MASK, baseline_B_T=BASELINE).tolist()
    for loss in (opd_loss, opsd_legacy_loss):
        a, b = leaf(STUDENT), leaf(wild[0])
        value, wild_value = loss(a, TEACHER, MASK), loss(b, wild[1], MASK)
        assert value.item() == wild_value.item()
        value.backward()
        with torch.autograd.set_detect_anomaly(True):  # no NaN on the way either
            wild_value.backward()
        assert a.grad.tolist() == b.grad.tolist()
        assert b.grad[1, 2] == 0
    student, teacher = logits(0), logits(1)
    wild_logits = [x.masked_fill(outside[..., None], bad) for x in (student, teacher)]
    clean = distillation_loss(student, teacher, MASK)
    assert distillation_loss(*wild_logits, MASK).item() == clean.item()


def test_empty_masks_give_exact_zero():
    none = torch.zeros(2, 3)
    for loss in (opd_loss, opsd_legacy_loss):
        x = torch.full((2, 3), math.nan, requires_grad=True)
        value = loss(x, x.detach(), none)
        value.backward()
        assert value.item() == 0.0
        assert (x.grad == 0).all()
    for loss in (distillation_loss, gkd_loss):
        x = torch.full((2, 3, 5), math.inf, requires_grad=True)
        value = loss(x, x.detach(), none)
        value.backward()
        assert value.item() == 0.0
        assert (x.grad == 0).all()
    x = leaf(logits(0))
    value = opsd_loss(x, logits(1), MASK, tensor([0, 0]))
    value.backward()
    assert value.item() == 0.0
    assert (x.grad == 0).all()


def test_distillation_loss_by_definition():
    student, teacher = logits(0), logits(1)
    for kind, beta, top_k in (("rkl", 0.5, None), ("fkl", 0.5, 2), ("gjs", 0.2, None)):
        per_token = divergence(student, teacher, kind=kind, beta=beta, top_k=top_k) * MASK
        got = distillation_loss(student, teacher, MASK, kind=kind, beta=beta, top_k=top_k)
        assert got.item() == pytest.approx(per_token.sum().item() / 5, rel=1e-12)
        got = distillation_loss(
            student, teacher, MASK, kind=kind, beta=beta, top_k=top_k,
            aggregation="seq-mean-token-sum",
        )  # fmt: skip
        assert got.item() == pytest.approx(per_token.sum().item() / 2, rel=1e-12)
    assert distillation_loss(student, teacher, MASK).item() == pytest.approx(
        divergence(student, teacher, kind="rkl")[MASK.bool()].mean().item(), rel=1e-12
    )
    half = distillation_loss(student, teacher, MASK, kind="gjs")
    assert half.item() == distillation_loss(student, teacher, MASK, kind="gjs", beta=0.5).item()


def test_gkd_is_the_generalised_js():
    student, teacher = logits(0), logits(1)
    for options in ({}, {"beta": 0.9}, {"top_k": 2}, {"aggregation": "seq-mean-token-mean"}):
        expected = distillation_loss(student, teacher, MASK, kind="gjs", **options)
        assert gkd_loss(student, teacher, MASK, **options).item() == expected.item()
    counts = Denominators(50, 20)
    scaled = gkd_loss(student, teacher, MASK, denominators=counts).item()
    assert scaled == pytest.approx(gkd_loss(student, teacher, MASK).item() / 10)
    per_token = divergence(student, teacher, kind="gjs", beta=0.5)[MASK.bool()]
    assert gkd_loss(student, teacher, MASK).item() == pytest.approx(per_token.mean().item())


@pytest.mark.parametrize("loss", [distillation_loss, gkd_loss])
def test_logit_losses_by_finite_differences(loss):
    teacher = logits(1)
    assert gradcheck(lambda x: loss(x, teacher, MASK), (leaf(logits(0)),))


def test_gkd_batches():
    assert [gkd_on_student(i, 0.5) for i in range(4)] == [False, True, False, True]
    assert [gkd_on_student(i, 0.25) for i in range(8)] == 2 * [False, False, False, True]
    assert not any(gkd_on_student(i, 0.0) for i in range(20))
    assert all(gkd_on_student(i, 1.0) for i in range(20))
    for fraction in (0.1, 0.3, 2 / 3, 0.9):
        for n in range(1, 60):
            on = sum(gkd_on_student(i, fraction) for i in range(n))
            assert on == math.floor(n * fraction)
    with pytest.raises(ValueError, match="numbered from 0, found -1"):
        gkd_on_student(-1, 0.5)
    for fraction in (-0.001, 1.001, math.nan):
        with pytest.raises(ValueError, match=r"must lie in \[0, 1\]"):
            gkd_on_student(0, fraction)


def test_opsd_trains_rows_with_a_privileged_context_only():
    student, teacher = leaf(logits(0)), logits(1)
    on = tensor([False, True])
    loss = opsd_loss(student, teacher, MASK, on)
    expected = divergence(student, teacher, kind="rkl")[1, :2].mean()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    loss.backward()
    assert (student.grad[0] == 0).all()
    assert (student.grad[1, :2] != 0).all()
    for options in (
        {"kind": "fkl"}, {"kind": "gjs"}, {"kind": "gjs", "beta": 0.8}, {"top_k": 2},
        {"aggregation": "seq-mean-token-sum"}, {"denominators": Denominators(9, 3)},
    ):  # fmt: skip
        whole = opsd_loss(student, teacher, MASK, tensor([1, 1]), **options)
        assert whole.item() == distillation_loss(student, teacher, MASK, **options).item()


def test_opsd_legacy_is_half_the_nll_of_own_samples():
    student, teacher = leaf(STUDENT), leaf(TEACHER)
    loss = opsd_legacy_loss(student, teacher, MASK)
    assert loss.item() == pytest.approx(0.5 * (-0.5 + 1.5 - 2 + 3) / 5)
    loss.backward()
    # the teacher has no part in the gradient
    assert student.grad.tolist() == (-0.1 * MASK.double()).tolist()
    assert teacher.grad is None


def test_opsd_legacy_gate():
    student = leaf(STUDENT)
    loss = opsd_legacy_loss(student, TEACHER, MASK, beta=5.0)
    gate = [1 / (1 + math.exp(-5 * gap)) for gap in (-0.5, 1.5, 0.0, -2.0, 3.0)]
    expected = sum(g * gap for g, gap in zip(gate, (-0.5, 1.5, 0.0, -2.0, 3.0), strict=True)) / 5
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    loss.backward()
    # the gate is a constant: d/dS = -g / 5
    assert_close(student.grad[MASK.bool()], -tensor(gate).double() / 5, rtol=1e-6, atol=0)
    value = opsd_legacy_loss(student, TEACHER, MASK, aggregation="seq-mean-token-sum")
    assert value.item() == pytest.approx(0.5 * 2.0 / 2)
    for beta in (-0.1, math.inf, math.nan):
        with pytest.raises(ValueError, match="finite and >= 0"):
            opsd_legacy_loss(student, TEACHER, MASK, beta=beta)


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean"])
def test_parts_of_a_step_add_up(aggregation):
    counts = Denominators.of(MASK)
    options = {"aggregation": aggregation, "denominators": counts}
    student, teacher = logits(0), logits(1)
    losses = [
        lambda i: opd_loss(STUDENT[i], TEACHER[i], MASK[i], baseline_B_T=BASELINE[i], **options),
        lambda i: opsd_legacy_loss(STUDENT[i], TEACHER[i], MASK[i], beta=2.0, **options),
        lambda i: distillation_loss(student[i], teacher[i], MASK[i], **options),
        lambda i: gkd_loss(student[i], teacher[i], MASK[i], **options),
        lambda i: opsd_loss(student[i], teacher[i], MASK[i], torch.ones(2)[i], **options),
    ]
    for loss in losses:
        whole = loss(slice(None))
        assert_close(loss(slice(0, 1)) + loss(slice(1, 2)), whole, rtol=1e-13, atol=0)
        assert_close(loss(tensor([1, 0])), whole, rtol=1e-13, atol=0)


def test_rows_on():
    assert rows_on(MASK, tensor([0, 1])).tolist() == [[False] * 3, [True, True, False]]
    with pytest.raises(ValueError, match=r"one entry of row_mask_B per row, \(2,\), found \(3,\)"):
        rows_on(MASK, torch.ones(3))
    with pytest.raises(ValueError, match="only 0 and 1"):
        rows_on(MASK, tensor([0.5, 1.0]))


def test_refusals_name_the_problem():
    for bad in (math.inf, -math.inf, math.nan):
        teacher = TEACHER.clone()
        teacher[0, 1] = bad
        with pytest.raises(ValueError, match="is not finite"):
            opd_advantages(STUDENT, teacher, MASK)
    with pytest.raises(ValueError, match=r"one shape \(B, T\)"):
        opd_advantages(STUDENT, TEACHER[:, :2], MASK)
    with pytest.raises(ValueError, match="baseline_B_T"):
        opd_advantages(STUDENT, TEACHER, MASK, baseline_B_T=BASELINE[:, :2])
    with pytest.raises(ValueError, match=r"one shape \(B, T\)"):
        opsd_legacy_loss(STUDENT, TEACHER[:, :2], MASK)
