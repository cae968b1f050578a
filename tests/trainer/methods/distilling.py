"""Methods on the turns of the small world: what the tests of the distilling methods share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.trainer import small
from trainer.config import Config
from trainer.learning.learner import Learner
from trainer.learning.update import BaseStep, LossStats, base_backward
from trainer.methods.protocol import PassLimits, Rollouts, Setup, Step
from trainer.methods.registry import make_methods
from trainer.metrics import Phases
from trainer.models.tiny import save_policy
from trainer.rollouts.data import Segment, Turn, segments_from_turns
from trainer.rollouts.rollout import Trajectory
from trainer.worlds.tasks import make_env

LIMITS = PassLimits(4096, 0)


def config_of(**overrides: Any) -> Config:
    return small.small_config(
        **{"env__max_steps": 8, "optim__steps": 2, "run__seed": 2, **overrides}
    )


def trajectories_of(config: Config) -> list[Trajectory]:
    """Two groups: the first two of three won, and the middle one of three."""
    found = small.rollouts(config, small.half_expert(0.8))
    assert [t.success for t in found] == [True, True, False, False, True, False]
    return found


def turns_of(trajectories: Sequence[Trajectory]) -> list[Turn]:
    return [turn for trajectory in trajectories for turn in trajectory.turns]


def method_of(config: Config, model: Any, *, played: bool = False) -> Any:
    """The config's one method; `played`: it may have environments."""

    def new_env() -> Any:
        return make_env(config.env, small.games(), "train")

    setup = Setup(config, small.student(config), model, new_env if played else None)
    (method,) = make_methods(setup)
    return method


def scored(model: Any, turns: Sequence[Turn]) -> list[Segment]:
    """Segments with the behaviour log-probs of `model`."""
    config = config_of(optim__old_logprobs="recompute")
    return Learner(config, model, small.student(config)).segments(turns)


def prepared(
    config: Config, model: Any, turns: Sequence[Turn], iteration: int = 0, **kwargs: Any
) -> Any:
    method = method_of(config, model, **kwargs)
    method.prepare(Rollouts(iteration, turns, segments_from_turns(turns)), model)
    return method


def whole_step(turns: Sequence[Turn]) -> Step:
    return Step(0, 0, 0, 1, tuple(range(len(turns))))


def learned(
    config: Config, model: Any, turns: Sequence[Turn], iterations: int = 1, **kwargs: Any
) -> list[dict[str, Any]]:
    """Metrics of some iterations on the same turns."""
    methods = [method_of(config, model)] if any(True for _ in config.auxiliary.active()) else []
    learner = Learner(config, model, small.student(config), methods=methods, **kwargs)
    return [learner.learn(i, turns, Phases()) for i in range(iterations)]


def term_gradient(
    config: Config, method: Any, model: Any, turns: Sequence[Turn], tokens: int = 4096
) -> Tensor:
    """Gradient of the method's term alone, for all turns in one step."""
    step = whole_step(turns)
    base = BaseStep(
        segments_from_turns(turns),
        step.turns,
        [torch.zeros(len(turn.response_ids), dtype=torch.float64) for turn in turns],
        terms=[method.token_term(step)],
        scale=0.0,
    )
    model.zero_grad()
    base_backward(model, base, config.objective, PassLimits(tokens, 0), LossStats())
    return gradient(model)


def gradient(model: Any) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def teacher_folder(path: Path, seed: int = 1) -> str:
    """A model folder with other weights and the same tokenizer."""
    folder = path / f"teacher{seed}"
    if not folder.exists():
        save_policy(folder, small.model(seed=seed), small.tokenizer())
    return str(folder)
