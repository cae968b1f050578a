"""SEED's gated loss: numbers by hand, what is constant, and what no split of a batch changes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import tensor
from torch.testing import assert_close

from trainer.auxiliary import seed
from trainer.auxiliary.seed import (
    GateStats,
    distillation_gate,
    gate_report,
    gated_loss,
    opd_mask,
    opd_rows,
    seed_opd_loss,
)
from trainer.objectives import Denominators

# Gaps: log 3 / 5, 0, -log 3 / 5 in the first row; 0.4 and padding in the second. With beta 5 the
# gates are 3/4, 1/2, 1/4 and sigma(2).
STEP = math.log(3.0) / 5.0
STUDENT = tensor([[-1.0, -2.0, -0.5], [-3.0, -7.0, -7.0]], dtype=torch.float64)
TEACHER = STUDENT + tensor([[STEP, 0.0, -STEP], [0.4, 9.0, 9.0]], dtype=torch.float64)
MASK = tensor([[1, 1, 1], [1, 0, 0]])
G4 = 1.0 / (1.0 + math.exp(-2.0))


def leaf():
    return STUDENT.clone().requires_grad_()


def test_defaults_are_the_published_ones():
    assert (seed.BETA, seed.COEFFICIENT, seed.SATURATION) == (5.0, 0.01, 0.01)


def test_gate_by_hand():
    gate = distillation_gate(STUDENT, TEACHER)
    assert_close(gate[0].tolist(), [0.75, 0.5, 0.25], rtol=1e-12, atol=0)
    assert_close(gate[1, 0].item(), G4, rtol=1e-12, atol=0)
    assert distillation_gate(STUDENT, TEACHER, beta=0.0).tolist() == [[0.5] * 3] * 2
    # beta 10 doubles the exponent: 9 to 1
    assert_close(distillation_gate(STUDENT, TEACHER, beta=10.0)[0, 0].item(), 0.9)


def test_gate_is_a_constant():
    student, teacher = leaf(), TEACHER.clone().requires_grad_()
    assert not distillation_gate(student, teacher).requires_grad


def test_loss_and_gradient_by_hand():
    student = leaf()
    teacher = TEACHER.clone().requires_grad_()
    loss, stats = seed_opd_loss(student, teacher, MASK)
    loss.backward()
    assert loss.item() == pytest.approx((0.75 * STEP - 0.25 * STEP + G4 * 0.4) / 4, rel=1e-12)
    expected = [[-0.75 / 4, -0.5 / 4, -0.25 / 4], [-G4 / 4, 0.0, 0.0]]
    assert_close(student.grad, tensor(expected).double(), rtol=1e-6, atol=0)
    assert teacher.grad is None
    assert stats.metrics() == pytest.approx(
        {
            "gate_mean": (1.5 + G4) / 4,
            "gate_active": 0.5,
            "gate_saturated": 0.0,
            "gap_mean": 0.1,
            "gap_abs_mean": (2 * STEP + 0.4) / 4,
        }
    )


def test_gradient_can_only_raise_the_student_and_is_bounded():
    generator = torch.Generator().manual_seed(0)
    student = (-5 * torch.rand((9, 7), generator=generator, dtype=torch.float64)).requires_grad_()
    teacher = -30 * torch.rand((9, 7), generator=generator, dtype=torch.float64)
    mask = torch.rand((9, 7), generator=generator) < 0.7
    seed_opd_loss(student, teacher, mask)[0].backward()
    assert (student.grad <= 0).all()
    assert (student.grad >= -1.0 / mask.sum()).all()
    gate = torch.sigmoid(5 * (teacher - student.detach()))
    assert_close(student.grad, -gate * mask / mask.sum(), rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize(("center", "c"), [("none", 0.0), ("half", 0.5), ("mean", (1.5 + G4) / 4)])
def test_centres_by_hand(center, c):
    student = leaf()
    loss, stats = seed_opd_loss(student, TEACHER, MASK, gate_center=center)
    loss.backward()
    value = ((0.75 - c) * STEP - (0.25 - c) * STEP + (G4 - c) * 0.4) / 4
    assert loss.item() == pytest.approx(value, rel=1e-12)
    gates = tensor([[0.75, 0.5, 0.25], [G4, 0.0, 0.0]], dtype=torch.float64)
    assert_close(student.grad, -(gates - c) * MASK / 4, rtol=1e-12, atol=1e-17)
    assert stats.metrics()["gate_mean"] == pytest.approx((1.5 + G4) / 4)  # before centring


def test_mean_centre_cancels_a_constant_gate():
    student = leaf()
    seed_opd_loss(student, TEACHER, MASK, beta=0.0, gate_center="mean")[0].backward()
    assert torch.equal(student.grad, torch.zeros_like(student))


def test_teacher_that_rules_a_token_out():
    student = leaf()
    teacher = TEACHER.clone()
    teacher[0, 1] = -math.inf
    loss, _ = seed_opd_loss(student, teacher, MASK)
    loss.backward()
    # gate 0: the limit of x * sigma(5 x) at -inf is 0
    assert loss.item() == pytest.approx((0.5 * STEP + G4 * 0.4) / 4)
    assert student.grad[0, 1] == 0.0
    assert torch.isfinite(student.grad).all()


@pytest.mark.parametrize("absurd", [1e30, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("center", ["none", "half", "mean"])
def test_masked_entries_change_nothing(absurd, center):
    def run(student, teacher):
        student.requires_grad_()
        loss, stats = seed_opd_loss(student, teacher, MASK, gate_center=center)
        loss.backward()
        report = gate_report(student, teacher, MASK, tensor([1, 0]), MASK)
        return loss.item(), student.grad, stats.metrics(), [s.metrics() for s in report.values()]

    clean = run(STUDENT.clone(), TEACHER)
    student, teacher = STUDENT.clone(), TEACHER.clone()
    student[1, 1] = absurd
    teacher[1, 2] = absurd
    dirty = run(student, teacher)
    assert dirty[0] == clean[0]
    assert torch.equal(dirty[1], clean[1])
    assert dirty[2:] == clean[2:]


@pytest.mark.parametrize("how", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
@pytest.mark.parametrize("center", ["none", "half", "mean"])
def test_parts_of_a_step_add_up(how, center):
    counts = Denominators.of(MASK)
    whole_leaf, part_leaf = leaf(), leaf()
    whole, whole_stats = seed_opd_loss(
        whole_leaf, TEACHER, MASK, gate_center=center, aggregation=how
    )
    whole.backward()
    mean = whole_stats.metrics()["gate_mean"] if center == "mean" else None
    total, stats = 0.0, None
    for i in range(2):
        loss, part = seed_opd_loss(
            part_leaf[i : i + 1],
            TEACHER[i : i + 1],
            MASK[i : i + 1],
            gate_center=center,
            gate_mean=mean,
            aggregation=how,
            denominators=counts,
        )
        loss.backward()
        total += loss.item()
        stats = part if stats is None else stats + part
    assert total == pytest.approx(whole.item(), rel=1e-12)
    assert_close(part_leaf.grad, whole_leaf.grad, rtol=1e-12, atol=1e-17)
    assert stats.metrics() == pytest.approx(whole_stats.metrics())


def test_aggregation_is_passed_on():
    loss, _ = seed_opd_loss(STUDENT, TEACHER, MASK, aggregation="seq-mean-token-mean")
    assert loss.item() == pytest.approx((0.5 * STEP / 3 + G4 * 0.4) / 2)


def test_mean_centre_needs_the_mean_of_the_whole_step():
    counts = Denominators(tokens=5, sequences=2)
    with pytest.raises(ValueError, match="on 4 of 5 tokens needs gate_mean"):
        seed_opd_loss(STUDENT, TEACHER, MASK, gate_center="mean", denominators=counts)
    # The counts of this very batch are the whole step.
    own = Denominators.of(MASK)
    a, _ = seed_opd_loss(STUDENT, TEACHER, MASK, gate_center="mean", denominators=own)
    b, _ = seed_opd_loss(STUDENT, TEACHER, MASK, gate_center="mean")
    assert a.item() == b.item()


@pytest.mark.parametrize("mean", [0.0, 0.25, 1.0])
def test_given_mean_is_used(mean):
    gate = distillation_gate(STUDENT, TEACHER)
    loss, _ = gated_loss(STUDENT, TEACHER, gate, MASK, gate_center="mean", gate_mean=mean)
    value = (0.75 - mean) * STEP - (0.25 - mean) * STEP + (G4 - mean) * 0.4
    assert loss.item() == pytest.approx(value / 4)


def test_given_gate_is_used_and_constant():
    student = leaf()
    gate = tensor([[0.1, 0.2, 0.3], [0.4, 0.9, 0.9]], dtype=torch.float64, requires_grad=True)
    loss, stats = gated_loss(student, TEACHER, gate, MASK)
    loss.backward()
    assert_close(student.grad, -gate.detach() * MASK / 4, rtol=1e-12, atol=0)
    assert gate.grad is None
    assert stats.gate.item() == pytest.approx(1.0)


@pytest.mark.parametrize("center", ["none", "half"])
def test_gradient_by_finite_differences(center):
    gate = tensor([[0.1, 0.2, 0.3], [0.4, 0.9, 0.9]], dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda s: gated_loss(s, TEACHER, gate, MASK, gate_center=center)[0], leaf()
    )


@pytest.mark.parametrize("center", ["none", "half", "mean"])
def test_order_of_rows_does_not_matter(center):
    a, b = leaf(), STUDENT.flip(0).requires_grad_()
    for student, teacher, mask in ((a, TEACHER, MASK), (b, TEACHER.flip(0), MASK.flip(0))):
        seed_opd_loss(student, teacher, mask, gate_center=center)[0].backward()
    assert_close(b.grad.flip(0), a.grad, rtol=1e-12, atol=1e-17)


@pytest.mark.parametrize("center", ["none", "half", "mean"])
def test_empty_mask_is_exactly_zero(center):
    student = torch.full((2, 3), -math.inf, requires_grad=True)
    loss, stats = seed_opd_loss(student, TEACHER, torch.zeros(2, 3), gate_center=center)
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(student.grad, torch.zeros(2, 3))
    assert set(stats.metrics().values()) == {0.0}


def test_float32_inputs_give_a_float32_loss_and_float64_statistics():
    loss, stats = seed_opd_loss(STUDENT.float(), TEACHER, MASK)
    assert loss.dtype == torch.float32
    assert {getattr(stats, f).dtype for f in stats.__slots__} == {torch.float64}


def test_statistics_at_their_limits():
    gap = tensor([[0.0, 0.1, -5.0, 5.0, 0.9, -0.9]], dtype=torch.float64)
    _, stats = seed_opd_loss(torch.zeros_like(gap), gap, torch.ones_like(gap))
    # active: above 0.5, not at it; saturated: sigma(+-4.5) = 0.989 and 0.011 are not
    assert (stats.tokens.item(), stats.active.item(), stats.saturated.item()) == (6.0, 3.0, 2.0)
    assert stats.gap.item() == pytest.approx(0.1)
    assert stats.abs_gap.item() == pytest.approx(11.9)
    assert stats.gate.item() == pytest.approx(2.5 + 1 / (1 + math.exp(-0.5)))
    edge = tensor([[0.01, 0.99, 0.0099, 0.9901]], dtype=torch.float64)
    _, stats = gated_loss(edge, edge, edge, torch.ones_like(edge))
    assert stats.saturated.item() == 2.0


def test_statistics_add_field_by_field():
    one = GateStats(*(tensor(float(x)) for x in range(1, 7)))
    two = GateStats(*(tensor(float(x)) for x in range(10, 70, 10)))
    total = one + two
    assert [getattr(total, f).item() for f in total.__slots__] == [11, 22, 33, 44, 55, 66]
    assert total.metrics() == {
        "gate_mean": 2.0,
        "gate_active": 3.0,
        "gate_saturated": 4.0,
        "gap_mean": 5.0,
        "gap_abs_mean": 6.0,
    }


def test_report_by_outcome_and_kind_of_token():
    command = tensor([[0, 1, 1], [1, 1, 1]])
    report = gate_report(STUDENT, TEACHER, MASK, tensor([True, False]), command)
    assert {name: stats.tokens.item() for name, stats in report.items()} == {
        "all": 4.0,
        "success": 3.0,
        "failure": 1.0,
        "command": 3.0,
        "think": 1.0,
    }
    gaps = {name: stats.metrics()["gap_mean"] for name, stats in report.items()}
    assert gaps == pytest.approx(
        {
            "all": 0.1,
            "success": 0.0,
            "failure": 0.4,
            "command": (0.4 - STEP) / 3,
            "think": STEP,
        },
        abs=1e-12,
    )
    assert report["think"].gate.item() == pytest.approx(0.75)
    attached = gate_report(leaf(), TEACHER, MASK, tensor([1, 0]), command)
    assert not any(getattr(s, f).requires_grad for s in attached.values() for f in s.__slots__)
    steep = gate_report(STUDENT, TEACHER, MASK, tensor([1, 0]), command, beta=10.0)
    assert steep["think"].gate.item() == pytest.approx(0.9)


def test_mask_of_rows_and_tokens():
    response = tensor([[1, 1, 0], [1, 1, 1]])
    assert opd_mask(response, tensor([1, 0])).tolist() == [[True, True, False], [False] * 3]
    commands = tensor([[0, 1, 1], [0, 1, 1]])
    assert opd_mask(response, tensor([True, True]), commands).int().tolist() == [
        [0, 1, 0],
        [0, 1, 1],
    ]


SKILL = tensor([True, True, False, False])
WON = tensor([True, False, True, False])


@pytest.mark.parametrize(
    ("step", "options", "expected"),
    [
        (0, {}, [1, 1, 0, 0]),
        (10**6, {}, [1, 1, 0, 0]),
        (0, {"failed_only": True}, [0, 1, 0, 0]),
        (2, {"start_after": 3}, [0, 0, 0, 0]),
        (3, {"start_after": 3}, [1, 1, 0, 0]),
        (4, {"stop_after": 5}, [1, 1, 0, 0]),
        (5, {"stop_after": 5}, [0, 0, 0, 0]),
        (3, {"start_after": 3, "stop_after": 4, "failed_only": True}, [0, 1, 0, 0]),
    ],
)
def test_windows(step, options, expected):
    assert opd_rows(step, SKILL, WON, **options).int().tolist() == expected


def test_rows_are_not_the_callers_tensor():
    rows = opd_rows(0, SKILL, WON)
    rows[:] = False
    assert SKILL.tolist() == [True, True, False, False]


def test_refusals():
    with pytest.raises(ValueError, match="beta must be finite and >= 0, found -1"):
        distillation_gate(STUDENT, TEACHER, beta=-1.0)
    with pytest.raises(ValueError, match="beta must be finite"):
        seed_opd_loss(STUDENT, TEACHER, MASK, beta=math.inf)
    with pytest.raises(ValueError, match="Unknown gate_center 'median'"):
        seed_opd_loss(STUDENT, TEACHER, MASK, gate_center="median")
    with pytest.raises(ValueError, match="gate_mean has no use with gate_center='half'"):
        seed_opd_loss(STUDENT, TEACHER, MASK, gate_center="half", gate_mean=0.5)
    for wrong in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="in \\[0, 1\\]; found"):
            seed_opd_loss(STUDENT, TEACHER, MASK, gate_center="mean", gate_mean=wrong)
    with pytest.raises(ValueError, match="one shape"):
        seed_opd_loss(STUDENT, TEACHER[:1], MASK)
    with pytest.raises(ValueError, match="one shape"):
        distillation_gate(STUDENT, TEACHER[:1])
    for wrong in range(4):
        inputs = [STUDENT, TEACHER, TEACHER, MASK]
        inputs[wrong] = inputs[wrong][:1]
        with pytest.raises(ValueError, match="one shape"):
            gated_loss(*inputs)
    with pytest.raises(ValueError, match="one shape"):
        gate_report(STUDENT, TEACHER, MASK, WON[:2], MASK[:1])
    with pytest.raises(ValueError, match="only 0 and 1"):
        seed_opd_loss(STUDENT, TEACHER, 0.5 * MASK)
    with pytest.raises(ValueError, match="step and start_after"):
        opd_rows(-1, SKILL, WON)
    with pytest.raises(ValueError, match="step and start_after"):
        opd_rows(0, SKILL, WON, start_after=-1)
    with pytest.raises(ValueError, match="window is empty: start_after=2, stop_after=2"):
        opd_rows(0, SKILL, WON, start_after=2, stop_after=2)
    with pytest.raises(ValueError, match="one value per row"):
        opd_rows(0, SKILL, WON[:3])
    with pytest.raises(ValueError, match="only 0 and 1"):
        opd_rows(0, 2.0 * SKILL, WON)
    with pytest.raises(ValueError, match="one value per row, \\(2,\\)"):
        opd_mask(MASK, SKILL)
    with pytest.raises(ValueError, match="one shape"):
        opd_mask(MASK, tensor([1, 1]), MASK[:, :2])
    with pytest.raises(ValueError, match="one value per row"):
        gate_report(STUDENT, TEACHER, MASK, WON, MASK)
