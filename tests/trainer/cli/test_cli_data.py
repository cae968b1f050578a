"""`sero data status` and `sero data generate`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

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


def test_status_counts_and_reasons(sero: Sero, houses: Path, tmp_path: Path) -> None:
    import shutil

    tree = tmp_path / "tree"
    shutil.copytree(houses, tree)
    games = sorted(tree.rglob("game.tw-pddl"))
    games[0].unlink()
    games[1].write_text("{ not json", encoding="utf-8")
    figures = sero("data", "status", "--data", tree, "--skipped", "--json").figures
    assert figures["games"] == 16
    assert figures["skipped"] == {"corrupt": 1, "no_game_file": 1}
    assert len(figures["skipped_games"]) == 2


def test_status_of_the_published_games(sero: Sero, real_data: Path) -> None:
    archive = real_data / "alfworld_games.tar.xz"
    figures = sero("data", "status", "--data", archive, "--json").figures
    assert figures["splits"] == {"train": 360, "valid_seen": 140, "valid_unseen": 134}


def test_o34_missing_data_names_variable_path_and_command(
    sero: Sero, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = tmp_path / "nowhere"
    monkeypatch.setenv("SERO_ALFWORLD_DATA", str(missing))
    outcome = sero("data", "status")
    assert outcome.code == 2
    for part in ("SERO_ALFWORLD_DATA", str(missing), "sero data"):
        assert part in outcome.errors


def test_the_source_is_the_first_that_is_set(
    sero: Sero, houses: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setenv("SERO_ALFWORLD_DATA", str(houses))
    assert sero("data", "status", "--json").figures["games"] == 18
    monkeypatch.delenv("SERO_ALFWORLD_DATA")
    assert sero("data", "status").code == 2
    monkeypatch.delenv("ALFWORLD_DATA")
    assert sero("data", "status", "--json").figures["games"] > 18


def test_games_that_the_engine_refuses_are_no_games_to_play(
    sero: Sero, houses: Path, tmp_path: Path
) -> None:
    older = tmp_path / "older"
    shutil.copytree(houses, older)
    for file in older.rglob("*.tw-pddl"):
        game = json.loads(file.read_text(encoding="utf-8"))
        game["pddl_domain"] += " "
        file.write_text(json.dumps(game), encoding="utf-8")
    outcome = sero("data", "status", "--data", older)
    assert outcome.code == 1
    assert outcome.lines[-1].startswith("none of them can be played here.")
