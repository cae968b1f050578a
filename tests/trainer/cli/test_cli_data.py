"""`sero data status`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.trainer.cli.conftest import Sero


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
