"""`sero data generate`."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent_envs.alfworld.games import GameSet, game_set
from tests.support import ROOT
from tests.trainer.cli.conftest import Sero


def test_generate_is_a_function_of_its_options(sero: Sero, tmp_path: Path) -> None:
    options = ["--preset", "small", "--train", "6", "--valid-seen", "6", "--valid-unseen", "6"]

    def generate(name: str, *more: str) -> dict[str, object]:
        outcome = sero("data", "generate", tmp_path / name, *options, *more, "--json")
        assert outcome.code == 0
        return outcome.figures

    first, same, other = generate("a"), generate("b"), generate("c", "--seed", "1")
    assert first["splits"] == {"train": 6, "valid_seen": 6, "valid_unseen": 6}
    assert first["manifest_hash"] == same["manifest_hash"]
    assert first["manifest_hash"] != other["manifest_hash"]
    files = sorted(p.relative_to(tmp_path / "a") for p in (tmp_path / "a").rglob("*.tw-pddl"))
    assert len(files) == 18
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_generate_only_some_task_types(sero: Sero, tmp_path: Path) -> None:
    types = ["look_at_obj_in_light", "pick_and_place_simple"]
    out = tmp_path / "out"
    counts = ["--train", "6", "--valid-seen", "0", "--valid-unseen", "0"]
    words = ["data", "generate", out, "--preset", "small", *counts, "--task-types", *types]
    assert sero(*words).code == 0
    assert sero("data", "status", "--data", out, "--json").figures["task_types"] == {
        "look_at_obj_in_light": 3,
        "pick_and_place_simple": 3,
    }


def test_generate_never_mixes_two_sets(sero: Sero, houses: Path) -> None:
    before = sorted(houses.rglob("*"))
    outcome = sero("data", "generate", houses)
    assert outcome.code == 2
    assert str(houses) in outcome.errors
    assert sorted(houses.rglob("*")) == before


@pytest.mark.parametrize("preset", ["small", "standard"])
def test_generate_n_games_into_out(sero: Sero, tmp_path: Path, preset: str) -> None:
    words = ["data", "generate", "alfworld", "--n", "23", "--out", tmp_path, "--preset", preset]
    figures = sero(*words, "--json").figures
    assert figures["splits"] == {"train": 19, "valid_seen": 2, "valid_unseen": 2}
    assert (figures["games"], figures["written"]) == (23, 23)
    assert (tmp_path / "json_2.1.1" / "train").is_dir()
    again = sero(*words, "--json").figures
    assert again["written"] == 0
    assert again["manifest_hash"] == figures["manifest_hash"]


def test_generate_writes_the_same_in_both_forms(sero: Sero, tmp_path: Path) -> None:
    counts = ["--preset", "small", "--n", "10"]
    hashes = [
        sero("data", "generate", *words, *counts, "--json").figures["manifest_hash"]
        for words in (
            ["alfworld", "--out", tmp_path / "a"],
            ["--out", tmp_path / "b"],
            ["alfworld", tmp_path / "c"],
            [tmp_path / "d"],
        )
    ]
    assert len(set(hashes)) == 1


def test_generate_turns_the_knobs(sero: Sero, tmp_path: Path) -> None:
    knobs = ["--receptacles", "9", "--distractors", "4", "--depth", "1"]
    outcome = sero("data", "generate", "alfworld", "--out", tmp_path, "--n", "20", *knobs)
    assert outcome.code == 0
    games = GameSet.from_path(tmp_path)
    for name in games.task_ids():
        game = games.load(name)
        assert len(game.recs) == 9
        assert any(command.startswith("open") for command in game.walkthrough or ())


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["chess", "--out", "x"], "chess"),
        (["alfworld", "--out", "x", "--n", "5", "--train", "5"], "--train"),
        (["alfworld", "--out", "x", "--n", "0"], "--n"),
        (["alfworld", "--out", "x", "--depth", "2"], "depth"),
        (["alfworld", "--out", "x", "--distractors", "99"], "distractors"),
        (["x", "--train", "0", "--valid-seen", "0", "--valid-unseen", "0"], "no split"),
    ],
)
def test_generate_refuses_what_makes_no_sense(
    sero: Sero, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = sero("data", "generate", *words)
    assert outcome.code == 2
    assert named in outcome.errors
    assert not list(tmp_path.iterdir())


def test_generate_goes_on_after_it_was_killed(sero: Sero, tmp_path: Path) -> None:
    words = ["data", "generate", "alfworld", "--n", "400", "--out"]
    tree = tmp_path / "cut" / "json_2.1.1"  # without the game that is being written beside it
    with subprocess.Popen(
        [sys.executable, "-m", "trainer.cli.main", *words, str(tmp_path / "cut")],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        while process.poll() is None and len(list(tree.rglob("game.tw-pddl"))) < 20:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL, "it had ended already"
    cut = GameSet.from_path(tmp_path / "cut" / "json_2.1.1")
    assert 20 <= len(cut) < 400
    assert cut.skipped == ()
    rest = sero(*words, tmp_path / "cut", "--json").figures
    assert rest["written"] == 400 - len(cut)
    whole = sero(*words, tmp_path / "whole", "--json").figures
    assert rest["manifest_hash"] == whole["manifest_hash"]


def test_generate_more_games_than_a_set_makes_on_request(
    sero: Sero, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(game_set, "MAX_ON_REQUEST", 5)
    words = ["data", "generate", "--n", "10", "--out", tmp_path, "--preset", "small", "--json"]
    outcome = sero(*words)
    assert outcome.code == 0, outcome.errors
    assert outcome.figures["games"] == 10
