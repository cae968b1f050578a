"""Passes with and without a gradient in one block of bfloat16."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.trainer import small
from trainer.learning import update
from trainer.methods.distillation.distributions import Distributions, Pair, distribution_backward
from trainer.methods.protocol import PassLimits
from trainer.rollouts.data import make_segment
from trainer.supervised.warmstart import supervised

LIMITS = PassLimits(100, 0, bf16=True)


def _teach_itself(model: Any) -> None:
    """A policy that is its own teacher, which was told more."""

    def divergence(found: Distributions, counts: Any) -> Tensor:
        gap: Tensor = found.student_1_N_V - found.teacher_1_N_V
        return (found.student_1_N_V.exp() * gap).sum()

    pair = Pair(make_segment([5, 6, 7], [8, 9]), make_segment([5, 6, 7, 11, 12], [8, 9]))
    distribution_backward(model, model, [pair], divergence, 1.0, LIMITS)


def test_every_weight_gets_a_gradient_where_a_policy_teaches_itself() -> None:
    model = small.model()
    _teach_itself(model)
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_every_weight_is_moved_by_the_first_step_of_a_warm_start() -> None:
    model = small.model()
    before = small.weights(model)
    config = small.small_config(warmstart__steps=1, warmstart__text_steps=0).warmstart
    supervised(model, [make_segment([5, 6, 7], [8, 9])] * 2, config, pad_id=0, bf16=True)
    after = small.weights(model)
    assert [name for name in before if torch.equal(before[name], after[name])] == []


@pytest.mark.parametrize("keeps", [False, True])
def test_rounded_weights_are_kept_only_where_torch_keeps_their_gradients(
    keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update, "_cache_keeps_gradients", lambda: keeps)
    model = small.model()
    _teach_itself(model)  # what is tried once of a model has been
    matrix = model.model.layers[0].mlp.up_proj.weight
    rounded = []

    class Casts(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is torch.ops.aten._to_copy.default and args[0].shape == matrix.shape:
                rounded.append(kwargs.get("dtype") is torch.bfloat16)
            return func(*args, **(kwargs or {}))

    with Casts():
        _teach_itself(model)
    twin = model.model.layers[0].mlp.gate_proj.weight
    assert twin.shape == matrix.shape
    # Of each layer two such matrices, for teacher and student.
    assert sum(rounded) == 2 * len(model.model.layers) * (1 if keeps else 2)
