"""Rollouts with mixed outcomes, and methods with an environment to ask an oracle in."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from tests.trainer import small
from trainer.config import Config
from trainer.learning.learner import Learner
from trainer.learning.update import BaseStep, LossStats, base_backward, score_segments
from trainer.methods.protocol import Method, PassLimits, Rollouts, Setup, Step
from trainer.methods.registry import make_methods
from trainer.metrics import Phases
from trainer.objectives import Denominators
from trainer.rollouts.data import Segment, Turn, segments_from_turns
from trainer.rollouts.rollout import Episode, PlaySettings, Student, Trajectory, play
from trainer.runs.folder import make_student
from trainer.worlds.tasks import make_env, split_tasks

NAMES = ("dagger", "corrections", "sft", "expert_iteration", "step_dpo", "chord", "luffy")
CHAT = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
LIMITS = PassLimits(4096, 0)


def config_of(name: str | None, **overrides: Any) -> Config:
    """Two groups of four; `name` is switched on."""
    on = {} if name is None else {f"auxiliary__{name}": {}}
    return small.small_config(
        **{
            "env__max_steps": 8,
            "rollout__rollouts": 4,
            "prompt__max_prompt_tokens": 4096,
            "optim__steps": 2,
            **on,
            **overrides,
        }
    )


@lru_cache(maxsize=8)
def _played(template: str, share: float, max_steps: int) -> tuple[Trajectory, ...]:
    config = config_of(None, prompt__template=template, env__max_steps=max_steps)
    if template == "compact":
        return tuple(small.rollouts(config, small.half_expert(share)))
    # The plans of `half_expert` are known by compact prompts: here it never finds one.
    task = split_tasks(config.env, small.games(), "train")[0]
    episodes = [Episode(task, "g", f"g.{j}", 0, 0, 0, j) for j in range(4)]
    envs = [make_env(config.env, small.games(), "train") for _ in episodes]
    settings = PlaySettings(config.rollout.max_new_tokens, snapshots=True)
    return tuple(play(episodes, envs, student_of(config), small.half_expert(share), settings))


def mixed(config: Config, share: float = 0.8) -> list[Trajectory]:
    """Rollouts of which some succeed and some fail."""
    return list(_played(config.prompt.template, share, config.env.max_steps))


def student_of(config: Config) -> Student:
    """Of the small world; its tokenizer knows chat."""
    tokenizer = copy.copy(small.tokenizer())
    tokenizer.chat_template = CHAT
    return make_student(config, None, tokenizer)


def setup_of(config: Config, model: Any, playable: bool = True) -> Setup:
    def new_env() -> Any:
        return make_env(config.env, small.games(), "train")

    return Setup(config, student_of(config), model, new_env if playable else None)


def turns_of(trajectories: Sequence[Trajectory]) -> list[Turn]:
    return [turn for trajectory in trajectories for turn in trajectory.turns]


def prepared(
    config: Config, trajectories: Sequence[Trajectory], model: Any = None, iteration: int = 0
) -> Any:
    """The config's one method, after an iteration's `prepare`."""
    model = small.model() if model is None else model
    (method,) = make_methods(setup_of(config, model))
    turns = turns_of(trajectories)
    method.prepare(Rollouts(iteration, turns, segments_from_turns(turns), trajectories), model)
    return method


def whole(n: int, iteration: int = 0) -> Step:
    """The one optimiser step of an iteration with n turns."""
    return Step(iteration, 0, 0, 1, tuple(range(n)))


def learn(
    config: Config,
    model: Any,
    trajectories: Sequence[Trajectory],
    *,
    playable: bool = True,
    iterations: int = 1,
) -> dict[str, Any]:
    """Metrics of the last of some iterations on the same rollouts."""
    methods: list[Method] = make_methods(setup_of(config, model, playable))
    learner = Learner(config, model, student_of(config), methods=methods)
    metrics: dict[str, Any] = {}
    for iteration in range(iterations):
        metrics = learner.learn(iteration, turns_of(trajectories), Phases(), trajectories)
    return metrics


def logprob(model: Any, segments: Sequence[Segment]) -> float:
    """Mean over rows of the summed log-prob of their trained tokens."""
    return sum(float(row.sum()) for row in score_segments(model, segments, LIMITS)) / len(segments)


def gradient(model: Any) -> torch.Tensor:
    """All gradients as one vector; zeros where there is none."""
    parts = [
        torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten()
        for p in model.parameters()
    ]
    return torch.cat(parts)


def base_pass(
    config: Config,
    model: Any,
    segments: Sequence[Segment],
    advantages: Sequence[torch.Tensor],
    term: Any,
    tokens: int = 10**9,
) -> torch.Tensor:
    """Gradient of the base loss of one step with a term in it."""
    model.zero_grad()
    step = BaseStep(
        segments, range(len(segments)), advantages, None, [] if term is None else [term],
        length=config.rollout.max_new_tokens,
    )  # fmt: skip
    base_backward(model, step, config.objective, PassLimits(tokens, 0), LossStats())
    return gradient(model)


def counts_of(segments: Sequence[Segment]) -> Denominators:
    return Denominators(sum(s.trained for s in segments), len(segments))
