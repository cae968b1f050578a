"""Skill-SD's loss and OPID's advantages."""

from __future__ import annotations

import math

import pytest
import torch
from torch import tensor
from torch.testing import assert_close

from trainer.auxiliary import opid, skill_sd
from trainer.auxiliary.opid import opid_advantages
from trainer.auxiliary.skill_sd import skill_sd_loss
from trainer.objectives import Denominators

LOG2 = math.log(2.0)
STUDENT = tensor([[-2.0, -1.0], [-3.0, -9.0]], dtype=torch.float64)
# T - S: log 2, -log 2, log 2; S - O: log 2, 0, -log 2
TEACHER = STUDENT + tensor([[LOG2, -LOG2], [LOG2, 5.0]], dtype=torch.float64)
OLD = STUDENT - tensor([[LOG2, 0.0], [-LOG2, 5.0]], dtype=torch.float64)
MASK = tensor([[1, 1], [1, 0]])
# k3 = 2 - 1 - log 2 and 1/2 - 1 + log 2
UP, DOWN = 1.0 - LOG2, LOG2 - 0.5


def test_constants():
    assert (skill_sd.COEFFICIENT, skill_sd.GAP_LIMIT, skill_sd.LOG_RATIO_LIMIT) == (0.1, 20.0, 10.0)
    assert opid.WEIGHT == 1e-3


def test_skill_sd_by_hand():
    student = STUDENT.clone().requires_grad_()
    teacher, old = (x.clone().requires_grad_() for x in (TEACHER, OLD))
    loss = skill_sd_loss(student, teacher, old, MASK)
    loss.backward()
    assert loss.item() == pytest.approx((2 * UP + DOWN + 0.5 * UP) / 3, rel=1e-12)
    # d/dS rho * k3 = rho * (k3 + 1 - exp(d))
    expected = [[2 * (UP - 1), DOWN + 0.5], [0.5 * (UP - 1), 0.0]]
    assert_close(student.grad, tensor(expected).double() / 3, rtol=1e-6, atol=0)
    assert teacher.grad is None
    assert old.grad is None


def test_skill_sd_gradient_by_finite_differences():
    assert torch.autograd.gradcheck(
        lambda s: skill_sd_loss(s, TEACHER, OLD, MASK), STUDENT.clone().requires_grad_()
    )


def test_skill_sd_limits():
    one = torch.ones(1, 1)

    def run(gap, log_ratio):
        student = tensor([[-50.0]], dtype=torch.float64, requires_grad=True)
        base = student.detach()
        loss = skill_sd_loss(student, base + gap, base - log_ratio, one)
        loss.backward()
        return loss.item(), student.grad.item()

    assert run(19.0, 0.0)[0] == pytest.approx(math.exp(19.0) - 20.0)
    assert run(45.0, 0.0)[0] == pytest.approx(math.exp(20.0) - 21.0)
    assert run(-45.0, 0.0)[0] == pytest.approx(44.0)  # not limited below
    assert run(1.0, 12.0)[0] == pytest.approx(math.exp(10.0) * (math.e - 2.0))
    assert run(1.0, 9.0)[0] == pytest.approx(math.exp(9.0) * (math.e - 2.0))
    assert run(1.0, -30.0)[0] == pytest.approx(math.exp(-30.0) * (math.e - 2.0))
    # Beyond a limit its factor is constant: only rho's gradient, only k3's, and none.
    assert run(45.0, 0.0)[1] == pytest.approx(math.exp(20.0) - 21.0)
    assert run(1.0, 12.0)[1] == pytest.approx(math.exp(10.0) * (1.0 - math.e))
    assert run(45.0, 12.0)[1] == 0.0


def test_skill_sd_small_gaps_stay_non_negative():
    student = -torch.rand((4, 50), generator=torch.Generator().manual_seed(0))
    gap = 1e-4 * torch.randn((4, 50), generator=torch.Generator().manual_seed(1))
    for t in range(50):
        loss = skill_sd_loss(
            student[:, t : t + 1],
            (student + gap)[:, t : t + 1],
            student[:, t : t + 1],
            torch.ones(4, 1),
        )
        assert loss.item() >= 0.0


@pytest.mark.parametrize("absurd", [1e30, math.inf, -math.inf, math.nan])
def test_skill_sd_masked_entries_change_nothing(absurd):
    student, teacher, old = STUDENT.clone(), TEACHER.clone(), OLD.clone()
    student[1, 1] = teacher[1, 1] = old[1, 1] = absurd
    student.requires_grad_()
    loss = skill_sd_loss(student, teacher, old, MASK)
    loss.backward()
    assert loss.item() == skill_sd_loss(STUDENT, TEACHER, OLD, MASK).item()
    assert student.grad[1, 1] == 0.0
    assert torch.isfinite(student.grad).all()


def test_skill_sd_parts_add_up_and_nothing_is_zero():
    for how in ("token-mean", "seq-mean-token-mean"):
        whole = skill_sd_loss(STUDENT, TEACHER, OLD, MASK, aggregation=how).item()
        parts = sum(
            skill_sd_loss(
                STUDENT[i : i + 1],
                TEACHER[i : i + 1],
                OLD[i : i + 1],
                MASK[i : i + 1],
                aggregation=how,
                denominators=Denominators.of(MASK),
            ).item()
            for i in range(2)
        )
        assert parts == pytest.approx(whole, rel=1e-12)
    assert skill_sd_loss(
        STUDENT, TEACHER, OLD, MASK, aggregation="seq-mean-token-mean"
    ).item() == pytest.approx(((2 * UP + DOWN) / 2 + 0.5 * UP) / 2)
    student = torch.full((2, 2), math.nan, requires_grad=True)
    loss = skill_sd_loss(student, TEACHER, OLD, 0 * MASK)
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(student.grad, torch.zeros(2, 2))
    for wrong in range(4):
        inputs = [STUDENT, TEACHER, OLD, MASK]
        inputs[wrong] = inputs[wrong][:1]
        with pytest.raises(ValueError, match="one shape"):
            skill_sd_loss(*inputs)


ADV = tensor([0.5, 0.0, -2.0])
BEHAVIOUR = tensor([[-1.0, -2.0], [-1.0, -2.0], [-1.0, -2.0]])
EPISODE = BEHAVIOUR + tensor([[0.5, -1.0], [2.0, 4.0], [8.0, 8.0]])
STEP = BEHAVIOUR + tensor([[-0.25, 0.5], [1.0, 3.0], [8.0, 8.0]])
ON = tensor([[1, 1], [1, 0], [1, 1]])


def test_opid_by_hand():
    got = opid_advantages(
        ADV,
        BEHAVIOUR,
        ON,
        episode_B_T=EPISODE,
        episode_B=tensor([1, 1, 0]),
        step_B_T=STEP,
        step_B=tensor([True, False, False]),
    )
    expected = [[0.5 + 0.0005 - 0.00025, 0.5 - 0.001 + 0.0005], [0.002, 0.0], [-2.0, -2.0]]
    assert got.dtype == torch.float64
    assert_close(got, tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)


def test_opid_weights_are_separate():
    rows = tensor([1, 1, 0])
    got = opid_advantages(
        ADV,
        BEHAVIOUR,
        ON,
        episode_B_T=EPISODE,
        episode_B=rows,
        step_B_T=STEP,
        step_B=rows,
        w_episode=1.0,
        w_step=10.0,
    )
    expected = [[0.5 + 0.5 - 2.5, 0.5 - 1.0 + 5.0], [2.0 + 10.0, 0.0], [-2.0, -2.0]]
    assert_close(got, tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)
    episode = opid_advantages(ADV, BEHAVIOUR, ON, episode_B_T=EPISODE, episode_B=rows, w_step=10.0)
    assert_close(episode[1].tolist(), [0.002, 0.0], rtol=1e-12, atol=0)
    step = opid_advantages(ADV, BEHAVIOUR, ON, step_B_T=STEP, step_B=rows, w_episode=10.0)
    assert_close(step[1].tolist(), [0.001, 0.0], rtol=1e-12, atol=0)
    assert opid_advantages(ADV, BEHAVIOUR, ON).tolist() == [[0.5, 0.5], [0.0, 0.0], [-2.0, -2.0]]


@pytest.mark.parametrize("absurd", [1e30, math.inf, -math.inf, math.nan])
def test_opid_entries_that_take_no_part(absurd):
    rows = tensor([1, 1, 0])
    teacher, old = EPISODE.clone(), BEHAVIOUR.clone()
    teacher[2] = absurd  # a row without a skill
    teacher[1, 1] = old[1, 1] = absurd  # outside the mask
    got = opid_advantages(ADV, old, ON, episode_B_T=teacher, episode_B=rows)
    clean = opid_advantages(ADV, BEHAVIOUR, ON, episode_B_T=EPISODE, episode_B=rows)
    assert torch.equal(got, clean)


def test_opid_is_detached():
    old, teacher, adv = (x.clone().requires_grad_() for x in (BEHAVIOUR, EPISODE, ADV))
    got = opid_advantages(adv, old, ON, episode_B_T=teacher, episode_B=tensor([1, 1, 1]))
    assert not got.requires_grad


def test_opid_refusals():
    rows = tensor([1, 1, 1])
    with pytest.raises(ValueError, match="adv_B of shape \\(3,\\), found \\(2,\\)"):
        opid_advantages(ADV[:2], BEHAVIOUR, ON)
    with pytest.raises(ValueError, match="episode_B_T and episode_B together"):
        opid_advantages(ADV, BEHAVIOUR, ON, episode_B_T=EPISODE)
    with pytest.raises(ValueError, match="step_B_T and step_B together"):
        opid_advantages(ADV, BEHAVIOUR, ON, step_B=rows)
    with pytest.raises(ValueError, match="step_B of shape \\(3,\\)"):
        opid_advantages(ADV, BEHAVIOUR, ON, step_B_T=STEP, step_B=rows[:2])
    with pytest.raises(ValueError, match="one shape"):
        opid_advantages(ADV, BEHAVIOUR, ON, step_B_T=STEP[:, :1], step_B=rows)
    with pytest.raises(ValueError, match="one shape"):
        opid_advantages(ADV, BEHAVIOUR[:, :1], ON)
    with pytest.raises(ValueError, match="only 0 and 1"):
        opid_advantages(ADV, BEHAVIOUR, ON, step_B_T=STEP, step_B=0.5 * rows)
    bad = EPISODE.clone()
    bad[1, 0] = -math.inf
    with pytest.raises(ValueError, match="Row 1 has an advantage that is not finite"):
        opid_advantages(ADV, BEHAVIOUR, ON, episode_B_T=bad, episode_B=rows)
    with pytest.raises(ValueError, match="Row 2 has"):
        opid_advantages(tensor([0.0, 0.0, math.nan]), BEHAVIOUR, ON)
