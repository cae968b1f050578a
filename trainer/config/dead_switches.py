"""Settings that another setting leaves without effect, in one table.

Who sets such a key expects something from it and would get a run without it, so a config with one
is refused. A value that equals the field's default counts as not given: a config that was resolved
holds every field. Keys of sections that are switched off are not there to be given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.config import Config

__all__ = ["SWITCHES", "Switch", "dead_switches"]


@dataclasses.dataclass(frozen=True, slots=True)
class Switch:
    """Fields that do something only where another field has certain values.

    Attributes:
        section: dotted name of the section that holds the fields.
        fields: of that section.
        decides: dotted key of the field that decides whether they do something.
        works: with which of its values they do.
        use: those values in words, for the message.
    """

    section: str
    fields: tuple[str, ...]
    decides: str
    works: Callable[[Any], bool]
    use: str


def _with(section: str, fields: str, decides: str, *values: Any) -> Switch:
    """Fields, separated by blanks, that do something where `decides` has one of `values`."""
    names, use = tuple(fields.split()), " or ".join(map(str, values))
    # A dot: the key of another section.
    key = decides if "." in decides else f"{section}.{decides}"
    return Switch(section, names, key, values.__contains__, use)


_STD = ("grpo", "dr_grpo", "dapo", "gspo", "gigpo", "hgpo", "graphgpo")
_FLAVOURED = (*_STD, "rloo", "reinforce_pp_baseline")
_CRITIC = ("ppo", "ppo_trajectory", "turn_gae")


def _rewarded(name: str) -> bool:
    return name != "none"


def _given(value: Any) -> bool:
    return value is not None


SWITCHES: tuple[Switch, ...] = (
    Switch(
        "objective", ("kl_coef", "entropy_coef", "overlong_buffer"), "objective.name",
        _rewarded, "a base objective",
    ),
    Switch(
        "objective", ("overlong_factor",), "objective.overlong_buffer", _given,
        "a number of tokens",
    ),
    Switch(
        "run.early_stop", ("metric", "min_delta"), "run.early_stop.patience", bool,
        "a number of evaluations",
    ),
    _with("prompt", "layout", "template", "field"),
    _with("prompt", "layout history_length", "context", "window"),
    _with("objective", "use_std", "name", *_STD),
    _with("objective", "flavor", "name", *_FLAVOURED),
    _with("objective.critic", "warmup_iterations", "objective.name", *_CRITIC),
    _with("optim", "beta1 beta2 eps", "optimizer", "adamw", "adamw_8bit"),
    Switch(
        "lora", ("alpha", "targets", "seed"), "lora.rank", lambda rank: rank > 0, "1 or more",
    ),
    _with("auxiliary.sero", "delta decay", "rule", "depth"),
    _with("auxiliary.sero", "delta", "decay", "exponential"),
    _with("auxiliary.serl", "similarity anchor_min_size anchor_first_only", "placement", "anchor"),
    _with("auxiliary.rlsd", "oracle_budget_s", "context", "plan"),
    _with("auxiliary.opid", "step_weight", "skill_mode", "episode_step"),
    _with("auxiliary.sdar", "k", "retrieval", "keyword", "random", "ucb"),
    _with("auxiliary.sdar", "exploration", "retrieval", "ucb"),
    _with("auxiliary.skill_sd", "retrieval k exploration", "source", "library"),
    _with("auxiliary.skill_sd", "skill_mode analyser", "source", "hindsight"),
    _with("auxiliary.skill_sd", "k", "retrieval", "keyword", "random", "ucb"),
    _with("auxiliary.skill_sd", "exploration", "retrieval", "ucb"),
    _with("auxiliary.opd", "combine", "form", "advantage"),
    _with("auxiliary.opd", "divergence beta top_k", "form", "exact"),
    _with("auxiliary.opd", "beta", "divergence", "gjs"),
    _with("auxiliary.gkd", "oracle oracle_budget_s", "source", "oracle"),
    _with("auxiliary.opsd", "sync_every", "teacher", "synced"),
    _with("auxiliary.opsd", "beta", "divergence", "gjs"),
    _with("auxiliary.opsd", "oracle_budget_s", "context", "plan"),
    _with("auxiliary.opsd_legacy", "oracle_budget_s", "context", "plan"),
    _with("auxiliary.sdpo", "rate", "teacher", "ema"),
)  # fmt: skip


def dead_switches(config: Config) -> list[str]:
    """One sentence or two for each field that was given and does nothing; empty: there is none."""
    found = []
    for switch in SWITCHES:
        section = _at(config, switch.section)
        if section is None:
            continue
        decided = _at(config, switch.decides)
        if switch.works(decided):
            continue
        for field in switch.fields:
            value = getattr(section, field)
            if value == _default(section, field):
                continue
            found.append(
                f"{switch.section}.{field}={_text(value)} has no effect with "
                f"{switch.decides}={_text(decided)}. Leave it out, or set "
                f"{switch.decides} to {switch.use}."
            )
    return found


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
    return "{...}" if dataclasses.is_dataclass(value) else str(value)
