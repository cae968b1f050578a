"""Our config under verl's names, what is refused, and the command line."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from agent_envs.errors import IncompatibleExtra, MissingExtra
from tests.trainer import small
from trainer.config import Config, ConfigError, from_dict, resolve
from trainer.engines.verl import main
from trainer.engines.verl.settings import FIXED, check_config, check_settings, verl_settings
from trainer.engines.verl.versions import TESTED, check_version, require_verl

has_verl = importlib.util.find_spec("verl") is not None
needs_verl = pytest.mark.skipif(not has_verl, reason="the package verl is not installed")
ACTOR = "actor_rollout_ref.actor"


def _config(**overrides: Any) -> Config:
    named: dict[str, Any] = {
        "model__path": "/models/policy",
        "auxiliary__sero": {},
        "optim__old_logprobs": "recompute",
    }
    return small.small_config(**named | overrides)


def test_settings_follow_the_config() -> None:
    config = _config(
        objective__name="gigpo", objective__clip_low=0.1, objective__clip_high=0.3,
        objective__kl_coef=0.01, objective__kl_kind="k2", objective__dual_clip="null",
        optim__epochs=2, optim__steps=3, optim__warmup_steps=7, optim__lr=1e-5,
        optim__micro_batch_tokens=9000, rollout__format_penalty=0.2,
        objective__anchors__gamma=0.9, run__dtype="bfloat16",
    )  # fmt: skip
    found = verl_settings(config)
    assert found["algorithm.adv_estimator"] == "sero_gigpo"
    assert found["algorithm.sero"]["gamma"] == 0.9
    assert found["algorithm.sero"]["penalty"] == 0.2
    assert found[f"{ACTOR}.policy_loss.loss_mode"] == "sero"
    assert (found[f"{ACTOR}.clip_ratio_low"], found[f"{ACTOR}.clip_ratio_high"]) == (0.1, 0.3)
    assert found[f"{ACTOR}.clip_ratio_c"] >= 1e20
    assert found[f"{ACTOR}.use_kl_loss"] is True
    assert found[f"{ACTOR}.kl_loss_type"] == "mse"
    assert found[f"{ACTOR}.ppo_epochs"] == 2
    assert found[f"{ACTOR}.optim.lr"] == 1e-5
    assert found[f"{ACTOR}.optim.lr_warmup_steps"] == 2  # 7 optimiser steps, 6 an iteration
    assert found[f"{ACTOR}.ppo_max_token_len_per_gpu"] == 9000
    assert found[f"{ACTOR}.fsdp_config.mixed_precision"]["param_dtype"] == "bf16"
    assert found["actor_rollout_ref.model.path"] == "/models/policy"
    assert set(FIXED) <= set(found)
    assert json.loads(json.dumps(found)) == found


def test_the_options_of_the_estimators_are_those_of_the_config() -> None:
    """`algorithm.sero` says everything that the estimators read."""
    from tests.trainer.engines.test_verl import _in_layout
    from tests.trainer.short_runs import mixed
    from trainer.engines.verl.estimators import ESTIMATORS
    from trainer.learning.base_advantages import base_advantages
    from trainer.rollouts.data import segments_from_turns

    config = _config(
        objective__name="hgpo", objective__flavor="code", objective__use_std=False,
        objective__anchors__depth=1, objective__anchors__alpha=0.5,
        objective__anchors__gamma=0.8, rollout__format_penalty=0.3,
    )  # fmt: skip
    turns = mixed(config)
    ours = base_advantages(turns, segments_from_turns(turns), config.objective, config.rollout)
    found = verl_settings(config)
    rewards, mask, index = _in_layout(turns)
    adv, _ = ESTIMATORS[found["algorithm.adv_estimator"]](
        rewards, mask, index=index, config={"sero": found["algorithm.sero"]}
    )
    for row, own, kept in zip(adv, ours.tokens, mask, strict=True):
        assert row[kept > 0].tolist() == pytest.approx(own.tolist(), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model__path", None),
        ("objective__name", "graphgpo"),
        ("objective__aggregation", "seq-mean-token-mean"),
        ("objective__dynamic_rounds", 2),
        ("objective__mask_truncated", True),
        ("objective__drop_constant_groups", True),
        ("objective__overlong_buffer", 4),
        ("objective__anchors__similarity", 0.9),
        ("auxiliary__sero__z_every", "epoch"),
        ("auxiliary__sero__token_weights", "chord"),
        ("rollout__temperature", 0.7),
        ("optim__old_logprobs", "sampler"),
        ("optim__optimizer", "adafactor"),
        ("optim__decay_steps", 100),
        ("lora__rank", 4),
        ("parallel__mode", "ddp"),
        ("run__early_stop__patience", 2),
        ("log__to", ["tensorboard"]),
        ("warmstart__given_model", True),
        ("sampler__backend", "hf-cb"),
        ("run__save_turns", True),
    ],
)
def test_what_verl_cannot_do_is_refused_by_name(key: str, value: Any) -> None:
    named: dict[str, Any] = {"objective__name": "gigpo", key: value}
    if key == "run__early_stop__patience":
        named["eval__every"] = 1
    try:
        config = _config(**named)
    except ConfigError as error:
        pytest.fail(f"the setting itself is refused: {error}")
    with pytest.raises(ConfigError, match="does not run through verl") as error:
        check_config(config)
    assert str(error.value).startswith(key.replace("__", "."))


def test_other_auxiliary_objectives_are_refused() -> None:
    config = _config(auxiliary__sero=None, auxiliary__format_only={})
    with pytest.raises(ConfigError, match=r"only auxiliary\.sero"):
        check_config(config)


def test_a_temperature_is_free_without_branches() -> None:
    check_config(_config(auxiliary__sero=None, rollout__temperature=0.7))


def test_fixed_keys_may_not_differ() -> None:
    config = _config()
    found = {key: verl_settings(config)[key] for key in FIXED}
    check_settings(found, config)
    with pytest.raises(ConfigError, match=r"rollout\.n=8 .* expected 1"):
        check_settings({**found, "actor_rollout_ref.rollout.n": 8}, config)


@pytest.mark.parametrize("found", ["0.8.3", "0.10.0", "1.0", "main"])
def test_another_release_is_named(found: str) -> None:
    with pytest.raises(IncompatibleExtra, match=rf"Found verl {found}, expected 0\.9\.x") as error:
        check_version(found)
    assert f"verl=={TESTED}" in str(error.value)


def test_the_tested_release_is_taken() -> None:
    check_version(TESTED)
    check_version("0.9.0.dev1")


@pytest.mark.skipif(has_verl, reason="verl is installed")
@pytest.mark.parametrize("name", ["plugin", "sero_trainer"])
def test_without_verl_the_message_says_what_to_install(name: str) -> None:
    with pytest.raises(MissingExtra, match=r"sero-rl\[verl\]"):
        require_verl()
    with pytest.raises(MissingExtra, match=r"sero-rl\[verl\]"):
        importlib.import_module(f"trainer.engines.verl.{name}")


@pytest.mark.skipif(has_verl, reason="verl is installed")
def test_the_command_without_verl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("model: {path: /models/policy}\noptim: {old_logprobs: recompute}\n")
    assert main.main([str(file)]) == 2
    assert "pip install 'sero-rl[verl]'" in capsys.readouterr().err


def test_the_command_prints_what_follows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "model: {path: /models/policy}\nobjective: {name: gigpo}\n"
        "optim: {old_logprobs: recompute}\n"
    )
    assert main.main([str(file), "--run.iterations", "7", "--print"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["trainer.total_training_steps"] == 7
    assert shown["algorithm.adv_estimator"] == "sero_gigpo"
    assert main.main([str(file), "--objective.name", "ppo"]) == 2
    assert "objective.name=ppo does not run through verl" in capsys.readouterr().err
    assert main.main([]) == 2


def test_the_plugin_is_added_to_those_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(main.MODULES, "other.plugin")
    assert main.modules() == f"other.plugin,{main.PLUGIN}"
    monkeypatch.setenv(main.MODULES, main.PLUGIN)
    assert main.modules() == main.PLUGIN
    monkeypatch.delenv(main.MODULES)
    assert main.modules() == main.PLUGIN


@needs_verl
def test_verl_s_config_is_made_of_ours() -> None:
    from omegaconf import OmegaConf  # type: ignore[import-not-found, unused-ignore]

    config = _config(objective__name="gigpo", objective__kl_coef=0.01)
    found = main.compose(config, ["trainer.n_gpus_per_node=2", f"{ACTOR}.optim.lr=3e-6"])
    for key, value in verl_settings(config).items():
        if key != f"{ACTOR}.optim.lr":
            present = OmegaConf.select(found, key)
            plain = OmegaConf.to_container(present) if OmegaConf.is_config(present) else present
            assert plain == value, key
    assert found.actor_rollout_ref.actor.optim.lr == 3e-6  # what is said to verl wins
    assert found.trainer.n_gpus_per_node == 2
    assert from_dict(OmegaConf.to_container(found.sero)) == config
    assert resolve(config) == OmegaConf.to_container(found.sero)
    variables = found.ray_kwargs.ray_init.runtime_env.env_vars
    assert variables[main.MODULES] == main.PLUGIN


@needs_verl
def test_verl_takes_the_config() -> None:
    """verl's own checks, and its typed sections made of the config."""
    from verl.trainer.ppo.utils import (  # type: ignore[import-not-found, unused-ignore]
        need_critic,
        need_reference_policy,
    )
    from verl.utils.config import (  # type: ignore[import-not-found, unused-ignore]
        omega_conf_to_dataclass,
        validate_config,
    )

    found = main.compose(_config(objective__kl_coef=0.01), ["actor_rollout_ref.rollout.name=vllm"])
    assert need_reference_policy(found)
    assert not need_critic(found)
    validate_config(config=found, use_reference_policy=True, use_critic=False)
    actor = omega_conf_to_dataclass(found.actor_rollout_ref.actor)
    assert actor.policy_loss.loss_mode == "sero"
    assert actor.engine.mixed_precision["param_dtype"] == "fp32"
    assert actor.optim.override_optimizer_config["eps"] == 1e-8


@needs_verl
def test_every_release_key_that_is_set_is_one_of_verl_s() -> None:
    """A key that verl does not have would be written beside those that it reads."""
    from hydra import compose, initialize_config_module  # type: ignore[import-not-found, unused-ignore]
    from omegaconf import OmegaConf

    with initialize_config_module("verl.trainer.config", version_base=None):
        defaults = compose("ppo_trainer")
    added = {
        "algorithm.sero",
        f"{ACTOR}.fsdp_config.mixed_precision",  # fields of verl's dataclasses, not of its files
        "actor_rollout_ref.ref.fsdp_config.mixed_precision",
    }
    missing = object()
    unknown = {
        key
        for key in verl_settings(_config())
        if OmegaConf.select(defaults, key, default=missing) is missing
    }
    assert unknown <= added


@needs_verl
def test_the_runner_is_an_actor_of_ray() -> None:
    import ray  # type: ignore[import-not-found, unused-ignore]

    assert isinstance(main.task_runner(), ray.actor.ActorClass)
