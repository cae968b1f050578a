"""`sero train RUN --resume`: the run's folder stands for its config; what is no config is said."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.cli.conftest import Sero
from tests.trainer.short_runs import run_config, untimed
from trainer.cli.train import parse
from trainer.loop import train
from trainer.metrics import read_metrics
from trainer.runs.folder import RunFolder


def _config(tmp_path: Path, **changes: Any) -> Any:
    given = {"run__checkpoint_every": 1, "eval__splits": [], **changes}
    return run_config(tmp_path, run__iterations=2, **given)


def test_a_run_goes_on_without_its_config_file(sero: Sero, tmp_path: Path) -> None:
    config = _config(tmp_path)
    whole = train(config, tmp_path / "whole")
    for name, words in (
        ("a", (tmp_path / "a", "--resume")),
        ("b", ("--resume", tmp_path / "b")),
        ("c", ("--resume", "--out", tmp_path / "c")),
        ("d", ("--run.threads", "1", tmp_path / "d", "--resume-from", "1")),
    ):
        train(config, tmp_path / name, until=1)
        outcome = sero("train", *words, "--json")
        assert outcome.code == 0, outcome.errors
        assert (outcome.figures["run"], outcome.figures["iterations"]) == (str(tmp_path / name), 2)
        lines = read_metrics(RunFolder(tmp_path / name).metrics)
        assert untimed(lines) == untimed(whole.metrics)
    longer = sero("train", tmp_path / "a", "--resume", "--run.iterations", "3", "--json")
    assert longer.figures["iterations"] == 3
    changed = sero("train", tmp_path / "a", "--resume", "--optim.lr", "1")
    assert changed.code == 2
    assert "made with another config: optim.lr" in changed.errors


def test_a_run_of_several_processes_goes_on_in_one_as_the_error_says(
    sero: Sero, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    overrides = {"parallel__mode": "ddp", "parallel__timeout_s": 60.0, "eval__tasks": 1}
    train(run_config(tmp_path, run__iterations=1, **overrides), run)
    words = ("train", run, "--resume", "--run.iterations", "2", "--parallel.mode", "none")
    refused = sero(*words)
    assert refused.code == 2
    (remedy,) = re.findall(r"--parallel\.timeout_s \d+", refused.errors)
    assert sero(*words, *remedy.split()).code == 0


def test_what_is_no_config_is_said(sero: Sero, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(_config(tmp_path), run, until=1)
    for words, told in (
        ((), "Give a config file"),
        (("--resume",), "sero train RUN --resume"),
        (("--run.iterations", "3"), "Give a config file"),
        ((run,), f"To go on with a run: sero train {run} --resume"),
        ((run / "run.json",), f"To go on with the run: sero train {run} --resume"),
        ((run / "run.json", "--resume"), f"sero train {run} --resume"),
        ((run, "--resume", "--out", tmp_path / "other"), "A run goes on in its own folder"),
        ((tmp_path, "--resume"), "holds no run.json"),
        (("--plan",), "--plan needs a config file"),
    ):
        outcome = sero("train", *words)
        assert outcome.code == 2, words
        assert told in outcome.errors, words


@pytest.mark.parametrize(
    ("words", "config", "overrides"),
    [
        ("c.yaml --run.seed 1 --resume", "c.yaml", ["--run.seed", "1"]),
        ("--run.seed 1 c.yaml --out r", "c.yaml", ["--run.seed", "1"]),
        ("--run.seed=1 c.yaml", "c.yaml", ["--run.seed=1"]),
        ("--out r --run.seed -1", None, ["--run.seed", "-1"]),
        ("c.yaml --run.seed --out r", "c.yaml", ["--run.seed"]),
        ("c.yaml --auxiliary.sero {}", "c.yaml", ["--auxiliary.sero", "{}"]),
    ],
)
def test_values_of_overrides_are_no_config(
    words: str, config: str | None, overrides: list[str]
) -> None:
    args, rest = parse(words.split())
    assert (args.config, rest) == (None if config is None else Path(config), overrides)


def test_prompts_beyond_the_limit_are_warned_of(
    sero: Sero, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import yaml

    from trainer.config import resolve

    monkeypatch.setattr("trainer.runs.needs.check_prompts", lambda *_: None)
    config = run_config(
        tmp_path, run__iterations=2, prompt__max_prompt_tokens=3, eval__tasks=1,
        objective__name="none", auxiliary__format_only__weight=1.0,
    )  # fmt: skip
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(resolve(config)))
    outcome = sero("train", tmp_path / "c.yaml", "--out", tmp_path / "run")
    assert outcome.code == 0, outcome.errors
    (line,) = (line for line in outcome.errors.splitlines() if "WARNING" in line)
    metrics = read_metrics(tmp_path / "run/metrics.jsonl")
    longest = max(m["context_overflow_longest"] for m in metrics)
    assert "100% of the rollouts" in line
    assert "prompt.max_prompt_tokens=3; the longest had " in line
    told = [line for line in outcome.lines if "WARNING" in line]
    assert any(f"the longest had {longest} tokens" in line for line in told), "and in the end"
    assert any("valid_seen: 100% of the episodes" in line for line in told), "of the evaluation"
    assert "format_only trained nothing in 2 iterations: no turn was played" in outcome.lines
    assert [m["context_overflow_share"] for m in metrics] == [1.0, 1.0]
