"""Several objectives in one run: finite figures, a policy that moves, resume as a continuation."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from tests.support import full_count
from tests.trainer import small
from tests.trainer.matrix import harness, teachers
from tests.trainer.short_runs import sampled, trained, untimed
from trainer.config import Config
from trainer.config.objective import ObjectiveConfig
from trainer.loop import train
from trainer.metrics import read_metrics
from trainer.models.tiny import save_policy

BASES = tuple(name for name in get_args(get_type_hints(ObjectiveConfig)["name"]) if name != "none")
ANALYSER = {"model": f"{teachers.__name__}:analyser"}
LIBRARY = [{"name": "order", "text": "press the switches in the order of the task"}]

# Every auxiliary objective is in one of them.
COMBINATIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "controls beside SERO": ("grpo", ("sero", "format_only", "dagger", "sft", "opsd_legacy")),
    "skills": ("gigpo", ("seed", "serl", "expert_iteration", "skill_sd")),
    "critic": ("ppo", ("sero", "opsd", "corrections", "step_dpo")),
    "distillation alone": ("none", ("sero", "opd", "gkd", "sdpo")),
    "joined episodes": ("grpo", ("luffy", "opid", "sdar")),
    "mixed": ("graphgpo", ("rlsd", "chord", "sero")),
}
SECTIONS: dict[str, dict[str, Any]] = {
    "seed": {"analyser": ANALYSER},
    "opid": {"analyser": ANALYSER},
    "sdar": {"entries": LIBRARY},
    "skill_sd": {"entries": LIBRARY, "retrieval": "ucb"},
    "opsd": {"context": "plan"},
}
RESUMED = ("critic", "skills")
SOME_BASES = ("dapo", "hgpo", "turn_gae")


def _config(tmp_path: Path, base: str, names: tuple[str, ...], **overrides: Any) -> Config:
    policy = tmp_path / "policy"
    if not policy.exists():
        save_policy(policy, harness.start(), harness.tokenizer())
    sections = {f"auxiliary__{name}": SECTIONS.get(name, {}) for name in names}
    settings: dict[str, Any] = {
        "model__path": str(policy),
        "objective__name": base,
        "rollout__tasks": 3,
        "rollout__rollouts": 4,
        "optim__steps": 2,
        "run__save_turns": True,
        "run__iterations": 2,
    }
    return harness.config(0, **settings, **sections, **overrides)


def _finite(metrics: list[dict[str, Any]]) -> None:
    numbers = [
        (key, value)
        for line in metrics
        for key, value in line.items()
        if isinstance(value, float | int)
    ]
    assert [pair for pair in numbers if not math.isfinite(pair[1])] == []
    assert sum(line["nonfinite_steps"] for line in metrics) == 0


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_several_objectives_in_one_run(tmp_path: Path, combination: str) -> None:
    base, names = COMBINATIONS[combination]
    config = _config(tmp_path, base, names)
    result = train(config, tmp_path / "run")
    assert len(result.metrics) == 2
    _finite(result.metrics)
    assert result.metrics[-1]["optimizer_steps"] == 4
    for name in names:
        assert any(key.startswith((f"{name}/", f"loss/{name}")) for key in result.metrics[0]), name
    assert not small.same(small.weights(harness.start()), trained(tmp_path / "run"))


@pytest.mark.parametrize("base", BASES if full_count(0, 1) else SOME_BASES)
def test_any_base_with_sero(tmp_path: Path, base: str) -> None:
    result = train(_config(tmp_path, base, ("sero",)), tmp_path / "run")
    _finite(result.metrics)
    assert sum(line["sero/rows"] for line in result.metrics) > 0
    assert all(line["grad/aux_norm"] > 0 for line in result.metrics)
    assert any(line["grad/base_norm"] for line in result.metrics)


@pytest.mark.parametrize("combination", RESUMED)
def test_resume_is_a_continuation(tmp_path: Path, combination: str) -> None:
    config = _config(tmp_path, *COMBINATIONS[combination])
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    straight = train(config, whole)
    train(config, parts, until=1)
    train(config, parts, resume=True)
    assert small.same(trained(whole), trained(parts))
    assert untimed(read_metrics(parts / "metrics.jsonl")) == untimed(straight.metrics)
    assert sampled(whole) == sampled(parts)
    left, right = (
        {file.name: file.read_bytes() for file in path.glob("checkpoints/000002/*.safetensors")}
        for path in (whole, parts)
    )
    assert left == right


def test_every_auxiliary_objective_is_in_a_combination() -> None:
    from trainer.methods.registry import METHODS

    assert {name for _, names in COMBINATIONS.values() for name in names} == set(METHODS)
