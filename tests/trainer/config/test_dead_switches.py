"""Settings without effect beside another are refused, and a default is never one of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from tests.trainer.short_runs import run_config
from trainer.config import Config, ConfigError, ObjectiveConfig, from_dict, load_config, resolve
from trainer.config.dead_switches import SWITCHES, dead_switches
from trainer.loop import train
from trainer.runs.folder import RunFolder

BASES = get_args(get_type_hints(ObjectiveConfig)["name"])
EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))
SKILL = ({"name": "look", "text": "look into every closed cabinet first"},)
NEEDED: dict[str, dict[str, Any]] = {
    "objective": {},
    "early_stop": {"eval.every": 1},
    "sdar": {"auxiliary.sdar.entries": SKILL},
    "skill_sd": {"auxiliary.skill_sd.entries": SKILL},
    "opd": {"auxiliary.opd.teacher": "some/folder"},
    "gkd": {"auxiliary.gkd.teacher": "some/folder"},
}
"""What a section is nothing without, by its name."""

HINDSIGHT = {"auxiliary.skill_sd.source": "hindsight", "auxiliary.skill_sd.entries": ()}
# The key, its value, the key that decides, a value that leaves it dead, one with which it works.
CASES: list[tuple[str, Any, str, Any, Any]] = [
    ("objective.kl_coef", 0.01, "objective.name", "none", "grpo"),
    ("objective.entropy_coef", 0.01, "objective.name", "none", "ppo"),
    ("objective.overlong_buffer", 4, "objective.name", "none", "grpo"),
    ("rollout.reward", "env", "objective.name", "none", "grpo"),
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
    *((f"objective.{key}", value, "objective.name", "none", "grpo") for key, value in (
        ("clip_low", 0.1), ("clip_high", 0.3), ("dual_clip", 4.0),
        ("aggregation", "seq-mean-token-sum"))),
    ("rollout.success_reward", 2.0, "objective.name", "none", "ppo"),
    ("rollout.format_penalty", 0.5, "objective.name", "none", "grpo"),
    ("objective.kl_kind", "k2", "objective.kl_coef", 0.0, 0.1),
    ("objective.kl_placement", "reward", "objective.kl_coef", 0.0, 0.1),
    *((f"objective.anchors.{key}", value, "objective.name", dead, alive)
      for key, value, dead, alive in (
        ("gamma", 0.5, "grpo", "gigpo"), ("similarity", 0.9, "graphgpo", "hgpo"),
        ("weight", 0.5, "hgpo", "gigpo"), ("depth", 4, "gigpo", "hgpo"),
        ("alpha", 2.0, "gigpo", "hgpo"), ("base_group", True, "gigpo", "hgpo"))),
    *((f"objective.graph.{key}", value, "objective.name", "gigpo", "graphgpo")
      for key, value in (("omega", 0.2), ("step_weight", 0.5), ("episode_weight", 0.5),
                         ("normalize_distance", True), ("similarity", 0.9))),
    *((f"objective.critic.{key}", value, "objective.name", "grpo", "turn_gae")
      for key, value in (("lr", 1e-3), ("clip", 0.2), ("gamma", 0.9), ("lam", 0.9))),
    *((f"env.generated.{key}", value, "env.data", None, "generated")
      for key, value in (("preset", "standard"), ("seed", 3), ("train", 7), ("valid_seen", 7),
                         ("valid_unseen", 7), ("receptacles", 4), ("objects", 4))),
    ("auxiliary.sero.think_text", "So.", "auxiliary.sero.think_mode", "empty", "template"),
    ("auxiliary.sero.depth_start", 2, "auxiliary.sero.depth_iterations", 0, 5),
    ("auxiliary.sero.depth_direction", "backward", "auxiliary.sero.depth_iterations", 0, 5),
    ("auxiliary.sero.z_every", "epoch", "auxiliary.sero.rule", "flat", "depth"),
    ("auxiliary.dagger.depth_start", 2, "auxiliary.dagger.depth_iterations", 0, 5),
    ("auxiliary.dagger.depth_direction", "backward", "auxiliary.dagger.depth_iterations", 0, 5),
    ("auxiliary.serl.act_kind", "rkl", "auxiliary.serl.act_weight", 0.0, 0.1),
    ("auxiliary.serl.clip", 0.1, "auxiliary.serl.alpha", 0.0, 0.5),
    ("auxiliary.rlsd.clip", 0.1, "auxiliary.rlsd.alpha", 0.0, 0.5),
    *((f"auxiliary.serl.{key}", value, "auxiliary.serl.source", "next_observation", alive)
      for key, value, alive in (("rendering", "observation_action", "future_trajectory"),
                                ("context_steps", 3, "success_or_feedback"))),
    *((f"auxiliary.rlsd.{key}", value, "auxiliary.rlsd.context", "plan", "success")
      for key, value in (("rendering", "observation_action"), ("context_steps", 3))),
    ("auxiliary.rlsd.sync_every", 3, "auxiliary.rlsd.teacher", "current", "synced"),
    *((f"auxiliary.{name}.rendering", "observation_action", f"auxiliary.{name}.context", "plan",
       "success") for name in ("opsd", "opsd_legacy")),
    *((f"auxiliary.{name}.context_steps", 3, f"auxiliary.{name}.context", "feedback", "plan")
      for name in ("opsd", "opsd_legacy")),
    *((f"auxiliary.{name}.analyser.{key}", value, f"auxiliary.{name}.analyser.model",
       "some.where:model", "policy") for name in ("seed", "opid")
      for key, value in (("max_new_tokens", 7), ("max_prompt_tokens", 7), ("temperature", 0.5))),
    ("auxiliary.opd.depth.start", 2, "auxiliary.opd.depth.growth", 0, 10),
    ("auxiliary.gkd.source", "success", "auxiliary.gkd.fraction", 1.0, 0.5),
    ("auxiliary.gkd.oracle", "some.where:oracle", "auxiliary.gkd.fraction", 1.0, 0.5),
    ("auxiliary.gkd.oracle_budget_s", 2.0, "auxiliary.gkd.fraction", 1.0, 0.0),
    ("auxiliary.chord.mu_shape", "linear", "auxiliary.chord.mu_decay", 0, 50),
    *((f"eval.{key}", value, "eval.splits", [], ["valid_seen"])
      for key, value in (("every", 2), ("temperature", 0.5), ("batch_size", 3), ("seed", 4))),
]  # fmt: skip


def made(*settings: dict[str, Any]) -> Config:
    return load_config({}, {key: value for part in settings for key, value in part.items()})


def message_of(*settings: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        made(*settings)
    return str(caught.value)


def _text(value: Any) -> Any:
    return "true" if value is True else "null" if value is None else value


def needed(key: str) -> dict[str, Any]:
    """A config in which the section of a key is there, and one more that trains without a base."""
    section = key.split(".")[1] if key.startswith(("auxiliary.", "run.")) else "objective"
    return {"auxiliary.format_only.weight": 0.02, **NEEDED.get(section, {})}


@pytest.mark.parametrize(("key", "value", "decides", "dead", "alive"), CASES)
def test_a_setting_without_effect_names_both_keys(
    key: str, value: Any, decides: str, dead: Any, alive: Any
) -> None:
    message = message_of(needed(key), {key: value, decides: dead})
    assert f"{key}={_text(value)} has no effect with {decides}={_text(dead)}." in message
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


def test_settings_of_the_distillation_term_of_serl() -> None:
    on = {"auxiliary.serl.act_weight": 0.1}
    for key, value, kind in (("act_clamp", 2.0, "k3"), ("act_beta", 0.2, "js")):
        field = f"auxiliary.serl.{key}"
        assert f"{field}={value} has no effect with auxiliary.serl.act_weight=0.0" in message_of(
            {field: value, "auxiliary.serl.act_kind": kind}
        )
        assert f"{field}={value} has no effect with auxiliary.serl.act_kind=pg_rkl" in message_of(
            on, {field: value}
        )
        made(on, {field: value, "auxiliary.serl.act_kind": kind})
    # In an anchor's context trajectories are shown whatever the source.
    made({"auxiliary.serl.placement": "anchor", "auxiliary.serl.context_steps": 3})


def test_caches_of_conversations_are_for_conversations() -> None:
    message = message_of({"sampler.cache_tokens": 99})
    assert "sampler.cache_tokens=99 has no effect with prompt.context=window" in message
    made({"sampler.cache_tokens": 99, "sampler.backend": "hf-cb"})
    made({"sampler.cache_tokens": 99, "prompt.context": "chat", "model.path": "some/folder"})


def test_shops_and_households_are_generated_or_given() -> None:
    shop = {"env.id": "SeroWebShop-v0", "env.webshop.generated.seed": 3}
    made(shop)
    assert "has no effect with env.data=some/shop" in message_of(shop, {"env.data": "some/shop"})
    types = {"env.generated.task_types": ["pick_and_place_simple"]}
    made(types)
    message = message_of(types, {"env.data": "some/games"})
    assert "task_types=['pick_and_place_simple'] has no effect with env.data=some/games" in message


def test_sdpo_reads_the_reward_without_a_base() -> None:
    alone = {"objective.name": "none", "rollout.reward": "env"}
    assert dead_switches(made(alone, {"auxiliary.sdpo": {}})) == []
    assert "rollout.reward=env has no effect" in message_of(alone, {"auxiliary.format_only": {}})


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ({"model": {"path": "a/model", "hidden_size": 256}}, "model.hidden_size=256"),
        ({"model": {"path": "a/model", "seed": 4}}, "model.seed=4"),
        ({"model": {"path": "a/model"}, "warmstart": {"steps": 3}}, "warmstart.steps=3"),
        ({"eval": {"seed": 5}}, "eval.seed=5"),
    ],
)
def test_what_is_written_beside_what_makes_it_dead(written: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} has no effect with"):
        load_config(written)


def test_settings_of_a_fresh_model_give_way_to_a_model() -> None:
    tiny = {"model": {"hidden_size": 32, "heads": 2}, "warmstart": {"steps": 3}}
    given = {"model.path": "a/model"}
    config = load_config(tiny, given)
    assert load_config(resolve(config)) == config, "a record lists every field"
    assert load_config(tiny).replace(**given) == config
    with pytest.raises(ConfigError, match=r"model\.layers=1 has no effect with model\.path=a/"):
        load_config(tiny, given | {"model.layers": "1"})
    beside = {"model": {"path": "a/model"}, "warmstart": {"steps": 3, "demonstrations": 0}}
    load_config({**beside, "warmstart": {"demonstrations": 0}})
    load_config(beside, {"model.path": "null"})
    load_config(beside, {"warmstart.given_model": "true", "warmstart.demonstrations": 4})
    load_config({"eval": {"seed": 5}}, {"eval.temperature": 0.4})


def test_another_objective_leaves_the_sections_of_the_former() -> None:
    gigpo = made({"objective.name": "gigpo", "objective.anchors.gamma": 0.5})
    assert gigpo.replace(**{"objective.name": "hgpo"}).objective.anchors.gamma == 0.5
    ppo = gigpo.replace(**{"objective.name": "ppo", "objective.critic.lr": 1e-3})
    assert (ppo.objective.anchors.gamma, ppo.objective.critic.lr) == (0.95, 1e-3)


def test_a_run_of_before_a_rule_is_read_and_resumed(tmp_path: Path) -> None:
    """Its settings without effect are left out, by us and by who resumes it."""
    config = run_config(tmp_path, run__iterations=1)
    train(config, tmp_path / "run", until=1)
    file = tmp_path / "run/run.json"
    data = json.loads(file.read_text())
    data["config"]["objective"]["critic"] |= {"lr": 1e-3}
    data["config"]["sampler"]["cache_tokens"] = 99
    file.write_text(json.dumps(data))
    found, info = RunFolder(tmp_path / "run").read_info()
    assert found == config
    assert info["config"]["sampler"]["cache_tokens"] == 99
    with pytest.raises(ConfigError, match="cache_tokens=99 has no effect"):
        from_dict(data["config"])
    more = config.replace(**{"run.iterations": 2})
    assert train(more, tmp_path / "run", resume=True).iterations == 2


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
        "env.generated.task_types",
        *(f"env.webshop.generated.{name}" for name in ("preset", "seed", "products")),
        "objective.ratio",
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
        ("sampler.cache_tokens", "prompt.context"),
        *((f"auxiliary.serl.{key}", f"auxiliary.serl.{by}") for key, by in (
            ("act_clamp", "act_weight"), ("act_beta", "act_weight"), ("act_clamp", "act_kind"),
            ("act_beta", "act_kind"))),
        *((f"auxiliary.skill_sd.analyser.{key}", "auxiliary.skill_sd.analyser.model")
          for key in ("max_new_tokens", "max_prompt_tokens", "temperature")),
        ("auxiliary.opd.beta", "auxiliary.opd.form"),
        ("auxiliary.opd.beta", "auxiliary.opd.divergence"),
        ("auxiliary.sero.delta", "auxiliary.sero.decay"),
        *((f"auxiliary.skill_sd.{key}", "auxiliary.skill_sd.source")
          for key in ("retrieval", "k", "exploration", "allow_missing", "skill_mode", "analyser")),
    }  # fmt: skip
