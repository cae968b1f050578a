"""`sero data status`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from agent_envs.alfworld.games import index_cache, sources
from agent_envs.alfworld.games.fetch import compared_with_official
from tests.agent_envs.alfworld.household import payload
from tests.agent_envs.alfworld.trees import GOOD, PICK, TREE, trajectory, write
from tests.trainer.cli.conftest import Sero


def test_status_counts_and_reasons(sero: Sero, houses: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(houses, tree)
    files = sorted(tree.rglob("game.tw-pddl"))
    files[0].unlink()
    files[1].write_text("{ not json", encoding="utf-8")
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


def test_o4_every_reason_has_its_count_and_an_example(sero: Sero, tmp_path: Path) -> None:
    """One good, one movable, one sliced, one without game file, one marked as not solvable."""
    split = tmp_path / TREE / "train"
    movable = "pick_and_place_with_movable_recep"
    write(split / GOOD, payload(), trajectory())
    write(split / f"{movable}-Mug-Cup-Shelf-1/trial_2", payload(), trajectory(movable))
    write(split / f"{PICK}-AppleSliced-None-Shelf-1/trial_3", payload(), trajectory(sliced=True))
    write(split / f"{PICK}-Mug-None-Shelf-1/trial_4", None, trajectory())
    write(split / f"{PICK}-Mug-None-Shelf-1/trial_5", payload(solvable=False), trajectory())
    outcome = sero("data", "status", "--data", tmp_path, "--json")
    assert outcome.code == 0
    figures = outcome.figures
    assert figures["games"] == 1
    assert figures["skipped"] == {
        "movable_receptacle": 1,
        "no_game_file": 1,
        "sliced_object": 1,
        "unsolvable": 1,
    }
    assert figures["skip_examples"].keys() == figures["skipped"].keys()
    printed = "\n".join(outcome.lines[:-1])
    assert "1 games, 4 left out" in printed
    for reason, (task_id, why) in figures["skip_examples"].items():
        assert f"  1 {reason}, for example {task_id}: {why}" in printed
    skipped = sero("data", "status", "--data", tmp_path, "--skipped", "--json").figures
    assert sorted(task_id for task_id, _, _ in skipped["skipped_games"]) == [
        f"train/{PICK}-AppleSliced-None-Shelf-1/trial_3",
        f"train/{PICK}-Mug-None-Shelf-1/trial_4",
        f"train/{PICK}-Mug-None-Shelf-1/trial_5",
        f"train/{movable}-Mug-Cup-Shelf-1/trial_2",
    ]


def test_o4_counts_are_compared_with_the_official_ones(
    sero: Sero, real_data: Path, houses: Path
) -> None:
    outcome = sero("data", "status", "--data", real_data / "alfworld_games.tar.xz", "--json")
    assert outcome.figures["official"] == {
        "train": "partial: 360 of 3,553",
        "valid_seen": "complete",
        "valid_unseen": "complete",
    }
    line = "beside ALFWorld's own: train partial: 360 of 3,553; valid_seen complete;"
    assert any(text.startswith(line) for text in outcome.lines)
    older = sero("data", "status", "--data", real_data / "alfworld_games_old.tar.xz", "--json")
    assert older.figures["official"]["valid_train"] == "partial: 7 of 200"
    assert older.figures["official"]["train"] == "missing"
    assert older.figures["skipped"] == {"movable_receptacle": 1, "unsolvable": 3}
    assert older.figures["games"] == 18
    assert sero("data", "status", "--data", houses, "--json").figures["official"] == {}


def test_the_official_counts() -> None:
    assert compared_with_official({"train": 3553, "valid_seen": 140, "valid_unseen": 134}) == {
        "train": "complete",
        "valid_seen": "complete",
        "valid_unseen": "complete",
    }
    told = compared_with_official({"train": 6374, "valid_train": 200, "mine": 3})
    assert told["train"] == "6,374, 2,821 more than the official 3,553"
    assert told["valid_train"] == "complete"
    assert "mine" not in told


def test_it_says_what_named_the_games(
    sero: Sero, houses: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found_by(*words: object) -> str:
        return str(sero("data", "status", *words, "--json").figures["found_by"])

    assert found_by("--data", houses) == "named by --data"
    assert found_by().startswith("nothing names any")
    monkeypatch.setenv("ALFWORLD_DATA", str(houses))
    assert found_by() == "named by $ALFWORLD_DATA"
    monkeypatch.setenv("SERO_ALFWORLD_DATA", "generated:small?train=6&valid_seen=0&valid_unseen=0")
    assert found_by() == "named by $SERO_ALFWORLD_DATA"


def test_games_for_the_other_engine_are_told(sero: Sero, tmp_path: Path) -> None:
    write(tmp_path / TREE / "train" / GOOD, payload(), trajectory())
    other = payload()
    other["pddl_domain"] += " "
    write(tmp_path / TREE / "train" / f"{GOOD}2", other, trajectory())
    outcome = sero("data", "status", "--data", tmp_path, "--json")
    assert outcome.code == 0
    assert outcome.figures["engines"] == {"native": 1, "textworld": 1}
    assert any(line.startswith("1 games have rules") for line in outcome.lines)


def test_sizes_and_places_of_the_caches(
    sero: Sero, houses: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(index_cache, "SETTLED_NS", 0)
    sources._from_path.cache_clear()  # as in a new process
    sero("data", "status", "--data", houses)
    caches = sero("data", "status", "--data", houses, "--json").figures["caches"]
    assert caches["folder"] == str(tmp_path / "cache")
    for name, number in (("indexes", 1), ("games", 1)):  # one game was loaded, as a check
        (file,) = (tmp_path / "cache" / name).iterdir()
        assert caches[name]["files"] == number
        assert caches[name]["bytes"] == file.stat().st_size <= caches[name]["limit"]
    monkeypatch.setenv("SERO_CACHE", "off")
    outcome = sero("data", "status", "--data", houses, "--json")
    assert outcome.figures["caches"] == {"folder": None}
    assert "caches: turned off by $SERO_CACHE" in outcome.lines


def test_more_generated_games_than_can_be_listed_are_refused_at_once(sero: Sero) -> None:
    outcome = sero("data", "status", "--data", "generated:small?train=10000000")
    assert outcome.code == 2
    assert "20,000" in outcome.errors
    assert "sero data generate" in outcome.errors
