"""The sections of a run's config: fields, defaults and what each value must satisfy.

Every default cites the published value or says "ours". `trainer.config` reads and writes them.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from agent_envs.prompting import TEMPLATES
from agent_envs.prompting.field import Layout
from trainer.errors import ConfigError


def positive(name: str, value: float, zero: bool = False) -> None:
    """Raises `ConfigError` unless `value` is finite and positive, or 0 where `zero`."""
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise ConfigError(f"{name}={value} must be {'at least 0' if zero else 'positive'}.")


@dataclass(frozen=True, slots=True)
class EarlyStopConfig:
    """End a run that makes no progress on held-out tasks."""

    # Evaluations (`eval.every`) without progress, one behind the other, that end it; 0: none do.
    patience: int = 0
    metric: str | None = None  # SPLIT/FIGURE as in eval.best_by, which null stands for
    min_delta: float = 0.0  # what the best value has to be exceeded by

    def check(self) -> None:
        positive("run.early_stop.patience", self.patience, zero=True)
        positive("run.early_stop.min_delta", self.min_delta, zero=True)


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
    # Which checkpoints stay. With `best+last` every evaluated iteration gets one.
    keep: Literal["all", "best+last", "last"] = "all"
    early_stop: EarlyStopConfig = field(default_factory=EarlyStopConfig)
    # Ours: refused optimiser steps, one behind the other, that end a run with an error; 0: none do.
    nonfinite_limit: int = 10
    save_turns: bool = False  # also write every iteration's turns to turns/NNNNN.parquet

    def check(self) -> None:
        positive("run.iterations", self.iterations, zero=True)
        positive("run.threads", self.threads)
        positive("run.checkpoint_every", self.checkpoint_every, zero=True)
        positive("run.nonfinite_limit", self.nonfinite_limit, zero=True)
        self.early_stop.check()


@dataclass(frozen=True, slots=True)
class PromptConfig:
    """How an observation becomes token ids."""

    # `field`: the layout of the published runs; `react`: a transcript with Thought: and Action:.
    template: str = "compact"
    history_length: int = 2  # published: the last 2 (observation, action) pairs
    # `window`: the prompt is rebuilt at every turn. `chat`: one conversation that grows.
    context: Literal["window", "chat"] = "window"
    # Of `field`: `instruction_first` puts what changes last, so that prompts share a prefix.
    layout: Layout = "standard"
    max_prompt_tokens: int = 512  # a longer prompt ends the episode: context_overflow

    def check(self) -> None:
        if self.template not in TEMPLATES:
            raise ConfigError(
                f"prompt.template={self.template!r} must be one of {', '.join(TEMPLATES)}."
            )
        positive("prompt.history_length", self.history_length, zero=True)
        positive("prompt.max_prompt_tokens", self.max_prompt_tokens)


SMALLEST_VOCABULARY = 256 + 4 + 2
"""Of a fresh tokenizer (`trainer.models.tiny.train_tokenizer`): bytes; tags; end and padding."""


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
        if self.path is None and self.vocab_size < SMALLEST_VOCABULARY:
            raise ConfigError(
                f"model.vocab_size={self.vocab_size} must be at least {SMALLEST_VOCABULARY}: the "
                "256 bytes, four tags, the end and the padding each take a token."
            )
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
    top_p: float = 1.0  # published; anything else is refused, see `check`
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
        if self.temperature < 1e-4:
            raise ConfigError(
                f"rollout.temperature={self.temperature} must be at least 0.0001: logits over less "
                "than that overflow, and nothing is explored."
            )
        if self.top_p != 1:
            raise ConfigError(
                f"rollout.top_p={self.top_p} must be 1: log-probs of a cut distribution are not "
                "those that the trainer computes, and ratios would not start at 1. Sharpen "
                "training with rollout.temperature."
            )
        positive("rollout.success_reward", self.success_reward)
        positive("rollout.format_penalty", self.format_penalty, zero=True)


_SAMPLER_FIELDS = {
    "cache_tokens": ("hf", "hf-cb"),
    "join_share": ("hf",),
    "timeout_s": ("hf-cb", "vllm"),
    "url": ("vllm",),
    "served_model": ("vllm",),
    "weights_dir": ("vllm",),
    "concurrency": ("vllm",),
}
"""The backends with which a field of `sampler` does something.

`max_batch_tokens` is not here: recipes set it for their size of model, and who takes a server in
place of the own loop is not to be refused for it.
"""


def _check_address(name: str, url: str) -> None:
    """Raises `ConfigError` unless `url` is the address of an HTTP server."""
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname:
            _ = parts.port  # raises outside 0..65535
            return
        reason = "it lacks http:// or https://, or a host"
    except ValueError as error:
        reason = str(error)
    raise ConfigError(
        f"{name}={url!r} must be the address of a server, such as http://127.0.0.1:8000: {reason}."
    )


@dataclass(frozen=True, slots=True)
class SamplerConfig:
    """What generates the replies. No field changes what is sampled, but for `vllm`'s rounding."""

    # `hf`: own loop over the model. `hf-cb`: transformers' continuous batching. `vllm`: a server.
    backend: Literal["hf", "hf-cb", "vllm"] = "hf"
    max_batch_tokens: int = 16384  # rows x longest row (hf) or tokens (hf-cb) in one forward
    # Keys and values kept at once: of conversations between turns (hf), of everything (hf-cb).
    cache_tokens: int = 131072
    join_share: float | None = None  # of a batch, finished before others join; null: by model
    timeout_s: float = 600.0  # longest wait for a reply (hf-cb), for an answer (vllm)
    url: str = "http://127.0.0.1:8000"  # of the vLLM server
    served_model: str | None = None  # the server's name of the model; null: the first it lists
    weights_dir: str | None = None  # new weights go to the server through this shared folder
    concurrency: int = 128  # requests under way at once

    def check(self) -> None:
        for name in ("max_batch_tokens", "timeout_s", "concurrency"):
            positive(f"sampler.{name}", getattr(self, name))
        positive("sampler.cache_tokens", self.cache_tokens, zero=self.backend == "hf")
        if self.join_share is not None and not 0 < self.join_share <= 1:
            raise ConfigError(f"sampler.join_share={self.join_share} must lie in (0, 1].")
        defaults = SamplerConfig()
        for name, backends in _SAMPLER_FIELDS.items():
            value = getattr(self, name)
            if self.backend not in backends and value != getattr(defaults, name):
                raise ConfigError(
                    f"sampler.{name}={value} has no effect with sampler.backend={self.backend}. "
                    f"Leave it out, or set sampler.backend to {' or '.join(backends)}."
                )
        if self.backend == "vllm":
            _check_address("sampler.url", self.url)
        if self.backend == "vllm" and self.weights_dir is None:
            raise ConfigError(
                "sampler.backend=vllm needs sampler.weights_dir, a folder that the server and the "
                "trainer reach by the same path: new weights go through it."
            )


@dataclass(frozen=True, slots=True)
class OptimConfig:
    """The optimiser, how an iteration's turns become its steps, and what a step may cost."""

    # `adafactor` keeps a row and a column of second moments, and its `lr` is relative to the size
    # of the weights; `adamw_8bit` keeps moments of a byte each (bitsandbytes, CUDA); `sgd` nothing.
    optimizer: Literal["adamw", "adafactor", "adamw_8bit", "sgd"] = "adamw"
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
    # Tokens in one forward, padding included: changes nothing but memory and time.
    micro_batch_tokens: int = 4096
    # Sequences one behind the other in a row, without padding. null: where attention keeps them
    # apart at no cost, except for tiny models on a CPU, which have a shorter way.
    packing: bool | None = None
    gradient_checkpointing: bool = False  # a third more time, activations of one layer at a time
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
class LoraConfig:
    """Low-rank adapters in place of the policy's own weights (peft; arXiv:2106.09685)."""

    rank: int = 0  # 0: off, all weights are trained
    alpha: float = 32.0  # the update is scaled by alpha / rank
    dropout: float = 0.0  # must be 0
    # Names of linear layers; empty: all of them but the head.
    targets: tuple[str, ...] = ()
    seed: int = 0  # of the adapters' first values

    def check(self) -> None:
        positive("lora.rank", self.rank, zero=True)
        positive("lora.alpha", self.alpha)
        if self.dropout != 0.0:
            raise ConfigError(
                f"lora.dropout={self.dropout} must be 0: dropout moves ratios off 1 at the first "
                "step and draws from the global random state, so no run could be repeated."
            )
        if len(set(self.targets)) != len(self.targets):
            raise ConfigError(f"lora.targets={list(self.targets)} names a layer twice.")


EVALUATED = ("success", "macro_success", "score")
"""Figures of an evaluation that checkpoints can be compared by: more is better."""


@dataclass(frozen=True, slots=True)
class EvalConfig:
    """Evaluation: a fixed list of tasks, each played once."""

    every: int = 0  # iterations between evaluations; 0: only before the first and after the last
    initial: bool = True  # evaluate the policy that training starts from
    # As shown for ALFWorld; a config of WebShop that names none gets `val`.
    splits: tuple[str, ...] = ("valid_seen", "valid_unseen")
    tasks: int | None = 100  # per split, spread evenly over the sorted ids; null: all
    # SPLIT/FIGURE that says which checkpoint is the best: success, macro_success or score. null:
    # success on the first of `splits`.
    best_by: str | None = None
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
class LogConfig:
    """Where an iteration's numbers go besides `metrics.jsonl`. Nothing here changes a result."""

    # Each needs the package of its name; `wandb` works without a network.
    to: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    project: str = "sero"  # that wandb and trackio file the run under
    run_name: str | None = None  # null: the name of the run folder
    dir: str | None = None  # of tensorboard and wandb; null: logs/ in the run folder
    every: int = 1  # iterations; metrics.jsonl gets all of them

    def check(self) -> None:
        positive("log.every", self.every)
        if len(set(self.to)) != len(self.to):
            raise ConfigError(f"log.to={list(self.to)} names a logger twice.")
        readers = {
            "project": ("wandb", "trackio"),
            "run_name": ("tensorboard", "wandb", "trackio"),
            "dir": ("tensorboard", "wandb"),
            "every": ("tensorboard", "wandb", "trackio"),
        }
        defaults = LogConfig()
        for name, readers_of in readers.items():
            value = getattr(self, name)
            if value != getattr(defaults, name) and not set(readers_of) & set(self.to):
                raise ConfigError(
                    f"log.{name}={value} has no effect with log.to={list(self.to)}. Leave it out, "
                    f"or add {' or '.join(readers_of)} to log.to."
                )
        for name in ("project", "run_name"):
            value = getattr(self, name)
            if value is not None and not re.fullmatch(r"\w[\w.-]*( [\w.-]+)*", value):
                raise ConfigError(
                    f"log.{name}={value!r} must be a name of letters, digits, '.', '_', '-' and "
                    "single blanks: it names a folder too."
                )


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    """One run in several processes, which `torchrun` starts; see docs/scaling.md."""

    # `ddp`: a whole policy on every rank. `fsdp`: a part of its weights and moments.
    mode: Literal["none", "ddp", "fsdp"] = "none"
    timeout_s: float = 1800.0  # a rank that waits longer for the others fails

    def check(self) -> None:
        positive("parallel.timeout_s", self.timeout_s)
        usual = ParallelConfig().timeout_s
        if self.timeout_s != usual and self.mode == "none":
            raise ConfigError(
                f"parallel.timeout_s={self.timeout_s:g} has no effect with parallel.mode=none. "
                f"Leave it out (to go on in one process: --parallel.timeout_s {usual:g}), or set "
                "parallel.mode to ddp or fsdp."
            )
