"""What a run shows where there is no terminal, and what it says when it is broken off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trainer.cli.conftest import Sero
from trainer.cli import progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set."""
    now = [100.0]
    monkeypatch.setattr("trainer.cli.progress.time.monotonic", lambda: now[0])
    return now


def _lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_a_log_gets_a_line_an_iteration_and_one_every_half_minute_of_the_warm_start(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with progress.training(5, 2) as hooks:
        for step, seconds in enumerate((1.0, 2.0, 31.0, 32.0, 33.0)):
            clock[0] = 100.0 + seconds
            hooks.on_warmstart(step, 2.0 - step / 10)
        assert _lines(capsys) == [
            "0:00:01 warm start 1/5, loss 2.000",
            "0:00:31 warm start 3/5, loss 1.800",
            "0:00:33 warm start 5/5, loss 1.600",
        ]
        hooks.on_iteration({"iteration": 0, "success_rate": 0.25})
        assert _lines(capsys) == ["0:00:33 iteration 1/2, won 25% of the rollouts"]
        clock[0] = 3800.0
        hooks.on_iteration({"iteration": 1})
    assert _lines(capsys) == ["1:01:40 iteration 2/2"]


def test_runs_side_by_side_share_a_line(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with progress.several(["a", "b"], 3) as show:
        for seconds, done in ((0, 0), (29, 1), (30, 2), (31, 3)):
            clock[0] = 100.0 + seconds
            show({"a": done, "b": 3})
    assert _lines(capsys) == [
        "0:00:00 a 0/3, b 3/3",
        "0:00:30 a 2/3, b 3/3",
        "0:00:31 a 3/3, b 3/3",
    ]


def test_no_warm_start_without_demonstrations(
    sero: Sero, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def training(warm_steps: int, iterations: int) -> Any:
        seen.append((warm_steps, iterations))
        raise KeyboardInterrupt

    monkeypatch.setattr("trainer.cli.progress.training", training)
    config = tmp_path / "c.yaml"
    config.write_text("warmstart: {demonstrations: 4, steps: 7, text_steps: 2}\n")
    words = ["train", config, "--out", tmp_path / "run", "--run.iterations", "3"]
    assert sero(*words).code == 130
    assert sero(*words, "--warmstart.demonstrations", "0").code == 130
    assert seen == [(9, 3), (0, 3)]


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ((), "There is no checkpoint yet. To begin again: sero train {c} --out {r} --run.seed 3"),
        (("run.json",), "There is no checkpoint yet. To begin again, remove {r} or choose another"),
        (
            ("run.json", "checkpoints/000002/x", "checkpoints/000010/x", "checkpoints/.part/x"),
            "{r} holds the checkpoint after iteration 10. To go on: "
            "sero train {c} --out {r} --resume --run.seed 3",
        ),
    ],
)
def test_a_run_that_is_broken_off_says_what_is_kept_and_how_to_go_on(
    sero: Sero,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: tuple[str, ...],
    told: str,
) -> None:
    run, config = tmp_path / "run", tmp_path / "c.yaml"
    config.write_text("")

    def train(*args: Any, **hooks: Any) -> None:
        for name in files:
            (run / name).parent.mkdir(parents=True, exist_ok=True)
            (run / name).touch()
        raise KeyboardInterrupt

    monkeypatch.setattr("trainer.loop.train", train)
    outcome = sero("train", config, "--out", run, "--run.seed", "3")
    assert outcome.code == 130
    (line,) = (line for line in outcome.errors.splitlines() if line)
    assert line.startswith("sero: stopped. " + told.format(c=config, r=run))


def test_a_demo_that_is_broken_off_says_that_it_can_be_called_again(
    sero: Sero, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*args: Any, **hooks: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("trainer.cli.demo.show_branch", lambda *args: None)
    monkeypatch.setattr("trainer.demo_runs.run_arm", stop)
    monkeypatch.setattr("trainer.demo_runs.compare", stop)
    first = sero("demo", "--out", tmp_path / "d")
    assert first.code == 130
    assert "no checkpoint yet; the same command begins again" in first.errors
    (tmp_path / "d/checkpoints/000004").mkdir(parents=True)
    later = sero("demo", "--out", tmp_path / "d")
    assert "checkpoint after iteration 4; the same command, without --fresh" in later.errors
    several = sero("demo", "--seeds", "1", "--out", tmp_path / "e")
    assert several.code == 130
    assert f"{tmp_path / 'e'} keeps what is done; the same command goes on." in several.errors
