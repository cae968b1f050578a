"""Which checkpoints stay, which is the best, when a run ends early, and what it says of its end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer import small
from tests.trainer.short_runs import run_config, sampled, trained, untimed
from trainer.config import Config, ConfigError, from_dict, resolve
from trainer.config.stopping import best_of, evaluation_due, metric_of, patience_ended
from trainer.iteration import Trainer
from trainer.loop import NonFiniteError, train
from trainer.metrics import read_metrics
from trainer.runs.checkpoint import CheckpointError, checkpoint_numbers, last_finite
from trainer.runs.folder import RunFolder, RunFolderError
from trainer.runs.status import best_checkpoint, best_iteration, read_status, scores

EARLY: dict[str, Any] = {
    "eval__every": 1,
    "eval__initial": True,
    "eval__tasks": 2,
    "run__iterations": 8,
}


def _told(monkeypatch: pytest.MonkeyPatch, values: list[float]) -> None:
    """The evaluation after i iterations reads `values[i]`; everything else of it is real."""
    real = Trainer.evaluate

    def evaluate(self: Trainer, iteration: int, tell: Any = None) -> dict[str, dict[str, Any]]:
        results = real(self, iteration, tell)
        for split, result in results.items():
            result |= {"success": values[iteration], "score": 1.0 - values[iteration]}
            path = self.folder.evaluation(iteration, split)
            path.write_text(json.dumps(result))
        return results

    monkeypatch.setattr(Trainer, "evaluate", evaluate)


def _numbers(folder: Path) -> list[int]:
    return checkpoint_numbers(folder / "checkpoints")[::-1]


def _status(folder: Path) -> dict[str, Any]:
    found = read_status(RunFolder(folder))
    assert found is not None
    return found


# ---------------------------------------------------------------------- the rules


@pytest.mark.parametrize(
    ("values", "patience", "min_delta", "ended"),
    [
        ([], 1, 0.0, False),
        ([0.5], 1, 0.0, False),
        ([0.5, 0.5], 1, 0.0, True),  # equal is no progress
        ([0.5, 0.6], 1, 0.0, False),
        ([0.5, 0.4, 0.45], 2, 0.0, True),  # better than the last, not than the best
        ([0.5, 0.4, 0.6], 2, 0.0, False),
        ([0.5, 0.55, 0.58], 2, 0.1, True),  # small steps are measured from the same best
        ([0.5, 0.55, 0.61], 2, 0.1, False),
        ([0.5] * 9, 0, 0.0, False),
    ],
)
def test_patience(values: list[float], patience: int, min_delta: float, ended: bool) -> None:
    assert patience_ended(list(enumerate(values)), patience, min_delta) == ended


def test_the_best_is_the_highest_and_of_equals_the_earliest() -> None:
    values = [(0, 0.9), (1, 0.2), (2, 0.7), (3, 0.7), (4, 0.1)]
    assert best_of(values, [1, 2, 3, 4]) == (2, 0.7)
    assert best_of(values, [3, 4]) == (3, 0.7)
    assert best_of(values, [5]) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"eval.best_by": "test/success"}, "eval.best_by='test/success' must be SPLIT/FIGURE"),
        ({"eval.best_by": "valid_seen/steps"}, "success or macro_success or score"),
        ({"eval.best_by": "success"}, "must be SPLIT/FIGURE"),
        ({"run.early_stop.patience": 2}, "counts evaluations, and there are none"),
        ({"run.early_stop.patience": 2, "eval.every": 1, "eval.splits": []}, "counts evaluations"),
        ({"run.early_stop.patience": -1}, "patience=-1 must be at least 0"),
        (
            {"run.early_stop.patience": 1, "eval.every": 1, "run.early_stop.metric": "a/score"},
            "run.early_stop.metric='a/score' must be",
        ),
        ({"run.early_stop.min_delta": 0.1}, "min_delta=0.1 has no effect with"),
        ({"run.keep": "best"}, "run.keep='best' must be one of all, best"),
        ({"run.keep": "best+last", "eval.splits": []}, "eval.splits is empty"),
        ({"run.nonfinite_limit": -1}, "nonfinite_limit=-1"),
    ],
)
def test_what_cannot_be_meant_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("+", r"\+")):
        small.small_config().replace(**settings)


def test_configs_of_before_are_read() -> None:
    data = resolve(small.small_config())
    for name in ("keep", "early_stop", "nonfinite_limit"):
        del data["run"][name]
    del data["eval"]["best_by"]
    assert from_dict(data) == small.small_config()
    assert metric_of(from_dict(data)) == "valid_seen/success"


# ---------------------------------------------------------------------- in a run


def test_the_best_and_the_last_checkpoint_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _told(monkeypatch, [0.9, 0.2, 0.6, 0.1, 0.6, 0.3])
    config = run_config(
        tmp_path, run__iterations=5, run__keep="best+last", eval__every=1, eval__initial=True
    )
    straight = train(config, tmp_path / "run")
    assert straight.stop == "finished"
    assert _numbers(tmp_path / "run") == [2, 5]
    best = {"iteration": 2, "metric": "valid_seen/success", "value": 0.6}
    assert _status(tmp_path / "run") == {
        "format": 1, "stop": "finished", "iterations": 5, "last": 5, "best": best,
    }  # fmt: skip
    found = best_checkpoint(RunFolder(tmp_path / "run"), config)
    assert found is not None
    assert found.iteration == 2
    assert best_iteration(RunFolder(tmp_path / "run")) == 2
    # By another figure, on the same checkpoints.
    by_score = config.replace(**{"eval.best_by": "valid_seen/score"})
    found = best_checkpoint(RunFolder(tmp_path / "run"), by_score)
    assert found is not None
    assert (found.iteration, found.value) == (5, 0.7)


@pytest.mark.parametrize(("keep", "expected"), [("all", [1, 2, 3]), ("last", [3])])
def test_keep(tmp_path: Path, keep: str, expected: list[int]) -> None:
    config = run_config(tmp_path, run__iterations=3, run__keep=keep, run__checkpoint_every=1)
    train(config, tmp_path / "run")
    assert _numbers(tmp_path / "run") == expected
    assert not list((tmp_path / "run/checkpoints").glob(".*")), "nothing half removed"
    (tmp_path / "run/eval/000003_valid_seen.json").unlink()
    with pytest.raises(CheckpointError, match="no best checkpoint: none was evaluated in training"):
        best_iteration(RunFolder(tmp_path / "run"))


def test_a_run_without_progress_ends_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _told(monkeypatch, [0.1, 0.5, 0.4, 0.5, 0.9, 0.9, 0.9, 0.9, 0.9])
    config = run_config(tmp_path, run__early_stop__patience=2, **EARLY)
    result = train(config, tmp_path / "run")
    assert (result.stop, result.iterations) == ("early_stop", 3)
    assert [line["iteration"] for line in result.metrics] == [0, 1, 2]
    status = _status(tmp_path / "run")
    assert (status["stop"], status["iterations"], status["last"]) == ("early_stop", 3, 3)
    assert status["best"]["iteration"] == 1
    # The same settings: the run is over, and a resume says so again.
    before = (tmp_path / "run/metrics.jsonl").read_bytes()
    again = train(config, tmp_path / "run", resume=True)
    assert (again.stop, again.iterations, again.metrics) == ("early_stop", 3, [])
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == before
    # More patience: it goes on, as a run that had it from the start.
    patient = config.replace(**{"run.early_stop.patience": 4, "run.iterations": 5})
    more = train(patient, tmp_path / "run", resume=True)
    assert (more.stop, more.iterations) == ("finished", 5)
    whole = train(patient, tmp_path / "whole")
    assert untimed(read_metrics(tmp_path / "run/metrics.jsonl")) == untimed(whole.metrics)
    assert small.same(trained(tmp_path / "run"), trained(tmp_path / "whole"))
    assert sampled(tmp_path / "run") == sampled(tmp_path / "whole")
    with pytest.raises(RunFolderError, match="another config"):
        train(patient.replace(**{"eval.every": 2}), tmp_path / "run", resume=True)


def test_a_run_that_stops_early_ends_alike_when_it_was_broken_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _told(monkeypatch, [0.1, 0.5, 0.4, 0.5, 0.9, 0.9, 0.9, 0.9, 0.9])
    config = run_config(
        tmp_path, run__early_stop__patience=2, run__keep="best+last", run__seed=3, **EARLY
    )
    whole = train(config, tmp_path / "whole")
    asked = train(config, tmp_path / "parts", until=2)
    assert (asked.stop, _status(tmp_path / "parts")["stop"]) == ("asked", "asked")
    # Killed after the last save, before its evaluation: the decision is made after the resume.
    resumed = train(config, tmp_path / "parts", resume=True)
    assert (resumed.stop, resumed.iterations) == (whole.stop, whole.iterations)
    assert _status(tmp_path / "parts") == _status(tmp_path / "whole")
    assert _numbers(tmp_path / "parts") == _numbers(tmp_path / "whole") == [1, 3]
    file = tmp_path / "parts/eval/000003_valid_seen.json"
    file.unlink()
    assert train(config, tmp_path / "parts", resume=True).stop == "early_stop"
    assert file.exists()


def test_an_evaluation_that_a_longer_run_would_not_have_made_does_not_count(
    tmp_path: Path,
) -> None:
    config = run_config(tmp_path, run__iterations=3, eval__every=2)
    train(config, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert [i for i, _ in scores(folder, config, "valid_seen/success", 3)] == [2, 3]
    longer = config.replace(**{"run.iterations": 4})
    assert [i for i, _ in scores(folder, longer, "valid_seen/success", 3)] == [2]
    assert [evaluation_due(longer, i) for i in range(5)] == [False, False, True, False, True]
    folder.evaluation(2, "valid_seen").write_text('{"wins": 3}')
    with pytest.raises(CheckpointError, match=r"000002_valid_seen\.json is no evaluation"):
        scores(folder, config, "valid_seen/success", 3)


# ---------------------------------------------------------------------- not finite


def _spoil(monkeypatch: pytest.MonkeyPatch, first: int, what: str) -> None:
    """From iteration `first` on gradients are NaN, or its weights are, once it is over."""
    real = Trainer.iterate

    def iterate(self: Trainer, iteration: int) -> dict[str, Any]:
        parameter = next(iter(self.learner.model.parameters()))
        if what == "gradients" and iteration == first:
            parameter.register_hook(lambda grad: grad * float("nan"))
        metrics = real(self, iteration)
        if what == "weights" and iteration == first:
            parameter.data.view(-1)[0] = float("inf")
        return metrics

    monkeypatch.setattr(Trainer, "iterate", iterate)


def _steady(tmp_path: Path, **overrides: Any) -> Config:
    return run_config(
        tmp_path,
        run__iterations=8,
        run__checkpoint_every=1,
        objective__entropy_coef=0.01,  # a gradient in every step
        eval__splits=[],
        **overrides,
    )


def test_a_run_of_refused_steps_ends_with_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _spoil(monkeypatch, 2, "gradients")
    config = _steady(tmp_path, run__nonfinite_limit=3)
    with pytest.raises(NonFiniteError, match=r"last \d optimiser steps were refused") as caught:
        train(config, tmp_path / "run")
    assert _status(tmp_path / "run")["stop"] == "nonfinite"
    lines = read_metrics(tmp_path / "run/metrics.jsonl")
    refused = [line["nonfinite_steps"] for line in lines]
    assert refused[1] == 0
    assert refused[-2] < 3 <= refused[-1]
    assert len({line["optimizer_steps"] for line in lines[1:]}) == 1
    # Refused steps leave the weights as they were, so the last checkpoint is a good one.
    assert _numbers(tmp_path / "run") == list(range(1, len(lines)))
    assert f"The last good checkpoint is {tmp_path}/run/checkpoints/{len(lines) - 1:06d}" in str(
        caught.value
    )


def test_refused_steps_are_counted_over_a_resume_and_forgotten_after_a_good_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _steady(tmp_path, run__nonfinite_limit=3)
    with monkeypatch.context() as patch:
        _spoil(patch, 2, "gradients")
        first = train(config, tmp_path / "run", until=3).metrics[-1]["nonfinite_steps"]
    assert 0 < first < 3
    with monkeypatch.context() as patch:
        _spoil(patch, 3, "gradients")
        with pytest.raises(NonFiniteError):
            train(config, tmp_path / "run", resume=True)
    lines = read_metrics(tmp_path / "run/metrics.jsonl")
    assert lines[-2]["nonfinite_steps"] < 3 <= lines[-1]["nonfinite_steps"]
    # The gradients are finite again.
    done = len(lines) + 1
    result = train(config, tmp_path / "run", resume=True, until=done)
    assert result.metrics[-1]["optimizer_steps"] > lines[-1]["optimizer_steps"]
    state = json.loads((tmp_path / f"run/checkpoints/{done:06d}/state.json").read_text())
    assert state["nonfinite_in_a_row"] == 0
    assert state["nonfinite_steps"] == result.metrics[-1]["nonfinite_steps"] > 0


def test_weights_that_are_not_finite_end_a_run_before_they_are_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _spoil(monkeypatch, 1, "weights")
    with pytest.raises(NonFiniteError, match=r"weights are not finite any more.*000001"):
        train(_steady(tmp_path), tmp_path / "run")
    assert _numbers(tmp_path / "run") == [1]
    _spoil(monkeypatch, 0, "weights")
    with pytest.raises(NonFiniteError, match=r"no checkpoint before; .*initial"):
        train(_steady(tmp_path), tmp_path / "other")


def test_the_last_finite_checkpoint_is_looked_for_in_its_weights(tmp_path: Path) -> None:
    config = run_config(tmp_path, run__iterations=3, run__checkpoint_every=1)
    train(config, tmp_path / "run")
    folder = tmp_path / "run/checkpoints"
    assert last_finite(folder) == folder / "000003"
    file = folder / "000003/model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\xaa")
    assert last_finite(folder) == folder / "000002", "a corrupt one is none"
    assert last_finite(tmp_path / "run/eval") is None
    assert torch.isfinite(next(iter(trained_of(folder / "000002").values()))).all()


def trained_of(path: Path) -> dict[str, torch.Tensor]:
    from trainer.models.tiny import load_policy

    return small.weights(load_policy(path)[0])
