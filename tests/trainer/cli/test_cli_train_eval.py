"""`sero eval --against` and `sero train --resume-from`, on a run that learns nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.trainer import small
from tests.trainer.cli.conftest import Sero
from trainer.config import resolve
from trainer.loop import train


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    config = small.small_config(run__iterations=2, run__checkpoint_every=1)
    (folder / "config.yaml").write_text(yaml.safe_dump(resolve(config)), encoding="utf-8")
    train(config, folder / "run")
    return folder / "run"


def _doctored(run: Path, tmp_path: Path, wins: int, **more: Any) -> Path:
    """The run's own result, with the first `wins` tasks solved."""
    result = json.loads((run / "eval/000002_valid_seen.json").read_text())
    for number, task in enumerate(result["tasks"]):
        task["success"] = number < wins
    result |= {"wins": wins, "success": wins / result["n"]} | more
    file = tmp_path / "earlier.json"
    file.write_text(json.dumps(result), encoding="utf-8")
    return file


def test_o35_eval_against_prints_wins_and_the_paired_difference(
    sero: Sero, run: Path, tmp_path: Path
) -> None:
    own = sero("eval", run, "--against", run / "eval/000002_valid_seen.json", "--json")
    assert own.code == 0
    compared = own.figures["valid_seen"]["against"]
    assert (compared["tasks"], compared["difference"], compared["gained"]) == (4, 0.0, 0)
    assert any("no task changed, so there is no interval" in line for line in own.lines)

    now = own.figures["valid_seen"]["wins"]
    file = _doctored(run, tmp_path, 4)
    other = sero("eval", run, "--against", file, "--json")
    compared = other.figures["valid_seen"]["against"]
    assert (compared["wins_before"], compared["wins"], compared["lost"]) == (4, now, 4 - now)
    assert compared["difference"] == (now - 4) / 4
    assert compared["file"] == str(file)
    text = "\n".join(other.lines)
    assert f"on 4 tasks before: 4, now: {now} (0 solved only now, {4 - now} only before)" in text
    assert f"difference: {25 * (now - 4):+.1f} percentage points (95 % interval" in text


@pytest.mark.parametrize("key", ["manifest_hash", "prompt_hash", "tasks_hash"])
def test_o35_eval_against_refuses_what_was_measured_on_something_else(
    sero: Sero, run: Path, tmp_path: Path, key: str
) -> None:
    file = _doctored(run, tmp_path, 1, **{key: "of another"})
    refused = sero("eval", run, "--against", file)
    assert refused.code == 2
    told = "tasks: 4 each, of which 4 are the same" if key == "tasks_hash" else f"{key}: 'of"
    assert told in refused.errors
    assert sero("eval", run, "--against", file, "--force", "--json").figures["valid_seen"][
        "against"
    ]


def test_a_result_that_cannot_be_written_is_said_before_anything_is_played(
    sero: Sero, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("played, and all of it in vain")

    monkeypatch.setattr("trainer.evaluation.run.evaluate", play)
    (tmp_path / "file").write_text("in the way")
    for out in (tmp_path / "file", tmp_path / "file" / "folder"):
        outcome = sero("eval", run, "--out", out)
        assert outcome.code == 2
        assert f"--out: {out} cannot be written" in outcome.errors
    # What fails later leaves no empty folder behind.
    assert sero("eval", run, "--out", tmp_path / "new", "--split", "nowhere").code == 2
    assert not (tmp_path / "new").exists()


def test_a_split_that_is_not_there_is_said_at_once(
    sero: Sero, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("something was played")

    monkeypatch.setattr("trainer.evaluation.run.evaluate", play)
    outcome = sero("eval", run, "--split", "valid_seen", "vaild_unseen")
    assert outcome.code == 2
    assert "'vaild_unseen'" in outcome.errors
    outcome = sero("eval", run, "--split", "valid_unseen", "--against", _doctored(run, tmp_path, 1))
    assert outcome.code == 2
    assert "nothing to compare" in outcome.errors
    file = _doctored(run, tmp_path, 1)
    for text in (
        file.read_text(encoding="utf-8").replace('"task_id"', '"id"'),
        file.read_text(encoding="utf-8").replace('"tasks"', '"task"'),
        "[" * 100_000,
        "[]",
    ):
        file.write_text(text, encoding="utf-8")
        outcome = sero("eval", run, "--against", file)
        assert outcome.code == 2
        assert "is no evaluation result" in outcome.errors


def test_train_goes_on_from_the_checkpoint_that_the_error_names(sero: Sero, run: Path) -> None:
    words = ["train", run.parent / "config.yaml", "--out", run]
    file = run / "checkpoints/000002/optimizer.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    refused = sero(*words, "--resume")
    assert refused.code == 2
    assert "`sero train ... --resume-from 1`" in refused.errors
    resumed = sero(*words, "--resume-from", "1", "--json")
    assert (resumed.code, resumed.figures["iterations"]) == (0, 2)
    assert file.read_bytes() == whole, "bit for bit what it was before"
    assert (run / "aside/000001/checkpoints/000002/optimizer.safetensors").exists()
