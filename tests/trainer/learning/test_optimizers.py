"""Every optimiser of a config: it steps, and goes on bit for bit from what was saved of it."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainer.config import ConfigError, OptimConfig
from trainer.learning.optim import (
    build_optimizer,
    optimiser_step,
    optimizer_tensors,
    put_optimizer_tensors,
)

KINDS = ("adamw", "adafactor", "sgd")
STATE = {"adamw": 3 * 3, "adafactor": 3 + 2 * 2, "sgd": 0}


def _model() -> nn.Module:
    """A matrix and two vectors, one of which no gradient ever reaches, and a frozen matrix."""
    model = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2), nn.Linear(2, 2))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    model[1].bias.requires_grad_(False)
    model[2].requires_grad_(False)
    return model


def _config(kind: str, **more: Any) -> OptimConfig:
    return OptimConfig(optimizer=kind, lr=0.05, warmup_steps=0, **more)  # type: ignore[arg-type]


def _loss(model: nn.Module, step: int) -> Callable[[], None]:
    x = torch.linspace(-1, 1 + step, 12).reshape(4, 3)

    def backward() -> None:
        ((model[1](model[0](x)) - 0.1 * step) ** 2).sum().backward()  # type: ignore[index]

    return backward


def _steps(model: nn.Module, optimizer: Any, config: OptimConfig, steps: range) -> None:
    for step in steps:
        assert optimiser_step(model, optimizer, config, step, _loss(model, step), None).stepped


def _weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("kind", KINDS)
def test_o25_the_third_step_is_the_same_after_saving_and_loading(kind: str) -> None:
    config, whole = _config(kind), _model()
    optimizer = build_optimizer(whole, config)
    _steps(whole, optimizer, config, range(2))
    # As from a file: the live tensors go on.
    saved = {k: v.clone() for k, v in optimizer_tensors(whole, optimizer).items()}
    halfway = _weights(whole)
    assert len(saved) == STATE[kind]
    _steps(whole, optimizer, config, range(2, 3))

    again = _model()
    with torch.no_grad():
        for parameter, value in zip(again.parameters(), halfway, strict=True):
            parameter.copy_(value)
    fresh = build_optimizer(again, config)
    assert put_optimizer_tensors(saved, again, fresh) == (kind != "sgd")
    _steps(again, fresh, config, range(2, 3))
    for left, right in zip(_weights(again), _weights(whole), strict=True):
        assert torch.equal(left, right)
    frozen = [p for p, q in zip(_weights(whole), _weights(_model()), strict=True) if p.equal(q)]
    assert len(frozen) == 3
    if kind != "sgd":  # what is forgotten would show
        blank = _model()
        with torch.no_grad():
            for parameter, value in zip(blank.parameters(), halfway, strict=True):
                parameter.copy_(value)
        _steps(blank, build_optimizer(blank, config), config, range(2, 3))
        assert not torch.equal(_weights(blank)[0], _weights(whole)[0])


def test_sgd_is_the_gradient_times_the_rate() -> None:
    config, model = _config("sgd", weight_decay=0.0, grad_clip=0.0), _model()
    _loss(model, 0)()
    grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    before = _weights(model)
    _steps(model, build_optimizer(model, config), config, range(1))
    for old, new, grad in zip(before, _weights(model), grads, strict=True):
        expected = old if grad is None else old - 0.05 * grad
        torch.testing.assert_close(new, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", ["adamw", "adafactor"])
def test_moments_that_do_not_fit_are_refused(kind: str) -> None:
    config, model = _config(kind), _model()
    optimizer = build_optimizer(model, config)
    _steps(model, optimizer, config, range(1))
    saved = optimizer_tensors(model, optimizer)

    def put(tensors: dict[str, Tensor], name: str = kind) -> None:
        other = _model()
        put_optimizer_tensors(tensors, other, build_optimizer(other, _config(name)))

    put(saved)
    without = {k: v for k, v in saved.items() if k != "0.weight/step"}
    with pytest.raises(ValueError, match=r"it lacks \['0\.weight/step'\]: corrupt"):
        put(without)
    with pytest.raises(ValueError, match=r"moments of '7\.weight', which the model has not"):
        put({**saved, "7.weight/step": torch.tensor(1.0)})
    big = {k: torch.zeros(9, 9) if k.startswith("0.weight/") and v.dim() else v
           for k, v in saved.items()}  # fmt: skip
    with pytest.raises(ValueError, match=r"0\.weight has shape \(9, 9\), the model's is \(2, 3\)"):
        put(big)
    wrong = {"adamw": "adafactor", "adafactor": "adamw"}[kind]
    with pytest.raises(ValueError, match=r"has \[.*\], which \w+ does not keep"):
        put(saved, wrong)
    with pytest.raises(ValueError, match="which SGD does not keep"):
        put(saved, "sgd")


def test_what_is_not_here_is_refused_with_what_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"adamw_8bit works on CUDA only\. Set run\.device"):
        build_optimizer(_model(), _config("adamw_8bit"))
    original = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name.startswith("bitsandbytes"):
            raise ImportError(name)
        return original(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    from trainer.learning import optim

    with pytest.raises(ConfigError, match="pip install bitsandbytes"):
        optim.check_bitsandbytes(on_cuda=True)
