"""Sums of diagnostics over micro-batches, and the shares made of them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch

from trainer.auxiliary.seed import GateStats
from trainer.auxiliary.serl import ReweightStats
from trainer.objectives import Denominators, PolicyStats
from trainer.objectives.value import ValueStats

TENSORS = (GateStats, PolicyStats, ValueStats)


def filled(kind: Any, first: int, step: int, **fixed: Any) -> Any:
    """Every field another number; tensors where the class has tensors."""
    names = [field.name for field in fields(kind) if field.name not in fixed]
    values: dict[str, Any] = {name: first + step * i for i, name in enumerate(names)}
    if kind in TENSORS:
        values = {name: torch.tensor(float(value)).double() for name, value in values.items()}
    return kind(**values, **fixed)


@pytest.mark.parametrize(
    ("kind", "fixed"),
    [
        (GateStats, {}),
        (PolicyStats, {}),
        (ValueStats, {}),
        (ReweightStats, {"alpha": 0.25}),
        (Denominators, {"length": 9}),
    ],
)
def test_every_field_is_added(kind: Any, fixed: dict[str, Any]) -> None:
    left, right = filled(kind, 3, 4, **fixed), filled(kind, 11, 7, **fixed)
    total = left + right
    names = [field.name for field in fields(kind) if field.name not in fixed]
    assert [getattr(total, name) for name in names] == [14 + 11 * i for i in range(len(names))]
    for name, value in fixed.items():
        assert getattr(total, name) == value


def test_shares_of_reweighting() -> None:
    stats = ReweightStats(
        alpha=0.25, rows=8, rows_on=6, rows_without_action=2, tokens=40, action_tokens=10,
        reweighted=5, delta_abs=1.5, clipped=3.0, weight=5.5,
    )  # fmt: skip
    assert stats.metrics() == {
        "alpha": 0.25,
        "row_coverage": 0.75,
        "parse_failure": 0.25,
        "action_token_fraction": 0.25,
        "delta_abs_mean": 0.3,
        "clipped_fraction": 0.6,
        "u_mean": 1.1,
    }


def test_shares_of_the_gate() -> None:
    numbers = torch.tensor([8.0, 6.0, 4.0, 2.0, -12.0, 16.0]).double()
    found = GateStats(*numbers).metrics()
    assert set(found.values()) == {0.75, 0.5, 0.25, -1.5, 2.0}
    assert found["gate_saturated"] == 0.25


def test_shares_of_the_value_and_policy_loss() -> None:
    assert ValueStats(*torch.tensor([8.0, 2.0, 12.0])).metrics() == {
        "value_clipfrac": 0.25,
        "value_error": 1.5,
    }
    assert PolicyStats(*torch.tensor([8.0, 2.0, 4.0, 12.0])).metrics() == {
        "clipfrac": 0.25,
        "dual_clipfrac": 0.5,
        "kl_old": 1.5,
    }
