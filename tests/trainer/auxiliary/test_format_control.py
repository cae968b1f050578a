"""Format-only control: which tokens, by how much, and that no command token is ever trained."""

from __future__ import annotations

import math

import pytest
import torch
from torch import tensor
from torch.testing import assert_close

from trainer.auxiliary import (
    format_control_loss,
    format_mask,
    format_row_coefficients,
    row_coefficients,
)

# prompt, tag, command, command, tag, padding
RESPONSE = tensor([[0, 1, 1, 1, 1, 0], [0, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1]])
COMMAND = tensor([[0, 0, 1, 1, 0, 0], [0, 0, 1, 0, 0, 0], [0, 0, 1, 1, 1, 0]])
WELL_FORMED = tensor([True, False, True])


def test_mask_keeps_tags_of_well_formed_replies_only():
    got = format_mask(RESPONSE, COMMAND, WELL_FORMED)
    assert got.int().tolist() == [[0, 1, 0, 0, 1, 0], [0] * 6, [0, 1, 0, 0, 0, 1]]


def test_misaligned_masks_are_refused():
    with pytest.raises(ValueError, match="misaligned"):
        format_mask(RESPONSE, COMMAND.roll(3, dims=1), WELL_FORMED)
    with pytest.raises(ValueError, match="format_valid_B"):
        format_mask(RESPONSE, COMMAND, WELL_FORMED[:2])


def test_loss_by_hand_and_no_gradient_on_commands():
    mask = format_mask(RESPONSE, COMMAND, WELL_FORMED)
    logp = -torch.arange(18, dtype=torch.float64).reshape(3, 6)
    logp[COMMAND.bool()] = -math.inf  # commands may be impossible: they take no part
    logp.requires_grad_()
    loss = format_control_loss(logp, mask, n_rows=2, mass=3.0)
    loss.backward()
    # rows 0 and 2: mean NLL (1 + 4) / 2 and (13 + 17) / 2; mass 3 over 2 rows
    assert loss.item() == pytest.approx(3 / 2 * (2.5 + 15))
    assert_close(logp.grad, torch.where(mask, -0.75, 0.0).double())


def test_parts_of_a_step_add_up():
    mask = format_mask(RESPONSE, COMMAND, WELL_FORMED)
    logp = -torch.rand((3, 6), generator=torch.Generator().manual_seed(0)).double()
    whole = format_control_loss(logp, mask, n_rows=2).item()
    parts = sum(format_control_loss(logp[i : i + 1], mask[i : i + 1], n_rows=2) for i in range(3))
    assert_close(float(parts), whole, rtol=1e-14, atol=0)


def test_same_force_as_an_oracle_objective():
    counts = [[3, 2], [4]]
    coefficients = row_coefficients([1.0, 0.5], [[1.0, 0.5], [1.0]], counts, n_root=4)
    mass = sum(
        c * n
        for row, ns in zip(coefficients, counts, strict=True)
        for c, n in zip(row, ns, strict=True)
    )
    assert mass == pytest.approx((1 + 0.5 + 0.5) / 4)
    control = format_row_coefficients([2, 0, 5], n_rows=2, mass=mass)
    assert sum(c * n for c, n in zip(control, [2, 0, 5], strict=True)) == pytest.approx(mass)
    assert control[1] == 0.0


def test_o27_nothing_well_formed():
    logp = torch.full((3, 6), -math.inf, requires_grad=True)
    mask = format_mask(RESPONSE, COMMAND, torch.zeros(3))
    loss = format_control_loss(logp, mask, n_rows=0)
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(logp.grad, torch.zeros(3, 6))


def test_counts_below_the_batch_are_refused():
    with pytest.raises(ValueError, match="n_rows=1"):
        format_row_coefficients([2, 3], n_rows=1)
    with pytest.raises(ValueError, match="mass"):
        format_row_coefficients([2], n_rows=1, mass=math.inf)
