"""Metrics: rates and phase times of an iteration, and that no figure is ever NaN."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.trainer import small
from tests.trainer.short_runs import run_config
from trainer.loop import train
from trainer.metrics import MetricsLog, Phases, perf_metrics, phase_seconds, read_metrics
from trainer.runs.folder import load_trained


def test_rates_by_hand() -> None:
    found = perf_metrics(
        played_tokens=9000,
        sampled_tokens=600,
        learnt_tokens=8000,
        seconds={"collect": 3.0, "scoring": 1.0, "update": 4.0},
        iteration_s=9.0,
        flops=1.8e15,
        peak_flops=1e15,
    )
    assert found == {
        "perf/tokens_per_s": 1000.0,
        "perf/rollout_tokens_per_s": 200.0,
        "perf/update_tokens_per_s": 2000.0,
        "perf/model_flops": 1.8e15,
        "perf/mfu": pytest.approx(0.2),
    }


@pytest.mark.parametrize("peak", [None, 0.0])
def test_what_cannot_be_divided_has_no_value(peak: float | None) -> None:
    found = perf_metrics(
        played_tokens=0, sampled_tokens=0, learnt_tokens=5, seconds={"collect": 0.0},
        iteration_s=2.0, flops=1e9, peak_flops=peak,
    )  # fmt: skip
    assert found == {
        "perf/tokens_per_s": 0.0,
        "perf/rollout_tokens_per_s": None,
        "perf/update_tokens_per_s": None,
        "perf/model_flops": 1e9,
        "perf/mfu": None,
    }
    assert (
        perf_metrics(
            played_tokens=1, sampled_tokens=1, learnt_tokens=1, seconds={}, iteration_s=1.0,
            peak_flops=1e12,
        )["perf/mfu"]
        is None
    )  # fmt: skip


def test_a_phase_that_is_entered_again_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 1.0, 10.0, 10.5, 20.0, 22.0])
    monkeypatch.setattr("trainer.metrics.time.perf_counter", lambda: next(times))
    phases = Phases()
    with phases("scoring"):
        pass
    with phases("update"):
        pass
    with pytest.raises(ZeroDivisionError), phases("scoring"):
        raise ZeroDivisionError
    assert phases.seconds == {"scoring": 3.0, "update": 0.5}
    record = {f"time/{name}": value for name, value in phases.seconds.items()}
    assert phase_seconds({**record, "time/x": None, "iteration_s": 9.0}) == phases.seconds


def test_a_log_refuses_nan_and_drops_what_is_made_again(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "m.jsonl")
    with pytest.raises(ValueError, match="not JSON compliant"):
        log.write({"iteration": 0, "x": math.nan})
    for iteration in range(3):
        log.write({"iteration": iteration, "x": None})
    log.truncate(2)
    assert [line["iteration"] for line in log.read()] == [0, 1]
    assert read_metrics(log.path) == log.read()


def _numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for part in value.values() for number in _numbers(part)]
    if isinstance(value, (list, tuple)):
        return [number for part in value for number in _numbers(part)]
    return [value] if isinstance(value, float) else []


@pytest.mark.parametrize("name", ["grpo", "gigpo", "ppo", "none"])
def test_o27_an_iteration_that_masks_every_token_logs_counters_and_no_nan(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every episode overflows its context, so no turn has a trained token."""
    # which is else refused beforehand
    monkeypatch.setattr("trainer.runs.needs.check_prompts", lambda *_: None)
    auxiliary = {"auxiliary__format_only__weight": 1.0} if name == "none" else {}
    config = run_config(
        tmp_path,
        run__iterations=1,
        objective__name=name,
        prompt__max_prompt_tokens=1,
        eval__tasks=1,
        **auxiliary,
    )
    before = small.weights(small.model())
    (line,) = train(config, tmp_path / "run").metrics
    assert line["context_overflows"] == config.rollout.tasks * config.rollout.rollouts
    assert (line["turns"], line["response_tokens"]) == (0, 0)
    assert line["skipped_now"] == config.optim.steps
    assert (line["optimizer_steps"], line["nonfinite_steps"]) == (0, 0)
    assert all(math.isfinite(number) for number in _numbers(line))
    assert read_metrics(tmp_path / "run/metrics.jsonl") == [line]
    assert small.same(before, small.weights(load_trained(tmp_path / "run")[1]))
