"""Which objectives exclude each other, pair by pair, and that everything else composes."""

from __future__ import annotations

from itertools import combinations
from typing import Any, get_args, get_type_hints

import pytest

from trainer.config import Config, ConfigError, ObjectiveConfig, from_dict
from trainer.config.composition import conflicts
from trainer.methods.registry import METHODS

BASES = get_args(get_type_hints(ObjectiveConfig)["name"])
SKILL = {"entries": [{"name": "look", "text": "look into every closed cabinet first"}]}
NEEDED: dict[str, dict[str, Any]] = {"sdar": SKILL, "skill_sd": SKILL}
"""Sections that are nothing without a setting."""


def data(*auxiliary: str, **values: Any) -> dict[str, Any]:
    """A config's plain data; `objective__name="none"` sets a value of a section."""
    found: dict[str, Any] = {"auxiliary": {name: dict(NEEDED.get(name, {})) for name in auxiliary}}
    for key, value in values.items():
        *path, last = key.split("__")
        node = found
        for part in path:
            node = node.setdefault(part, {})
        node[last] = value
    return found


def refused(*auxiliary: str, **values: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        from_dict(data(*auxiliary, **values))
    return str(caught.value)


def accepted(*auxiliary: str, **values: Any) -> Config:
    config = from_dict(data(*auxiliary, **values))
    assert conflicts(config) == []
    return config


def test_serl_and_a_kl_term() -> None:
    message = refused("serl", objective__kl_coef=0.01)
    assert "auxiliary.serl refuses objective.kl_coef=0.01" in message
    assert "place of the reference policy" in message
    accepted("serl", objective__kl_coef=0.0)
    accepted("rlsd", objective__kl_coef=0.01)


@pytest.mark.parametrize("name", ["serl", "rlsd", "opid"])
def test_advantages_of_no_base(name: str) -> None:
    message = refused(name, objective__name="none")
    assert f"auxiliary.{name}" in message
    assert "objective.name=none" in message
    for base in ("reinforce_pp", "ppo", "ppo_trajectory", "turn_gae", "gspo"):
        accepted(name, objective__name=base)


def test_serl_without_a_base_has_its_own_term() -> None:
    accepted("serl", objective__name="none", auxiliary__serl__act_weight=0.01)


def test_opd_as_an_advantage() -> None:
    form = {"auxiliary__opd__form": "advantage"}
    teacher = {"auxiliary__opd__teacher": "some/folder"}
    form |= teacher
    assert "auxiliary.opd.form=advantage" in refused("opd", objective__name="none", **form)
    accepted("opd", objective__name="none", **teacher)
    accepted("opd", **form)
    for other in ("serl", "rlsd", "opid", "luffy"):
        message = refused("opd", other, **form)
        assert "auxiliary.opd.combine=replace" in message
        assert f"auxiliary.{other} works on" in message
        accepted("opd", other, auxiliary__opd__combine="add", **form)
        accepted("opd", other)


def test_rewards_off_and_the_start_as_teacher() -> None:
    form = {"auxiliary__opd__form": "advantage"}
    for others in ((), ("sero",)):
        message = refused("opd", *others, **form)
        assert "auxiliary.opd.combine=replace switches the rewards off" in message
        assert "auxiliary.opd.teacher=null" in message
    accepted("opd", **form, auxiliary__opd__combine="add")
    accepted("opd", **form, auxiliary__opd__teacher="some/folder")
    accepted("opd", **form, auxiliary__opd__weight=0.0)


@pytest.mark.parametrize("name", ["opd", "gkd"])
def test_the_start_as_teacher_and_nothing_that_moves_the_policy_from_it(name: str) -> None:
    alone = {"objective__name": "none"}
    message = refused(name, **alone)
    assert f"auxiliary.{name}.teacher=null" in message
    assert "objective.name=none" in message
    refused("opd", "gkd", **alone)
    refused(name, "sero", **alone, auxiliary__sero__weight=0.0)
    accepted(name, "sero", **alone)
    accepted(name, **alone, **{f"auxiliary__{name}__teacher": "some/folder"})
    accepted(name, "sero", **alone, **{f"auxiliary__{name}__weight": 0.0})
    accepted(name)


@pytest.mark.parametrize("fraction", [0.0, 0.5, 1.0])
def test_given_texts_do_not_help_a_teacher_that_is_the_start(fraction: float) -> None:
    gkd = {"objective__name": "none", "auxiliary__gkd__fraction": fraction}
    assert "auxiliary.gkd.teacher=null" in refused("gkd", **gkd)
    accepted("gkd", **gkd, auxiliary__gkd__teacher="some/folder")


def test_a_kl_in_advantages_that_are_replaced() -> None:
    paid = {
        "auxiliary__opd__form": "advantage",
        "auxiliary__opd__teacher": "some/folder",
        "objective__kl_placement": "reward",
        "objective__kl_coef": 0.01,
    }
    message = refused("opd", **paid)
    assert "auxiliary.opd.combine=replace" in message
    assert "objective.kl_placement=reward" in message
    accepted("opd", **{**paid, "auxiliary__opd__combine": "add"})
    accepted("opd", **{**paid, "auxiliary__opd__form": "loss"})
    accepted("opd", **{**paid, "objective__kl_placement": "loss"})


def test_two_that_claim_the_same() -> None:
    assert "auxiliary.serl and auxiliary.rlsd both multiply" in refused("serl", "rlsd")
    assert "two readings of one method" in refused("opsd", "opsd_legacy")
    assert "auxiliary.luffy and auxiliary.chord both mix" in refused("luffy", "chord")


@pytest.mark.parametrize("base", ["ppo", "ppo_trajectory"])
def test_a_filter_by_rollout_and_an_advantage_by_token(base: str) -> None:
    for kind in ("positive", "negative", "mixed"):
        kinds = {"objective__name": base, "auxiliary__rlsd__rollout_filter": kind}
        assert f"auxiliary.rlsd.rollout_filter={kind}" in refused("rlsd", **kinds)
        accepted("rlsd", **{**kinds, "objective__name": "turn_gae"})
    accepted("rlsd", objective__name=base)


def test_a_filter_by_rollout_and_a_kl_paid_by_token() -> None:
    filtered = {"objective__name": "reinforce_pp", "auxiliary__rlsd__rollout_filter": "positive"}
    paid = {"objective__kl_coef": 0.01, "objective__kl_placement": "reward"}
    message = refused("rlsd", **filtered, **paid)
    assert "auxiliary.rlsd.rollout_filter=positive" in message
    assert "objective.name=reinforce_pp and objective.kl_placement=reward" in message
    accepted("rlsd", **filtered)
    accepted("rlsd", **filtered, **{**paid, "objective__kl_placement": "loss"})
    accepted("rlsd", **{**filtered, **paid, "auxiliary__rlsd__rollout_filter": "all"})
    # One number a turn: what its tokens paid is summed.
    accepted("rlsd", **{**filtered, **paid, "objective__name": "grpo"})


def test_a_loss_that_begins_after_the_run() -> None:
    begins = {"run__iterations": 5, "auxiliary__seed__start_after": 5}
    message = refused("seed", **begins)
    assert "auxiliary.seed.start_after=5" in message
    assert "run.iterations=5" in message
    accepted("seed", **{**begins, "run__iterations": 6})
    accepted("seed", run__iterations=0)


def test_gspo_without_its_ratio() -> None:
    token = {"objective__name": "gspo", "objective__ratio": "token"}
    message = refused(**token)
    assert "objective.ratio=token" in message
    assert "objective.name=gspo" in message
    accepted(objective__name="gspo")
    accepted(**{**token, "objective__name": "grpo"})


def test_luffy() -> None:
    for base in ("none", "ppo", "ppo_trajectory", "turn_gae", "reinforce_pp"):
        message = refused("luffy", objective__name=base)
        assert f"objective.name={base} has none" in message
    assert "objective.dynamic_rounds=10" in refused("luffy", objective__name="dapo")
    accepted("luffy", objective__name="dapo", objective__dynamic_rounds=0)
    accepted("chord", objective__name="dapo")


@pytest.mark.parametrize(
    ("name", "field", "wants", "does"),
    [
        ("serl", "source", "success+feedback", "success_or_feedback"),
        ("serl", "source", "success+future+next_observation", "immediate_feedback"),
        ("rlsd", "context", "success", "plan"),
        ("opsd", "context", "success", "feedback"),
        ("opsd_legacy", "context", "success", "plan"),
        ("sdpo", "feedback", False, True),
    ],
)
def test_siblings_of_a_lonely_rollout(name: str, field: str, wants: Any, does: Any) -> None:
    alone = {"rollout__rollouts": 1, "objective__name": "reinforce_pp"}
    message = refused(name, **alone, **{f"auxiliary__{name}__{field}": wants})
    assert f"auxiliary.{name}.{field}" in message
    assert "rollout.rollouts=1" in message
    accepted(name, **alone, **{f"auxiliary__{name}__{field}": does})
    accepted(name, rollout__rollouts=2, **{f"auxiliary__{name}__{field}": wants})


def test_a_judge_that_wants_a_sibling() -> None:
    judge = {
        "rollout__rollouts": 1,
        "objective__name": "ppo",
        "auxiliary__serl__judge": "some.where:judge",
    }
    message = refused("serl", **judge, auxiliary__serl__source="judge_current_success")
    assert "auxiliary.serl.source" in message
    accepted("serl", **judge, auxiliary__serl__source="judge_current")


def test_all_reasons_are_given() -> None:
    message = refused("serl", "rlsd", "opsd", "opsd_legacy", objective__kl_coef=0.1)
    for part in ("objective.kl_coef=0.1", "both multiply", "two readings"):
        assert part in message


@pytest.mark.parametrize("name", ["spo3", "gepo"])
def test_what_cannot_be_trained_is_no_base(name: str) -> None:
    assert f"objective.name='{name}' must be one of" in refused(objective__name=name)


EXCLUDED = {("luffy", "chord"), ("chord", "luffy"), ("serl", "rlsd"), ("opsd", "opsd_legacy")}


def test_every_other_pair_of_auxiliary_objectives_composes() -> None:
    for pair in combinations(METHODS, 2):
        if pair not in EXCLUDED:
            accepted(*pair)


@pytest.mark.parametrize("base", BASES)
def test_every_other_base_composes_with_each(base: str) -> None:
    lacking = {
        "none": {"serl", "rlsd", "opid", "luffy"},
        "dapo": {"luffy"},
        **{name: {"luffy"} for name in ("ppo", "ppo_trajectory", "turn_gae", "reinforce_pp")},
    }
    for name in METHODS:
        other = {f"auxiliary__{name}__teacher": "some/folder"} if name in ("opd", "gkd") else {}
        if name in lacking.get(base, set()):
            refused(name, objective__name=base)
        else:
            accepted(name, objective__name=base, **other)
