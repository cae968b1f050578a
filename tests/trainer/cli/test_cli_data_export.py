"""`sero data export`: chat data of an oracle, the same bytes every time, whole or not there."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.cli.conftest import Sero
from tests.trainer.cli.test_cli_without_torch import REFERENCE, TRAIN, _run


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _export(sero: Sero, houses: Path, out: Path, *words: object) -> Any:
    return sero("data", "export", "--data", houses, "--out", out, "--json", *words)


def test_a_line_is_a_turn(sero: Sero, houses: Path, tmp_path: Path) -> None:
    out = tmp_path / "turns.jsonl"
    outcome = _export(sero, houses, out, "--n", 4)
    assert outcome.code == 0
    lines = _read(out)
    figures = outcome.figures
    assert (figures["episodes"], figures["won"], figures["lines"]) == (4, 4, len(lines))
    assert [set(line) for line in lines] == [{"messages", "task_id", "step", "provenance"}] * len(
        lines
    )
    steps: dict[str, list[int]] = {}
    for line in lines:
        assert [message["role"] for message in line["messages"]] == ["user", "assistant"]
        steps.setdefault(line["task_id"], []).append(line["step"])
    assert len(steps) == 4
    assert all(found == list(range(len(found))) for found in steps.values())
    told = lines[0]["provenance"]
    assert (told["env_id"], told["oracle"], told["template"]) == (
        "SeroALFWorld-v0", "planner", "field",
    )  # fmt: skip
    assert told["prompt_hash"] == figures["prompt_hash"]


def test_the_same_words_write_the_same_bytes(sero: Sero, houses: Path, tmp_path: Path) -> None:
    words = ("--random-share", 0.2, "--inadmissible-share", 0.1)
    files = [tmp_path / name for name in ("a.jsonl", "b.jsonl", "c.jsonl")]
    digests = [
        _export(sero, houses, file, *words, "--seed", seed).figures["sha256"]
        for file, seed in zip(files, (0, 0, 1), strict=True)
    ]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert digests[0] == digests[1] != digests[2]


def test_replaced_steps_are_seen_and_never_replies(
    sero: Sero, houses: Path, tmp_path: Path
) -> None:
    out = tmp_path / "noise.jsonl"
    _export(sero, houses, out, "--random-share", 0.3, "--inadmissible-share", 0.2)
    lines = _read(out)
    steps = [line["step"] for line in lines]
    assert max(steps) > 0
    assert any(b - a > 1 for a, b in itertools.pairwise(steps)), "a step was replaced"
    for line in lines:
        prompt, reply = (message["content"] for message in line["messages"])
        command = reply.partition("<action>")[2].partition("</action>")[0]
        assert f"'{command}'" in prompt.partition("possible now: [")[2], "admissible when sent"


def test_a_trajectory_is_a_growing_chat(sero: Sero, houses: Path, tmp_path: Path) -> None:
    turns, chats = tmp_path / "turns.jsonl", tmp_path / "chats.jsonl"
    _export(sero, houses, turns)
    outcome = _export(sero, houses, chats, "--trajectory")
    assert outcome.figures["lines"] == outcome.figures["won"] == 6
    per_task: dict[str, list[str]] = {}
    for line in _read(turns):
        per_task.setdefault(line["task_id"], []).append(line["messages"][-1]["content"])
    for line in _read(chats):
        said = [m["content"] for m in line["messages"] if m["role"] == "assistant"]
        assert said == per_task[line["task_id"]]
        assert [m["role"] for m in line["messages"]] == ["user", "assistant"] * len(said)


def test_prompt_and_completion_apart(sero: Sero, houses: Path, tmp_path: Path) -> None:
    chat, apart = tmp_path / "chat.jsonl", tmp_path / "apart.jsonl"
    _export(sero, houses, chat, "--n", 2)
    _export(sero, houses, apart, "--n", 2, "--format", "prompt-completion")
    for one, other in zip(_read(chat), _read(apart), strict=True):
        assert other["prompt"] + other["completion"] == one["messages"]
        assert len(other["completion"]) == 1


def test_webshop_and_an_oracle_that_knows_what_the_student_knows(
    sero: Sero, tmp_path: Path
) -> None:
    words = ("data", "export", "--env", "webshop", "--data", "generated", "--n", 3, "--json")
    goal = sero(*words, "--out", tmp_path / "goal.jsonl")
    assert goal.code == 0
    lines = _read(tmp_path / "goal.jsonl")
    assert any("search[" in line["messages"][-1]["content"] for line in lines)
    rule = sero(*words, "--oracle", "rule", "--all", "--out", tmp_path / "rule.jsonl")
    assert rule.code == 0
    assert rule.figures["episodes"] == 3
    assert {line["provenance"]["oracle"] for line in _read(tmp_path / "rule.jsonl")} == {"rule"}


def test_an_environment_of_ones_own_is_demonstrated_by_its_oracle(
    sero: Sero, tmp_path: Path
) -> None:
    env, out = "examples.third_party_env", tmp_path / "jugs.jsonl"
    words = ["data", "export", "--env", f"{env}:JugsEnv", "--max-steps", 14, "--out", out, "--json"]
    refused = sero(*words)
    assert refused.code == 2
    assert "it has none by name, give 'module:factory'" in refused.errors
    outcome = sero(*words, "--oracle", f"{env}:Oracle")
    assert outcome.code == 0, outcome.errors
    assert (outcome.figures["episodes"], outcome.figures["won"]) == (7, 7)
    assert {line["provenance"]["env_id"] for line in _read(out)} == {f"{env}:JugsEnv"}


def test_ones_own_episodes_have_their_own_length(sero: Sero, tmp_path: Path) -> None:
    env, out = "examples.third_party_env", tmp_path / "jugs.jsonl"
    words = ["data", "export", "--env", f"{env}:JugsEnv", "--oracle", f"{env}:Oracle"]
    assert sero(*words, "--out", out).code == 0
    assert {line["provenance"]["max_steps"] for line in _read(out)} == {14}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--n", 7], "has 6 tasks"),
        (["--n", 0], "expected 1 or more"),
        (["--split", "test"], "none in split 'test'"),
        (["--oracle", "plannner"], "Unknown oracle 'plannner'"),
        (["--oracle", "as_seen"], "None of 6 episodes was won by as_seen"),
        (["--max-steps", 1], "within 1 steps"),
        (["--random-share", 0.9, "--inadmissible-share", 0.2], "less than 1 together"),
        (["--trajectory", "--random-share", 0.1], "as the assistant's own"),
        (["--trajectory", "--format", "prompt-completion"], "Choose one"),
        (["--history-length", -1], "expected 0 or more"),
        (["--data", "no/such/folder"], "Here: --data PATH."),
        (["--env", "jugs"], "--env jugs: expected alfworld, webshop, or module:name"),
    ],
)
def test_o34_what_cannot_be_done_is_said_and_leaves_nothing(
    sero: Sero, houses: Path, tmp_path: Path, words: list[object], message: str
) -> None:
    outcome = _export(sero, houses, tmp_path / "x.jsonl", *words)
    assert outcome.code == 2
    assert message in outcome.errors
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_not_overwritten(sero: Sero, houses: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.jsonl"
    out.write_text("mine")
    outcome = _export(sero, houses, out)
    assert (outcome.code, out.read_text()) == (2, "mine")
    outcome = _export(sero, houses, tmp_path / "absent" / "x.jsonl")
    assert "there is no folder" in outcome.errors


def test_a_break_leaves_no_file(
    sero: Sero, houses: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer.supervised import demonstrations

    real, played = demonstrations.demonstrate, []

    def third_is_interrupted(*args: Any, **kwargs: Any) -> Any:
        played.append(1)
        if len(played) == 3:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(demonstrations, "demonstrate", third_is_interrupted)
    assert _export(sero, houses, tmp_path / "x.jsonl").code == 130
    assert list(tmp_path.iterdir()) == []


def test_export_without_torch(houses: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.jsonl"
    lines = _run(TRAIN + REFERENCE, "data", "export", "--data", houses, "--n", 2, "--out", out)
    assert lines[-1] == "exit code 0"
    assert _read(out)


def test_datasets_reads_it(sero: Sero, houses: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    out = tmp_path / "x.jsonl"
    _export(sero, houses, out, "--n", 3)
    found = datasets.load_dataset(
        "json", data_files=str(out), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert found.column_names == ["messages", "task_id", "step", "provenance"]
    assert [dict(row) for row in found] == _read(out)
