"""What our own trainer makes of an iteration's rollouts, to compare the route through verl with."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tests.trainer import small
from trainer.config import Config
from trainer.engines.verl.driver import Iteration
from trainer.learning.learner import Learner
from trainer.learning.update import LossStats, base_backward
from trainer.methods.protocol import Rollouts, Setup, Step
from trainer.methods.registry import make_methods
from trainer.metrics import Phases
from trainer.worlds.tasks import make_env


def learner(config: Config, model: Any, student: Any, reference: Any = None) -> Learner:
    """Our learner on `model`, with the methods of the config and an environment for them."""

    def new_env() -> Any:
        return make_env(config.env, small.games(), "train")

    methods = make_methods(Setup(config, student, model, new_env))
    return Learner(config, model, student, reference, methods)


def gradients(
    config: Config, model: Any, student: Any, found: Iteration, reference: Any = None
) -> dict[str, Tensor]:
    """Of the first optimiser step of the iteration; `model` keeps its weights."""
    own = learner(config, model, student, reference)
    segments = own.segments(found.turns)
    rollouts = Rollouts(found.number, found.turns, segments, found.trajectories)
    for method in own.methods:
        method.prepare(rollouts, model)
    tokens = own.advantages(found.turns, segments).tokens
    parts = own._partition(found.turns, found.number, 0)
    step = Step(found.number, 0, 0, len(parts), tuple(parts[0]))
    base = own.base_step(step, segments, tokens, own.reference_logprobs(segments))
    base_backward(model, base, config.objective, own.limits, LossStats())
    for method in own.methods:
        if method.weight > 0:
            method.backward(model, step, own.limits)
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def learn(config: Config, model: Any, student: Any, found: Iteration) -> dict[str, Any]:
    """All optimiser steps of the iteration, on `model`; their metrics."""
    return learner(config, model, student).learn(
        found.number, found.turns, Phases(), found.trajectories
    )


def apart(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Distance over the norm of what is expected, over all parameters."""
    assert found.keys() == expected.keys()
    pairs = [(found[name].double(), value.double()) for name, value in expected.items()]
    square = sum(float((a - b).square().sum()) for a, b in pairs)
    return float((square / sum(float(b.square().sum()) for _, b in pairs)) ** 0.5)
