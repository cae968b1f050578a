"""AdamW, learning-rate warm-up, and one optimiser step with both gradients measured apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainer.config import OptimConfig

__all__ = ["StepResult", "build_optimizer", "gradient_norm", "learning_rate", "optimiser_step"]

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
) -> torch.optim.AdamW:
    """AdamW over all trainable parameters (published: weight decay 0.01 on all of them).

    `lr` None: that of the config.
    """
    return torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad],
        lr=config.lr if lr is None else lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        weight_decay=config.weight_decay,
    )


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
