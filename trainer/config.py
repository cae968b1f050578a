"""Typed run configuration: read from YAML, refuse nonsense, write back what was resolved.

A config is a tree of frozen dataclasses. Every field has a default that cites the published
value or says "ours"; unknown keys are errors that suggest the nearest name; `resolve` turns the
whole into plain data that goes into the run folder, so that a run can be repeated from it.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from agent_envs.errors import SeroError

__all__ = [
    "AuxiliaryConfig",
    "Config",
    "ConfigError",
    "EnvConfig",
    "EvalConfig",
    "GeneratedConfig",
    "ModelConfig",
    "ObjectiveConfig",
    "OptimConfig",
    "PromptConfig",
    "RolloutConfig",
    "RunConfig",
    "WarmstartConfig",
    "config_hash",
    "from_dict",
    "load_config",
    "parse_overrides",
    "resolve",
]


class ConfigError(SeroError, ValueError):
    """A config that cannot be used: unknown key, wrong type or values that clash."""


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Length, seed and machine of a run."""

    seed: int = 0  # keys every draw of the run, 0 is a seed like any other
    iterations: int = 60  # ours; the published ALFWorld runs take 150
    device: str = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"  # weights and forward; log-probs are fp32
    threads: int = 1  # torch intra-op threads; a tiny model gains nothing from more
    checkpoint_every: int = 10  # iterations; 0: only at the end
    save_turns: bool = False  # also write every iteration's turns to turns/NNNNN.parquet

    def check(self) -> None:
        _positive("run.iterations", self.iterations, zero=True)
        _positive("run.threads", self.threads)
        _positive("run.checkpoint_every", self.checkpoint_every, zero=True)


@dataclass(frozen=True, slots=True)
class GeneratedConfig:
    """The generated households used where `env.data` is `generated`."""

    preset: Literal["small", "standard"] = "small"
    seed: int = 0
    train: int = 400
    valid_seen: int = 100
    valid_unseen: int = 100
    task_types: tuple[str, ...] = ()  # empty: all six

    def check(self) -> None:
        for name in ("train", "valid_seen", "valid_unseen"):
            _positive(f"env.generated.{name}", getattr(self, name), zero=True)


@dataclass(frozen=True, slots=True)
class EnvConfig:
    """Which environment, which games, how long."""

    id: str = "SeroALFWorld-v0"
    data: str | None = "generated"  # null: look for real data first; or a path
    generated: GeneratedConfig = field(default_factory=GeneratedConfig)
    split: str = "train"
    task_types: tuple[str, ...] = ()  # restrict to these, empty: all
    max_steps: int = 15  # ours for small households; published ALFWorld: 50

    def check(self) -> None:
        _positive("env.max_steps", self.max_steps)
        self.generated.check()


@dataclass(frozen=True, slots=True)
class PromptConfig:
    """How an observation becomes token ids."""

    template: str = "compact"  # `field`: the layout of the published runs
    history_length: int = 2  # published: the last 2 (observation, action) pairs
    context: Literal["window"] = "window"  # the prompt is rebuilt at every turn
    max_prompt_tokens: int = 512  # a longer prompt ends the episode: context_overflow

    def check(self) -> None:
        _positive("prompt.history_length", self.history_length, zero=True)
        _positive("prompt.max_prompt_tokens", self.max_prompt_tokens)


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
    tokenizer_games: int = 40  # households whose text trains a fresh tokenizer

    def check(self) -> None:
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


@dataclass(frozen=True, slots=True)
class RolloutConfig:
    """Group rollouts and the training reward."""

    tasks: int = 8  # groups an iteration; published: 16
    rollouts: int = 8  # trajectories a group; published: 8
    temperature: float = 1.0  # published
    max_new_tokens: int = 24  # ours, for replies of about 8 tokens; published: 512
    success_reward: float = 10.0  # published: 10 on the step that wins
    format_penalty: float = 0.1  # published: off for a malformed reply

    def check(self) -> None:
        _positive("rollout.tasks", self.tasks)
        _positive("rollout.rollouts", self.rollouts)
        _positive("rollout.max_new_tokens", self.max_new_tokens)
        _positive("rollout.temperature", self.temperature)


@dataclass(frozen=True, slots=True)
class ObjectiveConfig:
    """The base objective."""

    name: Literal["grpo"] = "grpo"
    flavor: Literal["paper", "code", "code_traj"] = "paper"
    use_std: bool = True  # false: Dr. GRPO's advantage (arXiv:2503.20783)
    clip_low: float = 0.2  # published
    clip_high: float = 0.2  # published; DAPO: 0.28
    dual_clip: float | None = 3.0  # published; null: off
    aggregation: Literal[
        "token-mean",
        "seq-mean-token-mean",
        "seq-mean-token-sum",
        "seq-mean-token-sum-norm",  # this and the next divide by rollout.max_new_tokens
        "dr_grpo",
    ] = "token-mean"
    kl_coef: float = 0.0  # ours for tiny models; published: 0.01
    kl_kind: Literal["k2", "k3"] = "k3"  # in the loss; k1 has no useful gradient there
    entropy_coef: float = 0.0  # published code: 0.001
    drop_constant_groups: bool = False  # zero advantage where all outcomes of a group are equal
    mask_truncated: bool = False  # leave out trajectories that ran out of steps

    def check(self) -> None:
        for name in ("clip_low", "clip_high", "kl_coef", "entropy_coef"):
            _positive(f"objective.{name}", getattr(self, name), zero=True)
        if self.dual_clip is not None and self.dual_clip <= 1.0:
            raise ConfigError(
                f"objective.dual_clip={self.dual_clip} must exceed 1 (published: 3) or be null."
            )


@dataclass(frozen=True, slots=True)
class AuxiliaryConfig:
    """The auxiliary objective: nothing, SERO, or the format-only control."""

    name: Literal["none", "sero", "format_only"] = "none"
    weight: float = 0.1  # published lambda_O; stable 0.1 to 0.5
    rule: Literal["sero", "flat", "root", "depth"] = "sero"
    delta: float = 0.9  # ours; decay of rule `depth`
    normaliser: Literal["selected", "valid", "active"] = "selected"
    branch_norm: Literal["none", "mass"] = "none"
    w_min: float = 1e-4  # ours; rows lighter than this are left out, their mass is logged
    pool: Literal["failed", "any"] = "failed"
    target: Literal["success", "score"] = "success"  # what the gate compares
    return_scale: float = 1.0  # c_R: the gate is clip(gain / c_R, 0, 1)
    think_mode: Literal["empty"] = "empty"  # the target is <think></think><action>CMD</action>
    oracle: str = "planner"
    oracle_budget_s: float = 1.0
    max_depth: int | None = None  # cap on branch length; null: the remaining horizon
    measure_gradients: bool = True  # separate norms of both gradients; a second gradient buffer

    def check(self) -> None:
        _positive("auxiliary.weight", self.weight, zero=True)
        _positive("auxiliary.return_scale", self.return_scale)
        _positive("auxiliary.oracle_budget_s", self.oracle_budget_s)
        if not 0.0 <= self.delta <= 1.0:
            raise ConfigError(f"auxiliary.delta={self.delta} must lie in [0, 1].")
        if self.max_depth is not None:
            _positive("auxiliary.max_depth", self.max_depth)


@dataclass(frozen=True, slots=True)
class OptimConfig:
    """AdamW and how an iteration's turns become optimiser steps."""

    lr: float = 1.5e-4  # ours for 0.67M parameters; published: 1e-6
    warmup_steps: int = 10  # linear from lr / warmup_steps
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01  # published
    grad_clip: float = 1.0  # published; 0: off
    steps: int = 2  # M, optimiser steps an epoch: turns and roots are cut into M parts
    epochs: int = 1  # published
    micro_batch_tokens: int = 8192  # padded tokens in one forward; changes nothing but memory
    old_logprobs: Literal["sampler", "recompute"] = "sampler"

    def check(self) -> None:
        _positive("optim.lr", self.lr, zero=True)
        _positive("optim.warmup_steps", self.warmup_steps, zero=True)
        _positive("optim.grad_clip", self.grad_clip, zero=True)
        _positive("optim.steps", self.steps)
        _positive("optim.epochs", self.epochs)
        _positive("optim.micro_batch_tokens", self.micro_batch_tokens)


@dataclass(frozen=True, slots=True)
class EvalConfig:
    """Evaluation: a fixed list of tasks, each played once."""

    every: int = 0  # iterations between evaluations; 0: only after the last
    splits: tuple[str, ...] = ("valid_seen", "valid_unseen")
    tasks: int | None = 100  # per split, spread evenly over the sorted ids; null: all
    temperature: float = 0.0  # 0: greedy
    batch_size: int = 64
    seed: int = 0  # sampling seed, used where temperature > 0

    def check(self) -> None:
        _positive("eval.every", self.every, zero=True)
        _positive("eval.batch_size", self.batch_size)
        _positive("eval.temperature", self.temperature, zero=True)
        if self.tasks is not None:
            _positive("eval.tasks", self.tasks)


@dataclass(frozen=True, slots=True)
class WarmstartConfig:
    """Supervised warm start on planner demonstrations (used only with a fresh model)."""

    demonstrations: int = 400  # ours; 0: no warm start
    steps: int = 600
    batch: int = 32
    lr: float = 3e-3
    warmup_steps: int = 20
    random_share: float = 0.1  # steps replaced by a random admissible command, not trained
    inadmissible_share: float = 0.05  # steps replaced by a refused command, not trained
    seed: int = 0

    def check(self) -> None:
        _positive("warmstart.demonstrations", self.demonstrations, zero=True)
        _positive("warmstart.steps", self.steps, zero=True)
        _positive("warmstart.batch", self.batch)
        _positive("warmstart.lr", self.lr)
        if not 0.0 <= self.random_share + self.inadmissible_share < 1.0:
            raise ConfigError(
                f"warmstart.random_share={self.random_share} and warmstart.inadmissible_share="
                f"{self.inadmissible_share} must sum to less than 1: the planner must act sometimes."
            )


@dataclass(frozen=True, slots=True)
class Config:
    """One run."""

    run: RunConfig = field(default_factory=RunConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    prompt: PromptConfig = field(default_factory=PromptConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    auxiliary: AuxiliaryConfig = field(default_factory=AuxiliaryConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    warmstart: WarmstartConfig = field(default_factory=WarmstartConfig)

    def check(self) -> None:
        """Raises `ConfigError` on values out of range or in conflict."""
        for section in dataclasses.fields(self):
            getattr(self, section.name).check()
        if self.rollout.rollouts == 1 and self.auxiliary.name != "format_only":
            raise ConfigError(
                "rollout.rollouts=1 gives every group objective a group of one, whose advantage "
                "is 0: nothing would be learnt. Use 2 or more."
            )

    def replace(self, **overrides: Any) -> Config:
        """A copy with dotted keys replaced: `config.replace(**{"optim.lr": 1e-4})`."""
        return from_dict(_merge(resolve(self), overrides))


def load_config(
    source: str | Path | Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Config:
    """Reads a YAML file (or takes a mapping), applies dotted overrides and checks the result.

    Raises:
        ConfigError: the file is missing or no mapping, a key is unknown, a value has the wrong
            type, or values clash. The message names the key as `section.key`.
    """
    if source is None:
        data: Mapping[str, Any] = {}
    elif isinstance(source, Mapping):
        data = source
    else:
        data = _read_yaml(Path(source))
    return from_dict(_merge(data, overrides or {}))


def from_dict(data: Mapping[str, Any]) -> Config:
    """Builds and checks a config from nested plain data."""
    config: Config = _build(Config, data, "")
    config.check()
    return config


def resolve(config: Config) -> dict[str, Any]:
    """The config as nested plain data (JSON and YAML safe); `from_dict(resolve(c)) == c`."""
    return typing.cast("dict[str, Any]", _plain(dataclasses.asdict(config)))


def config_hash(config: Config) -> str:
    """SHA-256 of the resolved config, canonical JSON."""
    text = json.dumps(resolve(config), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def parse_overrides(arguments: Sequence[str]) -> dict[str, Any]:
    """`["--optim.lr", "1e-4", "--run.seed=3"]` -> `{"optim.lr": "1e-4", "run.seed": "3"}`.

    Values stay text; `load_config` converts them to the type of their field.
    """
    result: dict[str, Any] = {}
    items = list(arguments)
    while items:
        item = items.pop(0)
        if not item.startswith("--") or len(item) == 2:
            raise ConfigError(f"Expected --section.key VALUE, found {item!r}.")
        key, separator, value = item[2:].partition("=")
        if not separator:
            if not items:
                raise ConfigError(f"--{key} needs a value: --{key} VALUE.")
            value = items.pop(0)
        result[key.replace("-", "_")] = value
    return result


# ---------------------------------------------------------------------------------------------

T = TypeVar("T")


def _positive(name: str, value: float, zero: bool = False) -> None:
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise ConfigError(f"{name}={value} must be {'at least 0' if zero else 'positive'}.")


def _read_yaml(path: Path) -> Mapping[str, Any]:
    import yaml  # the trainer's extra; configs built in Python do not need it

    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"Cannot read the config {path}: {error.strerror}.") from error
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise ConfigError(f"{path} must hold a mapping of sections, found {type(data).__name__}.")
    return data


def _merge(data: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    merged = {k: _merge(v, {}) if isinstance(v, Mapping) else v for k, v in data.items()}
    for dotted, value in overrides.items():
        *parents, leaf = dotted.split(".")
        node = merged
        for parent in parents:
            child = node.setdefault(parent, {})
            if not isinstance(child, dict):
                raise ConfigError(f"{dotted}: {parent!r} is a value, not a section.")
            node = child
        node[leaf] = value
    return merged


def _build(cls: type[T], data: Any, path: str) -> T:
    if not isinstance(data, Mapping):
        raise ConfigError(f"{path or 'The config'} must be a mapping, found {data!r}.")
    hints = typing.get_type_hints(cls)
    names = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in data.items():
        dotted = f"{path}.{key}" if path else str(key)
        if key not in names:
            near = difflib.get_close_matches(str(key), names, n=1, cutoff=0.0)
            raise ConfigError(f"Unknown key {dotted!r}. Did you mean {_join(path, near[0])!r}?")
        values[key] = _coerce(value, hints[key], dotted)
    return cls(**values)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _coerce(value: Any, hint: Any, path: str) -> Any:
    """Converts plain data or command-line text to the annotated type, without guessing."""
    origin = get_origin(hint)
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast("type[Any]", hint), value, path)
    if origin in (Union, types.UnionType):
        if value is None or (isinstance(value, str) and value.lower() in ("null", "none")):
            return None
        inner = next(a for a in get_args(hint) if a is not type(None))
        return _coerce(value, inner, path)
    if origin is Literal:
        if value in get_args(hint):
            return value
        raise ConfigError(f"{path}={value!r} must be one of {', '.join(map(str, get_args(hint)))}.")
    if origin is tuple:
        if isinstance(value, str):
            value = [part for part in value.split(",") if part]
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{path}={value!r} must be a list.")
        return tuple(_coerce(v, get_args(hint)[0], f"{path}[{i}]") for i, v in enumerate(value))
    return _scalar(value, hint, path)


def _scalar(value: Any, hint: Any, path: str) -> Any:
    if hint is bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
    elif hint in (int, float):
        if isinstance(value, (int, float, str)) and not isinstance(value, bool):
            try:
                # YAML 1.1 reads 1e-4 as text, so numbers arrive as text from files as well.
                if hint is float:
                    return float(value)
                if not isinstance(value, float) or value.is_integer():
                    return int(value)
            except ValueError:
                pass
    elif isinstance(value, str):
        return value
    raise ConfigError(f"{path}={value!r} must be of type {hint.__name__}.")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
