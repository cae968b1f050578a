"""Commands that need no torch run where only the core dependencies are installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import run_python

# Everything that the extras bring is hidden, as if it were not installed.
BLOCK = """
import importlib.abc, json, sys

HIDDEN = json.loads(sys.argv[1])

class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r} (hidden)", name=name)

sys.meta_path.insert(0, Hide())
from trainer.cli.main import main
code = main(sys.argv[2:])
assert not set(HIDDEN) & set(sys.modules)
print(f"exit code {code}")
"""
TRAIN = ["torch", "transformers", "tokenizers", "safetensors", "yaml", "matplotlib", "pyarrow"]
REFERENCE = ["textworld", "alfworld", "tatsu", "fast_downward"]


def _run(hidden: list[str], *words: object) -> list[str]:
    return run_python(BLOCK, json.dumps(hidden), *[str(w) for w in words]).splitlines()


def test_play_without_torch(houses: Path, tmp_path: Path) -> None:
    script = tmp_path / "commands.txt"
    script.write_text("look\n:oracle\n:undo\n", encoding="utf-8")
    lines = _run(
        TRAIN + REFERENCE, "play", "--data", houses, "--commands", script, "--oracle", "--json"
    )
    assert lines[-1] == "exit code 0"
    assert json.loads(lines[-2])["steps"] == 0
    assert any(line.startswith("oracle: ") for line in lines)


def test_data_without_torch(houses: Path, tmp_path: Path) -> None:
    counts = ["--train", "2", "--valid-seen", "1", "--valid-unseen", "1"]
    lines = _run(TRAIN + REFERENCE, "data", "generate", tmp_path / "out", *counts)
    assert lines[-1] == "exit code 0"
    lines = _run(TRAIN + REFERENCE, "data", "status", "--data", houses, "--json")
    assert lines[-1] == "exit code 0"
    assert json.loads(lines[-2])["games"] == 18


def test_objectives_without_torch() -> None:
    lines = _run(TRAIN + REFERENCE, "objectives", "groups", "--json")
    assert lines[-1] == "exit code 0"
    assert json.loads(lines[-2])["objectives"][0]["name"] == "grpo"


def test_verify_alfworld_without_torch(real_data: Path) -> None:
    transcripts = real_data / "transcripts" / "alfworld.jsonl.gz"
    games = real_data / "alfworld_games.tar.xz"
    lines = _run(TRAIN + REFERENCE, "verify", "alfworld", transcripts, "--games", games, "--json")
    assert lines[-1] == "exit code 0"
    assert json.loads(lines[-2]) == {"episodes": 72, "steps": 2880, "mismatches": 0}


def test_bench_alfworld_without_torch(houses: Path, reference: None) -> None:
    words = ["--walks", "1", "--planner-games", "1", "--steps", "3", "--json"]
    lines = _run(TRAIN, "bench", "alfworld", "--games", houses, *words)
    # Three steps on one game are no measurement: only that it runs is checked.
    assert lines[-1] in ("exit code 0", "exit code 1")
    assert json.loads(lines[-2])["ratio_gym"] > 0


@pytest.mark.parametrize(
    ("hidden", "words", "extra"),
    [
        (TRAIN, ["verify", "objectives", "tests/vectors/base_objectives.json"], "train"),
        (TRAIN, ["demo"], "train"),
        (REFERENCE, ["bench", "alfworld"], "reference"),
    ],
)
def test_o34_a_missing_extra_is_named(hidden: list[str], words: list[str], extra: str) -> None:
    code = BLOCK.replace(
        "code = main", "sys.stderr = sys.stdout\ncode = main"
    )  # the message goes to standard error
    lines = run_python(code, json.dumps(hidden), *words).splitlines()
    assert lines[-1] == "exit code 2"
    assert any(f"pip install '.[{extra}]'" in line for line in lines)
