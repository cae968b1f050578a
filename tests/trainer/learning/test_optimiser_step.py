"""Which gradients make a step: promise 3 of `trainer.learning.learner`, on one layer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from trainer.config import OptimConfig
from trainer.learning.optim import build_optimizer, optimiser_step

CONFIG = OptimConfig(lr=0.1, weight_decay=0.5, warmup_steps=0)


def _pulled(model: nn.Linear, factor: float) -> Callable[[], None]:
    return lambda: (factor * model.weight.sum()).backward()  # type: ignore[no-untyped-call]


def _moved() -> tuple[nn.Linear, torch.optim.AdamW, Tensor]:
    """A layer whose optimiser has momentum: any further step moves it."""
    model = nn.Linear(3, 2, bias=False)
    nn.init.ones_(model.weight)
    optimizer = build_optimizer(model, CONFIG)
    assert optimiser_step(model, optimizer, CONFIG, 0, _pulled(model, 1.0), None).stepped
    return model, optimizer, model.weight.detach().clone()


@pytest.mark.parametrize("measure", [True, False])
@pytest.mark.parametrize("case", ["zeros", "no_backward", "both_zeros", "cancelled"])
def test_a_gradient_of_exactly_0_is_no_step(case: str, measure: bool) -> None:
    model, optimizer, before = _moved()
    state = {k: v.clone() for k, v in optimizer.state[model.weight].items()}
    base = (lambda: None) if case == "no_backward" else _pulled(model, float(case == "cancelled"))
    auxiliary = {"both_zeros": _pulled(model, 0.0), "cancelled": _pulled(model, -1.0)}.get(case)
    result = optimiser_step(model, optimizer, CONFIG, 1, base, auxiliary, measure=measure)
    assert (result.stepped, result.finite, result.clipped) == (False, True, False)
    assert result.total_norm == 0.0
    assert torch.equal(model.weight.detach(), before)
    assert all(torch.equal(state[k], v) for k, v in optimizer.state[model.weight].items())
    assert model.weight.grad is None
    if measure and case == "cancelled":
        assert result.base_norm == result.auxiliary_norm == pytest.approx(6**0.5)


def test_the_smallest_gradient_is_a_step() -> None:
    model, optimizer, before = _moved()
    result = optimiser_step(model, optimizer, CONFIG, 1, _pulled(model, 1e-30), None)
    assert (result.stepped, result.finite) == (True, True)
    assert not torch.equal(model.weight.detach(), before)
