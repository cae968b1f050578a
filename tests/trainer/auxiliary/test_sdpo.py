"""SDPO: the mixture, the capped weight, which turns get which context, and the slow teacher."""

from __future__ import annotations

import math

import pytest
import torch
from torch import tensor
from torch.autograd import gradcheck
from torch.testing import assert_close

from trainer.auxiliary.divergence import divergence
from trainer.auxiliary.sdpo import (
    ema_update,
    importance_weights,
    sdpo_contexts,
    sdpo_loss,
    sdpo_sampled_loss,
)
from trainer.objectives import GroupError
from trainer.objectives.aggregate import Denominators

MASK = tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0]])
ROWS = tensor([1, 1, 0])
TOKEN = tensor([[0, 3, 4], [2, 2, -100], [1, 1, 1]])
KEPT = tensor([[1, 1, 1], [1, 1, 0], [0, 0, 0]]).bool()


def logits(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, 3, 5, generator=generator, dtype=torch.float64)


def own_logp(student):
    return student.log_softmax(-1).gather(-1, TOKEN.clamp(min=0)[..., None])[..., 0].detach()


STUDENT, TEACHER = logits(0), logits(1)
# S - O: log 1.5, 1, -1 | 30, -30 | 0
OLD = own_logp(STUDENT) - tensor(
    [[math.log(1.5), 1.0, -1.0], [30.0, -30.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64
)
RHO = [1.5, 2.0, math.exp(-1), 2.0, math.exp(-20)]


def loss_of(student=STUDENT, teacher=TEACHER, old=OLD, mask=MASK, rows=ROWS, **options):
    return sdpo_loss(student, teacher, TOKEN, old, mask, rows, **options)


def by_hand(per_token, rho=RHO):
    return (per_token[KEPT] * tensor(rho, dtype=torch.float64)).sum().item() / 5


def test_default_is_js_with_weights_capped_at_two():
    value = divergence(STUDENT, TEACHER, kind="gjs", beta=0.5)
    assert loss_of().item() == pytest.approx(by_hand(value), rel=1e-12)


@pytest.mark.parametrize(
    ("alpha", "kind"), [(0.0, "fkl"), (1.0, "rkl"), (0.25, "gjs"), (0.9, "gjs")]
)
def test_mixture(alpha, kind):
    value = divergence(STUDENT, TEACHER, kind=kind, beta=alpha)
    assert loss_of(alpha=alpha).item() == pytest.approx(by_hand(value), rel=1e-12)


def test_alpha_weighs_the_teacher():
    s, t = STUDENT[:1].softmax(-1), TEACHER[:1].softmax(-1)
    m = 0.75 * s + 0.25 * t
    value = 0.75 * (s * (s / m).log()).sum(-1) + 0.25 * (t * (t / m).log()).sum(-1)
    got = sdpo_loss(
        STUDENT[:1], TEACHER[:1], TOKEN[:1], OLD[:1], MASK[:1], ROWS[:1],
        alpha=0.25, is_clip=None,
    )  # fmt: skip
    assert got.item() == pytest.approx(value.mean().item(), rel=1e-12)


def test_top_k_defaults_to_the_hundred_likeliest():
    generator = torch.Generator().manual_seed(5)
    student = torch.randn(1, 2, 300, generator=generator, dtype=torch.float64)
    teacher = torch.randn(1, 2, 300, generator=generator, dtype=torch.float64)
    rest = tensor([[1, 2]]), torch.zeros(1, 2), torch.ones(1, 2), torch.ones(1)
    got = sdpo_loss(student, teacher, *rest, is_clip=None).item()
    hundred = divergence(student, teacher, kind="gjs", top_k=100).mean().item()
    assert got == pytest.approx(hundred, rel=1e-12)
    assert abs(got - divergence(student, teacher, kind="gjs", top_k=99).mean().item()) > 1e-6
    assert sdpo_loss(student, teacher, *rest, is_clip=None, top_k=None).item() == pytest.approx(
        divergence(student, teacher, kind="gjs").mean().item(), rel=1e-12
    )


def test_weights_by_hand():
    student = tensor([0.0, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64, requires_grad=True)
    old = tensor([-math.log(1.5), -1.0, 1.0, -30.0, 30.0], dtype=torch.float64)
    got = importance_weights(student, old)
    assert_close(got, tensor(RHO, dtype=torch.float64), rtol=1e-12, atol=0)
    assert not got.requires_grad
    assert importance_weights(student, old, 1.2)[0].item() == 1.2
    assert importance_weights(student, old, None).tolist() == [1.0] * 5
    assert not importance_weights(student, old, None).requires_grad
    # the exponent is limited before the cap
    huge = importance_weights(student, old, 1e30)
    assert huge[3].item() == pytest.approx(math.exp(20), rel=1e-12)
    assert importance_weights(student.float(), old).dtype == torch.float32
    for bad in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="is_clip must be positive"):
            importance_weights(student, old, bad)


def test_no_weight_without_clip():
    value = divergence(STUDENT, TEACHER, kind="gjs")
    assert loss_of(is_clip=None).item() == pytest.approx(by_hand(value, [1.0] * 5), rel=1e-12)
    capped = by_hand(value, [min(r, 1.1) for r in RHO])
    assert loss_of(is_clip=1.1).item() == pytest.approx(capped, rel=1e-12)


def test_gradient_is_that_of_the_divergence_with_constant_weights():
    student, teacher = STUDENT.clone().requires_grad_(), TEACHER.clone().requires_grad_()
    old = OLD.clone().requires_grad_()
    loss_of(student, teacher, old).backward()
    other = STUDENT.clone().requires_grad_()
    value = divergence(other, TEACHER, kind="gjs")[KEPT] * tensor(RHO, dtype=torch.float64)
    (value.sum() / 5).backward()
    assert_close(student.grad, other.grad, rtol=1e-12, atol=1e-15)
    assert teacher.grad is None
    assert old.grad is None
    assert (student.grad[2] == 0).all()


def test_gradient_by_finite_differences():
    for options in ({"top_k": 2}, {"alpha": 1.0}):
        assert gradcheck(
            lambda x, o=options: loss_of(x, is_clip=None, **o),
            (STUDENT.clone().requires_grad_(),),
        )


@pytest.mark.parametrize("bad", [1e30, math.inf, math.nan])
def test_tokens_outside_change_nothing(bad):
    wild = [x.masked_fill(~KEPT[..., None], bad) for x in (STUDENT, TEACHER)]
    old = OLD.masked_fill(~KEPT, bad)
    clean, dirty = STUDENT.clone().requires_grad_(), wild[0].requires_grad_()
    a, b = loss_of(clean), loss_of(dirty, wild[1], old)
    assert a.item() == b.item()
    a.backward()
    b.backward()
    assert clean.grad.tolist() == dirty.grad.tolist()


def test_no_row_gives_exact_zero():
    for mask, rows in ((MASK, torch.zeros(3)), (torch.zeros(3, 3), torch.ones(3))):
        student = torch.full((3, 3, 5), math.nan, requires_grad=True)
        value = loss_of(student, mask=mask, rows=rows)
        value.backward()
        assert value.item() == 0.0
        assert (student.grad == 0).all()
        x = torch.full((3, 3), math.nan, requires_grad=True)
        value = sdpo_sampled_loss(x, x, x, mask, rows)
        value.backward()
        assert value.item() == 0.0
        assert (x.grad == 0).all()


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean"])
def test_parts_of_a_step_add_up(aggregation):
    options = {"aggregation": aggregation, "denominators": Denominators(5, 2)}
    whole = loss_of(aggregation=aggregation)
    sampled = sdpo_sampled_loss(
        own_logp(STUDENT), own_logp(TEACHER), OLD, MASK, ROWS, aggregation=aggregation
    )
    parts, sampled_parts = 0.0, 0.0
    for i in (slice(0, 1), slice(1, 3)):
        parts += sdpo_loss(
            STUDENT[i], TEACHER[i], TOKEN[i], OLD[i], MASK[i], ROWS[i], **options
        ).item()
        sampled_parts += sdpo_sampled_loss(
            own_logp(STUDENT)[i], own_logp(TEACHER)[i], OLD[i], MASK[i], ROWS[i], **options
        ).item()
    assert parts == pytest.approx(whole.item(), rel=1e-12)
    assert sampled_parts == pytest.approx(sampled.item(), rel=1e-12)


def test_sampled_form_by_hand():
    student = tensor([[-1.0, -2.0], [-3.0, -4.0]], dtype=torch.float64, requires_grad=True)
    teacher = tensor([[-0.5, -5.0], [-1.0, 9.0]], dtype=torch.float64, requires_grad=True)
    old = tensor([[-1.0, -4.0], [-3.0, 7.0]], dtype=torch.float64)
    mask, rows = tensor([[1, 1], [1, 0]]), tensor([1, 1])
    loss = sdpo_sampled_loss(student, teacher, old, mask, rows)
    # (S - T) * rho: -0.5 * 1, 3 * 2 (exp 2 capped), -2 * 1
    assert loss.item() == pytest.approx((-0.5 * -1 + 6 * -2 + -2 * -3) / 3)
    loss.backward()
    assert_close(student.grad, tensor([[-0.5, 6.0], [-2.0, 0.0]]).double() / 3)
    assert teacher.grad is None
    wild = sdpo_sampled_loss(student, teacher, old, mask, rows, is_clip=None)
    assert wild.item() == pytest.approx((0.5 + 3 * -2 + 6) / 3)
    one_row = sdpo_sampled_loss(student, teacher, old, mask, tensor([0, 1]))
    assert one_row.item() == pytest.approx(6.0)
    outside = mask == 0
    for i in range(3):
        values = [student.detach(), teacher.detach(), old]
        values[i] = values[i].masked_fill(outside, math.nan)
        values[0].requires_grad_()
        dirty = sdpo_sampled_loss(*values, mask, rows)
        with torch.autograd.set_detect_anomaly(True):  # no NaN on the way either
            dirty.backward()
        assert dirty.item() == loss.item()
        assert values[0].grad.tolist() == student.grad.tolist()


def test_sampled_form_exists_for_alpha_one_only():
    x = torch.zeros(1, 1)
    assert sdpo_sampled_loss(x, x, x, x, torch.ones(1), alpha=1.0).item() == 0.0
    for alpha in (0.0, 0.5, 0.999):
        with pytest.raises(ValueError, match="for alpha=1 only"):
            sdpo_sampled_loss(x, x, x, x, torch.ones(1), alpha=alpha)


# Group 7: trajectories 3 (fails), 5 and 8 (succeed). Group 2: 4 (succeeds alone), 6 (fails).
# Group 9: 1 and 2 fail.
UID = tensor([7, 7, 7, 7, 2, 2, 9, 9, 9])
TID = tensor([8, 5, 3, 3, 4, 6, 1, 2, 2])
SCORE = tensor([1.0, 0.5, 0.49, 0.49, 1.0, 0.0, 0.0, 0.0, 0.0])
FEEDBACK = tensor([1, 0, 1, 0, 1, 1, 0, 1, 0]).bool()


def test_contexts_by_hand():
    got = sdpo_contexts(UID, TID, SCORE, FEEDBACK)
    # 8 and 3 see 5 (lower id first), 5 sees 8; 4 has no other success, so feedback; 6 sees 4
    assert got.sibling.tolist() == [5, 8, 5, 5, -1, 4, -1, -1, -1]
    assert got.feedback.int().tolist() == [0, 0, 0, 0, 1, 0, 0, 1, 0]
    assert got.row_mask.int().tolist() == [1, 1, 1, 1, 1, 1, 0, 1, 0]


def test_contexts_do_not_depend_on_the_order_of_rows():
    straight = sdpo_contexts(UID, TID, SCORE, FEEDBACK)
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        p = torch.randperm(9, generator=generator)
        got = sdpo_contexts(UID[p], TID[p], SCORE[p], FEEDBACK[p])
        for a, b in zip(got, straight, strict=True):
            assert a.tolist() == b[p].tolist()


def test_success_threshold():
    got = sdpo_contexts(UID, TID, SCORE, FEEDBACK, success_threshold=0.6)
    assert got.sibling.tolist() == [-1, 8, 8, 8, -1, 4, -1, -1, -1]
    got = sdpo_contexts(UID, TID, SCORE, FEEDBACK, success_threshold=0.49)
    assert got.sibling.tolist() == [3, 3, 5, 5, -1, 4, -1, -1, -1]
    none = torch.zeros(9).bool()
    assert sdpo_contexts(UID, TID, SCORE, none).row_mask.int().tolist() == [1] * 4 + [0, 1, 0, 0, 0]


def test_contexts_of_an_empty_batch_and_of_trajectory_zero():
    empty = torch.zeros(0, dtype=torch.int64)
    got = sdpo_contexts(empty, empty, torch.zeros(0), empty.bool())
    assert [x.tolist() for x in got] == [[], [], []]
    got = sdpo_contexts(tensor([0, 0]), tensor([0, 1]), tensor([1.0, 0.0]), tensor([0, 0]))
    assert got.sibling.tolist() == [-1, 0]
    assert got.row_mask.tolist() == [False, True]


def test_slow_teacher_by_hand():
    teacher, student = tensor([1.0, -2.0]).double(), tensor([3.0, 8.0]).double()
    teacher.requires_grad_()
    student.requires_grad_()
    got = ema_update(teacher, student)
    assert_close(got, tensor([1.1, -1.5], dtype=torch.float64), rtol=1e-14, atol=0)
    assert not got.requires_grad
    assert teacher.tolist() == [1.0, -2.0]
    assert ema_update(teacher, student, 0.0).tolist() == [1.0, -2.0]
    assert ema_update(teacher, student, 1.0).tolist() == [3.0, 8.0]
    assert_close(ema_update(teacher, student, rate=0.25), tensor([1.5, 0.5]).double())
    assert ema_update(teacher.float(), student).dtype == torch.float32


def test_slow_teacher_converges_geometrically():
    teacher, student = torch.zeros(1).double(), torch.ones(1).double()
    for _ in range(10):
        teacher = ema_update(teacher, student)
    assert teacher.item() == pytest.approx(1 - 0.95**10, rel=1e-12)


def test_refusals_name_the_problem():
    for alpha in (-0.001, 1.001, math.nan):
        with pytest.raises(ValueError, match=r"alpha must lie in \[0, 1\]"):
            loss_of(alpha=alpha)
    with pytest.raises(ValueError, match="top_k must be at least 1"):
        loss_of(top_k=0)
    with pytest.raises(ValueError, match="one tokenizer"):
        loss_of(teacher=TEACHER[..., :4])
    with pytest.raises(ValueError, match="old_B_T"):
        loss_of(old=OLD[:, :2])
    with pytest.raises(ValueError, match="row_mask_B"):
        loss_of(rows=torch.ones(2))
    x = torch.zeros(2, 2)
    with pytest.raises(ValueError, match="teacher_B_T"):
        sdpo_sampled_loss(x, x[:1], x, x, torch.ones(2))
    with pytest.raises(ValueError, match="must not be negative"):
        sdpo_contexts(UID, TID - 2, SCORE, FEEDBACK)
    with pytest.raises(ValueError, match="NaN"):
        sdpo_contexts(UID, TID, SCORE * math.nan, FEEDBACK)
    with pytest.raises(ValueError, match="differs between turns of one trajectory"):
        sdpo_contexts(UID, TID, torch.arange(9.0), FEEDBACK)
    with pytest.raises(ValueError, match="equal length"):
        sdpo_contexts(UID, TID, SCORE[:3], FEEDBACK)
    with pytest.raises(GroupError, match="more than one group"):
        sdpo_contexts(torch.arange(9), TID, SCORE, FEEDBACK)
    with pytest.raises(ValueError, match="must have one shape"):
        ema_update(torch.zeros(2), torch.zeros(3))
    for rate in (-0.001, 1.001, math.nan):
        with pytest.raises(ValueError, match="rate must lie"):
            ema_update(torch.zeros(2), torch.zeros(2), rate)
