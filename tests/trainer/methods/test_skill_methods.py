"""What all methods with skills promise: SEED, SDAR, Skill-SD and OPID."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from agent_envs.resuming import STEP_LIMIT
from tests.trainer import small
from tests.trainer.methods.skill_runs import (
    SECTIONS,
    config_of,
    gradient,
    prepared,
    turns_of,
    whole_step,
)
from tests.trainer.short_runs import learn, run_config, trained, untimed
from trainer.config import Config
from trainer.loop import train
from trainer.metrics import read_metrics
from trainer.rollouts.data import read_turns, write_turns

USELESS = {"model": "tests.trainer.methods.toy_analysers:useless"}
UNKNOWN = [{"name": "x", "text": "nothing of it", "keywords": ["xylophone"]}]
NOTHING: dict[str, dict[str, Any]] = {
    "seed": {"analyser": USELESS},
    "sdar": {"entries": UNKNOWN, "retrieval": "keyword", "allow_missing": True},
    "skill_sd": {"entries": UNKNOWN, "retrieval": "keyword", "allow_missing": True},
    "opid": {"analyser": USELESS},
}
NO_WEIGHT: dict[str, dict[str, Any]] = {
    "seed": {"weight": 0.0},
    "sdar": {"weight": 0.0},
    "skill_sd": {"weight": 0.0},
    "opid": {"weight": 0.0, "step_weight": 0.0},
}
TERMS = ("seed", "sdar", "skill_sd")


def _without(name: str, config: Config) -> Config:
    return config.replace(**{f"auxiliary.{name}": None})


@pytest.mark.parametrize("name", SECTIONS)
@pytest.mark.parametrize("case", ["weight_zero", "nothing_to_learn"])
def test_without_a_term_parameters_are_bit_identical_to_the_base(name: str, case: str) -> None:
    config = config_of(name, NO_WEIGHT[name] if case == "weight_zero" else NOTHING[name])
    model = small.model()
    turns = turns_of(config, model)
    base, other = small.twin(model), small.twin(model)
    expected = learn(_without(name, config), turns, base)
    metrics = learn(config, turns, other)
    assert not small.same(small.weights(model), small.weights(base)), "the base moves the policy"
    assert small.same(small.weights(base), small.weights(other))
    for key, value in untimed([expected])[0].items():
        assert metrics[key] == value, key
    rows = "opid/episode_rows_on" if name == "opid" else f"{name}/rows_on"
    assert metrics[rows] == (1.0 if case == "weight_zero" else 0.0), "weight 0 measures"


@pytest.mark.parametrize("name", SECTIONS)
def test_with_a_term_parameters_differ_and_the_base_does_not_know(name: str) -> None:
    config = config_of(name, optim__steps=1)
    model = small.model()
    turns = turns_of(config, model)
    base, other = small.twin(model), small.twin(model)
    expected = learn(_without(name, config), turns, base)
    metrics = learn(config, turns, other)
    assert not small.same(small.weights(base), small.weights(other))
    if name != "opid":  # whose channel is the advantage
        assert metrics["advantage_abs_mean"] == expected["advantage_abs_mean"]
        assert metrics["loss/policy"] == pytest.approx(expected["loss/policy"], abs=1e-6)
        assert metrics[f"{name}/loss"] is not None


@pytest.mark.parametrize("name", SECTIONS)
def test_turns_from_a_file_give_the_numbers_of_the_run(name: str, tmp_path: Path) -> None:
    config, model = config_of(name), small.model()
    turns = turns_of(config, model)
    write_turns(tmp_path / "turns.parquet", turns)
    left, right = small.twin(model), small.twin(model)
    from_run = learn(config, turns, left)
    from_file = learn(config, read_turns(tmp_path / "turns.parquet"), right)
    assert untimed([from_run]) == untimed([from_file])
    assert small.same(small.weights(left), small.weights(right))


@pytest.mark.parametrize("name", TERMS)
def test_micro_batches_change_nothing(name: str) -> None:
    config, model = config_of(name), small.model()
    turns = turns_of(config, model)
    method = prepared(config, model, turns)
    whole, parts = (gradient(method, model, turns, tokens=n) for n in (10**9, 200))
    first, second = (term.total for term in method._terms)
    assert whole.abs().max() > 0
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-7)
    assert second == pytest.approx(first, rel=1e-4, abs=1e-8)


@pytest.mark.parametrize("name", TERMS)
def test_a_step_counts_its_own_rows(name: str) -> None:
    """The parts of an iteration are normalised by themselves."""
    config, model = config_of(name), small.model()
    turns = turns_of(config, model)
    method = prepared(config, model, turns)
    places = (0, 2, 3)
    term: Any = method.token_term(whole_step(turns, places))
    assert term.counts.tokens == sum(len(turns[m].response_ids) for m in places)
    assert term.counts.sequences == 3
    assert [term.needs(m) for m in (0, 1, 2, 3)] == [True, False, True, True]


@pytest.mark.parametrize("name", TERMS)
def test_a_step_without_rows_has_no_term(name: str) -> None:
    config, model = config_of(name, NOTHING[name]), small.model()
    turns = turns_of(config, model)
    method = prepared(config, model, turns)
    assert method.token_term(whole_step(turns)) is None
    assert method.metrics()[f"{name}/loss"] is None
    assert method.metrics()[f"{name}/gap_mean"] is None


@pytest.mark.parametrize("name", SECTIONS)
def test_preparing_leaves_no_gradient_and_no_mode_behind(name: str) -> None:
    config, model = config_of(name), small.model()
    turns = turns_of(config, model)
    before = small.weights(model)
    method = prepared(config, model, turns)
    assert all(p.grad is None for p in model.parameters())
    assert small.same(before, small.weights(model))
    teachers = method._teachers["episode"] if name == "opid" else method._frozen
    assert len(teachers) == len(turns)
    assert not any(row.requires_grad for row in teachers.values())


@pytest.mark.parametrize("name", SECTIONS)
def test_turns_that_are_left_out_of_the_base_have_no_part(name: str) -> None:
    """`objective.mask_truncated` leaves out what ran out of steps."""
    config = config_of(name, objective__mask_truncated=True)
    model = small.model()
    turns = turns_of(config, model)
    assert any(turn.stop_reason == STEP_LIMIT for turn in turns)
    metrics = learn(config, turns, model)
    rows = "opid/episode_rows_on" if name == "opid" else f"{name}/rows_on"
    gap = "opid/episode_gap_failure" if name == "opid" else f"{name}/gap_failure"
    assert metrics[rows] == 1.0, "of the trained turns"
    assert metrics[gap] is None


@pytest.mark.parametrize("name", SECTIONS)
def test_turns_whose_prompt_with_a_skill_is_too_long_have_no_part(name: str) -> None:
    config, model = config_of(name), small.model()
    turns = turns_of(config, model)
    roomy = prepared(config, model, turns)
    level = "episode_" if name == "opid" else ""
    rows = roomy._teachers["episode"] if name == "opid" else roomy._segments
    assert len(rows) == len(turns)
    assert roomy.metrics()[f"{name}/{level}truncated_share"] == 0.0
    own = max(len(turn.prompt_ids) for turn in turns)
    tight = config_of(name, prompt__max_prompt_tokens=own)
    method = prepared(tight, model, turns)
    kept = method._teachers["episode"] if name == "opid" else method._segments
    assert 0 < len(kept) < len(turns)
    figures = method.metrics()
    share = len(kept) / len(turns)
    assert figures[f"{name}/{level}rows_on"] == pytest.approx(share)
    assert figures[f"{name}/{level}truncated_share"] == pytest.approx(1 - share)
    nothing = prepared(config_of(name, NOTHING[name]), model, turns).metrics()
    assert nothing[f"{name}/{level}truncated_share"] is None


@pytest.mark.parametrize("name", ["sdar", "opid"])
def test_resume_is_a_continuation(name: str, tmp_path: Path) -> None:
    section = {**SECTIONS[name], **({"retrieval": "ucb"} if name == "sdar" else {})}
    half = 2 if name == "sdar" else 1
    config = run_config(
        tmp_path, run__iterations=2 * half, eval__tasks=1, **{f"auxiliary__{name}": section}
    )
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    straight = train(config, whole)
    train(config, parts, until=half)
    train(config, parts, resume=True)
    assert small.same(trained(whole), trained(parts))
    assert untimed(read_metrics(parts / "metrics.jsonl")) == untimed(straight.metrics)
    state = parts / f"checkpoints/{2 * half:06d}" / f"{name}.safetensors"
    assert state.exists() == (name == "sdar")
