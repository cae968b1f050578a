"""Transcript verification finds what differs, and says where."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from agent_envs.alfworld.engine import admissible, step
from agent_envs.alfworld.games import GameSet
from agent_envs.alfworld.goals import won
from agent_envs.alfworld.original.verify import DETAILS_LIMIT, verify_transcripts
from agent_envs.alfworld.text import intro
from agent_envs.errors import CorruptData, DataError, MissingData
from tests.agent_envs.alfworld.household import payload, toy

TASK = "train/pick_and_place_simple-Mug-None-Shelf-1/t"
PLAN = ("go to desk 2", "take mug 3 from desk 2", "nonsense", "go to shelf 1", "look")


def games() -> GameSet:
    return GameSet.from_games([(TASK, "train", payload())])


def record(game: str = f"json_2.1.1/{TASK}/game.tw-pddl") -> dict[str, Any]:
    toy_game = toy()
    state, text = toy_game.start, intro(toy_game, toy_game.start)
    steps = []
    for action in (None, *PLAN):
        if action is not None:
            state, text, _ = step(toy_game, state, action)
        steps.append(
            {
                "action": action,
                "observation": text,
                "admissible": list(admissible(toy_game, state)),
                "won": won(toy_game, state),
            }
        )
    return {"game": game, "steps": steps}


def write(path: Path, *episodes: Any) -> Path:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt") as file:
        file.writelines(json.dumps(episode) + "\n" for episode in episodes)
    return path


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_equal_transcripts(tmp_path: Path, name: str) -> None:
    result = verify_transcripts(write(tmp_path / name, record(), record()), games())
    assert (result.episodes, result.steps, result.mismatches) == (2, 10, 0)
    assert result.ok


def test_each_kind_of_difference_is_found(tmp_path: Path) -> None:
    changed = record()
    changed["steps"][1]["observation"] += " "
    changed["steps"][2]["admissible"].reverse()
    changed["steps"][4]["won"] = True
    changed["steps"][4]["observation"] = "?"
    result = verify_transcripts(write(tmp_path / "t.jsonl", record(), changed), games())
    assert (result.episodes, result.steps, result.mismatches) == (2, 10, 3)
    assert not result.ok
    assert [(d.step, d.what) for d in result.details] == [
        (1, "observation"),
        (2, "admissible"),
        (4, "observation"),
        (4, "won"),
    ]
    assert result.details[0].task_id == TASK
    assert result.details[0].action == "go to desk 2"
    assert result.details[0].expected == f"{result.details[0].found} "


def test_missing_game_is_a_mismatch(tmp_path: Path) -> None:
    episode = record(f"json_2.1.1/{TASK}x/game.tw-pddl")
    result = verify_transcripts(write(tmp_path / "t.jsonl", episode), games())
    assert (result.mismatches, result.details[0].what) == (1, "game")
    assert "Did you mean" in str(result.details[0].found)


def test_details_are_bounded(tmp_path: Path) -> None:
    changed = record()
    for entry in changed["steps"]:
        entry["observation"] = "?"
    result = verify_transcripts(write(tmp_path / "t.jsonl", *[changed] * 9), games())
    assert result.mismatches == 9 * 6
    assert len(result.details) == DETAILS_LIMIT


def test_nothing_compared_is_not_ok(tmp_path: Path) -> None:
    assert not verify_transcripts(write(tmp_path / "t.jsonl"), games()).ok


@pytest.mark.parametrize("episode", [[], {}, {"game": TASK}, {"game": TASK, "steps": [{}]}, 3])
def test_other_files_are_refused(tmp_path: Path, episode: Any) -> None:
    with pytest.raises(DataError, match="no transcript"):
        verify_transcripts(write(tmp_path / "t.jsonl", episode), games())


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(MissingData):
        verify_transcripts(tmp_path / "none.jsonl", games())
    for name, data in (("a.jsonl", b"{"), ("a.jsonl.gz", b"no gzip")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match="Cannot read"):
            verify_transcripts(tmp_path / name, games())


def test_damaged_files_are_named_by_line(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", record())
    whole = path.read_bytes()
    path.write_bytes(whole + b"[" * 100_000 + b"]" * 100_000)
    with pytest.raises(CorruptData, match=r"t\.jsonl: line 2: "):
        verify_transcripts(path, games())
    packed, path = gzip.compress(whole), tmp_path / "t.jsonl.gz"
    path.write_bytes(packed[:10] + b"\xff" * 4 + packed[14:])
    with pytest.raises(CorruptData, match=r"t\.jsonl\.gz: line 1: "):
        verify_transcripts(path, games())
