"""How strong SERO's gradient is beside that of the base objective.

One iteration is played with the policy and its base gradient taken, as one optimiser step over all
of its turns. Beside it stands SERO's gradient at weight 1 on as many roots as the iteration had
groups with a failure, so that both have the size that they have in training. Where there are more
roots, several such blocks are taken, and with b the base gradient and g that of a block

    norm   n = sqrt(mean over blocks of |g|^2)      dot   d = mean over blocks of <b, g>
    ratio  = weight n / |b|                         cosine = d / (|b| n)
    cosine of b with b + weight g = (|b|^2 + weight d) / (|b| |b + weight g|), where
    |b + weight g|^2 = |b|^2 + 2 weight d + weight^2 n^2

which for one block are what their names say. No parameter moves and no global state is touched.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainer.branches.branching import step_rows
from trainer.branches.records import GrownRoot
from trainer.config import Config, SeroConfig, from_dict, resolve
from trainer.iteration import Trainer
from trainer.learning.optim import gradient_norm
from trainer.learning.update import LossStats, base_backward, contributing
from trainer.methods.protocol import PassLimits, Setup, Step
from trainer.methods.sero import Sero
from trainer.models.policy import evaluation_mode
from trainer.rollouts.rollout import Student
from trainer.runs.folder import RunFolder
from trainer.worlds.environments import TaskSet

__all__ = [
    "WEIGHTS",
    "BaseIteration",
    "Scale",
    "SeroPass",
    "WeightRow",
    "base_config",
    "base_iteration",
    "in_blocks",
    "scale",
    "sero_pass",
    "synchronised",
]

WEIGHTS = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Weights that are looked at."""
SUGGESTED = (0.1, 1.0)
"""Ratios, both included, at which a weight is suggested."""
_BLOCKS = 4
"""At most so many blocks of roots."""
Gradient = tuple[Tensor | None, ...]
"""One a trainable parameter, in their order; None is 0."""


@dataclass(frozen=True, slots=True)
class BaseIteration:
    """One iteration of the base objective, played and differentiated.

    Attributes:
        gradient, norm: of the whole iteration as one optimiser step.
        attempts: iterations that were played; this is the last.
        trajectories: that it trains on; where it keeps none, those that were played.
        eligible: of their groups, those with a failed trajectory: each would give one root.
        tokens: of their prompts and replies.
        rollout_s, update_s: seconds for playing, and for scoring, advantages and the passes of all
            epochs.
    """

    gradient: Gradient
    norm: float
    attempts: int
    trajectories: int
    eligible: int
    tokens: int
    rollout_s: float
    update_s: float


@dataclass(frozen=True, slots=True)
class SeroPass:
    """SERO's gradient at weight 1 on some roots, now in the parameters' `grad`.

    Attributes:
        tokens: of the sequences that were trained.
        seconds: of the forward and backward passes.
    """

    roots: int
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class WeightRow:
    """One weight: see the module for `ratio` and `cosine_total`."""

    weight: float
    ratio: float
    cosine_total: float


@dataclass(frozen=True, slots=True)
class Scale:
    """Both gradients beside each other.

    Attributes:
        base_norm, oracle_norm: 2-norms before clipping; of SERO at weight 1, rule `sero`.
        cosine: None: no row has a weight, so SERO's gradient is 0.
        weights: one a weight of `WEIGHTS`.
        suggested: those with a ratio in `SUGGESTED`.
        rules: norms on the same roots: `sero`, `flat`, `root`, and `mass`, which is `sero` with
            `branch_norm=mass`.
        roots: in a block.
        attempts: iterations played until one had a base gradient.
    """

    base_norm: float
    oracle_norm: float
    cosine: float | None
    weights: tuple[WeightRow, ...]
    suggested: tuple[float, ...]
    rules: dict[str, float]
    roots: int
    blocks: int
    attempts: int

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}


def base_config(config: Config, split: str) -> Config:
    """The run's base objective alone, on `split`; GRPO where the run had none.

    Critics do not wait here: a warm-up without a base loss has no gradient to compare with.

    Raises:
        ConfigError: the run's groups are too small for GRPO.
    """
    data = resolve(config)
    data["auxiliary"] = {}
    data["env"]["split"] = split
    if not config.base_active:
        data["objective"]["name"] = "grpo"
    if config.objective.has_critic:
        data["objective"]["critic"]["warmup_iterations"] = 0
    return from_dict(data)


def base_iteration(
    config: Config,
    model: nn.Module,
    tokenizer: Any,
    tasks: TaskSet,
    reference: nn.Module | None = None,
    *,
    attempts: int = 3,
) -> BaseIteration:
    """Plays iterations until one has a gradient, at most `attempts`; the last one counts.

    Args:
        config: from `base_config`.
        model: float32; its `grad` is None afterwards.
        reference: frozen policy; needed where `objective.kl_coef` > 0.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = RunFolder(Path(scratch))
        trainer = Trainer(config, folder, model, tokenizer, task_set=tasks, reference=reference)
        try:
            for number in range(attempts):
                found = _iteration(trainer, number)
                if found.norm > 0.0:
                    break
            return found
        finally:
            for env in trainer.envs:
                env.close()


def sero_pass(
    roots: Sequence[GrownRoot],
    section: SeroConfig,
    config: Config,
    student: Student,
    model: nn.Module,
) -> SeroPass:
    """The gradient of SERO at weight 1 with these roots as one optimiser step, by training's code.

    Args:
        roots: scored.
        section: its weight and its schedule of depths are not used.
        model: what its `grad` held is gone afterwards.
    """
    section = replace(section, weight=1.0, depth_iterations=0)
    method = Sero(Setup(config, student, model), section)
    method.roots = roots
    step = Step(0, 0, 0, 1, ())
    model.zero_grad(set_to_none=True)
    rows = step_rows(roots, section)
    start = synchronised(model)
    if method.has_pass(step):
        with evaluation_mode(model):
            method.backward(model, step, PassLimits.of(config, student))
    tokens = sum(len(row.segment.ids) for row in rows)
    return SeroPass(len(roots), tokens, synchronised(model) - start)


def scale(
    base: BaseIteration,
    roots: Sequence[GrownRoot],
    section: SeroConfig,
    config: Config,
    student: Student,
    model: nn.Module,
) -> tuple[Scale, SeroPass]:
    """The figures, and what the passes of rule `sero` took together.

    Args:
        base: with a norm above 0.
        roots: scored, at least one.

    Raises:
        ValueError: there is no base gradient or no root.
    """
    if base.norm == 0.0 or not roots:
        raise ValueError("There is nothing to compare: no base gradient, or no root.")
    blocks = in_blocks(roots, base.eligible)
    square, dots, passes = 0.0, 0.0, SeroPass(0, 0, 0.0)
    plain = replace(section, rule="sero", branch_norm="none", delta=0.9, decay="exponential")
    rules: dict[str, float] = {}
    for block in blocks:
        took = sero_pass(block, plain, config, student, model)
        square += _norm(model) ** 2 / len(blocks)
        dots += _dot(base.gradient, model) / len(blocks)
        passes = SeroPass(
            passes.roots + took.roots, passes.tokens + took.tokens, passes.seconds + took.seconds
        )
    rules["sero"] = math.sqrt(square)
    others = {
        "flat": replace(plain, rule="flat"),
        "root": replace(plain, rule="root"),
        "mass": replace(plain, branch_norm="mass"),
    }
    for name, other in others.items():
        squares = []
        for block in blocks:
            sero_pass(block, other, config, student, model)
            squares.append(_norm(model) ** 2)
        rules[name] = math.sqrt(math.fsum(squares) / len(blocks))
    model.zero_grad(set_to_none=True)
    norm = rules["sero"]
    rows = tuple(_weight_row(weight, base.norm, norm, dots) for weight in WEIGHTS)
    low, high = SUGGESTED
    return Scale(
        base_norm=base.norm,
        oracle_norm=norm,
        cosine=_clipped(dots / (base.norm * norm)) if norm > 0 else None,
        weights=rows,
        suggested=tuple(row.weight for row in rows if low <= row.ratio <= high),
        rules=rules,
        roots=len(blocks[0]),
        blocks=len(blocks),
        attempts=base.attempts,
    ), passes


def in_blocks(roots: Sequence[GrownRoot], size: int) -> list[Sequence[GrownRoot]]:
    """The first roots, cut into whole blocks of `size`; all of them where there are fewer."""
    if not 0 < size < len(roots):
        return [roots]
    count = min(len(roots) // size, _BLOCKS)
    return [roots[i * size : (i + 1) * size] for i in range(count)]


def synchronised(model: nn.Module) -> float:
    """The clock in seconds, once the model's device has done what it was asked."""
    device = next(model.parameters()).device
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


# ------------------------------------------------------------------------------ inside


def _iteration(trainer: Trainer, number: int) -> BaseIteration:
    config, learner, model = trainer.config, trainer.learner, trainer.learner.model
    start = synchronised(model)
    found = trainer.collect(number)
    kept = found.kept
    played = synchronised(model)
    turns = [turn for trajectory in kept for turn in trajectory.turns]
    model.zero_grad(set_to_none=True)
    with evaluation_mode(model):
        segments = learner.segments(turns)
        reference = learner.reference_logprobs(segments)
        critic = learner.critic
        values = None if critic is None else critic.values(segments, learner.limits)
        advantages = learner.advantages(turns, segments, values, reference).tokens
        scored = synchronised(model)
        step = Step(number, 0, 0, 1, tuple(range(len(turns))))
        base = learner.base_step(step, segments, advantages, reference)
        if contributing(base, config.objective):
            base_backward(model, base, config.objective, learner.limits, LossStats())
    done = synchronised(model)
    gradient = tuple(p.grad for p in model.parameters() if p.requires_grad)
    norm = _norm(model)
    model.zero_grad(set_to_none=True)
    return BaseIteration(
        gradient=gradient,
        norm=norm,
        attempts=number + 1,
        trajectories=len(kept) or len(found.sampled),
        eligible=len({t.episode.uid for t in kept if not t.success}),
        tokens=sum(len(turn.prompt_ids) + len(turn.response_ids) for turn in turns),
        rollout_s=played - start,
        update_s=scored - played + config.optim.epochs * (done - scored),
    )


def _weight_row(weight: float, base: float, norm: float, dot: float) -> WeightRow:
    total = math.sqrt(max(base**2 + 2 * weight * dot + (weight * norm) ** 2, 0.0))
    cosine = (base**2 + weight * dot) / (base * total) if total > 0 else 0.0
    return WeightRow(weight, weight * norm / base, _clipped(cosine))


def _norm(model: nn.Module) -> float:
    return gradient_norm(p for p in model.parameters() if p.requires_grad)


def _dot(gradient: Gradient, model: nn.Module) -> float:
    parameters = [p for p in model.parameters() if p.requires_grad]
    return math.fsum(
        float(torch.dot(b.double().flatten(), p.grad.double().flatten()))
        for b, p in zip(gradient, parameters, strict=True)
        if b is not None and p.grad is not None
    )


def _clipped(cosine: float) -> float:
    return min(max(cosine, -1.0), 1.0)
