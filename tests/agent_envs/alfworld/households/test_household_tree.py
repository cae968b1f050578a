"""The written tree of generated games: whole games only, the same bytes, and it can be resumed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from agent_envs.alfworld.games import GameSet
from agent_envs.alfworld.households import generator
from agent_envs.alfworld.households.generator import (
    SMALL,
    STANDARD,
    HouseholdSpec,
    generate_game_set,
    write_tree,
)

COUNTS = {"train": 7, "valid_seen": 6, "valid_unseen": 6}


def content(out: Path) -> dict[Path, bytes]:
    return {p.relative_to(out): p.read_bytes() for p in out.rglob("*") if p.is_file()}


@pytest.mark.parametrize("spec", [SMALL, STANDARD], ids=["small", "standard"])
def test_written_tree_holds_equal_games(tmp_path: Path, spec: HouseholdSpec) -> None:
    out = tmp_path / "out"
    assert write_tree(out, seed=3, counts=COUNTS, spec=spec) == 19
    made, read = generate_game_set(3, COUNTS, spec), GameSet.from_path(out)
    assert read.task_ids() == made.task_ids()
    assert read.skipped == ()
    for name in made.task_ids():
        assert read.meta(name) == made.meta(name)
        assert read.payload(name) == made.payload(name)
        assert read.load(name).revision == made.load(name).revision
        assert read.walkthrough(name) == made.walkthrough(name)
        folder = (out / "json_2.1.1").joinpath(*name.split("/"))
        trajectory = json.loads((folder / "traj_data.json").read_text("utf-8"))
        assert trajectory["task_type"] == made.meta(name).task_type
        assert sorted(path.name for path in folder.iterdir()) == ["game.tw-pddl", "traj_data.json"]
    assert sorted(path.name for path in out.iterdir()) == ["generated.json", "json_2.1.1"]


def test_interrupted_tree_has_whole_games_and_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    write_tree(whole, seed=1, counts=COUNTS, spec=SMALL)
    original, made = generator.generate_game, []

    def counted(*args: object) -> object:
        made.append(args)
        if len(made) == 9:
            raise KeyboardInterrupt
        return original(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(generator, "generate_game", counted)
    with pytest.raises(KeyboardInterrupt):
        write_tree(cut, seed=1, counts=COUNTS, spec=SMALL)
    there = GameSet.from_path(cut)
    assert (len(there), there.skipped) == (8, ())
    stamps = {path: path.stat().st_mtime_ns for path in cut.rglob("*.tw-pddl")}
    new: list[bool] = []
    assert write_tree(cut, seed=1, counts=COUNTS, spec=SMALL, on_game=new.append) == 19
    assert new == [False] * 8 + [True] * 11
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    assert content(cut) == content(whole)


def test_crash_while_writing_a_game_leaves_none_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def fails_once(a: Path, b: Path) -> None:
        monkeypatch.setattr(os, "rename", rename)
        assert sorted(path.name for path in Path(a).iterdir()) == ["game.tw-pddl", "traj_data.json"]
        raise OSError("no space left")

    monkeypatch.setattr(os, "rename", fails_once)
    with pytest.raises(OSError, match="no space left"):
        write_tree(tmp_path / "out", counts={"train": 2}, spec=SMALL)
    assert not list(tmp_path.rglob("*.tw-pddl"))
    assert write_tree(tmp_path / "out", counts={"train": 2}, spec=SMALL) == 2
    assert len(GameSet.from_path(tmp_path / "out")) == 2


@pytest.mark.parametrize("damage", ["no game", "empty game", "no trajectory", "no folder"])
def test_damaged_game_is_written_again(tmp_path: Path, damage: str) -> None:
    out = tmp_path / "out"
    write_tree(out, seed=1, counts={"train": 3}, spec=SMALL)
    before = content(out)
    game = sorted(out.rglob("game.tw-pddl"))[1]
    if damage == "no game":
        game.unlink()
    elif damage == "empty game":
        game.write_bytes(b"")
    elif damage == "no trajectory":
        (game.parent / "traj_data.json").unlink()
    else:
        shutil.rmtree(game.parent)
    new: list[bool] = []
    write_tree(out, seed=1, counts={"train": 3}, spec=SMALL, on_game=new.append)
    assert new.count(True) == 1
    assert content(out) == before


def test_more_games_can_be_added(tmp_path: Path) -> None:
    more = {"train": 9, "valid_seen": 2}
    write_tree(tmp_path / "a", seed=1, counts={"train": 4}, spec=SMALL)
    assert write_tree(tmp_path / "a", seed=1, counts=more, spec=SMALL) == 11
    write_tree(tmp_path / "b", seed=1, counts=more, spec=SMALL)
    assert content(tmp_path / "a") == content(tmp_path / "b")


@pytest.mark.parametrize("other", ["seed", "spec", "no marker", "foreign marker"])
def test_another_tree_is_never_touched(tmp_path: Path, other: str) -> None:
    out, counts = tmp_path / "out", {"train": 6}
    write_tree(out, seed=1, counts=counts, spec=SMALL)
    if other == "no marker":
        (out / "generated.json").unlink()
    elif other == "foreign marker":
        (out / "generated.json").write_text("[1", encoding="utf-8")
    before = content(out)
    seed = 2 if other == "seed" else 1
    spec = HouseholdSpec(8, 8, extras=False, depth=1) if other == "spec" else SMALL
    with pytest.raises(FileExistsError, match="out/json_2"):
        write_tree(out, seed=seed, counts={"train": 7}, spec=spec)
    assert content(out) == before


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_tree(out, counts={"train": 1}, spec=SMALL)
    old, young = out / ".writing-old", out / ".writing-young"
    for folder in (old, young):
        (folder / "trial").mkdir(parents=True)
    os.utime(old, (0, 0))
    write_tree(out, counts={"train": 2}, spec=SMALL)
    assert not old.exists()
    assert young.exists(), "another process may be writing there"


def test_another_process_may_end_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    glob = Path.glob

    def with_one_that_is_gone(self: Path, pattern: str) -> list[Path]:
        return [*glob(self, pattern), self / ".writing-gone"]

    monkeypatch.setattr(Path, "glob", with_one_that_is_gone)
    assert write_tree(out, counts={"train": 1}, spec=SMALL) == 1
