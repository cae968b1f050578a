"""The loggers of a run together: same numbers, failures that end no run, closing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.loggers.recording import Recording
from trainer.config import Config, ConfigError, LogConfig, from_dict, load_config, resolve
from trainer.loggers import registry
from trainer.loggers.base import LoggerError, evaluation_numbers, flat, without_secrets
from trainer.loggers.jsonl import JsonlLogger, finite
from trainer.loggers.registry import RunLog, check_loggers, open_run_log


def _record(iteration: int, **more: Any) -> dict[str, Any]:
    return {"iteration": iteration, "loss/policy": 0.5, "loss/kl": None, **more}


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_tracker_gets_the_same_numbers_and_the_record_has_all(tmp_path: Path) -> None:
    first, second = Recording("a"), Recording("b")
    with RunLog(JsonlLogger(tmp_path / "m.jsonl"), [first, second]) as log:
        log.evaluation(0, {"val": {"success": 0.25, "n": 4, "split": "val", "tasks": [1]}})
        log.iteration(_record(0, why={"too_long": 2}, done=True, text="no number"))
        log.iteration(_record(1))
    assert first.seen == second.seen
    assert first.seen == [
        (0, {"eval/val/success": 0.25, "eval/val/n": 4}),
        (1, {"iteration": 0, "loss/policy": 0.5, "why/too_long": 2, "done": 1}),
        (2, {"iteration": 1, "loss/policy": 0.5}),
    ]
    assert _lines(tmp_path / "m.jsonl")[0] == _record(
        0, why={"too_long": 2}, done=True, text="no number"
    )
    assert (first.closed, second.closed) == ([False], [False])


@pytest.mark.parametrize(("every", "steps"), [(1, [3, 4, 5, 6, 7]), (3, [3, 6, 7]), (9, [7])])
def test_trackers_get_every_nth_iteration_of_the_run_and_the_last(
    tmp_path: Path, every: int, steps: list[int]
) -> None:
    kept = Recording()
    log = RunLog(JsonlLogger(tmp_path / "m.jsonl"), [kept], every=every, last=7)
    for iteration in range(2, 7):  # a resumed part counts from the start of the run
        log.iteration(_record(iteration))
    assert [step for step, _ in kept.seen] == steps
    assert [line["iteration"] for line in _lines(tmp_path / "m.jsonl")] == [2, 3, 4, 5, 6]


def test_a_tracker_that_fails_is_told_of_once_and_dropped(tmp_path: Path) -> None:
    told: list[str] = []
    bad, good = Recording("bad", fails=(2, 3), stubborn=True), Recording("good")
    with RunLog(JsonlLogger(tmp_path / "m.jsonl"), [bad, good], warn=told.append) as log:
        for iteration in range(4):
            log.iteration(_record(iteration))
    assert [step for step, _ in bad.seen] == [1]
    assert [step for step, _ in good.seen] == [1, 2, 3, 4]
    assert len(_lines(tmp_path / "m.jsonl")) == 4
    assert (bad.closed, good.closed) == ([True], [False])
    (line,) = told
    assert line.startswith("the logger bad failed at iteration 2 and is off for the rest")
    assert "OSError: the disk is full" in line


def test_what_a_tracker_says_reaches_no_terminal_raw(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RunLog(JsonlLogger(tmp_path / "m.jsonl"), [Recording(fails=(1,))]).iteration(_record(0))
    said = capsys.readouterr().err
    assert said.startswith("sero: the logger kept failed")
    assert "\x1b" not in said
    assert r"\x1b[2J" in said


def test_all_are_closed_when_the_run_ends_by_an_error(tmp_path: Path) -> None:
    told: list[str] = []
    first, second = Recording("a", stubborn=True), Recording("b")
    log = RunLog(JsonlLogger(tmp_path / "m.jsonl"), [first, second], warn=told.append)
    with pytest.raises(ZeroDivisionError), log:
        raise ZeroDivisionError
    assert second.closed == [True]
    assert first.closed[0] is True
    assert len(told) == 1
    log.close()
    assert second.closed == [True], "closed once"


def test_an_interrupt_is_no_failure_of_a_tracker(tmp_path: Path) -> None:
    class Interrupted(Recording):
        def log(self, step: int, numbers: Any) -> None:
            raise KeyboardInterrupt

    log = RunLog(JsonlLogger(tmp_path / "m.jsonl"), [Interrupted()])
    with pytest.raises(KeyboardInterrupt):
        log.iteration(_record(0))


def test_a_record_that_cannot_be_written_stops_the_run(tmp_path: Path) -> None:
    log = RunLog(JsonlLogger(tmp_path / "no folder/m.jsonl"), [Recording()])
    with pytest.raises(FileNotFoundError):
        log.iteration(_record(0))


def test_o27_no_figure_is_nan(tmp_path: Path) -> None:
    kept = Recording()
    log = RunLog(JsonlLogger(tmp_path / "m.jsonl"), [kept])
    written = log.iteration(_record(0, bad=float("nan"), deep={"worse": float("-inf"), "x": 1.0}))
    assert written == _record(0, bad=None, deep={"worse": None, "x": 1.0}, nonfinite_figures=2)
    assert _lines(tmp_path / "m.jsonl") == [written]
    (_, numbers) = kept.seen[0]
    assert numbers == {"iteration": 0, "loss/policy": 0.5, "deep/x": 1.0, "nonfinite_figures": 2}
    assert finite(_record(3)) == _record(3), "no name more where nothing is wrong"


def test_settings_are_no_figures_of_an_evaluation() -> None:
    result = {"iteration": 3, "n": 2, "success": 0.5, "score": None, "max_steps": 50, "seed": 0}
    assert evaluation_numbers({"s": result}) == {"eval/s/n": 2, "eval/s/success": 0.5}
    assert flat({}) == {}


def test_secrets_are_left_out() -> None:
    shown = without_secrets(
        {
            "hub": {"api_key": "k", "HF_TOKEN": "t", "token": ["a"], "password": ""},
            "max_new_tokens": 24,
            "micro_batch_tokens": 7,
            "urls": ["https://user:word@host:1/x", "https://host/a@b"],
        }
    )
    assert shown == {
        "hub": {
            "api_key": "(left out)",
            "HF_TOKEN": "(left out)",
            "token": ["(left out)"],
            "password": "",
        },
        "max_new_tokens": 24,
        "micro_batch_tokens": 7,
        "urls": ["https://host:1/x", "https://host/a@b"],
    }
    plain = resolve(Config())
    assert without_secrets(plain) == json.loads(json.dumps(plain)), "nothing of a config is lost"


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_a_missing_package_is_an_error_that_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    config = load_config({}, {"log.to": name})
    for module in [m for m in sys.modules if m.split(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard.writer", raising=False)
    monkeypatch.setitem(sys.modules, name, None)  # as an import system finds nothing
    with pytest.raises(LoggerError, match=rf"pip install 'sero-rl\[{name}\]'"):
        open_run_log(config, tmp_path, tmp_path / "m.jsonl")
    monkeypatch.setattr(registry.util, "find_spec", lambda found: None)
    with pytest.raises(LoggerError, match=rf"pip install 'sero-rl\[{name}\]'"):
        check_loggers(config.log)
    check_loggers(LogConfig())


def test_what_started_is_closed_where_a_later_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = Recording()

    def make(kind: str, run: Any) -> Recording:
        if kind == "wandb":
            raise LoggerError("does not start")
        return started

    monkeypatch.setattr(registry, "_make", make)
    config = load_config({}, {"log.to": "trackio,wandb"})
    with pytest.raises(LoggerError, match="does not start"):
        open_run_log(config, tmp_path, tmp_path / "m.jsonl")
    assert started.closed == [True]


def test_a_resumed_run_keeps_its_id_and_a_new_one_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[Any] = []
    monkeypatch.setattr(registry, "_make", lambda kind, run: runs.append(run) or Recording())
    config = load_config({}, {"log.to": "wandb", "log.project": "p"})
    folder = tmp_path / "first"
    for first in (0, 3, 0):
        open_run_log(config, folder, tmp_path / "m.jsonl", first=first).close()
    ids = [run.id for run in runs]
    assert ids[0] == ids[1] != ids[2]
    assert {run.name for run in runs} == {"first"}
    assert [run.first for run in runs] == [0, 3, 0]
    assert runs[0].folder == folder / "logs"
    assert runs[0].config["log"]["project"] == "p"
    moved = load_config(
        {}, {"log.to": "wandb", "log.dir": str(tmp_path / "d"), "log.run_name": "n"}
    )
    open_run_log(moved, folder, tmp_path / "m.jsonl").close()
    assert (runs[-1].folder, runs[-1].name) == (tmp_path / "d/n", "n")


def test_without_trackers_nothing_but_the_record_is_made(tmp_path: Path) -> None:
    with open_run_log(Config(), tmp_path, tmp_path / "m.jsonl") as log:
        log.iteration(_record(0))
        log.evaluation(1, {})
    assert [path.name for path in tmp_path.iterdir()] == ["m.jsonl"]


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ({"every": 0, "to": ["wandb"]}, "log.every=0 must be positive"),
        ({"every": 2}, "log.every=2 has no effect"),
        ({"dir": "x", "to": ["trackio"]}, "add tensorboard or wandb"),
        ({"project": "x", "to": ["tensorboard"]}, "add wandb or trackio"),
        ({"to": ["wandb", "wandb"]}, "names a logger twice"),
        ({"to": ["mlflow"]}, "must be one of tensorboard, wandb, trackio"),
        ({"to": ["wandb"], "run_name": "../up"}, "log.run_name='../up' must be a name"),
        ({"to": ["wandb"], "run_name": ".."}, "log.run_name='..' must be a name"),
    ],
)
def test_settings_without_effect_or_sense_are_refused(log: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_dict({"log": log})
    assert told in str(caught.value)
