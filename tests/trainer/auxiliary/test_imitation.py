"""Imitation controls and the depth curriculum: which rows, how much, and when."""

from __future__ import annotations

import math

import pytest
import torch
from torch import tensor
from torch.autograd import gradcheck
from torch.testing import assert_close

from trainer.auxiliary.depth_schedule import DEPTH_DIRECTIONS, depth_mask, max_depth
from trainer.auxiliary.imitation import (
    BETA_SCHEDULES,
    dagger_beta,
    dagger_rows,
    expert_correction_coefficients,
    expert_iteration_rows,
    imitation_coefficients,
    imitation_loss,
    oracle_acts,
    successful_branch_rows,
)

SUCCESS = tensor([True, True, False, False])
OTHER = tensor([True, False, True, False])


def test_dagger_beta():
    assert BETA_SCHEDULES == ("exponential", "linear", "indicator")
    assert [dagger_beta(i) for i in range(4)] == [1.0, 0.5, 0.25, 0.125]
    assert [dagger_beta(i, p=0.9) for i in range(3)] == pytest.approx([1.0, 0.9, 0.81])
    assert [dagger_beta(i, p=0.0) for i in range(3)] == [1.0, 0.0, 0.0]
    assert [dagger_beta(i, schedule="indicator") for i in range(3)] == [1.0, 0.0, 0.0]
    linear = [dagger_beta(i, schedule="linear", n_iterations=4) for i in range(6)]
    assert linear == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    assert dagger_beta(0, schedule="linear", n_iterations=1) == 1.0


def test_dagger_beta_refusals():
    with pytest.raises(ValueError, match="schedule must be one of"):
        dagger_beta(0, schedule="cosine")
    for schedule in BETA_SCHEDULES:
        with pytest.raises(ValueError, match="numbered from 0, found -1"):
            dagger_beta(-1, schedule=schedule, n_iterations=3)
    for n in (None, 0):
        with pytest.raises(ValueError, match="'linear' needs n_iterations >= 1"):
            dagger_beta(0, schedule="linear", n_iterations=n)
    for p in (-0.1, 1.0, math.nan):
        with pytest.raises(ValueError, match=r"p must lie in \[0, 1\)"):
            dagger_beta(1, p=p)


def test_oracle_acts_with_probability_beta():
    assert not oracle_acts(0.0, 0.0)
    assert oracle_acts(0.999, 1.0)
    assert oracle_acts(0.29, 0.3)
    assert not oracle_acts(0.3, 0.3)
    assert sum(oracle_acts(i / 100, 0.3) for i in range(100)) == 30
    for u, beta in ((-0.1, 0.5), (1.0, 0.5), (0.5, -0.1), (0.5, 1.001), (math.nan, 0.5)):
        with pytest.raises(ValueError, match=r"u in \[0, 1\)"):
            oracle_acts(u, beta)


def test_selections():
    assert dagger_rows(SUCCESS, OTHER).tolist() == [False, False, True, False]
    assert expert_iteration_rows(SUCCESS).tolist() == [True, True, False, False]
    assert expert_iteration_rows(SUCCESS, OTHER).tolist() == [True, False, False, False]
    branch = tensor([3, 0, 0, 2, 1])
    assert successful_branch_rows(branch, SUCCESS, OTHER).int().tolist() == [0, 1, 1, 0, 0]
    assert successful_branch_rows(branch, SUCCESS.int(), OTHER.int()).dtype == torch.bool
    assert expert_iteration_rows(SUCCESS.int()).dtype == torch.bool
    assert dagger_rows(SUCCESS.int(), OTHER.int()).tolist() == [False, False, True, False]


def test_selections_refuse_misaligned_rows():
    for select in (dagger_rows, expert_iteration_rows):
        with pytest.raises(ValueError, match="equal length"):
            select(SUCCESS, OTHER[:2])
    with pytest.raises(ValueError, match="one-dimensional"):
        expert_iteration_rows(SUCCESS[None])
    with pytest.raises(ValueError, match="equal length"):
        successful_branch_rows(tensor([0]), SUCCESS, OTHER[:2])
    with pytest.raises(ValueError, match="one-dimensional"):
        successful_branch_rows(tensor([[0]]), SUCCESS, OTHER)
    for bad in (-1, 4):
        with pytest.raises(ValueError, match="numbers from 0 to 3"):
            successful_branch_rows(tensor([0, bad]), SUCCESS, OTHER)
    assert successful_branch_rows(tensor([3]), SUCCESS, OTHER).tolist() == [False]


def test_expert_corrections_are_flat_with_a_binary_gate():
    got = expert_correction_coefficients(
        [True, True, False, True], [True, False, True, True], [[2, 4, 5], [3], [3], [1, 0]],
        n_root=4,
    )  # fmt: skip
    # 1 / (4 roots * tokens), every row of a branch alike; no tokens, no weight
    expected = [[1 / 8, 1 / 16, 1 / 20], [0.0], [0.0], [1 / 4, 0.0]]
    assert [pytest.approx(row) for row in expected] == got
    assert expert_correction_coefficients([], [], [], n_root=0) == []
    with pytest.raises(ValueError, match="found 1 successes, 2 validities and 1 branches"):
        expert_correction_coefficients([True], [True, True], [[1]], n_root=1)
    with pytest.raises(ValueError, match="found 1 successes, 1 validities and 2 branches"):
        expert_correction_coefficients([True], [True], [[1], [1]], n_root=1)


def test_coefficients_by_hand():
    counts = tensor([2, 4, 5, 0])
    got = imitation_coefficients(tensor([1, 1, 0, 1]).bool(), counts, n_rows=8)
    assert got.tolist() == [1 / 16, 1 / 32, 0.0, 0.0]
    assert got.dtype == torch.float64
    twice = imitation_coefficients(tensor([1, 1, 0, 1]), counts, n_rows=2, mass=3.0)
    assert twice.tolist() == [3 / 4, 3 / 8, 0.0, 0.0]
    none = imitation_coefficients(tensor([0, 0, 0, 1]), counts, n_rows=0)
    assert none.tolist() == [0.0] * 4
    assert imitation_coefficients(tensor([1]), tensor([1]), n_rows=1).tolist() == [1.0]
    assert imitation_coefficients(tensor([1]), tensor([1]), n_rows=1, mass=0.0).tolist() == [0.0]


def test_coefficients_refusals():
    on, counts = tensor([True, True]), tensor([2, 3])
    with pytest.raises(ValueError, match="n_rows=1 is below the 2 rows"):
        imitation_coefficients(on, counts, n_rows=1)
    with pytest.raises(ValueError, match="equal length"):
        imitation_coefficients(on, counts[:1], n_rows=2)
    for mass in (-1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="mass must be finite"):
            imitation_coefficients(on, counts, n_rows=2, mass=mass)


LOGP = tensor([[-1.0, -2.0, -3.0], [-4.0, -5.0, -6.0], [-7.0, -8.0, -9.0]], dtype=torch.float64)
MASK = tensor([[1, 1, 0], [1, 1, 1], [0, 0, 1]])
ON = tensor([True, False, True])


def test_loss_is_the_mean_over_selected_rows_of_the_token_mean():
    logp = LOGP.clone().requires_grad_()
    loss = imitation_loss(logp, MASK, ON, n_rows=2)
    assert loss.item() == pytest.approx((1.5 + 9.0) / 2)
    loss.backward()
    expected = tensor([[-0.25, -0.25, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, -0.5]]).double()
    assert_close(logp.grad, expected)
    assert imitation_loss(LOGP, MASK, ON, n_rows=2, mass=4.0).item() == pytest.approx(21.0)
    assert gradcheck(
        lambda x: imitation_loss(x, MASK, ON, n_rows=2), (LOGP.clone().requires_grad_(),)
    )


def test_loss_ignores_what_is_not_selected_and_adds_up():
    whole = imitation_loss(LOGP, MASK, ON, n_rows=2).item()
    off = (MASK == 0) | ~ON[:, None]
    for bad in (1e30, math.inf, -math.inf, math.nan):
        wild = LOGP.masked_fill(off, bad).requires_grad_()
        loss = imitation_loss(wild, MASK, ON, n_rows=2)
        loss.backward()
        assert loss.item() == whole
        assert (wild.grad[off] == 0).all()
    parts = [imitation_loss(LOGP[[i]], MASK[[i]], ON[[i]], n_rows=2).item() for i in (2, 0, 1)]
    assert sum(parts) == pytest.approx(whole, rel=1e-14)
    empty = LOGP.clone().requires_grad_()
    loss = imitation_loss(empty, MASK, torch.zeros(3), n_rows=0)
    loss.backward()
    assert loss.item() == 0.0
    assert (empty.grad == 0).all()
    with pytest.raises(ValueError, match=r"one shape \(B, T\)"):
        imitation_loss(LOGP, MASK[:, :2], ON, n_rows=2)


def test_depth_grows_linearly():
    assert [max_depth(i, growth_updates=4, final=5) for i in range(7)] == [1, 2, 3, 4, 5, 5, 5]
    assert [max_depth(i, growth_updates=4, final=4, start=2) for i in range(5)] == [2, 2, 3, 3, 4]
    assert [max_depth(i, growth_updates=2, final=10) for i in range(3)] == [1, 5, 10]
    assert max_depth(0, growth_updates=0, final=9) == 9
    assert max_depth(0, growth_updates=5, final=3, start=3) == 3
    assert max_depth(0, growth_updates=5, final=1) == 1


def test_depth_refusals():
    for update, growth in ((-1, 4), (0, -1)):
        with pytest.raises(ValueError, match="must not be negative"):
            max_depth(update, growth_updates=growth, final=3)
    for start, final in ((0, 3), (4, 3), (1, 0)):
        with pytest.raises(ValueError, match="1 <= start <= final"):
            max_depth(0, growth_updates=4, final=final, start=start)


# two trajectories, of 4 and 2 turns, shuffled
STEP = tensor([2, 0, 3, 1, 0, 1])
LENGTH = tensor([4, 2, 4, 2, 4, 4])


def test_depth_mask():
    assert DEPTH_DIRECTIONS == ("forward", "backward")
    assert depth_mask(STEP, LENGTH, 1).int().tolist() == [0, 1, 0, 0, 1, 0]
    assert depth_mask(STEP, LENGTH, 3, direction="forward").int().tolist() == [1, 1, 0, 1, 1, 1]
    assert depth_mask(STEP, LENGTH, 1, direction="backward").int().tolist() == [0, 0, 1, 1, 0, 0]
    assert depth_mask(STEP, LENGTH, 3, direction="backward").int().tolist() == [1, 1, 1, 1, 0, 1]
    for direction in DEPTH_DIRECTIONS:
        assert not depth_mask(STEP, LENGTH, 0, direction=direction).any()
        assert depth_mask(STEP, LENGTH, 4, direction=direction).all()


def test_depth_mask_refusals():
    with pytest.raises(ValueError, match="direction must be one of"):
        depth_mask(STEP, LENGTH, 1, direction="both")
    with pytest.raises(ValueError, match="depth must not be negative, found -1"):
        depth_mask(STEP, LENGTH, -1)
    with pytest.raises(ValueError, match="Step 4 lies outside its trajectory of 4 turns"):
        depth_mask(tensor([0, 4]), tensor([4, 4]), 1)
    with pytest.raises(ValueError, match="Step -1 lies outside"):
        depth_mask(tensor([-1]), tensor([4]), 1)
    with pytest.raises(ValueError, match="equal length"):
        depth_mask(STEP, LENGTH[:2], 1)
