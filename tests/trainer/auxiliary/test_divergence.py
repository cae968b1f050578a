"""Divergences over the vocabulary: hand-worked numbers, closed-form gradients, the tail bucket."""

from __future__ import annotations

import math

import pytest
import torch
from torch import tensor
from torch.autograd import gradcheck
from torch.testing import assert_close

from trainer.auxiliary.divergence import (
    DIVERGENCES,
    LOG_MASS_LIMIT,
    bucket_log_probs,
    check_divergence,
    divergence,
    divergence_grad,
    masked_divergence,
)

# S = (1/2, 1/4, 1/4), T = (1/4, 1/2, 1/4)
S = tensor([0.5, 0.25, 0.25], dtype=torch.float64).log()
T = tensor([0.25, 0.5, 0.25], dtype=torch.float64).log()
# S = (2/3, 1/3), T = (1/6, 5/6): all three kinds and both betas differ
S2 = tensor([2 / 3, 1 / 3], dtype=torch.float64).log()
T2 = tensor([1 / 6, 5 / 6], dtype=torch.float64).log()
LN2 = math.log(2)
INF = math.inf


def kl(p, q):
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def random_logits(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def autodiff(student, teacher, kind, beta):
    """The definition, left to automatic differentiation."""
    s, t = student.softmax(-1), teacher.softmax(-1)
    m = beta * t + (1 - beta) * s
    return {
        "fkl": (t * (t / s).log()).sum(-1),
        "rkl": (s * (s / t).log()).sum(-1),
        "gjs": (beta * t * (t / m).log() + (1 - beta) * s * (s / m).log()).sum(-1),
    }[kind]


def test_kinds():
    assert DIVERGENCES == ("fkl", "rkl", "gjs")
    assert LOG_MASS_LIMIT == -1e-7


def test_values_by_hand():
    # forward: 1/4 log(1/2) + 1/2 log 2 = 1/4 log 2; reverse is the same by symmetry
    assert divergence(S, T, kind="fkl").item() == pytest.approx(LN2 / 4, rel=1e-14)
    assert divergence(S, T, kind="rkl").item() == pytest.approx(LN2 / 4, rel=1e-14)
    s, t = (2 / 3, 1 / 3), (1 / 6, 5 / 6)
    assert divergence(S2, T2, kind="fkl").item() == pytest.approx(kl(t, s), rel=1e-13)
    assert divergence(S2, T2, kind="rkl").item() == pytest.approx(kl(s, t), rel=1e-13)
    # beta = 1/5: M = (1/30 + 8/15, 1/6 + 4/15) = (17/30, 13/30), beta on the teacher
    m = (17 / 30, 13 / 30)
    expected = 0.2 * kl(t, m) + 0.8 * kl(s, m)
    got = divergence(S2, T2, kind="gjs", beta=0.2).item()
    assert got == pytest.approx(expected, rel=1e-13)


def test_defaults_are_reverse_kl_and_half():
    assert divergence(S2, T2).item() == divergence(S2, T2, kind="rkl").item()
    assert divergence_grad(S2, T2).tolist() == divergence_grad(S2, T2, kind="rkl").tolist()
    half = divergence(S2, T2, kind="gjs", beta=0.5).item()
    assert divergence(S2, T2, kind="gjs").item() == half
    grad = divergence_grad(S2, T2, kind="gjs", beta=0.5).tolist()
    assert divergence_grad(S2, T2, kind="gjs").tolist() == grad
    m = (5 / 12, 7 / 12)
    assert half == pytest.approx(kl((2 / 3, 1 / 3), m) / 2 + kl((1 / 6, 5 / 6), m) / 2, rel=1e-13)
    assert masked_divergence(S2[None, None], T2[None, None], tensor([[1]])).item() == pytest.approx(
        divergence(S2, T2, kind="rkl").item(), rel=1e-14
    )


def test_logits_may_be_shifted_and_positions_are_independent():
    student, teacher = random_logits(4, 3, 5), random_logits(4, 3, 5, seed=1)
    for kind in DIVERGENCES:
        whole = divergence(student, teacher, kind=kind)
        assert whole.shape == (4, 3)
        moved = divergence(student + 7, teacher.log_softmax(-1), kind=kind)
        assert_close(moved, whole, rtol=1e-12, atol=1e-14)
        one = divergence(student[2, 1], teacher[2, 1], kind=kind)
        assert_close(one, whole[2, 1], rtol=1e-14, atol=0)


def test_symmetries():
    student, teacher = random_logits(6, 5), random_logits(6, 5, seed=1)
    assert_close(divergence(student, teacher, kind="fkl"), divergence(teacher, student, kind="rkl"))
    assert_close(
        divergence(student, teacher, kind="gjs", beta=0.3),
        divergence(teacher, student, kind="gjs", beta=0.7),
    )
    for kind in DIVERGENCES:
        assert (divergence(student, teacher, kind=kind) > 0).all()
        assert divergence(student, student, kind=kind).abs().max() < 1e-15


def test_generalised_js_approaches_both_kl_up_to_scale():
    student, teacher = random_logits(6, 5), random_logits(6, 5, seed=1)
    small = 1e-6
    low = divergence(student, teacher, kind="gjs", beta=small) / small
    high = divergence(student, teacher, kind="gjs", beta=1 - small) / small
    assert_close(low, divergence(student, teacher, kind="fkl"), rtol=1e-3, atol=0)
    assert_close(high, divergence(student, teacher, kind="rkl"), rtol=1e-3, atol=0)


@pytest.mark.parametrize("kind", DIVERGENCES)
@pytest.mark.parametrize("beta", [0.25, 0.7])
def test_closed_form_gradient_is_the_derivative(kind, beta):
    student, teacher = random_logits(4, 6).requires_grad_(), random_logits(4, 6, seed=1)
    assert gradcheck(lambda x: divergence(x, teacher, kind=kind, beta=beta), (student,))
    weight = tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    (divergence(student, teacher, kind=kind, beta=beta) * weight).sum().backward()
    (slow,) = torch.autograd.grad(autodiff(student, teacher, kind, beta).sum(), student)
    assert_close(student.grad, slow * weight[:, None], rtol=1e-10, atol=1e-13)
    closed = divergence_grad(student, teacher, kind=kind, beta=beta)
    assert not closed.requires_grad
    assert_close(closed, slow, rtol=1e-10, atol=1e-13)
    assert closed.sum(-1).abs().max() < 1e-14


def test_gradients_by_hand():
    s, t = tensor([2 / 3, 1 / 3]).double(), tensor([1 / 6, 5 / 6]).double()
    assert_close(divergence_grad(S2, T2, kind="fkl"), s - t)
    d = tensor([math.log(4), math.log(0.4)]).double()
    assert_close(divergence_grad(S2, T2, kind="rkl"), s * (d - (s * d).sum()))


def test_teacher_is_a_constant():
    student = random_logits(2, 5).requires_grad_()
    teacher = random_logits(2, 5, seed=1).requires_grad_()
    for kind in DIVERGENCES:
        for top_k in (None, 2):
            divergence(student, teacher, kind=kind, top_k=top_k).sum().backward()
    masked_divergence(student[None], teacher[None], tensor([[1, 1]])).sum().backward()
    assert teacher.grad is None
    assert student.grad is not None
    assert not divergence(student.detach(), teacher).requires_grad


def test_impossible_tokens():
    student = tensor([0.0, 0.0, -INF], dtype=torch.float64, requires_grad=True)
    teacher = tensor([math.log(3), 0.0, -INF], dtype=torch.float64)
    same = student.detach()[:2], teacher[:2]
    for kind in DIVERGENCES:
        for top_k in (None, 2):
            value = divergence(student, teacher, kind=kind, top_k=top_k)
            # rel 1e-5: the tail of top-2 keeps a mass of 1e-7
            assert value.item() == pytest.approx(divergence(*same, kind=kind).item(), rel=1e-5)
            (grad,) = torch.autograd.grad(value, student)
            assert_close(grad[:2], divergence_grad(*same, kind=kind), rtol=1e-5, atol=1e-7)
            assert grad[2] == 0
    # only the second argument of a KL may not be 0 where the first is not
    open_student = tensor([0.0, 0.0, 0.0], dtype=torch.float64)
    assert divergence(open_student, teacher, kind="rkl").item() == INF
    assert divergence(open_student, teacher, kind="fkl").item() == pytest.approx(
        kl((0.75, 0.25), (1 / 3, 1 / 3)), rel=1e-14
    )
    assert divergence(teacher, open_student, kind="fkl").item() == INF
    assert math.isfinite(divergence(open_student, teacher, kind="gjs").item())


def test_tokens_that_neither_can_emit_keep_the_top_k_gradient_finite():
    student = tensor([0.0, 1.0, -INF, -INF], dtype=torch.float64, requires_grad=True)
    teacher = tensor([1.0, 0.0, -INF, -INF], dtype=torch.float64)
    for kind in DIVERGENCES:
        value = divergence(student, teacher, kind=kind, top_k=3)
        (grad,) = torch.autograd.grad(value, student)
        closed = divergence_grad(student[:2], teacher[:2], kind=kind)
        assert_close(grad[:2], closed, rtol=1e-5, atol=1e-6)
        assert grad[2:].tolist() == [0.0, 0.0]


def test_infinite_positions_without_weight_leave_no_trace():
    student = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    teacher = tensor([[0.0, 0.0, -INF], [0.0, 1.0, 2.0]], dtype=torch.float64)
    divergence(student, teacher, kind="rkl")[1].backward()
    assert student.grad[0].tolist() == [0.0, 0.0, 0.0]
    assert_close(student.grad[1], divergence_grad(student[1], teacher[1], kind="rkl"))


def test_extreme_logits_stay_finite():
    student = tensor([4000.0, 0.0, 0.0], dtype=torch.float32, requires_grad=True)
    teacher = tensor([0.0, 4000.0, 0.0], dtype=torch.float32)
    value = divergence(student, teacher, kind="gjs")
    assert value.item() == pytest.approx(LN2, rel=1e-6)
    value.backward()
    assert torch.isfinite(student.grad).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_low_precision_is_computed_in_float32(dtype):
    student, teacher = random_logits(3, 5, dtype=dtype), random_logits(3, 5, seed=1, dtype=dtype)
    student.requires_grad_()
    for kind in DIVERGENCES:
        got = divergence(student, teacher, kind=kind)
        assert got.dtype == torch.float32
        exact = divergence(student.detach().double(), teacher.double(), kind=kind)
        assert_close(got.double(), exact, rtol=1e-5, atol=1e-6)
        (grad,) = torch.autograd.grad(got.sum(), student)
        assert grad.dtype == dtype
    assert divergence_grad(student, teacher).dtype == torch.float32
    assert divergence(student.detach().double(), teacher).dtype == torch.float64


def test_buckets_by_hand():
    student = tensor([0.1, 0.4, 0.2, 0.3], dtype=torch.float64).log()
    teacher = tensor([0.3, 0.05, 0.15, 0.5], dtype=torch.float64).log()
    log_s, log_t = bucket_log_probs(student, teacher, 2)
    # the student's two likeliest, then the rest; the teacher on the same tokens
    assert_close(log_s.exp(), tensor([0.4, 0.3, 0.3]).double())
    assert_close(log_t.exp(), tensor([0.05, 0.5, 0.45]).double())
    expected = kl((0.4, 0.3, 0.3), (0.05, 0.5, 0.45))
    assert divergence(student, teacher, kind="rkl", top_k=2).item() == pytest.approx(expected)
    grouped = masked_divergence(student[None, None], teacher[None, None], tensor([[1]]), top_k=2)
    assert grouped.item() == pytest.approx(expected)
    # one bucket is coarser than the full vocabulary, never larger
    assert expected < divergence(student, teacher, kind="rkl").item()


def test_top_k_of_the_whole_vocabulary_has_no_tail():
    student, teacher = random_logits(3, 4), random_logits(3, 4, seed=1)
    full = divergence(student, teacher)
    assert divergence(student, teacher, top_k=4).tolist() == full.tolist()
    assert divergence(student, teacher, top_k=100).tolist() == full.tolist()
    # with 3 of 4 the tail is the fourth token: the same number by the other path
    assert_close(divergence(student, teacher, top_k=3), full, rtol=1e-12, atol=0)
    for k in (0, 4):
        with pytest.raises(ValueError, match="at least 1 and below V=4"):
            bucket_log_probs(student, teacher, k)
    assert bucket_log_probs(student, teacher, 1)[0].shape == (3, 2)


@pytest.mark.parametrize("kind", DIVERGENCES)
def test_top_k_gradient_by_finite_differences(kind):
    student = random_logits(3, 6).requires_grad_()
    teacher = random_logits(3, 6, seed=1)
    assert gradcheck(lambda x: divergence(x, teacher, kind=kind, beta=0.3, top_k=2), (student,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tail_is_clamped_where_the_top_tokens_hold_all_mass(dtype):
    student = tensor([90.0, 0.0, 0.0], dtype=dtype, requires_grad=True)
    log_s, log_t = bucket_log_probs(student, student, 1)
    tail = math.log(-math.expm1(-1e-7))
    assert log_s[1].item() == pytest.approx(tail, rel=1e-6)
    assert log_t[1].item() == log_s[1].item()
    (grad,) = torch.autograd.grad(log_s[1], student)
    assert grad.tolist() == [0.0, 0.0, 0.0]
    # a teacher with half its mass in the tail: finite, and by hand
    teacher = tensor([LN2, 0.0, 0.0], dtype=dtype)
    got = divergence(student, teacher, kind="fkl", top_k=1).item()
    assert got == pytest.approx(0.5 * LN2 * -1 + 0.5 * (math.log(0.5) - tail), rel=1e-5)


def test_masked_positions_change_nothing():
    student, teacher = random_logits(2, 3, 5), random_logits(2, 3, 5, seed=1)
    mask = tensor([[1, 0, 1], [0, 0, 1]])
    clean = student.clone().requires_grad_()
    value = masked_divergence(clean, teacher, mask, kind="gjs", beta=0.3)
    assert_close(
        value, divergence(student, teacher, kind="gjs", beta=0.3).masked_fill(mask == 0, 0.0)
    )
    value.sum().backward()
    for bad in (1e30, INF, math.nan):
        dirty = student.masked_fill((mask == 0)[..., None], bad).requires_grad_()
        wild = teacher.masked_fill((mask == 0)[..., None], bad)
        got = masked_divergence(dirty, wild, mask, kind="gjs", beta=0.3)
        assert got.tolist() == value.tolist()
        got.sum().backward()
        assert dirty.grad.tolist() == clean.grad.tolist()
    assert clean.grad[0, 1].tolist() == [0.0] * 5


@pytest.mark.parametrize("top_k", [None, 2])
def test_empty_mask_is_zero_with_zero_gradient(top_k):
    student = torch.full((2, 3, 5), math.nan, requires_grad=True)
    value = masked_divergence(student, student, torch.zeros(2, 3), top_k=top_k).sum()
    value.backward()
    assert value.item() == 0.0
    assert (student.grad == 0).all()


def test_refusals_name_the_problem():
    x = torch.zeros(2, 3, 5)
    with pytest.raises(ValueError, match="Unknown divergence 'js'"):
        divergence(x, x, kind="js")
    with pytest.raises(ValueError, match="Unknown divergence 'js'"):
        divergence_grad(x, x, kind="js")
    for beta in (0.0, 1.0, -0.001, 1.001, math.nan):
        with pytest.raises(ValueError, match="strictly between 0 and 1"):
            divergence(x, x, kind="gjs", beta=beta)
        check_divergence("rkl", beta)
        check_divergence("fkl", beta)
    with pytest.raises(ValueError, match="or None for the full vocabulary"):
        divergence(x, x, top_k=0)
    check_divergence("rkl", 0.5, 1)
    with pytest.raises(ValueError, match=r"one shape \(\.\.\., V\)"):
        divergence(x, x[..., :4])
    for empty in (torch.zeros(()), torch.zeros(2, 0)):
        with pytest.raises(ValueError, match="share the tokenizer"):
            divergence(empty, empty)
    with pytest.raises(ValueError, match="one tokenizer for both"):
        masked_divergence(x, x[..., :4], torch.ones(2, 3))
    with pytest.raises(ValueError, match="one tokenizer for both"):
        masked_divergence(x, x, torch.ones(2, 4))
