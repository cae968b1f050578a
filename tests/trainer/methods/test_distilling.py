"""What every distilling method promises: it adds its term, and nothing where it has none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer import small
from tests.trainer.methods.distilling import (
    config_of,
    gradient,
    learned,
    method_of,
    prepared,
    teacher_folder,
    term_gradient,
    trajectories_of,
    turns_of,
    whole_step,
)
from tests.trainer.short_runs import run_config, sampled, trained, untimed
from trainer.config import ConfigError
from trainer.loop import train
from trainer.methods.protocol import PassLimits, Rollouts, Step
from trainer.metrics import read_metrics
from trainer.rollouts.data import read_turns, segments_from_turns, write_turns
from trainer.runs.checkpoint import load_checkpoint

METHODS: dict[str, dict[str, Any]] = {
    "opd-loss": {"auxiliary__opd": {}},
    "opd-advantage": {"auxiliary__opd": {"form": "advantage"}},
    "opd-added": {"auxiliary__opd": {"form": "advantage", "combine": "add"}},
    "opd-exact": {"auxiliary__opd": {"form": "exact"}},
    "gkd": {"auxiliary__gkd": {"source": "success"}},
    "opsd": {"auxiliary__opsd": {}},
    "opsd_legacy": {"auxiliary__opsd_legacy": {}},
    "sdpo": {"auxiliary__sdpo": {}},
}
WITH_PASS = ["opd-exact", "gkd", "opsd", "sdpo"]


@pytest.fixture(scope="module", autouse=True)
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Gives two of the methods a teacher of their own; the others have the policy at the start."""
    folder = teacher_folder(tmp_path_factory.mktemp("teachers"))
    with pytest.MonkeyPatch.context() as patch:
        for name in ("opd-loss", "opd-advantage"):
            patch.setitem(METHODS[name]["auxiliary__opd"], "teacher", folder)
        yield


def _weighted(sections: dict[str, Any], weight: float) -> dict[str, Any]:
    return {name: {**section, "weight": weight} for name, section in sections.items()}


@pytest.fixture(scope="module")
def turns() -> list[Any]:
    return turns_of(trajectories_of(config_of()))


@pytest.fixture(scope="module")
def of_base(turns: list[Any]) -> Any:
    model = small.model()
    start = small.weights(model)
    learned(config_of(), model, turns)
    assert not small.same(start, small.weights(model)), "the base step must move the policy"
    return small.weights(model)


@pytest.mark.parametrize("name", METHODS)
def test_with_weight_zero_it_measures_and_is_the_base_bit_for_bit(
    name: str, turns: list[Any], of_base: Any
) -> None:
    model = small.model()
    (metrics,) = learned(config_of(**_weighted(METHODS[name], 0.0)), model, turns)
    assert small.same(of_base, small.weights(model))
    key = next(iter(METHODS[name])).removeprefix("auxiliary__")
    assert metrics[f"{key}/gap_mean"] is not None
    assert metrics["loss/auxiliary"] is None


NOTHING: dict[str, dict[str, Any]] = {
    "gkd": {"auxiliary__gkd": {"fraction": 0.0}},  # the oracle has no environment
    "opsd": {"auxiliary__opsd": {"max_prompt_tokens": 1}},
    "plan": {"auxiliary__opsd": {"context": "plan"}},
    "opsd_legacy": {"auxiliary__opsd_legacy": {"max_prompt_tokens": 1}},
    "sdpo": {"auxiliary__sdpo": {"max_prompt_tokens": 1}},
}


@pytest.mark.parametrize("name", NOTHING)
def test_with_nothing_to_learn_from_it_is_the_base_bit_for_bit(
    name: str, turns: list[Any], of_base: Any
) -> None:
    model = small.model()
    (metrics,) = learned(config_of(**NOTHING[name]), model, turns)
    assert small.same(of_base, small.weights(model))
    key = next(iter(NOTHING[name])).removeprefix("auxiliary__")
    assert metrics[f"{key}/gap_mean"] is None


@pytest.mark.parametrize("name", METHODS)
def test_with_a_weight_parameters_differ(name: str, turns: list[Any], of_base: Any) -> None:
    model = small.model()
    learned(config_of(**METHODS[name]), model, turns)
    assert not small.same(of_base, small.weights(model))


@pytest.mark.parametrize("name", METHODS)
def test_turns_from_a_file_give_the_same(name: str, turns: list[Any], tmp_path: Path) -> None:
    config, turns = config_of(**METHODS[name]), turns[:18]
    write_turns(tmp_path / "turns.parquet", turns)
    left, right = small.model(), small.model()
    ran = learned(config, left, turns)
    again = learned(config, right, read_turns(tmp_path / "turns.parquet"))
    assert [small.untimed(line) for line in ran] == [small.untimed(line) for line in again]
    assert small.same(small.weights(left), small.weights(right))


@pytest.mark.parametrize("name", WITH_PASS)
def test_passes_add_up_and_scale_with_the_weight(name: str, turns: list[Any]) -> None:
    model, seen, turns = small.model(), [], turns[:18]
    for weight, tokens in ((1.0, 10**9), (1.0, 1), (0.5, 600)):
        config = config_of(**_weighted(METHODS[name], weight))
        # Another policy than the teacher: otherwise some losses are 0.
        method = prepared(config, small.model(seed=1), turns)
        step = replace(whole_step(turns), index=0, iteration=1)
        assert method.has_pass(step)
        model.zero_grad()
        loss = method.backward(model, step, PassLimits(tokens, 0))
        seen.append((loss, gradient(model) / weight))
        assert all(p.grad is None for p in method.teacher.of(None).parameters())
    for loss, slope in seen[1:]:
        assert loss == pytest.approx(seen[0][0], rel=1e-4)
        torch.testing.assert_close(slope, seen[0][1], rtol=1e-3, atol=1e-6)
    assert seen[0][0] > 1e-3


@pytest.mark.parametrize("name", ["opd-loss", "opsd_legacy"])
def test_terms_add_up_and_scale_with_the_weight(name: str, turns: list[Any]) -> None:
    model, seen, turns = small.model(), [], turns[:18]
    for weight, tokens in ((1.0, 10**9), (1.0, 1), (0.5, 600)):
        config = config_of(objective__name="none", **_weighted(METHODS[name], weight))
        method = prepared(config, small.model(seed=1), turns)
        seen.append(term_gradient(config, method, model, turns, tokens) / weight)
    assert float(seen[0].abs().max()) > 1e-3
    for slope in seen[1:]:
        torch.testing.assert_close(slope, seen[0], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", METHODS)
def test_turns_of_others_and_turns_without_trained_tokens_are_left_out(
    name: str, turns: list[Any]
) -> None:
    config = config_of(**METHODS[name])
    method = method_of(config, small.model())
    segments = segments_from_turns(turns)
    size = len(segments[0].ids)
    segments[0] = replace(
        segments[0], loss_mask=(False,) * size, token_turn=(-1,) * size, logprobs=(0.0,) * size
    )
    method.prepare(Rollouts(1, turns, segments), small.model())
    outside = Step(1, 0, 0, 1, (0, len(turns), len(turns) + 5))
    assert method.step_pairs(outside) == []
    assert not method.has_pass(outside)
    assert method.token_term(outside) is None
    (pair,) = method.step_pairs(replace(outside, turns=(0, 1)))
    assert pair.student == segments[1]


@pytest.mark.parametrize("name", ["opsd", "opsd_legacy", "sdpo"])
def test_teachers_read_the_same_reply_behind_a_longer_prompt(name: str, turns: list[Any]) -> None:
    method = prepared(config_of(**METHODS[name]), small.model(), turns)
    assert method.pairs
    for turn, pair in method.pairs.items():
        reply = turns[turn].response_ids
        assert pair.student.ids == (*turns[turn].prompt_ids, *reply)
        assert pair.teacher.ids[-len(reply) :] == reply
        assert len(pair.teacher.ids) > len(pair.student.ids)
        assert pair.teacher.trained == len(reply)


def test_no_turns_at_all() -> None:
    for sections in METHODS.values():
        method = prepared(config_of(**sections), small.model(), [])
        assert not method.has_pass(Step(0, 0, 0, 2, ()))
        assert {value for value in method.metrics().values() if not isinstance(value, int)} <= {
            None,
            0.5,
        }


def test_resuming_is_a_continuation(tmp_path: Path) -> None:
    """Teachers of every kind in one run; the one that is synced is so within the first part."""
    config = run_config(
        tmp_path,
        run__iterations=4,
        env__max_steps=2,
        rollout__rollouts=2,
        optim__steps=1,
        eval__tasks=1,
        objective__name="none",
        auxiliary__opd={"depth": {"growth": 3}, "weight": 0.1},
        auxiliary__opsd={"context": "feedback", "teacher": "synced", "sync_every": 2, "weight": 1},
        auxiliary__sdpo={"rate": 0.3},
        auxiliary__gkd={"weight": 0.1},
    )
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    straight = train(config, whole)
    train(config, parts, until=2)
    files = {path.name for path in (parts / "checkpoints/000002").iterdir()}
    assert {f"{name}.safetensors" for name in ("opd", "opsd", "sdpo", "gkd")} <= files
    train(config, parts, resume=True)
    assert untimed(read_metrics(parts / "metrics.jsonl")) == untimed(straight.metrics)
    assert small.same(trained(whole), trained(parts))
    assert sampled(whole) == sampled(parts)
    for name in ("opd", "opsd", "sdpo", "gkd"):
        left, right = (
            (load_checkpoint(folder / "checkpoints/000004").path / f"{name}.safetensors")
            for folder in (whole, parts)
        )
        assert left.read_bytes() == right.read_bytes(), name
    assert all(line["loss/sdpo"] > 0 for line in straight.metrics)


def test_a_state_of_another_teacher_is_refused(tmp_path: Path) -> None:
    sdpo = method_of(config_of(**METHODS["sdpo"]), small.model())
    legacy = method_of(config_of(**METHODS["opsd_legacy"]), small.model())
    assert legacy.state() == {}
    with pytest.raises(ValueError, match="another teacher"):
        legacy.load_state(sdpo.state())


DEFAULTS: dict[str, dict[str, Any]] = {
    "opd": {
        "weight": 1.0, "teacher": None, "form": "loss", "combine": "replace", "baseline": False,
        "divergence": "rkl", "beta": 0.5, "top_k": None, "depth": None,
    },
    "gkd": {
        "weight": 1.0, "teacher": None, "fraction": 0.5, "beta": 0.5, "top_k": None,
        "source": "oracle", "oracle": "planner", "oracle_budget_s": 1.0,
    },
    "opsd": {
        "weight": 0.01, "context": "success", "teacher": "initial", "sync_every": 10,
        "divergence": "rkl", "beta": 0.5, "top_k": None, "oracle_budget_s": 1.0,
        "max_prompt_tokens": None, "rendering": "response", "context_steps": None,
    },
    "opsd_legacy": {
        "weight": 0.01, "beta": 0.0, "context": "success", "oracle_budget_s": 1.0,
        "max_prompt_tokens": None, "rendering": "response", "context_steps": None,
    },
    "sdpo": {
        "weight": 1.0, "alpha": 0.5, "top_k": 100, "is_clip": 2.0, "teacher": "ema", "rate": 0.05,
        "success_threshold": 0.5, "feedback": True,
        "max_prompt_tokens": None, "rendering": "response", "context_steps": None,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults(name: str) -> None:
    section = getattr(config_of(**{f"auxiliary__{name}": {}}).auxiliary, name)
    assert {field: getattr(section, field) for field in section.__dataclass_fields__} == DEFAULTS[
        name
    ]


WRONG = [
    *((name, "weight", -0.1, "at least 0") for name in DEFAULTS),
    ("opd", "beta", 0.0, "ends excluded"),
    ("opd", "beta", 1.0, "ends excluded"),
    ("opd", "top_k", 0, "at least 1"),
    ("opd", "form", "other", "must be one of loss, advantage, exact"),
    ("opd", "depth", {"growth": -1}, r"depth\.growth=-1"),
    ("opd", "depth", {"start": 0}, r"depth\.start=0"),
    ("opd", "depth", {"start": 3, "final": 2}, r"depth\.final=2 must be at least start=3"),
    ("gkd", "fraction", 1.01, r"must lie in \[0, 1\]"),
    ("gkd", "fraction", -0.01, r"must lie in \[0, 1\]"),
    ("gkd", "beta", 1.0, "ends excluded"),
    ("gkd", "top_k", 0, "at least 1"),
    ("gkd", "oracle", "nobody", r"auxiliary\.gkd\.oracle='nobody'"),
    ("gkd", "oracle_budget_s", 0.0, "must be positive"),
    ("opsd", "context", "gold", "must be one of success, plan, feedback"),
    ("opsd", "sync_every", 0, "must be positive"),
    ("opsd", "beta", 0.0, "ends excluded"),
    ("opsd", "top_k", 0, "at least 1"),
    ("opsd", "oracle_budget_s", 0.0, "must be positive"),
    ("opsd", "max_prompt_tokens", 0, "must be positive"),
    ("opsd", "context_steps", 0, "must be positive"),
    ("opsd_legacy", "beta", -1.0, "at least 0"),
    ("opsd_legacy", "oracle_budget_s", 0.0, "must be positive"),
    ("opsd_legacy", "context_steps", 0, "must be positive"),
    ("sdpo", "alpha", 1.1, r"must lie in \[0, 1\]"),
    ("sdpo", "top_k", 0, "at least 1"),
    ("sdpo", "is_clip", 0.0, "must be positive"),
    ("sdpo", "rate", 0.0, "must be positive"),
    ("sdpo", "rate", 1.1, r"must lie in \[0, 1\]"),
    ("sdpo", "success_threshold", 0.0, "must be positive"),
    ("sdpo", "max_prompt_tokens", 0, "must be positive"),
]


@pytest.mark.parametrize(("name", "field", "value", "message"), WRONG)
def test_wrong_values_are_named(name: str, field: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as found:
        config_of(**{f"auxiliary__{name}": {field: value}})
    assert f"auxiliary.{name}.{field}" in str(found.value)


def test_the_ends_of_shares_are_allowed() -> None:
    for fraction in (0.0, 1.0):
        config_of(auxiliary__gkd={"fraction": fraction})
        config_of(auxiliary__sdpo={"alpha": fraction})
    config_of(auxiliary__sdpo={"rate": 1.0, "is_clip": None, "top_k": None})
    config_of(auxiliary__opd={"depth": {"final": 1, "growth": 0}})
    config_of(auxiliary__opd={"depth": {"start": 2, "final": 2}})
