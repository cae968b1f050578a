"""The files of `sero eval`: whose name says what differs, and what is refused before playing."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from agent_envs.errors import SeroError
from tests.trainer import small
from tests.trainer.cli.conftest import Sero
from trainer.loop import train


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(small.small_config(run__iterations=1, warmstart__steps=1), folder)
    return folder


@pytest.fixture
def unplayed(monkeypatch: pytest.MonkeyPatch) -> None:
    def play(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("something was played")

    monkeypatch.setattr("trainer.evaluation.run.evaluate", play)


def _file(sero: Sero, run: Path, *words: object) -> Path:
    outcome = sero("eval", run, *words, "--json")
    assert outcome.code == 0, outcome.errors
    return Path(outcome.figures["valid_seen"]["file"])


def test_no_result_replaces_one_that_was_measured_on_something_else(
    sero: Sero, run: Path, houses: Path
) -> None:
    asked: list[tuple[object, ...]] = [
        (),
        ("--tasks", "2"),
        ("--tasks", "0"),
        ("--temperature", "0.7"),
        ("--temperature", "0.7", "--seeds", "2"),
        ("--max-steps", "3"),
        ("--max-prompt-tokens", "300"),
        ("--temperature", "0.7", "--top-p", "0.5"),
        ("--data", houses),
        ("--data", houses, "--max-steps", "3"),
    ]
    files = [_file(sero, run, *words) for words in asked]
    names = [file.name for file in files]
    assert len(set(names)) == len(names)
    assert names[:5] == [
        "000001_valid_seen.json",
        "000001_valid_seen_2tasks.json",
        "000001_valid_seen_10tasks.json",
        "000001_valid_seen_t0.7.json",
        "000001_valid_seen_t0.7_2seeds.json",
    ]
    # The same again replaces its own file, and so does what changes no outcome.
    assert _file(sero, run, "--tasks", "2", "--batch-size", "1") == files[1]
    assert {file.with_suffix(".txt").exists() for file in files} == {True}
    assert len(list((run / "eval/later").glob("*.json"))) == len(files)


def test_a_file_of_other_weights_or_settings_is_left_where_it_is(
    sero: Sero, run: Path, tmp_path: Path
) -> None:
    first = _file(sero, run, "--out", tmp_path)
    there = json.loads(first.read_text())
    first.write_text(json.dumps({**there, "model": {**there["model"], "digest": "other"}}))
    before = first.read_bytes()
    second = _file(sero, run, "--out", tmp_path)
    assert second != first
    assert second.name.startswith("000001_valid_seen_")
    assert first.read_bytes() == before
    assert _file(sero, run, "--out", tmp_path) == second
    first.write_text("no result")
    assert _file(sero, run, "--out", tmp_path) == second


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--max-steps", "3"), "max_steps: 6 and 3"),
        (("--temperature", "0.5"), "decoding: "),
        (("--tasks", "2"), "tasks: 4 against 2 tasks"),
        (("--max-prompt-tokens", "400"), "max_prompt_tokens: 512 and 400"),
        (("--method", "react"), "prompt_hash: "),
    ],
)
def test_what_cannot_be_compared_is_refused_before_it_is_played(
    sero: Sero, run: Path, unplayed: None, words: tuple[str, ...], told: str
) -> None:
    own = run / "eval/000001_valid_seen.json"
    refused = sero("eval", run, "--against", own, *words)
    assert refused.code == 2
    assert told in refused.errors


def test_other_data_are_said_to_be_others(
    sero: Sero, run: Path, unplayed: None, houses: Path
) -> None:
    own = run / "eval/000001_valid_seen.json"
    refused = sero("eval", run, "--against", own, "--data", houses)
    assert refused.code == 2
    assert "so the data are others" in refused.errors
    assert "4 each, of which 0 are the same" in refused.errors


def test_two_files_are_compared_without_playing(
    sero: Sero, run: Path, tmp_path: Path, unplayed: None
) -> None:
    later = run / "eval/000001_valid_seen.json"
    result = json.loads(later.read_text())
    for task in result["tasks"]:
        task["success"] = True
    earlier = tmp_path / "earlier.json"
    earlier.write_text(json.dumps({**result, "wins": 4, "success": 1.0}))
    outcome = sero("eval", "--compare", earlier, later, "--json")
    assert outcome.code == 0, outcome.errors
    assert (outcome.figures["wins_before"], outcome.figures["tasks"]) == (4, 4)
    assert outcome.figures["files"] == [str(earlier), str(later)]
    assert any(line.startswith(f"{earlier}: valid_seen: 4 of 4 tasks") for line in outcome.lines)

    earlier.write_text(json.dumps({**result, "max_steps": 50}))
    refused = sero("eval", "--compare", earlier, later)
    assert refused.code == 2
    assert "max_steps: 50 and 6" in refused.errors
    forced = sero("eval", "--compare", earlier, later, "--force")
    assert any("NOT MEASURED ON THE SAME THING: max_steps: 50 and 6" in s for s in forced.lines)
    assert "plays nothing" in sero("eval", run, "--compare", earlier, later).errors
    for words in (("--against", later), ("--split", "valid_seen")):
        assert "plays nothing" in sero("eval", "--compare", earlier, later, *words).errors
    assert "is no evaluation result" in sero("eval", "--compare", run / "run.json", later).errors
    assert "No such file" in sero("eval", "--compare", run / "none.json", later).errors
    folder = sero("eval", "--compare", run, later)
    assert folder.code == 2
    assert "is a folder. Name a result file" in folder.errors


def test_a_split_that_was_played_is_written_before_the_next(
    sero: Sero, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer.evaluation import run as module

    real = module.evaluate

    def fails_later(*args: Any, split: str, **options: Any) -> Any:
        if split == "valid_unseen":
            raise SeroError("the server is gone")
        return real(*args, split=split, **options)

    monkeypatch.setattr(module, "evaluate", fails_later)
    out = tmp_path / "results"
    outcome = sero("eval", run, "--split", "valid_seen", "valid_unseen", "--out", out)
    assert outcome.code == 2
    assert "the server is gone" in outcome.errors
    found = json.loads((out / "000001_valid_seen.json").read_text())
    assert found["split"] == "valid_seen"


def test_a_full_disk_is_said_and_the_result_was_shown(
    sero: Sero, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "results"
    out.mkdir()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    outcome = sero("eval", run, "--split", "valid_seen", "--out", out)
    assert outcome.code == 2
    assert "No space left on device. Make room" in outcome.errors
    assert any(line.startswith("valid_seen: ") for line in outcome.lines)
    assert not list(out.iterdir())


def test_an_own_environment_without_a_step_limit_is_told_the_option_of_this_command(
    sero: Sero,
) -> None:
    server = ("--endpoint", "http://127.0.0.1:9/v1", "--model", "m")
    outcome = sero("eval", *server, "--env", "examples.third_party_env:make")
    assert outcome.code == 2
    assert "(--max-steps N)" in outcome.errors
    assert "env.max_steps" not in outcome.errors
