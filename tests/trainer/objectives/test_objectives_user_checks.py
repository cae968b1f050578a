"""Public bug reports that concern all normalised objectives at once (O18, O20)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from trainer.objectives.anchors import step_returns
from trainer.objectives.gigpo import gigpo_terms
from trainer.objectives.graphgpo import graphgpo_advantages
from trainer.objectives.grpo import grpo_advantages
from trainer.objectives.hgpo import hgpo_advantages, hgpo_terms
from trainer.objectives.ppo import ppo_trajectory, ppo_turnwise, turn_gae
from trainer.objectives.reinforce_pp import (
    reinforce_pp_advantages,
    reinforce_pp_baseline_advantages,
)
from trainer.objectives.rloo import rloo_advantages

Rows = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def _rows(rewards: Tensor) -> Rows:
    """One group of trajectories of one turn."""
    n = rewards.numel()
    zero = torch.zeros(n, dtype=torch.int64)
    return rewards, torch.ones(n, dtype=torch.bool), zero, torch.arange(n), zero


def _one(rows: Rows) -> Tensor:
    return torch.ones(len(rows[0]), 1, dtype=torch.bool)


def _none(rows: Rows) -> Tensor:
    return torch.zeros(len(rows[0]), 1)


def _won(rows: Rows) -> Tensor:
    return rows[0] >= 1


NORMALISED: dict[str, Callable[[Rows], Tensor]] = {
    "grpo": lambda r: grpo_advantages(*r),
    "grpo code": lambda r: grpo_advantages(*r, flavor="code"),
    "grpo code_traj": lambda r: grpo_advantages(*r, flavor="code_traj"),
    "dr_grpo": lambda r: grpo_advantages(*r, use_std=False),
    "rloo": lambda r: rloo_advantages(*r),
    "reinforce_pp": lambda r: reinforce_pp_advantages(r[0], r[1], r[3], _one(r))[0][:, 0],
    "reinforce_pp_baseline": lambda r: reinforce_pp_baseline_advantages(
        *r[:4], torch.ones(len(r[0]), dtype=torch.int64)
    ),
    "gigpo": lambda r: gigpo_terms(*r, r[4]).advantage,
    "gigpo code": lambda r: gigpo_terms(*r, r[4], flavor="code").advantage,
    "hgpo": lambda r: hgpo_advantages(*r, r[4]),
    "hgpo code": lambda r: hgpo_advantages(*r, r[4], flavor="code", base_group=True),
    "graphgpo": lambda r: graphgpo_advantages(*r, r[4], r[4], _won(r), success_reward=1.0),
    "ppo": lambda r: ppo_turnwise(r[0], r[1], r[3], _none(r), _one(r)).advantages[:, 0],
    "ppo_trajectory": lambda r: ppo_trajectory(
        r[0], r[1], r[3], _none(r), _one(r), whitened=True
    ).advantages[:, 0],
    "turn_gae": lambda r: turn_gae(
        r[0], r[1], r[3], torch.zeros(len(r[0])), whitened=True
    ).advantages,
}  # fmt: skip


@pytest.mark.parametrize("name", NORMALISED)
@pytest.mark.parametrize("values", [[1.0, 0, 0, 0], [0.35] * 7 + [1.0], [0.1] * 8])
def test_o18_single_precision_rewards_give_no_noise(name: str, values: Sequence[float]) -> None:
    objective = NORMALISED[name]
    single = objective(_rows(torch.tensor(values, dtype=torch.float32)))
    double = objective(_rows(torch.tensor(values, dtype=torch.float64)))
    assert torch.isfinite(single).all()
    assert float(single.abs().max()) <= 10.0
    torch.testing.assert_close(single.double(), double, rtol=0, atol=1e-4)
    if len(set(values)) == 1:
        assert single.tolist() == [0.0] * 8
    else:
        assert float(double.max()) > 0.1
        assert (single > 0).tolist() == [v == 1.0 for v in values]


def test_o18_leaving_one_out_divides_by_no_deviation() -> None:
    """Ten times the rewards, ten times the advantages; by hand 1 - 0 and 0 - 1/3."""
    once = rloo_advantages(*_rows(torch.tensor([1.0, 0, 0, 0])))
    tenfold = rloo_advantages(*_rows(torch.tensor([10.0, 0, 0, 0])))
    third = 1 / 3
    torch.testing.assert_close(once, torch.tensor([1.0, -third, -third, -third]).double())
    torch.testing.assert_close(tenfold, 10 * once)


def test_o20_returns_are_discounted_first_and_normalised_after() -> None:
    """Two trajectories of three turns, compared turn by turn; gamma 0.9.

        rewards       discounted returns          normalised at each turn: a / b
        a  3  0  0    3.00  0.0  0.0              + / -     - / +     - / +
        b  0  1  1    1.71  1.9  1.0

    Normalising the rewards first gives +-1/sqrt(2) at each turn, and summing those up makes the
    first turn of a, with 1 - 0.9 - 0.81 < 0, the worse one.
    """
    rewards = torch.tensor([3.0, 0, 0, 0, 1, 1])
    t = torch.tensor([0, 1, 2, 0, 1, 2])
    tid = torch.tensor([0, 0, 0, 1, 1, 1])
    valid, uid = torch.ones(6, dtype=torch.bool), torch.zeros(6, dtype=torch.int64)
    returns = step_returns(rewards, valid, tid, t, gamma=0.9)
    torch.testing.assert_close(returns, torch.tensor([3, 0, 0, 1.71, 1.9, 1]).double())
    step = gigpo_terms(rewards, valid, uid, tid, t, t, gamma=0.9).step
    half = 1 / math.sqrt(2)
    expected = torch.tensor([half, -half, -half, -half, half, half]).double()
    torch.testing.assert_close(step, expected, rtol=1e-4, atol=0)
    other_order = torch.tensor([1.0, -1.0, -1.0]) @ torch.tensor([1.0, 0.9, 0.81]) * half
    assert float(other_order) < 0 < float(step[0])
    # HGPO and the critics' returns have the same order.
    hgpo = hgpo_advantages(rewards, valid, uid, tid, t, t, gamma=0.9, depth=0)
    assert (hgpo > 0).tolist() == (step > 0).tolist()
    for function in (gigpo_terms, hgpo_terms):
        assert "discounted first" in (function.__doc__ or ""), "the order is documented"
