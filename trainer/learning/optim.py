"""Optimisers, learning-rate warm-up, and one step with both gradients measured apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainer.config import ConfigError, OptimConfig

__all__ = [
    "StepResult",
    "build_optimizer",
    "check_bitsandbytes",
    "gradient_norm",
    "learning_rate",
    "optimiser_step",
    "optimizer_tensors",
    "put_optimizer_tensors",
]

Backward = Callable[[], None]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one optimiser step did. Norms are 2-norms before clipping, `None` if not measured."""

    stepped: bool
    lr: float
    base_norm: float | None
    auxiliary_norm: float | None
    total_norm: float | None
    clipped: bool
    finite: bool

    @property
    def ratio(self) -> float | None:
        """Auxiliary over base gradient norm; `None` where either is missing or base is 0."""
        if self.auxiliary_norm is None or not self.base_norm:
            return None
        return self.auxiliary_norm / self.base_norm


def build_optimizer(
    model: nn.Module, config: OptimConfig, lr: float | None = None
) -> torch.optim.Optimizer:
    """`optim.optimizer` over all trainable parameters (published: weight decay on all of them).

    `lr` None: that of the config.

    Raises:
        ConfigError: the optimiser needs a package or a device that is not here.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    rate = config.lr if lr is None else lr
    how: dict[str, Any] = {"lr": rate, "weight_decay": config.weight_decay}
    moments: dict[str, Any] = {"betas": (config.beta1, config.beta2), "eps": config.eps}
    on_cuda = bool(parameters) and all(p.device.type == "cuda" for p in parameters)
    if config.optimizer == "sgd":
        return torch.optim.SGD(parameters, **how)
    if config.optimizer == "adafactor" and any(isinstance(p, DTensor) for p in parameters):
        from trainer.parallel.adafactor import ShardedAdafactor

        return ShardedAdafactor(parameters, **how)
    if config.optimizer == "adafactor":
        return torch.optim.Adafactor(parameters, **how)
    if config.optimizer == "adamw_8bit":
        make = check_bitsandbytes(on_cuda)
        found: torch.optim.Optimizer = make(parameters, **how, **moments)
        return found
    # On a GPU one kernel does the whole step and keeps no temporary copies of the moments.
    fused = True if on_cuda else None
    optimizer = torch.optim.AdamW(parameters, fused=fused, **how, **moments)
    if fused:
        optimizer.register_step_pre_hook(_counts_beside_parameters)
    return optimizer


def check_bitsandbytes(on_cuda: bool) -> Any:
    """The class of AdamW with moments of one byte.

    Raises:
        ConfigError: it cannot be used here.
    """
    if not on_cuda:
        raise ConfigError(
            "optim.optimizer=adamw_8bit works on CUDA only. Set run.device: cuda, or "
            "optim.optimizer: adamw or adafactor."
        )
    try:
        from bitsandbytes.optim import AdamW8bit  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise ConfigError(
            "optim.optimizer=adamw_8bit needs bitsandbytes: pip install bitsandbytes. Or use "
            "optim.optimizer: adamw or adafactor."
        ) from error
    return AdamW8bit


def _counts_beside_parameters(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Step counts that come from a checkpoint lie on the CPU; a fused step reads them in place."""
    for parameter, state in optimizer.state.items():
        if state and state["step"].device != parameter.device:
            state["step"] = state["step"].to(parameter.device)


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """All state of an optimiser as `parameter/moment`, on the CPU."""
    return {
        f"{name}/{moment}": torch.as_tensor(value).detach().cpu().contiguous()
        for name, parameter in model.named_parameters()
        for moment, value in optimizer.state.get(parameter, {}).items()
    }


def put_optimizer_tensors(
    saved: Mapping[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer
) -> bool:
    """Inverse of `optimizer_tensors`; whether there were any.

    A parameter has either all moments of the optimiser or none, where it was never stepped.

    Raises:
        ValueError: they do not fit the model, or are those of another optimiser.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    own: dict[str, dict[str, Tensor]] = {}
    for key, value in saved.items():
        name, _, moment = key.rpartition("/")
        own.setdefault(name, {})[moment] = value
    found = bool(own)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            name = names[id(parameter)]
            moments = own.pop(name, None)
            if moments is None:
                continue
            _check_moments(optimizer, name, parameter, moments)
            optimizer.state[parameter] = {
                moment: _placed(value, parameter) for moment, value in moments.items()
            }
    if own:
        raise ValueError(f"it holds moments of {sorted(own)[0]!r}, which the model has not")
    return found


_MOMENTS: dict[str, tuple[str, ...]] = {
    "AdamW": ("exp_avg", "exp_avg_sq", "step"),
    "SGD": (),
    "AdamW8bit": ("absmax1", "absmax2", "qmap1", "qmap2", "state1", "state2", "step"),
}
# bitsandbytes keeps small tensors at full precision.
_SMALL_8BIT = ("state1", "state2", "step")


def _check_moments(
    optimizer: torch.optim.Optimizer, name: str, parameter: Tensor, found: Mapping[str, Tensor]
) -> None:
    kind = type(optimizer).__name__.removeprefix("Sharded")
    expected = _MOMENTS.get(kind, ())
    if kind == "Adafactor":
        factored = ("col_var", "row_var", "step")
        expected = factored if parameter.dim() > 1 else ("step", "variance")
    if kind == "AdamW8bit" and len(found) == len(_SMALL_8BIT):
        expected = _SMALL_8BIT
    missing, unknown = set(expected) - set(found), set(found) - set(expected)
    if unknown:
        raise ValueError(f"{name} has {sorted(unknown)}, which {kind} does not keep")
    if missing:
        raise ValueError(f"it lacks {sorted(f'{name}/{m}' for m in missing)}: corrupt")
    size = tuple(parameter.shape)
    sizes = dict.fromkeys(("exp_avg", "exp_avg_sq", "variance", "state1", "state2"), size)
    sizes |= {"row_var": (*size[:-1], 1), "col_var": (*size[:-2], 1, *size[-1:])}
    for moment, value in found.items():
        if tuple(value.shape) != sizes.get(moment, tuple(value.shape)):
            raise ValueError(f"{name} has shape {tuple(value.shape)}, the model's is {size}")


def _placed(value: Tensor, parameter: Tensor) -> Any:
    """Moments beside their parameter; counts as they were, a number or a tensor on the CPU."""
    if value.dim():
        return value.to(parameter.device)
    return value.clone() if value.is_floating_point() else value.item()


def learning_rate(lr: float, warmup_steps: int, decay_steps: int | None, step: int) -> float:
    """Linear warm-up, then linear decay to a tenth of `lr`; `step` is counted from 0.

    lr * min(1, (step + 1) / warmup_steps) * (1 - 0.9 * min(1, step / (decay_steps - 1))),
    without the last factor where `decay_steps` is None.
    """
    if step + 1 < warmup_steps:
        lr = lr * (step + 1) / warmup_steps
    if decay_steps is None:
        return lr
    return lr * (1.0 - 0.9 * min(1.0, step / max(decay_steps - 1, 1)))


def gradient_norm(parameters: Iterable[nn.Parameter]) -> float:
    """2-norm over all gradients, summed in float64; 0 where there is no gradient."""
    squares = [
        torch.linalg.vector_norm(p.grad.detach(), dtype=torch.float64).square()
        for p in parameters
        if p.grad is not None
    ]
    return math.sqrt(float(torch.stack(squares).sum())) if squares else 0.0


def optimiser_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    config: OptimConfig,
    step: int,
    base: Backward | None,
    auxiliary: Backward | None,
    *,
    measure: bool = True,
) -> StepResult:
    """Accumulates both gradients, clips their sum, steps.

    `base` and `auxiliary` run the backward passes of their micro-batches; `None` means that
    there is nothing to learn from. With both `None`, or where the gradient is exactly 0, the step
    is skipped: parameters, moments and step counts stay as they are. Without an auxiliary term the
    gradient that reaches the optimiser is the base gradient, bit for bit. `measure=False` saves the
    buffer that keeps both gradients apart and leaves their norms unknown. A gradient that is not
    finite is not applied.
    """
    lr = learning_rate(config.lr, config.warmup_steps, config.decay_steps, step)
    optimizer.zero_grad(set_to_none=True)
    if base is None and auxiliary is None:
        return StepResult(False, lr, None, None, None, False, True)
    parameters = [p for p in model.parameters() if p.requires_grad]
    base_norm = auxiliary_norm = None
    if base is not None:
        base()
    if measure:
        base_norm = gradient_norm(parameters)
    if auxiliary is not None:
        kept: list[Tensor | None] = [p.grad for p in parameters]
        if measure:
            optimizer.zero_grad(set_to_none=True)
        auxiliary()
        if measure:
            auxiliary_norm = gradient_norm(parameters)
            _add(parameters, kept)
    only_base = measure and auxiliary is None
    total = base_norm if only_base and base_norm is not None else gradient_norm(parameters)
    if not math.isfinite(total):
        optimizer.zero_grad(set_to_none=True)
        return StepResult(False, lr, None, None, None, False, False)
    if total == 0.0:
        # Momentum and weight decay would move the parameters all the same.
        optimizer.zero_grad(set_to_none=True)
        return StepResult(False, lr, base_norm, auxiliary_norm, total, False, True)
    clipped = config.grad_clip > 0 and total > config.grad_clip
    if clipped:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(config.grad_clip / total)
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return StepResult(True, lr, base_norm, auxiliary_norm, total, clipped, True)


def _add(parameters: Iterable[nn.Parameter], gradients: Iterable[Tensor | None]) -> None:
    """Adds `gradients` to those of `parameters`; None is 0."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None:
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
