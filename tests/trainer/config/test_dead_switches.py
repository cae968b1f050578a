"""Settings without effect beside another are refused, and a default is never one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from trainer.config import Config, ConfigError, ObjectiveConfig, from_dict, load_config, resolve
from trainer.config.dead_switches import SWITCHES, dead_switches

BASES = get_args(get_type_hints(ObjectiveConfig)["name"])
EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))
SKILL = ({"name": "look", "text": "look into every closed cabinet first"},)
NEEDED: dict[str, dict[str, Any]] = {
    "objective": {},
    "early_stop": {"eval.every": 1},
    "sdar": {"auxiliary.sdar.entries": SKILL},
    "skill_sd": {"auxiliary.skill_sd.entries": SKILL},
    "opd": {"auxiliary.opd.teacher": "some/folder"},
}
"""What a section is nothing without, by its name."""

HINDSIGHT = {"auxiliary.skill_sd.source": "hindsight", "auxiliary.skill_sd.entries": ()}
# The key, its value, the key that decides, a value that leaves it dead, one with which it works.
CASES: list[tuple[str, Any, str, Any, Any]] = [
    ("objective.kl_coef", 0.01, "objective.name", "none", "grpo"),
    ("objective.entropy_coef", 0.01, "objective.name", "none", "ppo"),
    ("objective.overlong_buffer", 4, "objective.name", "none", "grpo"),
    ("objective.overlong_factor", 2.0, "objective.overlong_buffer", None, 4),
    ("run.early_stop.metric", "valid_seen/score", "run.early_stop.patience", 0, 2),
    ("run.early_stop.min_delta", 0.1, "run.early_stop.patience", 0, 2),
    ("prompt.layout", "instruction_first", "prompt.template", "compact", "field"),
    ("objective.critic.warmup_iterations", 2, "objective.name", "grpo", "ppo"),
    ("objective.critic.warmup_iterations", 2, "objective.name", "none", "ppo_trajectory"),
    ("objective.critic.warmup_iterations", 2, "objective.name", "rloo", "turn_gae"),
    ("auxiliary.sero.delta", 0.5, "auxiliary.sero.rule", "sero", "depth"),
    ("auxiliary.sero.delta", "matched", "auxiliary.sero.rule", "flat", "depth"),
    ("auxiliary.sero.decay", "linear", "auxiliary.sero.rule", "root", "depth"),
    ("auxiliary.serl.similarity", 0.9, "auxiliary.serl.placement", "step", "anchor"),
    ("auxiliary.serl.anchor_min_size", 2, "auxiliary.serl.placement", "step", "anchor"),
    ("auxiliary.serl.anchor_first_only", True, "auxiliary.serl.placement", "step", "anchor"),
    ("auxiliary.rlsd.oracle_budget_s", 2.0, "auxiliary.rlsd.context", "success", "plan"),
    ("auxiliary.opid.step_weight", 0.5, "auxiliary.opid.skill_mode", "episode_only",
     "episode_step"),
    ("auxiliary.sdar.k", 2, "auxiliary.sdar.retrieval", "full", "keyword"),
    ("auxiliary.sdar.k", 2, "auxiliary.sdar.retrieval", "full", "random"),
    ("auxiliary.sdar.exploration", 2.0, "auxiliary.sdar.retrieval", "keyword", "ucb"),
    ("auxiliary.skill_sd.k", 2, "auxiliary.skill_sd.retrieval", "full", "ucb"),
    ("auxiliary.skill_sd.exploration", 2.0, "auxiliary.skill_sd.retrieval", "random", "ucb"),
    ("auxiliary.opd.combine", "add", "auxiliary.opd.form", "loss", "advantage"),
    ("auxiliary.opd.combine", "add", "auxiliary.opd.form", "exact", "advantage"),
    ("auxiliary.opd.divergence", "fkl", "auxiliary.opd.form", "loss", "exact"),
    ("auxiliary.opd.top_k", 5, "auxiliary.opd.form", "advantage", "exact"),
    ("auxiliary.gkd.oracle", "some.where:oracle", "auxiliary.gkd.source", "teacher", "oracle"),
    ("auxiliary.gkd.oracle_budget_s", 2.0, "auxiliary.gkd.source", "success", "oracle"),
    ("auxiliary.opsd.sync_every", 2, "auxiliary.opsd.teacher", "initial", "synced"),
    ("auxiliary.opsd.beta", 0.2, "auxiliary.opsd.divergence", "rkl", "gjs"),
    ("auxiliary.opsd.oracle_budget_s", 2.0, "auxiliary.opsd.context", "feedback", "plan"),
    ("auxiliary.opsd_legacy.oracle_budget_s", 2.0, "auxiliary.opsd_legacy.context", "success",
     "plan"),
    ("auxiliary.sdpo.rate", 0.2, "auxiliary.sdpo.teacher", "initial", "ema"),
    ("auxiliary.sdpo.rate", 0.2, "auxiliary.sdpo.teacher", "current", "ema"),
]  # fmt: skip


def made(*settings: dict[str, Any]) -> Config:
    return load_config({}, {key: value for part in settings for key, value in part.items()})


def message_of(*settings: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        made(*settings)
    return str(caught.value)


def needed(key: str) -> dict[str, Any]:
    """A config in which the section of a key is there, and one more that trains without a base."""
    section = key.split(".")[1] if key.startswith(("auxiliary.", "run.")) else "objective"
    return {"auxiliary.format_only.weight": 0.02, **NEEDED.get(section, {})}


@pytest.mark.parametrize(("key", "value", "decides", "dead", "alive"), CASES)
def test_a_setting_without_effect_names_both_keys(
    key: str, value: Any, decides: str, dead: Any, alive: Any
) -> None:
    message = message_of(needed(key), {key: value, decides: dead})
    text = {True: "true", None: "null"}.get
    assert f"{key}={text(value, value)} has no effect with {decides}={text(dead, dead)}." in message
    assert "Leave it out, or set" in message
    config = made(needed(key), {key: value, decides: alive})
    assert dead_switches(config) == []
    assert from_dict(resolve(config)) == config


@pytest.mark.parametrize(("key", "value", "decides", "dead", "alive"), CASES)
def test_a_default_counts_as_not_given(
    key: str, value: Any, decides: str, dead: Any, alive: Any
) -> None:
    config = made(needed(key), {decides: dead})
    found: Any = resolve(config)
    for part in key.split("."):
        found = found[part]
    assert found != value
    again = made(needed(key), {decides: dead, key: found})
    assert again == config == from_dict(resolve(config))


def test_a_setting_of_one_of_three() -> None:
    opd = {"auxiliary.opd.teacher": "some/folder", "auxiliary.opd.beta": 0.2}
    assert "auxiliary.opd.form=loss" in message_of(opd, {"auxiliary.opd.divergence": "gjs"})
    assert "auxiliary.opd.divergence=rkl" in message_of(opd, {"auxiliary.opd.form": "exact"})
    made(opd, {"auxiliary.opd.form": "exact", "auxiliary.opd.divergence": "gjs"})
    sero = {"auxiliary.sero.rule": "depth", "auxiliary.sero.delta": 0.5}
    message = message_of(sero, {"auxiliary.sero.decay": "harmonic"})
    assert "auxiliary.sero.delta=0.5 has no effect with auxiliary.sero.decay=harmonic" in message


def test_skills_of_hindsight_and_of_a_library() -> None:
    for key, value in {"retrieval": "full", "k": 2, "exploration": 2.0}.items():
        message = message_of(HINDSIGHT, {f"auxiliary.skill_sd.{key}": value})
        assert f"auxiliary.skill_sd.{key}={value} has no effect with" in message
        assert "auxiliary.skill_sd.source=hindsight" in message
    mode = {"auxiliary.skill_sd.skill_mode": "episode_step"}
    analyser = {"auxiliary.skill_sd.analyser.attempts": 3}
    library = "auxiliary.skill_sd.source=library"
    assert library in message_of(NEEDED["skill_sd"], mode)
    assert f"analyser={{...}} has no effect with {library}" in message_of(
        NEEDED["skill_sd"], analyser
    )
    assert dead_switches(made(HINDSIGHT, mode, analyser)) == []
    assert dead_switches(made(NEEDED["skill_sd"])) == []


@pytest.mark.parametrize("base", BASES)
def test_what_divides_and_what_has_flavours(base: str) -> None:
    name = {"objective.name": base, "auxiliary.format_only.weight": 0.02}
    groups = {"grpo", "dr_grpo", "dapo", "gspo", "gigpo", "hgpo", "graphgpo"}
    for key, value, does in (
        ("use_std", False, groups),
        ("flavor", "code", groups | {"rloo", "reinforce_pp_baseline"}),
    ):
        setting = {**name, f"objective.{key}": value}
        if base in does:
            made(setting)
        else:
            shown = str(value).lower()
            assert f"objective.{key}={shown} has no effect with objective.name={base}." in (
                message_of(setting)
            )


@pytest.mark.parametrize("base", BASES)
def test_every_base_is_written_back_and_replaced(base: str) -> None:
    config = made({"objective.name": base, "auxiliary.format_only.weight": 0.02})
    assert from_dict(resolve(config)) == config
    for other in BASES:
        changed = config.replace(**{"objective.name": other})
        assert from_dict(resolve(changed)) == changed


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_have_none(path: Path) -> None:
    assert dead_switches(load_config(path)) == []


def test_all_are_named_and_sections_that_are_off_have_none() -> None:
    message = message_of(
        {"auxiliary.serl.similarity": 0.9, "auxiliary.serl.anchor_min_size": 2},
        {"auxiliary.sdpo.teacher": "current", "auxiliary.sdpo.rate": 0.2},
    )
    for key in ("serl.similarity=0.9", "serl.anchor_min_size=2", "sdpo.rate=0.2"):
        assert f"auxiliary.{key} has no effect" in message
    assert dead_switches(Config()) == []


def test_every_key_of_the_table_has_a_case() -> None:
    cases = {(key, decides) for key, _, decides, _, _ in CASES}
    elsewhere = {
        "objective.use_std", "objective.flavor",
        *(f"optim.{name}" for name in ("beta1", "beta2", "eps")),
        *(f"lora.{name}" for name in ("alpha", "targets", "seed")),
    }  # fmt: skip
    untested = {
        (f"{switch.section}.{field}", switch.decides)
        for switch in SWITCHES
        for field in switch.fields
        if f"{switch.section}.{field}" not in elsewhere
    } - cases
    assert untested == {
        # tests/trainer/chat/test_chat_format.py
        *((f"prompt.{key}", "prompt.context") for key in ("layout", "history_length")),
        ("auxiliary.opd.beta", "auxiliary.opd.form"),
        ("auxiliary.opd.beta", "auxiliary.opd.divergence"),
        ("auxiliary.sero.delta", "auxiliary.sero.decay"),
        *((f"auxiliary.skill_sd.{key}", "auxiliary.skill_sd.source")
          for key in ("retrieval", "k", "exploration", "skill_mode", "analyser")),
    }  # fmt: skip
