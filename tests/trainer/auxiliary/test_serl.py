"""SERL: hand-worked weights, that nothing flips or leaks, and the two forms of L_act."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor
from torch.testing import assert_close

from tests.trainer.auxiliary.serl_rows import INF, NAN, RESPONSE, STUDENT, TEACHER, defaults
from trainer.auxiliary.serl import (
    ReweightStats,
    lam_schedule,
    reweight_advantages,
    selected_tokens,
)
from trainer.objectives import policy_loss

# Row 0: A > 0, tokens 1 and 2 are the action. Row 1: A < 0, token 0 is. Row 2: no action.
ADV = tensor([[2.0, 2.0, 2.0], [-1.0, -1.0, -1.0], [0.5, 0.5, 0.5]], dtype=torch.float64)


ACTION = tensor([[0, 1, 1], [1, 0, 0], [0, 0, 0]])


def reweight(**changes):
    values = {
        "adv_B_T": ADV,
        "student_B_T": STUDENT,
        "teacher_B_T": TEACHER,
        "response_mask_B_T": RESPONSE,
        "action_mask_B_T": ACTION,
        "alpha": 0.5,
        **changes,
    }
    return reweight_advantages(**values)


def test_schedule_by_hand():
    assert [lam_schedule(k) for k in (0, 10, 25, 50, 51, 1000)] == [0.5, 0.4, 0.25, 0.0, 0.0, 0.0]
    assert lam_schedule(49) == pytest.approx(0.01)
    assert lam_schedule(3, lambda0=1.0, decay_steps=4) == 0.25
    assert lam_schedule(10**9, lambda0=0.3, decay_steps=0) == 0.3
    assert lam_schedule(0, lambda0=0.0) == 0.0


def test_schedule_refuses_nonsense():
    for options in ({"step": -1}, {"step": 0, "decay_steps": -1}):
        with pytest.raises(ValueError, match="must not be negative"):
            lam_schedule(**options)
    for value in (-0.1, 1.1, NAN):
        with pytest.raises(ValueError, match=r"lambda0 must be in \[0, 1\]"):
            lam_schedule(0, lambda0=value)


def test_weights_and_advantages_by_hand():
    got = reweight()
    # exp(0.1) = 1.105 inside the clip, exp(-2) clipped to 0.8; A < 0: exp(-0.1) = 0.905
    up, down = math.exp(0.1), math.exp(-0.1)
    weight = [[1.0, up, 0.8], [down, 1.0, 1.0], [1.0, 1.0, 1.0]]
    assert_close(got.weight, tensor(weight, dtype=torch.float64), rtol=1e-12, atol=0)
    adv = [[2.0, 2 * (0.5 + 0.5 * up), 1.8], [-(0.5 + 0.5 * down), -1.0, 0.0], [0.5, 0.5, 0.5]]
    assert_close(got.adv, tensor(adv, dtype=torch.float64), rtol=1e-12, atol=0)


def test_direction():
    # The teacher likes the token: more reward if A > 0, less penalty if A < 0.
    adv = tensor([[1.0, 1.0, -1.0, -1.0, 0.0]])
    gap = tensor([[3.0, -3.0, 3.0, -3.0, 3.0]])
    got = reweight_advantages(adv, torch.zeros(1, 5), gap, torch.ones(1, 5), alpha=1.0)
    assert_close(got.adv, tensor([[1.2, 0.8, -0.8, -1.2, 0.0]]))
    assert got.weight[0, 4] == 1.0


def test_clip_and_clamp_are_settings():
    one = torch.ones(1, 1, dtype=torch.float64)
    got = reweight_advantages(one, 0 * one, 9 * one, one, alpha=1.0, clip=0.5)
    assert got.adv.item() == 1.5
    got = reweight_advantages(one, 0 * one, 9 * one, one, alpha=1.0, clip=0.5, delta_clamp=0.25)
    assert got.adv.item() == pytest.approx(math.exp(0.25))
    assert got.stats.delta_abs == 0.25
    got = reweight_advantages(one, 0 * one, -900 * one, one, alpha=1.0, clip=0.9999999999)
    assert got.adv.item() == pytest.approx(math.exp(-20), rel=0.1)
    assert got.stats.delta_abs == 20.0
    assert defaults(reweight_advantages) == {
        "action_mask_B_T": None,
        "row_mask_B": None,
        "clip": 0.2,
        "delta_clamp": 20.0,
    }


def test_no_action_mask_means_every_response_token():
    got = reweight(action_mask_B_T=None)
    assert got.weight[2].tolist() == [0.8] * 3
    assert got.weight[1, 1] == 1.2
    assert got.weight[1, 2] == 1.0
    assert got.stats.action_tokens == 8


def test_rows_without_context_keep_their_advantage():
    got = reweight(row_mask_B=tensor([0, 1, 1]))
    assert got.adv[0].tolist() == [2.0, 2.0, 2.0]
    assert got.adv[1, 0] == reweight().adv[1, 0] != -1.0
    assert selected_tokens(RESPONSE, None, tensor([False, True, False])).int().tolist() == [
        [0, 0, 0],
        [1, 1, 0],
        [0, 0, 0],
    ]
    assert selected_tokens(RESPONSE, ACTION, None).equal(ACTION.bool())
    # An action token outside the response is none.
    assert selected_tokens(RESPONSE, torch.ones(3, 3), None).equal(RESPONSE.bool())


@pytest.mark.parametrize(
    "changes",
    [
        {"alpha": 0.0},
        {"clip": 0.0},
        {"action_mask_B_T": torch.zeros(3, 3)},
        {"row_mask_B": torch.zeros(3)},
        {"teacher_B_T": STUDENT},
    ],
)
@pytest.mark.parametrize("alpha", [0.5, 0.49, 0.3, 1.0])
def test_switched_off_it_is_grpo_bit_for_bit(changes, alpha):
    generator = torch.Generator().manual_seed(1)
    adv = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    for dtype in (torch.float64, torch.float32):
        got = reweight(**{"adv_B_T": adv.to(dtype), "alpha": alpha, **changes}).adv
        expected = adv.to(dtype).masked_fill(RESPONSE == 0, 0.0)
        assert got.dtype == dtype
        assert got.equal(expected)
        new = STUDENT.to(dtype).requires_grad_()
        old = torch.randn(3, 3, generator=generator).to(dtype)
        losses = [policy_loss(new, old, a, RESPONSE)[0] for a in (got, adv.to(dtype))]
        grads = [torch.autograd.grad(loss, new)[0] for loss in losses]
        assert losses[0].equal(losses[1])
        assert grads[0].equal(grads[1])


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_sign_stays_and_change_is_bounded(data):
    number = st.floats(-50, 50, allow_subnormal=False)
    rows = data.draw(st.integers(1, 3))
    draw = lambda of: tensor(  # noqa: E731
        data.draw(st.lists(st.lists(of, min_size=4, max_size=4), min_size=rows, max_size=rows))
    )
    adv, student, teacher = (draw(number).double() for _ in range(3))
    mask = draw(st.integers(0, 1))
    alpha = data.draw(st.floats(0, 1))
    clip = data.draw(st.floats(0, 0.99))
    ones = torch.ones(rows, 4)
    got = reweight_advantages(adv, student, teacher, ones, mask, alpha=alpha, clip=clip)
    assert got.adv.sign().equal(adv.sign())
    on = adv != 0
    assert ((got.adv / adv - 1.0)[on].abs() <= alpha * clip + 1e-12).all()
    assert got.adv[mask == 0].equal(adv[mask == 0])


def test_masked_tokens_may_hold_anything():
    expected = reweight()
    for junk in (1e30, INF, -INF, NAN):
        adv = ADV.masked_fill(RESPONSE == 0, junk)
        student = STUDENT.masked_fill(ACTION == 0, junk)
        teacher = TEACHER.masked_fill(ACTION == 0, junk)
        got = reweight(adv_B_T=adv, student_B_T=student, teacher_B_T=teacher)
        assert got.adv.equal(expected.adv)
        assert got.weight.equal(expected.weight)
        assert got.stats == expected.stats
    off = reweight(teacher_B_T=TEACHER * NAN, row_mask_B=torch.zeros(3))
    assert off.adv[0].tolist() == [2.0] * 3


def test_a_token_the_teacher_excludes_is_clipped_not_nan():
    got = reweight(teacher_B_T=torch.full((3, 3), -INF))
    assert got.adv[0].tolist() == [2.0, 1.8, 1.8]
    assert got.stats.delta_abs == 60.0


def test_result_is_detached():
    student, teacher = STUDENT.clone().requires_grad_(), TEACHER.clone().requires_grad_()
    got = reweight(adv_B_T=ADV.clone().requires_grad_(), student_B_T=student, teacher_B_T=teacher)
    assert not got.adv.requires_grad
    assert not got.weight.requires_grad


def test_diagnostics_by_hand():
    stats = reweight(row_mask_B=tensor([1, 0, 1])).stats
    # Row 0 alone is reweighted: gaps 0.1 and -2, of which the second is clipped.
    assert stats == ReweightStats(
        alpha=0.5,
        rows=3.0,
        rows_on=2.0,
        rows_without_action=1.0,
        tokens=8.0,
        action_tokens=3.0,
        reweighted=2.0,
        delta_abs=stats.delta_abs,
        clipped=1.0,
        weight=stats.weight,
    )
    metrics = stats.metrics()
    assert metrics == pytest.approx(
        {
            "alpha": 0.5,
            "row_coverage": 2 / 3,
            "parse_failure": 1 / 3,
            "action_token_fraction": 3 / 8,
            "delta_abs_mean": (0.1 + 2.0) / 2,
            "clipped_fraction": 1 / 2,
            "u_mean": (math.exp(0.1) + 0.8) / 2,
        }
    )


def test_diagnostics_of_parts_add_up_and_padding_rows_do_not_count():
    whole = reweight().stats
    parts = [
        reweight_advantages(
            *(x[i : i + 1] for x in (ADV, STUDENT, TEACHER, RESPONSE, ACTION)), alpha=0.5
        ).stats
        for i in range(3)
    ]
    total = parts[0] + parts[1] + parts[2]
    assert total.metrics() == pytest.approx(whole.metrics())
    for field in dataclasses.fields(whole):
        assert getattr(total, field.name) == pytest.approx(getattr(whole, field.name))
    with pytest.raises(ValueError, match=r"alpha 0\.5 and 0\.4"):
        _ = parts[0] + reweight(alpha=0.4).stats
    blank = reweight(response_mask_B_T=RESPONSE * tensor([[1], [1], [0]])).stats
    assert (blank.rows, blank.rows_without_action, blank.rows_on) == (2, 0, 2)
    none = reweight(response_mask_B_T=torch.zeros(3, 3)).stats.metrics()
    assert set(none.values()) == {0.0, 0.5}
    assert none["u_mean"] == none["clipped_fraction"] == 0.0


def test_diagnostics_of_one_token():
    one = torch.ones(1, 1, dtype=torch.float64)
    metrics = reweight_advantages(one, 0 * one, 9 * one, one, one, alpha=0.5).stats.metrics()
    assert metrics == {
        "alpha": 0.5,
        "row_coverage": 1.0,
        "parse_failure": 0.0,
        "action_token_fraction": 1.0,
        "delta_abs_mean": 9.0,
        "clipped_fraction": 1.0,
        "u_mean": 1.2,
    }


def test_weight_on_the_edge_of_the_clip_is_not_clipped():
    one = torch.ones(1, 1, dtype=torch.float64)
    stats = reweight_advantages(one, 0 * one, 0 * one, one, alpha=0.5, clip=0.0).stats
    assert stats.clipped == 0.0


def test_refusals_name_the_problem():
    for alpha in (-0.01, 1.01, NAN):
        with pytest.raises(ValueError, match=r"alpha must be in \[0, 1\]"):
            reweight(alpha=alpha)
    for clip in (-0.1, 1.0, NAN):
        with pytest.raises(ValueError, match=r"clip must be in \[0, 1\)"):
            reweight(clip=clip)
    for clamp in (0.0, -1.0, NAN):
        with pytest.raises(ValueError, match="delta_clamp must be positive"):
            reweight(delta_clamp=clamp)
    with pytest.raises(ValueError, match="one shape"):
        reweight(teacher_B_T=TEACHER[:2])
    with pytest.raises(ValueError, match="one shape"):
        reweight(action_mask_B_T=ACTION[:, :2])
    with pytest.raises(ValueError, match=r"row_mask_B of shape \(3,\), found \(2,\)"):
        reweight(row_mask_B=torch.ones(2))
    with pytest.raises(ValueError, match="only 0 and 1"):
        reweight(row_mask_B=tensor([0.5, 1.0, 1.0]))
    with pytest.raises(ValueError, match="NaN or infinite on a response token"):
        reweight(adv_B_T=ADV * INF)
    with pytest.raises(ValueError, match="Delta is NaN"):
        reweight(teacher_B_T=TEACHER * NAN)
