"""Where games come from."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from agent_envs.alfworld.games import GameSet, load_game_set
from agent_envs.errors import InvalidOption, MissingData
from tests.agent_envs.alfworld.household import PUT, payload
from tests.agent_envs.alfworld.trees import GOOD, TREE, write


def test_missing_paths_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingData, match="nowhere"):
        load_game_set(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingData, match=r"tw-pddl"):
        load_game_set(tmp_path / "empty")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in (tmp_path / "loop", "a\0b", "x" * 5000, "~no-such-user-here/games"):
        for find in (load_game_set, GameSet.from_path):
            with pytest.raises(MissingData, match="no ALFWorld games at"):
                find(path)
    (tmp_path / "x.txt").write_text("")
    with pytest.raises(MissingData, match="no ALFWorld data"):
        load_game_set(tmp_path / "x.txt")
    for variable in ("SERO_ALFWORLD_DATA", "ALFWORLD_DATA"):
        monkeypatch.delenv("SERO_ALFWORLD_DATA", raising=False)
        monkeypatch.setenv(variable, str(tmp_path / "gone"))
        with pytest.raises(MissingData, match="sero data generate") as caught:
            load_game_set()
        assert f"${variable}" in str(caught.value)
        assert str(tmp_path / "gone") in str(caught.value)


def test_own_variable_comes_before_the_originals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, obj in (("own", "MugType"), ("theirs", "PenType")):
        content = payload(PUT.format(obj=obj, rec="ShelfType"))
        write(tmp_path / name / TREE / "train" / GOOD, content)
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "theirs"))
    monkeypatch.delenv("SERO_ALFWORLD_DATA", raising=False)
    theirs = load_game_set()
    assert Path(theirs.source).name == "theirs"
    monkeypatch.setenv("SERO_ALFWORLD_DATA", str(tmp_path / "own"))
    own = load_game_set()
    assert Path(own.source).name == "own"
    assert own.manifest_hash != theirs.manifest_hash
    assert load_game_set() is own  # indexed once
    assert load_game_set(theirs) is theirs


def test_folder_that_importing_alfworld_creates_is_no_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / ".cache" / "alfworld"
    cache.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ALFWORLD_DATA", str(cache))
    monkeypatch.delenv("SERO_ALFWORLD_DATA", raising=False)
    generated = load_game_set()
    assert len(generated.task_ids("train")) > 0
    (cache / "note.txt").write_text("")  # somebody put something there: now it counts
    with pytest.raises(MissingData, match="ALFWORLD_DATA"):
        load_game_set()


@pytest.mark.parametrize("data", [5, b"games", ["games"], True, {}], ids=str)
def test_what_is_no_path_is_a_typed_error(data: Any) -> None:
    for find in (load_game_set, GameSet.from_path):
        with pytest.raises(InvalidOption, match="found"):
            find(data)


def test_folders_that_are_closed_to_us_are_typed_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever runs the tests may be allowed everything, so the system's answer is made up."""
    closed = tmp_path / "home" / ".cache" / "alfworld"
    closed.mkdir(parents=True)
    stat, scandir, listdir = os.stat, os.scandir, os.listdir

    def refuse(path: Any, *parts: Any, call: Any = stat, **options: Any) -> Any:
        inside = isinstance(path, str | os.PathLike) and closed in Path(path).parents
        if inside or (call is not stat and str(path) == str(closed)):
            raise PermissionError(13, "Permission denied", str(path))
        return call(path, *parts, **options)

    monkeypatch.setattr(os, "stat", refuse)
    monkeypatch.setattr(os, "scandir", lambda path: refuse(path, call=scandir))
    monkeypatch.setattr(os, "listdir", lambda path: refuse(path, call=listdir))
    found = GameSet.from_path(closed)
    assert found.skip_counts() == {"unreadable": 1}
    monkeypatch.delenv("SERO_ALFWORLD_DATA", raising=False)
    monkeypatch.setenv("ALFWORLD_DATA", str(closed))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert load_game_set().skip_counts() == {"unreadable": 1}


def test_no_home_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(number: int) -> Any:
        raise KeyError(number)

    monkeypatch.setattr("pwd.getpwuid", nobody)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("SERO_ALFWORLD_DATA", raising=False)
    write(tmp_path / "mine" / TREE / "train" / GOOD, payload())
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "mine"))
    assert load_game_set().task_ids() == (f"train/{GOOD}",)


def test_links_to_files_that_are_named_by_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As caches of downloads lay them out."""
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    with zipfile.ZipFile(blobs / "0a1b", "w") as archive:
        archive.writestr(f"train/{GOOD}/game.tw-pddl", json.dumps(payload()))
    (blobs / "2c3d").write_text(json.dumps(payload()))
    folder = tmp_path / "train" / GOOD
    folder.mkdir(parents=True)
    (tmp_path / "games.zip").symlink_to(blobs / "0a1b")
    (folder / "game.tw-pddl").symlink_to(blobs / "2c3d")
    monkeypatch.chdir(folder)
    for path in (tmp_path / "games.zip", folder / "game.tw-pddl", "game.tw-pddl"):
        for find in (load_game_set, GameSet.from_path):
            games = find(path)
            assert games.task_ids() == (f"train/{GOOD}",)
            assert games.load(f"train/{GOOD}").task_sentence
