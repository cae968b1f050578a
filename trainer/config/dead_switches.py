"""Settings that another setting leaves without effect, in one table.

Who sets such a key expects something from it and would get a run without it, so a config with one
is refused. A value that equals the field's default counts as not given: a config that was resolved
holds every field. Keys of sections that are switched off are not there to be given.

What a finished run was made with may be of before a rule: `recorded` reads it without them, and
`without_dead_switches` gives the same run in today's words.

Every field of a config is in one of these tables, or does something whatever else is set, or its
own section refuses it (tests/trainer/config/test_every_field.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from trainer.config.objective import ANCHORS, CRITIC, GRAPH

if TYPE_CHECKING:
    from trainer.config import Config

__all__ = [
    "SWITCHES",
    "Switch",
    "dead_switches",
    "reading",
    "recorded",
    "unread_as_written",
    "without_dead_switches",
]


@dataclasses.dataclass(frozen=True, slots=True)
class Switch:
    """Fields that do something only where another field has certain values.

    Attributes:
        section: dotted name of the section that holds the fields.
        fields: of that section.
        decides: dotted key of the field that decides whether they do something.
        works: with which of its values they do.
        use: those values in words, for the message.
        only: (dotted key, value): where that field has another value the rule says nothing.
    """

    section: str
    fields: tuple[str, ...]
    decides: str
    works: Callable[[Any], bool]
    use: str
    only: tuple[str, Any] | None = None


def _with(
    section: str, fields: str, decides: str, *values: Any, only: tuple[str, Any] | None = None
) -> Switch:
    """Fields, separated by blanks, that do something where `decides` has one of `values`."""
    names, use = tuple(fields.split()), " or ".join(map(str, values))
    # A dot: the key of another section.
    key = decides if "." in decides else f"{section}.{decides}"
    return Switch(section, names, key, values.__contains__, use, only)


def _above(section: str, fields: str, decides: str, limit: float = 0) -> Switch:
    """Fields that do something where the number `decides` is more than `limit`."""
    key = decides if "." in decides else f"{section}.{decides}"
    use = f"more than {limit}"
    return Switch(section, tuple(fields.split()), key, lambda value: value > limit, use)


_STD = ("grpo", "dr_grpo", "dapo", "gspo", "gigpo", "hgpo", "graphgpo")
_FLAVOURED = (*_STD, "rloo", "reinforce_pp_baseline")


def _rewarded(name: str) -> bool:
    return name != "none"


def _given(value: Any) -> bool:
    return value is not None


_TOLD = ("success_or_feedback", "success+feedback", "success+next_observation", "future_trajectory",
         "success+future", "success+future+feedback", "success+future+next_observation",
         "judge_current", "judge_current_success")  # fmt: skip
"""Sources of SERL that show a teacher steps of a trajectory."""


SWITCHES: tuple[Switch, ...] = (
    # ------------------------------------------------------------------ what a run is made of
    Switch(
        "run.early_stop", ("metric", "min_delta"), "run.early_stop.patience", bool,
        "a number of evaluations",
    ),
    _with(
        "env.generated",
        "preset seed train valid_seen valid_unseen task_types receptacles objects",
        "env.data", "generated",
    ),
    _with("env.webshop.generated", "preset seed products", "env.data", "generated"),
    _with("prompt", "layout", "template", "field"),
    _with("prompt", "layout history_length", "context", "window"),
    _with("sampler", "cache_tokens", "prompt.context", "chat", only=("sampler.backend", "hf")),
    _with("optim", "beta1 beta2 eps", "optimizer", "adamw", "adamw_8bit"),
    _above("lora", "alpha targets seed", "rank"),
    Switch(
        "eval", ("every", "temperature", "batch_size", "seed"), "eval.splits", bool,
        "the splits that are evaluated",
    ),
    # ------------------------------------------------------------------ the base objective
    Switch(
        "objective",
        ("kl_coef", "entropy_coef", "overlong_buffer", "ratio", "clip_low", "clip_high",
         "dual_clip", "aggregation"),
        "objective.name", _rewarded, "a base objective",
    ),
    Switch(
        "rollout", ("success_reward", "format_penalty"), "objective.name", _rewarded,
        "a base objective",
    ),
    Switch(
        "rollout", ("reward",), "objective.name", _rewarded, "a base objective",
        only=("auxiliary.sdpo", None),  # which compares trajectories by it
    ),
    Switch(
        "objective", ("overlong_factor",), "objective.overlong_buffer", _given,
        "a number of tokens",
    ),
    _above("objective", "kl_kind kl_placement", "kl_coef"),
    _with("objective", "use_std", "name", *_STD),
    _with("objective", "flavor", "name", *_FLAVOURED),
    _with("objective.anchors", "gamma similarity", "objective.name", *sorted(ANCHORS)),
    _with("objective.anchors", "weight", "objective.name", "gigpo"),
    _with("objective.anchors", "depth alpha base_group", "objective.name", "hgpo"),
    _with(
        "objective.graph",
        "omega step_weight episode_weight normalize_distance similarity",
        "objective.name", *sorted(GRAPH),
    ),
    _with(
        "objective.critic", "lr clip gamma lam warmup_iterations", "objective.name",
        *sorted(CRITIC),
    ),
    # ------------------------------------------------------------------ auxiliary objectives
    _with("auxiliary.sero", "delta decay", "rule", "depth"),
    _with("auxiliary.sero", "delta", "decay", "exponential"),
    _with("auxiliary.sero", "think_text", "think_mode", "template"),
    _above("auxiliary.sero", "depth_start depth_direction", "depth_iterations"),
    _with("auxiliary.sero", "z_every", "rule", "sero", "depth"),
    _with("auxiliary.serl", "similarity anchor_min_size anchor_first_only", "placement", "anchor"),
    _with(
        "auxiliary.serl", "rendering context_steps", "source", *_TOLD,
        only=("auxiliary.serl.placement", "step"),
    ),
    _above("auxiliary.serl", "act_kind act_clamp act_beta", "act_weight"),
    _with("auxiliary.serl", "act_clamp", "act_kind", "k3"),
    _with("auxiliary.serl", "act_beta", "act_kind", "js"),
    _above("auxiliary.serl", "clip", "alpha"),
    _above("auxiliary.rlsd", "clip", "alpha"),
    _with("auxiliary.rlsd", "oracle_budget_s", "context", "plan"),
    _with("auxiliary.rlsd", "rendering context_steps", "context", "success"),
    _with("auxiliary.rlsd", "sync_every", "teacher", "synced"),
    *(
        _with(
            f"auxiliary.{name}.analyser", "max_new_tokens max_prompt_tokens temperature", "model",
            "policy",
        )
        for name in ("seed", "skill_sd", "opid")
    ),
    _with("auxiliary.opid", "step_weight", "skill_mode", "episode_step"),
    _with("auxiliary.sdar", "k", "retrieval", "keyword", "random", "ucb"),
    _with("auxiliary.sdar", "exploration", "retrieval", "ucb"),
    _with("auxiliary.skill_sd", "retrieval k exploration allow_missing", "source", "library"),
    _with("auxiliary.skill_sd", "skill_mode analyser", "source", "hindsight"),
    _with("auxiliary.skill_sd", "k", "retrieval", "keyword", "random", "ucb"),
    _with("auxiliary.skill_sd", "exploration", "retrieval", "ucb"),
    _with("auxiliary.opd", "combine", "form", "advantage"),
    _with("auxiliary.opd", "divergence beta top_k", "form", "exact"),
    _with("auxiliary.opd", "beta", "divergence", "gjs"),
    _above("auxiliary.opd.depth", "start", "growth"),
    Switch(
        "auxiliary.gkd", ("source", "oracle", "oracle_budget_s"), "auxiliary.gkd.fraction",
        lambda fraction: fraction < 1, "less than 1",
    ),
    _with("auxiliary.gkd", "oracle oracle_budget_s", "source", "oracle"),
    _with("auxiliary.opsd", "sync_every", "teacher", "synced"),
    _with("auxiliary.opsd", "beta", "divergence", "gjs"),
    *(
        switch
        for name in ("opsd", "opsd_legacy")
        for switch in (
            _with(f"auxiliary.{name}", "oracle_budget_s", "context", "plan"),
            _with(f"auxiliary.{name}", "rendering", "context", "success"),
            _with(f"auxiliary.{name}", "context_steps", "context", "success", "plan"),
        )
    ),
    _with("auxiliary.sdpo", "rate", "teacher", "ema"),
    _above("auxiliary.dagger", "depth_start depth_direction", "depth_iterations"),
    _above("auxiliary.chord", "mu_shape", "mu_decay"),
)  # fmt: skip


_READING: ContextVar[bool] = ContextVar("reading a record", default=False)


@contextmanager
def recorded() -> Iterator[None]:
    """Inside the block a config may have settings without effect: it was accepted once."""
    token = _READING.set(True)
    try:
        yield
    finally:
        _READING.reset(token)


def reading() -> bool:
    """Whether the config at hand was accepted once, see `recorded`."""
    return _READING.get()


def without_dead_switches(config: Config) -> Config:
    """The config with such settings at their defaults, which changes nothing that it does."""
    while found := list(_dead(config)):
        for switch, field in found:
            default = _default(_at(config, switch.section), field)
            config = _put(config, f"{switch.section}.{field}".split("."), default)
    return config


def dead_switches(config: Config) -> list[str]:
    """One sentence or two for each field that was given and does nothing; empty: there is none."""
    if reading():
        return []
    return [
        f"{switch.section}.{field}={_text(getattr(_at(config, switch.section), field))} has no "
        f"effect with {switch.decides}={_text(_at(config, switch.decides))}. Leave it out, or set "
        f"{switch.decides} to {switch.use}."
        for switch, field in _dead(config)
    ]


def unread_as_written(
    config: Config, source: Mapping[str, Any], overrides: Mapping[str, Any]
) -> list[str]:
    """As `dead_switches`, for settings that only count where they were written by hand.

    What says how a fresh model is made gives way where somebody puts a model in its place
    (`--model.path`), a greedy evaluation may be asked for with another temperature later, and a
    record of a run lists all of it. So only what was written beside the setting that makes it
    dead counts, and no section that lists all its fields.

    Args:
        config: the outcome.
        source: the file's sections.
        overrides: by dotted name, as they lie on it.
    """
    if not source:
        return []
    beside = isinstance(source.get("model"), Mapping) and source["model"].get("path") is not None
    found = []
    if config.model.path is not None:
        what = f"model.path={config.model.path}: it is about a fresh model"
        for field in _written("model", config.model, source if beside else {}, overrides):
            if field != "path":
                found.append(_unread(f"model.{field}", config, what, "model.path to null"))
        if not config.warmstart.given_model:
            for field in _written(
                "warmstart", config.warmstart, source if beside else {}, overrides
            ):
                if field != "demonstrations" or config.warmstart.demonstrations:
                    way_out = "model.path to null or warmstart.given_model to true"
                    found.append(_unread(f"warmstart.{field}", config, what, way_out))
    if config.eval.temperature == 0 and "seed" in _written("eval", config.eval, source, overrides):
        what = "eval.temperature=0: greedy replies are not drawn"
        found.append(_unread("eval.seed", config, what, "eval.temperature to more than 0"))
    return found


def _written(
    name: str, section: Any, source: Mapping[str, Any], overrides: Mapping[str, Any]
) -> list[str]:
    """Fields of a section that somebody wrote, with another value than the default."""
    fields = [field.name for field in dataclasses.fields(section)]
    in_file = source.get(name)
    given = list(in_file) if isinstance(in_file, Mapping) and len(in_file) < len(fields) else []
    given += [key.partition(".")[2] for key in overrides if key.startswith(f"{name}.")]
    return [
        field
        for field in dict.fromkeys(given)
        if field in fields and getattr(section, field) != _default(section, field)
    ]


def _unread(name: str, config: Config, what: str, way_out: str) -> str:
    return (
        f"{name}={_text(_at(config, name))} has no effect with {what}. Leave it out, or set "
        f"{way_out}."
    )


def _dead(config: Config) -> Iterator[tuple[Switch, str]]:
    for switch in SWITCHES:
        section = _at(config, switch.section)
        if section is None or switch.works(_at(config, switch.decides)):
            continue
        if switch.only is not None and _at(config, switch.only[0]) != switch.only[1]:
            continue
        for field in switch.fields:
            if getattr(section, field) != _default(section, field):
                yield switch, field


def _put(section: Any, path: list[str], value: Any) -> Any:
    name, *rest = path
    inner = _put(getattr(section, name), rest, value) if rest else value
    return dataclasses.replace(section, **{name: inner})


def _at(config: Any, dotted: str) -> Any:
    for name in dotted.split("."):
        config = None if config is None else getattr(config, name)
    return config


def _default(section: Any, name: str) -> Any:
    (field,) = (f for f in dataclasses.fields(section) if f.name == name)
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _text(value: Any) -> str:
    """As a config file has it; of a section only that it is one."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return str(list(value))
    return "{...}" if dataclasses.is_dataclass(value) else str(value)
