"""L_act and the vocabulary loss of SERL."""

from __future__ import annotations

import math

import pytest
import torch
from torch import tensor
from torch.testing import assert_close

from tests.trainer.auxiliary.serl_rows import INF, NAN, RESPONSE, STUDENT, TEACHER, defaults
from trainer.auxiliary.serl import (
    ACT_KINDS,
    VOCABULARY_KINDS,
    act_loss,
    act_vocabulary_loss,
)
from trainer.objectives import Denominators


def leaf(values):
    return tensor(values, dtype=torch.float64, requires_grad=True)


ACT_MASK = tensor([[1, 1, 0], [0, 0, 0], [1, 0, 0]])


def random_logps(seed):
    generator = torch.Generator().manual_seed(seed)
    return -4 * torch.rand(3, 3, generator=generator, dtype=torch.float64)


def in_parts(loss, student, teacher, kind):
    """The sum of a loss over micro-batches of one row."""
    counts = Denominators.of(ACT_MASK)
    return sum(
        loss(
            student[i : i + 1],
            teacher[i : i + 1],
            ACT_MASK[i : i + 1],
            kind=kind,
            denominators=counts,
        )
        for i in range(3)
    )


def test_act_loss_pg_by_hand():
    student = leaf([[-1.0, -2.0, -9.0]])
    loss = act_loss(student, tensor([[-1.5, -1.0, -2.0]]), tensor([[1, 1, 0]]))
    loss.backward()
    # gaps S - T = 0.5 and -1; value (0.5 * -1 + -1 * -2) / 2
    assert loss.item() == pytest.approx(0.75)
    assert_close(student.grad, tensor([[0.25, -0.5, 0.0]]).double())


def test_act_loss_gap_by_hand():
    student = leaf([[-1.0, -2.0, -9.0]])
    loss = act_loss(student, tensor([[-1.5, -1.0, -2.0]]), tensor([[1, 1, 0]]), kind="gap")
    loss.backward()
    assert loss.item() == pytest.approx(0.25)
    assert_close(student.grad, tensor([[-0.5, -0.5, 0.0]]).double())


def test_act_loss_k3_by_hand_and_its_limit():
    student = leaf([[-1.0, -8.0, -5.5]])
    teacher, mask = tensor([[-0.5, -0.1, -0.5]]).double(), torch.ones(1, 3)
    loss = act_loss(student, teacher, mask, kind="k3")
    loss.backward()
    near, far = math.exp(0.5) - 1.5, math.exp(5.0) - 6.0
    assert loss.item() == pytest.approx((near + 2 * far) / 3)
    # At D = 5 exactly the limit does not cut the gradient yet, at D = 7.9 it does.
    expected = [[(1 - math.exp(0.5)) / 3, 0.0, (1 - math.exp(5.0)) / 3]]
    assert_close(student.grad, tensor(expected, dtype=torch.float64))
    free = act_loss(student, teacher, mask, kind="k3", clamp=None)
    assert free.item() == pytest.approx((near + math.exp(7.9) - 8.9 + far) / 3)
    low = act_loss(leaf([[0.0]]), tensor([[-30.0]]).double(), torch.ones(1, 1), kind="k3")
    assert low.item() == pytest.approx(29.0)
    assert defaults(act_loss) == {"kind": "pg_rkl", "clamp": 5.0, "denominators": None}


@pytest.mark.parametrize("kind", ["gap", "k3"])
def test_act_loss_gradient_by_finite_differences(kind):
    student, teacher = random_logps(0).requires_grad_(), random_logps(1)
    torch.autograd.gradcheck(lambda s: act_loss(s, teacher, ACT_MASK, kind=kind), student)


@pytest.mark.parametrize("kind", ["pg_rkl", "gap", "k3"])
def test_act_loss_promises(kind):
    student = random_logps(0).requires_grad_()
    teacher = random_logps(1).requires_grad_()
    loss = act_loss(student, teacher, ACT_MASK, kind=kind)
    loss.backward()
    assert teacher.grad is None
    grad = student.grad.clone()
    assert grad[ACT_MASK == 0].eq(0).all()
    # Junk outside the mask changes neither value nor gradient.
    for junk in (1e30, INF, NAN):
        dirty = student.detach().masked_fill(ACT_MASK == 0, junk).requires_grad_()
        other = act_loss(dirty, teacher.masked_fill(ACT_MASK == 0, -junk), ACT_MASK, kind=kind)
        other.backward()
        assert other.equal(loss)
        assert dirty.grad.equal(grad)
    # Micro-batches add up.
    assert_close(in_parts(act_loss, student, teacher, kind), loss, rtol=1e-14, atol=0)
    # Nothing to train: exactly 0.
    empty = random_logps(0).requires_grad_()
    zero = act_loss(empty, teacher, torch.zeros(3, 3), kind=kind)
    zero.backward()
    assert zero.item() == 0.0
    assert empty.grad.eq(0).all()


def test_act_loss_refusals():
    assert ACT_KINDS == ("pg_rkl", "gap", "k3")
    assert VOCABULARY_KINDS == ("rkl", "js")
    with pytest.raises(ValueError, match="Unknown kind 'kl'"):
        act_loss(STUDENT, TEACHER, RESPONSE, kind="kl")
    for clamp in (0.0, NAN):
        with pytest.raises(ValueError, match="clamp must be positive"):
            act_loss(STUDENT, TEACHER, RESPONSE, clamp=clamp)
    with pytest.raises(ValueError, match="one shape"):
        act_loss(STUDENT, TEACHER[:, :2], RESPONSE)


def logits(*probabilities):
    return tensor([[list(p) for p in probabilities]], dtype=torch.float64).log()


def test_vocabulary_loss_by_hand():
    student = logits((0.5, 0.5), (0.9, 0.1)).requires_grad_()
    teacher = logits((0.25, 0.75), (0.1, 0.9))
    mask = tensor([[1, 0]])
    rkl = 0.5 * math.log(2) + 0.5 * math.log(0.5 / 0.75)
    assert act_vocabulary_loss(student, teacher, mask).item() == pytest.approx(rkl)
    # Unnormalised logits are the same distribution.
    assert act_vocabulary_loss(student + 3, teacher - 1, mask).item() == pytest.approx(rkl)
    for beta in (0.5, 0.2):
        m = [beta * 0.25 + (1 - beta) * 0.5, beta * 0.75 + (1 - beta) * 0.5]
        to_t = 0.25 * math.log(0.25 / m[0]) + 0.75 * math.log(0.75 / m[1])
        to_s = 0.5 * math.log(0.5 / m[0]) + 0.5 * math.log(0.5 / m[1])
        got = act_vocabulary_loss(student, teacher, mask, kind="js", beta=beta)
        assert got.item() == pytest.approx(beta * to_t + (1 - beta) * to_s)
    assert defaults(act_vocabulary_loss) == {"kind": "rkl", "beta": 0.5, "denominators": None}


@pytest.mark.parametrize("kind", ["rkl", "js"])
def test_vocabulary_loss_promises(kind):
    generator = torch.Generator().manual_seed(0)
    student = torch.randn(3, 3, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(3, 3, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(
        lambda s: act_vocabulary_loss(s, teacher.detach(), ACT_MASK, kind=kind), student
    )
    loss = act_vocabulary_loss(student, teacher, ACT_MASK, kind=kind)
    loss.backward()
    assert teacher.grad is None
    assert student.grad[ACT_MASK == 0].eq(0).all()
    hidden = (ACT_MASK == 0).unsqueeze(-1)
    dirty = act_vocabulary_loss(
        student.masked_fill(hidden, NAN), teacher.masked_fill(hidden, INF), ACT_MASK, kind=kind
    )
    assert dirty.equal(loss)
    assert_close(in_parts(act_vocabulary_loss, student, teacher, kind), loss, rtol=1e-14, atol=0)
    student.grad = None
    zero = act_vocabulary_loss(student, teacher, torch.zeros(3, 3), kind=kind)
    zero.backward()
    assert zero.item() == 0.0
    assert student.grad.eq(0).all()
    same = act_vocabulary_loss(student, student, ACT_MASK, kind=kind)
    assert abs(same.item()) < 1e-14


def test_vocabulary_loss_refusals():
    student = torch.zeros(1, 2, 3)
    with pytest.raises(ValueError, match="Unknown kind 'gjs'"):
        act_vocabulary_loss(student, student, torch.ones(1, 2), kind="gjs")
    with pytest.raises(ValueError, match="beta"):
        act_vocabulary_loss(student, student, torch.ones(1, 2), kind="js", beta=1.0)
    with pytest.raises(ValueError, match="one shape"):
        act_vocabulary_loss(student, student[..., :2], torch.ones(1, 2))
