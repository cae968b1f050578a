"""`sero verify alfworld` and `sero verify objectives`: counts, and failing when they should."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from agent_envs.alfworld import engine
from agent_envs.alfworld.games import GameSet
from agent_envs.alfworld.goals import won
from agent_envs.alfworld.text import intro
from tests.support import ROOT
from tests.trainer.cli.conftest import Sero

VECTORS = ROOT / "tests" / "vectors"


def _record(houses: Path) -> list[dict[str, Any]]:
    """Transcripts of the shipped plans, written down from our own engine."""
    games = GameSet.from_path(houses)
    episodes = []
    for task_id in games.task_ids("train")[:3]:
        game = games.load(task_id)
        state, text = game.start, intro(game, game.start)
        steps: list[dict[str, Any]] = []
        for action in (None, *(game.walkthrough or ())):
            if action is not None:
                state, text, _ = engine.step(game, state, action)
            admissible = list(engine.admissible(game, state))
            steps.append(
                {
                    "action": action,
                    "observation": text,
                    "admissible": admissible,
                    "won": won(game, state),
                }
            )
        path = f"json_2.1.1/{task_id}/game.tw-pddl"
        episodes.append({"game": path, "steps": steps})
    return episodes


def _write(path: Path, episodes: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(e) + "\n" for e in episodes), encoding="utf-8")
    return path


def test_equal_transcripts_pass(sero: Sero, houses: Path, tmp_path: Path) -> None:
    episodes = _record(houses)
    steps = sum(len(e["steps"]) - 1 for e in episodes)
    outcome = sero(
        "verify", "alfworld", _write(tmp_path / "t.jsonl", episodes), "--games", houses, "--json"
    )
    assert outcome.code == 0
    assert outcome.lines[-2] == f"3 episodes, {steps} steps, 0 mismatches"
    assert outcome.figures == {"episodes": 3, "steps": steps, "mismatches": 0}


@pytest.mark.parametrize("what", ["observation", "admissible", "won"])
def test_one_difference_fails(sero: Sero, houses: Path, tmp_path: Path, what: str) -> None:
    episodes = _record(houses)
    step = episodes[1]["steps"][2]
    step[what] = {
        "observation": step["observation"] + " ",
        "admissible": step["admissible"][::-1],  # the order counts
        "won": not step["won"],
    }[what]
    outcome = sero("verify", "alfworld", _write(tmp_path / "t.jsonl", episodes), "--games", houses)
    assert outcome.code == 1
    assert outcome.lines[-1].endswith(", 1 mismatches")
    assert any(what in line for line in outcome.lines)


def test_of_differing_commands_only_the_difference_is_shown(
    sero: Sero, houses: Path, tmp_path: Path
) -> None:
    episodes = _record(houses)
    admissible = episodes[0]["steps"][0]["admissible"]
    lacking = admissible.pop(0)
    admissible.append("dance")
    outcome = sero("verify", "alfworld", _write(tmp_path / "t.jsonl", episodes), "--games", houses)
    assert outcome.lines[0].endswith("step 0, reset: admissible")
    assert outcome.lines[1:3] == ["  missing  ['dance']", f"  too many [{lacking!r}]"]


def test_without_games_nothing_is_compared_with_generated_ones(
    sero: Sero, houses: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SERO_ALFWORLD_DATA", "ALFWORLD_DATA"):
        monkeypatch.delenv(name, raising=False)
    outcome = sero("verify", "alfworld", _write(tmp_path / "t.jsonl", _record(houses)))
    assert outcome.code == 2
    assert "--games" in outcome.errors


def test_no_transcript_is_not_a_success(sero: Sero, houses: Path, tmp_path: Path) -> None:
    empty = _write(tmp_path / "t.jsonl", [])
    assert sero("verify", "alfworld", empty, "--games", houses).code == 1
    assert sero("verify", "alfworld", tmp_path / "none.jsonl", "--games", houses).code == 2
    junk = tmp_path / "junk.jsonl.gz"
    junk.write_bytes(gzip.compress(b"not json\n"))
    assert sero("verify", "alfworld", junk, "--games", houses).code == 2


def test_the_recorded_episodes_of_the_original_engine(sero: Sero, real_data: Path) -> None:
    transcripts = real_data / "transcripts" / "alfworld.jsonl.gz"
    outcome = sero(
        "verify", "alfworld", transcripts, "--games", real_data / "alfworld_games.tar.xz"
    )
    assert outcome.lines[-1] == "72 episodes, 2880 steps, 0 mismatches"
    assert outcome.code == 0


def test_objectives_pass_and_are_counted(sero: Sero) -> None:
    base = VECTORS / "base_objectives.json"
    outcome = sero("verify", "objectives", base, "--only", "grpo/*", "--json")
    data = json.loads(base.read_text(encoding="utf-8"))
    wanted = len(data["vectors"]["grpo"])
    total = sum(map(len, data["vectors"].values()))
    assert outcome.code == 0
    assert outcome.figures == {"passed": wanted, "failed": 0, "excluded": total - wanted}
    assert outcome.lines[-2] == f"{wanted} passed, 0 failed, {total - wanted} excluded"


def test_a_wrong_number_fails(sero: Sero, tmp_path: Path) -> None:
    data = json.loads((VECTORS / "base_objectives.json").read_text(encoding="utf-8"))
    case = data["vectors"]["grpo"][0]
    case["expected"][0] += 0.001
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps(data), encoding="utf-8")
    outcome = sero("verify", "objectives", wrong, "--only", f"grpo/{case['name']}", "--json")
    assert outcome.code == 1
    assert (outcome.figures["passed"], outcome.figures["failed"]) == (0, 1)


def test_an_unknown_method_fails(sero: Sero, tmp_path: Path) -> None:
    path = tmp_path / "unknown.json"
    case = {"name": "x", "scenario": None, "params": {}, "expected": 1.0}
    path.write_text(json.dumps({"scenarios": {}, "vectors": {"nonsense": [case]}}))
    outcome = sero("verify", "objectives", path)
    assert outcome.code == 1
    assert outcome.lines == ["FAILED nonsense: not implemented, 1 cases", "0 passed, 1 failed"]


def test_nothing_checked_is_not_a_success(sero: Sero, tmp_path: Path) -> None:
    base = VECTORS / "base_objectives.json"
    assert sero("verify", "objectives", base, "--only", "no-such/*").code == 1
    assert sero("verify", "objectives", tmp_path / "none.json").code == 2
