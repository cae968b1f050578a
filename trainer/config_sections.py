"""The sections of a run's config: fields, defaults and what each value must satisfy.

Every default cites the published value or says "ours". `trainer.config` reads and writes them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from agent_envs.errors import SeroError
from agent_envs.prompting import TEMPLATES


class ConfigError(SeroError, ValueError):
    """A config that cannot be used: unknown key, wrong type or values that clash."""


def positive(name: str, value: float, zero: bool = False) -> None:
    """Raises `ConfigError` unless `value` is finite and positive, or 0 where `zero`."""
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise ConfigError(f"{name}={value} must be {'at least 0' if zero else 'positive'}.")


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Length, seed and machine of a run."""

    seed: int = 0  # keys every draw of the run, 0 is a seed like any other
    iterations: int = 60  # ours; the published ALFWorld runs take 150
    device: str = "cpu"
    # Of forward passes and of the policy that acts; trained weights, log-probs: always float32.
    dtype: Literal["float32", "bfloat16"] = "float32"
    threads: int = 1  # torch intra-op threads; a tiny model gains nothing from more
    checkpoint_every: int = 10  # iterations; 0: only at the end
    save_turns: bool = False  # also write every iteration's turns to turns/NNNNN.parquet

    def check(self) -> None:
        positive("run.iterations", self.iterations, zero=True)
        positive("run.threads", self.threads)
        positive("run.checkpoint_every", self.checkpoint_every, zero=True)


@dataclass(frozen=True, slots=True)
class GeneratedConfig:
    """The generated households used where `env.data` is `generated`."""

    preset: Literal["small", "standard"] = "small"
    seed: int = 0
    train: int = 400
    valid_seen: int = 100
    valid_unseen: int = 100
    task_types: tuple[str, ...] = ()  # empty: all six
    receptacles: int | None = None  # in a room; null: the preset's
    objects: int | None = None  # in a room; null: the preset's

    def check(self) -> None:
        for name in ("train", "valid_seen", "valid_unseen"):
            positive(f"env.generated.{name}", getattr(self, name), zero=True)
        for name in ("receptacles", "objects"):
            if getattr(self, name) is not None:
                positive(f"env.generated.{name}", getattr(self, name))


@dataclass(frozen=True, slots=True)
class GeneratedShopConfig:
    """The generated shop used where `env.data` is `generated`."""

    preset: Literal["small", "standard", "large"] = "small"
    seed: int = 0
    products: int | None = None  # null: the preset's

    def check(self) -> None:
        if self.products is not None:
            positive("env.webshop.generated.products", self.products)


@dataclass(frozen=True, slots=True)
class WebShopConfig:
    """What a shop needs to be said besides; read with `env.id: SeroWebShop-v0` only."""

    goal_source: Literal["synthetic", "human"] = "synthetic"
    split_by: Literal["goal", "product"] = "goal"  # `goal`: published; `product`: none in two
    observation_mode: Literal["text", "text_rich"] = "text"
    show_attributes: bool = False  # a fourth tab on item pages
    price_seed: int = 0  # keys price limits, and prices that the data gives as a range
    generated: GeneratedShopConfig = field(default_factory=GeneratedShopConfig)

    def check(self) -> None:
        self.generated.check()


@dataclass(frozen=True, slots=True)
class EnvConfig:
    """Which environment, which tasks, how long."""

    id: str = "SeroALFWorld-v0"
    data: str | None = "generated"  # null: look for real data first; or a path
    generated: GeneratedConfig = field(default_factory=GeneratedConfig)
    webshop: WebShopConfig = field(default_factory=WebShopConfig)
    split: str = "train"
    task_types: tuple[str, ...] = ()  # restrict to these, empty: all
    max_steps: int = 15  # ours for small households; published ALFWorld: 50, WebShop: 15

    def check(self) -> None:
        positive("env.max_steps", self.max_steps)
        self.generated.check()
        self.webshop.check()


@dataclass(frozen=True, slots=True)
class PromptConfig:
    """How an observation becomes token ids."""

    template: str = "compact"  # `field`: the layout of the published runs
    history_length: int = 2  # published: the last 2 (observation, action) pairs
    context: Literal["window"] = "window"  # the prompt is rebuilt at every turn
    max_prompt_tokens: int = 512  # a longer prompt ends the episode: context_overflow

    def check(self) -> None:
        if self.template not in TEMPLATES:
            raise ConfigError(
                f"prompt.template={self.template!r} must be one of {', '.join(TEMPLATES)}."
            )
        positive("prompt.history_length", self.history_length, zero=True)
        positive("prompt.max_prompt_tokens", self.max_prompt_tokens)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The initial policy: a folder, or a tiny Qwen2 built on the spot."""

    path: str | None = None  # checkpoint folder; null: a fresh tiny model
    hidden_size: int = 128  # ours, with the next four: 0.67M parameters
    layers: int = 3
    heads: int = 4
    kv_heads: int = 2
    intermediate_size: int = 384
    vocab_size: int = 640
    seed: int = 0  # weights of a fresh model
    tokenizer_games: int = 40  # demonstrations whose text trains a fresh tokenizer, at least

    def check(self) -> None:
        for name in ("hidden_size", "layers", "heads", "kv_heads", "intermediate_size"):
            positive(f"model.{name}", getattr(self, name))
        positive("model.vocab_size", self.vocab_size)
        positive("model.tokenizer_games", self.tokenizer_games, zero=True)
        if self.hidden_size % self.heads:
            raise ConfigError(
                f"model.hidden_size={self.hidden_size} is not a multiple of "
                f"model.heads={self.heads}. Change either."
            )
        if self.heads % self.kv_heads:
            raise ConfigError(
                f"model.heads={self.heads} is not a multiple of "
                f"model.kv_heads={self.kv_heads}. Change either."
            )
        if self.hidden_size // self.heads % 2:
            raise ConfigError(
                f"model.hidden_size={self.hidden_size} over model.heads={self.heads} is odd; "
                "rotary positions need an even number. Change either."
            )


@dataclass(frozen=True, slots=True)
class RolloutConfig:
    """Group rollouts and the training reward."""

    tasks: int = 8  # groups an iteration; published: 16
    rollouts: int = 8  # trajectories a group; published: 8
    temperature: float = 1.0  # published
    max_new_tokens: int = 24  # ours, for replies of about 8 tokens; published: 512
    # `success` (published, also for WebShop): nothing but full success pays. `env`: what the
    # environment pays, so a purchase pays its score.
    reward: Literal["success", "env"] = "success"
    success_reward: float = 10.0  # published: 10 on the step that wins; `env` is multiplied by it
    format_penalty: float = 0.1  # published: off for a malformed reply

    def check(self) -> None:
        positive("rollout.tasks", self.tasks)
        positive("rollout.rollouts", self.rollouts)
        positive("rollout.max_new_tokens", self.max_new_tokens)
        positive("rollout.temperature", self.temperature)
        positive("rollout.success_reward", self.success_reward)
        positive("rollout.format_penalty", self.format_penalty, zero=True)


@dataclass(frozen=True, slots=True)
class OptimConfig:
    """AdamW and how an iteration's turns become optimiser steps."""

    lr: float = 1.5e-4  # ours for 0.67M parameters; published: 1e-6
    warmup_steps: int = 10  # linear from lr / warmup_steps
    decay_steps: int | None = None  # optimiser steps of linear decay to lr / 10; null: constant
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01  # published
    grad_clip: float = 1.0  # published; 0: off
    steps: int = 2  # M, optimiser steps an epoch: turns and roots are cut into M parts
    epochs: int = 1  # published
    micro_batch_tokens: int = 4096  # padded tokens in one forward; changes nothing but memory
    old_logprobs: Literal["sampler", "recompute"] = "sampler"  # bfloat16 needs `recompute`

    def check(self) -> None:
        positive("optim.lr", self.lr, zero=True)
        positive("optim.warmup_steps", self.warmup_steps, zero=True)
        if self.decay_steps is not None:
            positive("optim.decay_steps", self.decay_steps)
        positive("optim.grad_clip", self.grad_clip, zero=True)
        positive("optim.weight_decay", self.weight_decay, zero=True)
        positive("optim.eps", self.eps)
        for name in ("beta1", "beta2"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ConfigError(f"optim.{name}={getattr(self, name)} must lie in [0, 1).")
        positive("optim.steps", self.steps)
        positive("optim.epochs", self.epochs)
        positive("optim.micro_batch_tokens", self.micro_batch_tokens)


@dataclass(frozen=True, slots=True)
class EvalConfig:
    """Evaluation: a fixed list of tasks, each played once."""

    every: int = 0  # iterations between evaluations; 0: only before the first and after the last
    initial: bool = True  # evaluate the policy that training starts from
    # As shown for ALFWorld; a config of WebShop that names none gets `val`.
    splits: tuple[str, ...] = ("valid_seen", "valid_unseen")
    tasks: int | None = 100  # per split, spread evenly over the sorted ids; null: all
    temperature: float = 0.0  # 0: greedy
    batch_size: int = 64
    seed: int = 0  # sampling seed, used where temperature > 0

    def check(self) -> None:
        positive("eval.every", self.every, zero=True)
        positive("eval.batch_size", self.batch_size)
        positive("eval.temperature", self.temperature, zero=True)
        if len(set(self.splits)) != len(self.splits):
            raise ConfigError(f"eval.splits={list(self.splits)} names a split twice.")
        if self.tasks is not None:
            positive("eval.tasks", self.tasks)


@dataclass(frozen=True, slots=True)
class WarmstartConfig:
    """Supervised warm start on planner demonstrations (used only with a fresh model)."""

    demonstrations: int = 400  # ours; 0: no warm start
    text_steps: int = 0  # first steps, trained on whole rows: the environment's text as well
    steps: int = 600  # then so many, trained on the replies
    batch: int = 32
    lr: float = 3e-3
    warmup_steps: int = 20
    random_share: float = 0.1  # steps replaced by a random admissible command, not trained
    inadmissible_share: float = 0.05  # steps replaced by a refused command, not trained
    seed: int = 0

    def check(self) -> None:
        positive("warmstart.demonstrations", self.demonstrations, zero=True)
        positive("warmstart.text_steps", self.text_steps, zero=True)
        positive("warmstart.steps", self.steps, zero=True)
        positive("warmstart.batch", self.batch)
        positive("warmstart.lr", self.lr)
        positive("warmstart.warmup_steps", self.warmup_steps, zero=True)
        positive("warmstart.random_share", self.random_share, zero=True)
        positive("warmstart.inadmissible_share", self.inadmissible_share, zero=True)
        if not 0.0 <= self.random_share + self.inadmissible_share < 1.0:
            raise ConfigError(
                f"warmstart.random_share={self.random_share} and warmstart.inadmissible_share="
                f"{self.inadmissible_share} must sum to less than 1: the planner has to act."
            )
