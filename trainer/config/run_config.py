"""Typed run configuration: read from YAML, refuse nonsense, write back what was resolved.

A config is a tree of frozen dataclasses (`trainer.config.sections`). Unknown keys are errors that
suggest the nearest name; `resolve` turns the whole into plain data that goes into the run folder,
so that a run can be repeated from it.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import types
import typing
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from trainer.catalogue import where_to_say
from trainer.config.auxiliary import AuxiliaryConfig
from trainer.config.bounds import out_of_bounds
from trainer.config.composition import conflicts
from trainer.config.dead_switches import recorded, unread_as_written
from trainer.config.env import EnvConfig
from trainer.config.files import read_file
from trainer.config.objective import PUBLISHED, ObjectiveConfig, settings_of
from trainer.config.parallel_rules import unsupported
from trainer.config.sections import (
    EvalConfig,
    LogConfig,
    LoraConfig,
    ModelConfig,
    OptimConfig,
    ParallelConfig,
    PromptConfig,
    RolloutConfig,
    RunConfig,
    SamplerConfig,
)
from trainer.config.stopping import check_stopping
from trainer.config.warmstart import WarmstartConfig
from trainer.errors import ConfigError
from trainer.worlds.environments import PLANNER, check_environment, environment_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Config:
    """One run."""

    run: RunConfig = field(default_factory=RunConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    prompt: PromptConfig = field(default_factory=PromptConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    auxiliary: AuxiliaryConfig = field(default_factory=AuxiliaryConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    warmstart: WarmstartConfig = field(default_factory=WarmstartConfig)
    log: LogConfig = field(default_factory=LogConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)

    def check(self) -> None:
        """Raises `ConfigError` on values out of range or in conflict."""
        for section in dataclasses.fields(self):
            getattr(self, section.name).check()
        known = dict.fromkeys((PLANNER, *check_environment(self.env).oracles))
        oracles = {"warmstart": self.warmstart.oracle}
        for name, section in self.auxiliary.active():
            oracles[f"auxiliary.{name}"] = getattr(section, "oracle", PLANNER)
        for name, oracle in oracles.items():
            module, _, factory = oracle.partition(":")
            if oracle not in known and not (module and factory):
                raise ConfigError(
                    f"{name}.oracle={oracle!r} must be {', '.join(map(repr, known))} or "
                    "'module:factory'."
                )
        if self.warmstart.given_model and self.model.path is None:
            raise ConfigError(
                "warmstart.given_model=true is about the model that model.path gives, and it gives "
                "none. Name a folder, or leave it out: a fresh model is warm-started anyway."
            )
        self.objective.check_rollout(self.rollout)
        if self.objective.name == "none" and not any(True for _ in self.auxiliary.active()):
            raise ConfigError(
                "objective.name=none trains on auxiliary objectives alone, and there is none. "
                "Add one, e.g. auxiliary.format_only, or choose a base objective."
            )
        check_stopping(self)
        excluded = [*out_of_bounds(self), *conflicts(self), *unsupported(self)]
        if excluded:
            raise ConfigError("\n".join(excluded))
        if self.sampler.backend == "vllm" and self.optim.old_logprobs == "sampler":
            raise ConfigError(
                "sampler.backend=vllm needs optim.old_logprobs=recompute: the server's kernels "
                "round otherwise than the trainer's, and ratios would not start at 1."
            )
        if self.run.dtype == "bfloat16" and self.optim.old_logprobs == "sampler":
            # What samples is a rounded copy of the weights that are trained: ratios would not
            # start at 1, and clipping would act on rounding.
            raise ConfigError(
                "run.dtype=bfloat16 needs optim.old_logprobs=recompute: the sampler's log-probs "
                "are those of rounded weights. Or use run.dtype=float32."
            )

    @property
    def base_active(self) -> bool:
        """Whether rewards reach the policy."""
        return self.objective.name != "none"

    def replace(self, **overrides: Any) -> Config:
        """A copy with dotted keys replaced: `config.replace(**{"optim.lr": 1e-4})`.

        Another base objective brings the settings it was published with, as in a file.
        """
        name = overrides.get("objective.name", self.objective.name)
        if name != self.objective.name:
            implied = settings_of(name, self.objective)
            overrides = {f"objective.{k}": v for k, v in implied.items()} | overrides
        # What was accepted before there was a rule against it goes on as it was made.
        with recorded() if out_of_bounds(self) else nullcontext():
            return from_dict(_merge(resolve(self), overrides))


def load_config(
    source: str | Path | Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Config:
    """Reads a YAML file (or takes a mapping), applies dotted overrides and checks the result.

    A file may name others that it builds on, by paths relative to itself:
    `extends: [base.yaml, other.yaml]`. Later ones win over earlier ones and the file itself over
    all, value by value; a list or null replaces what it stands for.

    Raises:
        ConfigError: the file is missing or no mapping, a key is unknown, a value has the wrong
            type, or values clash. The message names the key as `section.key`.
    """
    if source is None:
        data: Mapping[str, Any] = {}
    elif isinstance(source, Mapping):
        data = source
    elif isinstance(source, (str, Path)):
        data = read_file(Path(source))
    else:
        raise ConfigError(
            f"A config is the path of a YAML file or a mapping of sections, found {source!r:.80} "
            f"of type {type(source).__name__}."
        )
    config = from_dict(_merge(data, overrides or {}))
    unread = unread_as_written(config, data, overrides or {})
    if unread:
        raise ConfigError("\n".join(unread))
    return config


def from_dict(data: Mapping[str, Any]) -> Config:
    """Builds and checks a config from nested plain data.

    Where `eval.splits` is not given, it is what the environment holds out; where the base
    objective was published with other settings than the defaults, those are the defaults.
    """
    if not isinstance(data, Mapping):
        raise ConfigError(
            f"A config is a mapping of sections, found {data!r:.80} of type {type(data).__name__}."
        )
    env = data.get("env")
    if isinstance(env, Mapping) and ":" in str(env.get("id", "")) and "max_steps" not in env:
        raise ConfigError(
            f"env.max_steps is not given. The default, {EnvConfig().max_steps}, is for small "
            f"households, and {env['id']} would get it in place of its own: say how many steps its "
            "episodes have (env.max_steps=N)."
        )
    objective = data.get("objective")
    if isinstance(objective, Mapping) and objective.get("name") in PUBLISHED:
        published = {**PUBLISHED[objective["name"]], **objective}
        data = {**data, "objective": published}
    config: Config = _build(Config, data, "")
    if "splits" not in data.get("eval", {}):
        held_out = environment_of(config.env.id).held_out
        evaluation = dataclasses.replace(config.eval, splits=held_out)
        config = dataclasses.replace(config, eval=evaluation)
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

    Values stay text; `load_config` converts them to the type of their field, and `{...}` in the
    place of a section to a mapping.
    """
    result: dict[str, Any] = {}
    items = list(arguments)
    while items:
        item = items.pop(0)
        if not item.startswith("--") or len(item) == 2:
            raise ConfigError(f"Expected --section.key VALUE, found {item!r}.")
        key, separator, value = item[2:].partition("=")
        if not separator:
            if not items or (items[0].startswith("--") and _section(key) is not None):
                raise ConfigError(f"--{key} needs a value: {_way_to_set(key)}.")
            value = items.pop(0)
        result[key.replace("-", "_")] = value
    return result


def _section(dotted: str) -> type[Any] | None:
    """The class of the section with this name; None: there is no such section."""
    cls: type[Any] = Config
    for name in dotted.replace("-", "_").split("."):
        hint = typing.get_type_hints(cls).get(name)
        members = [hint, *get_args(hint)]
        found = [m for m in members if isinstance(m, type) and dataclasses.is_dataclass(m)]
        if not found:
            return None
        cls = found[0]
    return cls


def _way_to_set(dotted: str) -> str:
    """How the command line sets a field, or a section."""
    section = _section(dotted)
    if section is None:
        return f"--{dotted} VALUE"
    names = [field.name for field in dataclasses.fields(section)]
    name = next((name for name in ("weight", "name") if name in names), names[0])
    return f"--{dotted}.{name} VALUE sets a field, --{dotted} '{{}}' leaves all at their defaults"


def _literal(value: Any, dotted: str) -> Any:
    """`{...}` on the command line, in the place of a section, as a mapping."""
    if not isinstance(value, str) or not value.startswith("{") or _section(dotted) is None:
        return value
    import yaml

    try:
        return yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"{dotted}={value!r} is not valid YAML: {error}") from error


def _merge(data: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    merged = {k: _merge(v, {}) if isinstance(v, Mapping) else v for k, v in data.items()}
    for dotted, value in overrides.items():
        *parents, leaf = dotted.split(".")
        node = merged
        for parent in parents:
            child = node[parent] = {} if node.get(parent) is None else node[parent]
            if not isinstance(child, dict):
                raise ConfigError(f"{dotted}: {parent!r} is a value, not a section.")
            node = child
        node[leaf] = _literal(value, dotted)
    return merged


def _build(cls: type[T], data: Any, path: str) -> T:
    if not isinstance(data, Mapping):
        message = f"{path or 'The config'} must be a mapping, found {data!r}."
        raise ConfigError(f"{message} {_instead(path, data)}" if path else message)
    hints = typing.get_type_hints(cls)
    names = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in data.items():
        dotted = f"{path}.{key}" if path else str(key)
        if key not in names:
            raise ConfigError(f"Unknown key {dotted!r}. {_nearest(path, str(key), names)}")
        values[key] = _coerce(value, hints[key], dotted)
    return cls(**values)


def _instead(path: str, value: Any) -> str:
    """What to write for a section that was given as one value."""
    if path in ("objective", "auxiliary") and (hint := where_to_say(str(value))):
        return hint
    return f"{_way_to_set(path)}."


def _nearest(path: str, key: str, names: Sequence[str]) -> str:
    """What an unknown key may have meant, else what there is."""
    if path in ("", "objective", "auxiliary") and (hint := where_to_say(key)):
        return hint
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.6)
    return f"Did you mean {_join(path, near[0])!r}?" if near else f"Known: {', '.join(names)}."


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
        members = [a for a in get_args(hint) if a is not type(None)]
        # A number, or one of some words in its place.
        if any(get_origin(a) is Literal and value in get_args(a) for a in members):
            return value
        return _coerce(value, members[0], path)
    if origin is Literal:
        if value in get_args(hint):
            return value
        told = where_to_say(value) if path == "objective.name" and isinstance(value, str) else None
        known = f"{path}={value!r} must be one of {', '.join(map(str, get_args(hint)))}."
        raise ConfigError(f"{told} {known}" if told else known)
    if origin is tuple:
        if isinstance(value, str) and value.lower() not in ("null", "none"):
            # From the command line: a,b or, as in a file, [a, b].
            parts = value.removeprefix("[").removesuffix("]").split(",")
            value = [part.strip() for part in parts if part.strip()]
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{path}={value!r} must be a list; one without anything is [].")
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
