"""The index of a tree of games: what is in it, what is left out and why."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from agent_envs.alfworld.compile import text_hash
from agent_envs.alfworld.games import GameSet
from agent_envs.alfworld.model import TaskType
from agent_envs.errors import (
    MissingData,
    TaskNotFound,
    UnsupportedGame,
)
from tests.agent_envs.alfworld.household import PUT, payload, problem
from tests.agent_envs.alfworld.trees import GOOD, PICK, TREE, add, make_tree, trajectory, write


def test_o4_skipped_trials_are_counted_by_reason(tmp_path: Path) -> None:
    found = GameSet.from_path(make_tree(tmp_path))
    assert found.task_ids() == (f"train/{GOOD}",)
    assert found.skip_counts() == {
        "corrupt": 2,
        "movable_receptacle": 1,
        "no_game_file": 1,
        "sliced_object": 1,
        "solvable_not_stated": 1,
        "unknown_task_type": 1,
        "unsolvable": 1,
    }
    assert len(found.skipped) == 8


@pytest.mark.parametrize(
    ("trial", "reason"),
    [
        (f"{PICK}-AppleSliced-None-Shelf-1/trial_3", "sliced_object"),
        (f"{PICK}-Mug-None-Shelf-1/trial_4", "no_game_file"),
        (f"{PICK}-Mug-None-Shelf-1/trial_5", "unsolvable"),
        (f"{PICK}-Mug-None-Shelf-1/trial_7", "corrupt"),
    ],
)
def test_o4_asking_for_a_skipped_trial_says_why(tmp_path: Path, trial: str, reason: str) -> None:
    found = GameSet.from_path(make_tree(tmp_path))
    for ask in (found.load, found.meta, found.payload):
        with pytest.raises(TaskNotFound, match=reason):
            ask(f"train/{trial}")


def test_o2_unknown_id_suggests_the_nearest(tmp_path: Path) -> None:
    found = GameSet.from_path(make_tree(tmp_path))
    with pytest.raises(TaskNotFound, match=f"Did you mean 'train/{GOOD}'"):
        found.load(f"train/{GOOD}0")


@pytest.mark.parametrize(
    "below",
    [
        ".",
        "json_2.1.1",
        "json_2.1.1/train",
        f"json_2.1.1/train/{GOOD}/..",
        f"json_2.1.1/train/{GOOD}",
    ],
)
def test_any_part_of_a_tree_can_be_given(tmp_path: Path, below: str) -> None:
    found = GameSet.from_path(make_tree(tmp_path) / below)
    assert found.task_ids() == (f"train/{GOOD}",)


def test_single_files(tmp_path: Path) -> None:
    make_tree(tmp_path)
    within = GameSet.from_path(tmp_path / TREE / "train" / GOOD / "game.tw-pddl")
    assert within.task_ids() == (f"train/{GOOD}",)
    (tmp_path / "my.tw-pddl").write_text(json.dumps(payload()))
    alone = GameSet.from_path(tmp_path / "my.tw-pddl")
    assert alone.task_ids() == ("custom/game/my",)
    assert alone.meta("custom/game/my").task_type is TaskType.PICK  # told by its goal
    assert alone.load("custom/game/my").task_type is TaskType.PICK


def test_loose_games_in_a_folder(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / f"{name}.tw-pddl").write_text(json.dumps(payload()))
    found = GameSet.from_path(tmp_path)
    assert [task_id.rpartition("/")[2] for task_id in found.task_ids()] == ["a", "b"]
    assert found.splits == ("custom",)


def test_links_back_up_do_not_loop(tmp_path: Path) -> None:
    make_tree(tmp_path)
    (tmp_path / TREE / "train" / "again").symlink_to(tmp_path, target_is_directory=True)
    assert GameSet.from_path(tmp_path).task_ids() == (f"train/{GOOD}",)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes on this system")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    trial = make_tree(tmp_path) / TREE / f"train/{PICK}-Mug-None-Shelf-1/trial_pipe"
    trial.mkdir()
    os.mkfifo(trial / "game.tw-pddl")
    found = GameSet.from_path(tmp_path)
    assert len(found) == 1
    assert (f"train/{PICK}-Mug-None-Shelf-1/trial_pipe", "corrupt") in found.skipped
    for name in ("a.tar", "a.tw-pddl"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(MissingData, match="neither a file nor a folder"):
            GameSet.from_path(tmp_path / name)


def test_a_name_that_is_no_text_is_left_out(tmp_path: Path) -> None:
    split = make_tree(tmp_path) / TREE / "train"
    odd = os.fsencode(split / f"{PICK}-Mug-None-Shelf-1") + b"/trial_\xff"
    try:
        os.mkdir(odd)
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    with open(odd + b"/game.tw-pddl", "w") as file:
        json.dump(payload(), file)
    found = GameSet.from_path(tmp_path)
    assert len(found) == 1
    left_out = [name for name, reason in found.skipped if reason == "unsafe_path"]
    assert left_out == [f"train/{PICK}-Mug-None-Shelf-1/trial_\\udcff"]


@pytest.mark.parametrize("field", ["pddl_domain", "grammar", "pddl_problem"])
def test_half_a_character_in_one_game_leaves_the_others(tmp_path: Path, field: str) -> None:
    broken = payload()
    broken[field] += "\ud800"  # a lone surrogate: JSON can spell it, UTF-8 cannot
    write(tmp_path / "homes" / "home1", broken)
    write(tmp_path / "homes" / "home2", payload())
    found = GameSet.from_path(tmp_path)
    assert found.task_ids() == ("custom/homes/home2",)
    assert found.skipped == (("custom/homes/home1", "corrupt"),)


def test_a_folder_that_cannot_be_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = make_tree(tmp_path) / TREE / "valid_seen"
    write(closed / GOOD, payload())
    scandir = os.scandir

    def guarded(path: Any = ".") -> Any:
        if os.fspath(path) == str(closed):
            raise PermissionError(13, "Permission denied", str(closed))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)  # root may read what it has closed
    found = GameSet.from_path(tmp_path)
    assert len(found) == 1
    assert (str(closed), "unreadable") in found.skipped


def test_order_on_disk_and_in_archives_does_not_matter(tmp_path: Path) -> None:
    contents = {
        f"valid_seen/{PICK}-Mug-None-Shelf-{n}/trial_{n}": payload(
            PUT.format(obj=obj, rec="ShelfType")
        )
        for n, obj in enumerate(("MugType", "PenType", "BowlType"))
    }
    sets = []
    for number, ids in enumerate((list(contents), list(contents)[::-1])):
        root = tmp_path / f"tree{number}"
        archive = tmp_path / f"{number}.tar.gz"
        with tarfile.open(archive, "w:gz") as tar:
            for task_id in ids:
                write(root / TREE / task_id, contents[task_id], trajectory())
                add(tar, f"{TREE}/{task_id}/game.tw-pddl", json.dumps(contents[task_id]).encode())
        sets += [GameSet.from_path(root), GameSet.from_path(archive)]
    assert {found.task_ids() for found in sets} == {tuple(sorted(contents))}
    assert len({found.manifest_hash for found in sets}) == 1
    games_ = [found.load(found.task_ids()[1]) for found in sets]
    assert len({game.revision for game in games_}) == 1


def test_o1_games_of_the_older_wording_are_told_from_their_files(real_data: Path) -> None:
    found = GameSet.from_path(real_data / "alfworld_games_old.tar.xz")
    assert found.skip_counts() == {"movable_receptacle": 1, "unsolvable": 3}
    assert len(found) == 18
    assert {found.load(task_id).generation for task_id in found.task_ids()} == {"put"}
    assert {found.meta(task_id).engine for task_id in found.task_ids()} == {"native"}
    details = {reason: why for _, reason, why in found.skip_details()}
    assert details["unsolvable"] == "the file is marked as not solvable"
    assert "movable" in details["movable_receptacle"]


def test_o1_unknown_rules_are_marked_for_the_other_engine_and_refused_by_both_hashes(
    tmp_path: Path,
) -> None:
    """Indexed like any game, its task type told by its goal; never played by guessed rules."""
    for field in ("pddl_domain", "grammar"):
        other = payload(PUT.format(obj="MugType", rec="ShelfType"))
        other[field] += " "
        (tmp_path / f"{field}.tw-pddl").write_text(json.dumps(other))
        found = GameSet.from_path(tmp_path / f"{field}.tw-pddl")
        (task_id,) = found.task_ids()
        assert found.meta(task_id).engine == "textworld"
        assert found.meta(task_id).task_type is TaskType.PICK
        with pytest.raises(UnsupportedGame) as caught:
            found.load(task_id)
        for text in ("pddl_domain", "grammar"):
            blank = other[text].replace("put some mug on shelf", "UNKNOWN GOAL")
            assert text_hash(blank) in str(caught.value)


def test_a_loose_game_with_a_goal_of_no_known_kind_is_refused_with_its_reason(
    tmp_path: Path,
) -> None:
    odd = payload(pddl_problem=problem("(:goal (and))"))
    (tmp_path / "my.tw-pddl").write_text(json.dumps(odd))
    with pytest.raises(UnsupportedGame, match="goal is none of"):
        GameSet.from_path(tmp_path / "my.tw-pddl")
