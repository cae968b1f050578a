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


def test_an_evaluation_is_told_before_and_after(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with progress.training(0, 2) as hooks:
        hooks.on_evaluation("valid_seen", 20)
        clock[0] = 180.0
        hooks.on_evaluation("valid_seen", {"wins": 5, "n": 20, "success": 0.25, "score": 0.5})
    assert _lines(capsys) == [
        "0:00:00 evaluating 20 tasks of valid_seen",
        "0:01:20 valid_seen: 5 of 20 tasks, mean score 0.500",
    ]


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

    def training(warm_steps: int, iterations: int, max_prompt_tokens: int | None) -> Any:
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
        (
            ("run.json",),
            "There is no checkpoint yet. To begin again: "
            "sero train {c} --out {r} --resume --run.seed 3",
        ),
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
    monkeypatch.setattr("trainer.demo.runs.run_arm", stop)
    monkeypatch.setattr("trainer.demo.runs.compare", stop)
    first = sero("demo", "--out", tmp_path / "d")
    assert first.code == 130
    assert "no checkpoint yet; the same command begins again" in first.errors
    (tmp_path / "d/checkpoints/000004").mkdir(parents=True)
    later = sero("demo", "--out", tmp_path / "d")
    assert "checkpoint after iteration 4; the same command, without --fresh" in later.errors
    several = sero("demo", "--seeds", "1", "--out", tmp_path / "e")
    assert several.code == 130
    assert f"{tmp_path / 'e'} keeps what is done; the same command goes on." in several.errors


def test_a_line_says_speed_phases_and_the_time_that_is_left(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    figures = {
        "success_rate": 0.5,
        "iteration_s": 10.0,
        "tokens_per_s": 1.0,
        "perf/tokens_per_s": 12345.6,
        "time/collect": 6.0,
        "time/branch": 0.02,
        "time/scoring": 1.0,
        "time/update": 3.0,
    }
    with progress.training(0, 8) as hooks:
        hooks.on_iteration({"iteration": 2, **figures})  # a resumed run
        clock[0] = 130.0  # an evaluation came between
        hooks.on_iteration({"iteration": 3, **figures})
        clock[0] = 140.0
        hooks.on_iteration({"iteration": 4, **figures, "success_rate": None, "perf/mfu": None})
        hooks.on_iteration({"iteration": 7, "tokens_per_s": None, "time/update": 0.0})
    told = "12,346 tokens/s, collect 60% update 30% scoring 10%"
    assert _lines(capsys) == [
        f"0:00:00 iteration 3/8, won 50% of the rollouts, {told}, 0:00:50 left",
        f"0:00:30 iteration 4/8, won 50% of the rollouts, {told}, 0:02:00 left",
        f"0:00:40 iteration 5/8, {told}, 0:01:00 left",
        "0:00:40 iteration 8/8",
    ]


def test_a_log_has_no_control_characters_and_a_terminal_has_the_same_note(
    clock: list[float], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def play() -> str:
        with progress.training(1, 3) as hooks:
            hooks.on_warmstart(0, 1.0)
            hooks.on_iteration({"iteration": 0, "success_rate": 0.25, "iteration_s": 2.0})
        return capsys.readouterr().err

    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    plain = play()
    assert all(c.isprintable() or c == "\n" for c in plain)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    shown = play()
    assert "\x1b[" in shown
    for text in (plain, shown):
        assert "won 25% of the rollouts, 0:00:04 left" in text


def test_finished_iterations_that_no_checkpoint_holds_are_told(
    sero: Sero, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, config = tmp_path / "run", tmp_path / "c.yaml"
    config.write_text("")

    def train(*args: Any, **hooks: Any) -> None:
        (run / "checkpoints/000010").mkdir(parents=True)
        (run / "run.json").touch()
        (run / "status.json").write_text('{"iterations": 13}')
        raise KeyboardInterrupt

    monkeypatch.setattr("trainer.loop.train", train)
    errors = sero("train", config, "--out", run).errors
    assert "The 3 finished iterations since iteration 10 will be run again" in errors
