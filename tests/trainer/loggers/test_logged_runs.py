"""Runs with their loggers: what trackers get, resuming, and the rates of every iteration."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.loggers.recording import Recording
from tests.trainer.short_runs import run_config, trained
from trainer.config import Config
from trainer.loggers import registry
from trainer.loggers.base import LoggerError
from trainer.loop import train
from trainer.metrics import read_metrics


@pytest.fixture
def trackers(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Recording]]:
    """Every tracker that a run opens, with its identity."""
    opened: list[tuple[Any, Recording]] = []

    def make(kind: str, run: Any) -> Recording:
        opened.append((run, Recording(kind)))
        return opened[-1][1]

    monkeypatch.setattr(registry, "_make", make)
    monkeypatch.setattr(registry, "check_loggers", lambda config: None)
    monkeypatch.setattr("trainer.loop.check_loggers", lambda config: None)
    return opened


def _config(tmp_path: Path, **changes: Any) -> Config:
    settings = {"run__iterations": 4, "run__checkpoint_every": 1, "eval__initial": True}
    return run_config(tmp_path, **{**settings, "log__to": ["trackio", "wandb"], **changes})


def test_trackers_get_the_record_and_the_evaluations(
    tmp_path: Path, trackers: list[tuple[Any, Recording]]
) -> None:
    train(_config(tmp_path), tmp_path / "run")
    (identity, first), (_, second) = trackers
    assert first.seen == second.seen
    assert (first.closed, second.closed) == ([False], [False])
    assert [step for step, _ in first.seen] == [0, 1, 2, 3, 4, 4]
    assert first.seen[0][1]["eval/valid_seen/n"] == first.seen[-1][1]["eval/valid_seen/n"] == 4
    lines = read_metrics(tmp_path / "run/metrics.jsonl")
    for line, (_, numbers) in zip(lines, first.seen[1:5], strict=True):
        shared = {k: v for k, v in line.items() if isinstance(v, (int, float))}
        assert shared == {k: numbers[k] for k in shared}
    assert identity.name == "run"
    assert identity.config == json.loads((tmp_path / "run/run.json").read_text())["config"]


def test_a_resumed_run_goes_on_with_its_steps_and_may_log_elsewhere(
    tmp_path: Path, trackers: list[tuple[Any, Recording]]
) -> None:
    config = _config(tmp_path)
    train(config, tmp_path / "run", until=2)
    train(config.replace(**{"log.to": ["wandb"], "log.every": 2}), tmp_path / "run", resume=True)
    (begun, _), _, (resumed, third) = trackers
    assert (begun.first, resumed.first, resumed.id) == (0, 2, begun.id)
    assert [step for step, _ in third.seen] == [4, 4]


def test_a_failing_tracker_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = _config(tmp_path, log__to=[])
    train(plain, tmp_path / "plain")
    monkeypatch.setattr(registry, "_make", lambda kind, run: Recording(kind, fails=(2, 3)))
    monkeypatch.setattr("trainer.loop.check_loggers", lambda config: None)
    train(_config(tmp_path), tmp_path / "run")
    assert capsys.readouterr().err.count("the logger") == 2, "each of the two once"
    weights = trained(tmp_path / "run")
    assert all((weights[k] == v).all() for k, v in trained(tmp_path / "plain").items())
    assert len(read_metrics(tmp_path / "run/metrics.jsonl")) == 4


def test_trackers_are_closed_when_training_fails(
    tmp_path: Path, trackers: list[tuple[Any, Recording]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def iterate(self: Any, iteration: int) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("trainer.iteration.Trainer.iterate", iterate)
    with pytest.raises(ZeroDivisionError):
        train(_config(tmp_path), tmp_path / "run")
    assert [tracker.closed for _, tracker in trackers] == [[True], [True]]


def test_a_missing_package_is_said_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry.util, "find_spec", lambda name: None)
    with pytest.raises(LoggerError, match=r"sero-rl\[trackio\]"):
        train(_config(tmp_path), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_every_iteration_has_its_rates_and_a_cpu_has_no_utilisation(tmp_path: Path) -> None:
    config = run_config(tmp_path, run__iterations=2, objective__entropy_coef=0.01)
    for line in train(config, tmp_path / "run").metrics:
        for name in ("perf/tokens_per_s", "perf/rollout_tokens_per_s", "perf/update_tokens_per_s"):
            assert line[name] > 0
            assert math.isfinite(line[name])
        tokens = line["prompt_tokens"] + line["response_tokens"]
        assert line["perf/tokens_per_s"] == pytest.approx(tokens / line["iteration_s"])
        seconds = line["time/collect"]
        assert line["perf/rollout_tokens_per_s"] == pytest.approx(line["response_tokens"] / seconds)
        # Every turn is learnt from, and what turns have in common at their beginning is run once.
        run = line["perf/update_tokens_per_s"] * line["time/update"]
        assert line["response_tokens"] < run <= tokens
        assert line["perf/model_flops"] > 2 * 10_000 * (tokens + 3 * run)
        assert line["perf/mfu"] is None
