"""Sets of games: the index, what is left out and why, archives, where data come from."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_envs.alfworld import game_files, games
from agent_envs.alfworld.games import GameSet, load_game_set
from agent_envs.alfworld.model import TaskType
from agent_envs.errors import (
    CorruptGame,
    DataError,
    InvalidOption,
    MissingData,
    TaskNotFound,
    UnsupportedGame,
)
from tests.agent_envs.alfworld.household import PUT, TREAT, payload, problem

PICK = "pick_and_place_simple"
GOOD = f"{PICK}-Mug-None-Shelf-1/trial_1"
TREE = Path("json_2.1.1")


def write(folder: Path, game: Any = None, trajectory: Any = None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("game.tw-pddl", game), ("traj_data.json", trajectory)):
        if isinstance(content, str):
            (folder / name).write_text(content)
        elif content is not None:
            (folder / name).write_text(json.dumps(content))


def trajectory(task_type: str = PICK, sliced: bool = False) -> dict[str, Any]:
    return {"task_type": task_type, "pddl_params": {"object_sliced": sliced, "mrecep_target": ""}}


def make_tree(root: Path) -> Path:
    """One playable trial, and one for each reason not to be."""
    split = root / TREE / "train"
    write(split / GOOD, payload(), trajectory())
    movable = "pick_and_place_with_movable_recep"
    write(split / f"{movable}-Mug-Cup-Shelf-1/trial_2", payload(), trajectory(movable))
    write(split / f"{PICK}-AppleSliced-None-Shelf-1/trial_3", payload(), trajectory(sliced=True))
    write(split / f"{PICK}-Mug-None-Shelf-1/trial_4", None, trajectory())
    write(split / f"{PICK}-Mug-None-Shelf-1/trial_5", payload(solvable=False), trajectory())
    unchecked = payload()
    del unchecked["solvable"]
    write(split / f"{PICK}-Mug-None-Shelf-1/trial_6", unchecked, trajectory())
    write(split / f"{PICK}-Mug-None-Shelf-1/trial_7", "{ cut off", trajectory())
    write(split / f"{PICK}-Mug-None-Shelf-1/trial_8", payload(), "[1]")
    write(split / "juggle-Mug-None-Shelf-1/trial_9", payload(), trajectory("juggle"))
    return root


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


def test_manifest_hash_tells_contents_and_ids_apart() -> None:
    def of(task_id: str, **changes: Any) -> str:
        return GameSet.from_games([(task_id, "train", payload(**changes))]).manifest_hash

    first = of(f"train/{GOOD}")
    assert first == of(f"train/{GOOD}")
    assert first != of(f"train/{GOOD}2")
    assert first != of(f"train/{GOOD}", task="put a mug in shelf")


def test_selection_by_split_and_type(real_games: GameSet) -> None:
    """The published counts: 140 seen, 134 unseen, and 60 training games a type here."""
    assert len(real_games.task_ids("valid_seen")) == 140
    assert len(real_games.task_ids("valid_unseen")) == 134
    for kind in TaskType:
        ids = real_games.task_ids("train", [kind])
        assert len(ids) == 60
        assert ids == tuple(sorted(ids))
        assert {real_games.meta(task_id).task_type for task_id in ids} == {kind}
    assert real_games.task_ids("train", ["look_at_obj_in_light"]) == real_games.task_ids(
        "train", [TaskType.LOOK]
    )
    assert real_games.skipped == ()
    with pytest.raises(InvalidOption, match="look_at_obj"):
        real_games.task_ids(task_types=["look"])
    with pytest.raises(InvalidOption, match="string"):
        real_games.task_ids(task_types=PICK)


def test_types_told_by_the_index_are_those_of_the_goals(real_games: GameSet) -> None:
    for task_id in real_games.task_ids()[::7]:
        assert real_games.load(task_id).task_type is real_games.meta(task_id).task_type


def test_compiled_games_are_shared_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(games, "COMPILED_LIMIT", 2)
    ids = [f"train/{PICK}-Mug-None-Shelf-1/trial_{n}" for n in range(4)]
    found = GameSet.from_games((task_id, "train", payload()) for task_id in ids)
    first = found.load(ids[0])
    assert found.load(ids[0]) is first
    found.load(ids[1])
    found.load(ids[0])
    found.load(ids[2])  # drops 1, the one not used for longest
    assert found.load(ids[0]) is first
    assert len(found._compiled) == 2


def test_games_made_on_request_are_not_made_before() -> None:
    made: list[int] = []

    def maker() -> dict[str, Any]:
        made.append(1)
        return payload()

    found = GameSet.from_games([(f"train/{GOOD}", "train", maker)], manifest_hash="of-the-recipe")
    assert found.manifest_hash == "of-the-recipe"
    assert found.meta(f"train/{GOOD}").task_type is TaskType.PICK
    assert made == []
    found.load(f"train/{GOOD}")
    found.load(f"train/{GOOD}")
    assert made == [1]


@pytest.mark.parametrize("task_id", ["trial", "train/a", "train//b", "valid/a/b"])
def test_ids_in_memory_are_checked(task_id: str) -> None:
    with pytest.raises(InvalidOption, match="task id"):
        GameSet.from_games([(task_id, "train", payload())])


def test_file_changed_after_indexing_is_noticed(tmp_path: Path) -> None:
    found = GameSet.from_path(make_tree(tmp_path))
    write(tmp_path / TREE / "train" / GOOD, payload(task="put a mug in shelf"))
    with pytest.raises(CorruptGame, match="changed"):
        found.load(f"train/{GOOD}")
    (tmp_path / TREE / "train" / GOOD / "game.tw-pddl").unlink()
    with pytest.raises(MissingData):
        found.load(f"train/{GOOD}")


def test_errors_of_a_game_name_it(tmp_path: Path) -> None:
    broken = payload(pddl_problem=problem("(:goal (and))"))
    found = GameSet.from_games([(f"train/{GOOD}", "train", broken)])
    with pytest.raises(UnsupportedGame, match=GOOD):
        found.load(f"train/{GOOD}")


# ---------------------------------------------------------------------------- old data


def test_o1_games_of_the_older_wording_are_refused_by_name(real_data: Path) -> None:
    """The older generation is indexed as usual; playing it is an error that names both hashes."""
    found = GameSet.from_path(real_data / "alfworld_games_old.tar.xz")
    assert found.skip_counts() == {"movable_receptacle": 1, "unsolvable": 3}
    assert len(found) == 18
    with pytest.raises(UnsupportedGame, match=r"domain e9f0f8b0c43ab77f7eab54b826b21243"):
        found.load(found.task_ids()[0])


def test_folder_with_nothing_but_unsupported_loose_games(tmp_path: Path) -> None:
    older = payload()
    older["pddl_domain"] += " "
    (tmp_path / "my.tw-pddl").write_text(json.dumps(older))
    with pytest.raises(UnsupportedGame, match="domain"):
        GameSet.from_path(tmp_path / "my.tw-pddl")


# ---------------------------------------------------------------------------- archives


def add(tar: tarfile.TarFile, name: str, data: bytes, **fields: Any) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in fields.items():
        setattr(info, key, value)
    tar.addfile(info, io.BytesIO(data) if info.isreg() else None)


HOSTILE = (
    f"../valid_seen/{GOOD}/game.tw-pddl",
    f"/etc/train/{GOOD}/game.tw-pddl",
    f"train/../../{GOOD}/game.tw-pddl",
    f"train\\..\\{GOOD}\\game.tw-pddl",
    f"C:/train/{GOOD}/game.tw-pddl",
)


def hostile_tar(path: Path) -> None:
    good = json.dumps(payload()).encode()
    with tarfile.open(path, "w:xz") as tar:
        for name in HOSTILE:
            add(tar, name, good)
        link = f"train/{PICK}-Mug-None-Shelf-1/"
        add(tar, link + "s/game.tw-pddl", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd")
        add(tar, link + "h/game.tw-pddl", b"", type=tarfile.LNKTYPE, linkname="../../x")
        add(tar, link + "p/game.tw-pddl", b"", type=tarfile.FIFOTYPE)
        add(tar, "train/readme.txt", b"x" * 100)
        add(tar, f"train/{GOOD}/game.tw-pddl", good)
        add(tar, f"train/{GOOD}/game.tw-pddl", good)


def hostile_zip(path: Path) -> None:
    good = json.dumps(payload())
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in HOSTILE:
            archive.writestr(name, good)
        for kind in "shp":
            info = zipfile.ZipInfo(f"train/{PICK}-Mug-None-Shelf-1/{kind}/game.tw-pddl")
            info.external_attr = 0o120777 << 16
            archive.writestr(info, "/etc/passwd")
        archive.writestr("train/readme.txt", "x")
        archive.writestr(f"train/{GOOD}/game.tw-pddl", good)
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr(f"train/{GOOD}/game.tw-pddl", good)


@pytest.mark.parametrize(("name", "make"), [("a.tar.xz", hostile_tar), ("a.zip", hostile_zip)])
def test_hostile_members_are_left_out(
    tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    box = tmp_path / "box"
    box.mkdir()
    make(box / name)
    before = sorted(tmp_path.rglob("*"))
    found = GameSet.from_path(box / name)
    assert found.task_ids() == (f"train/{GOOD}",)
    assert found.skip_counts() == {"duplicate": 1, "not_a_file": 3, "unsafe_path": 5}
    assert sorted(tmp_path.rglob("*")) == before  # nothing was written anywhere


def test_huge_members_are_left_out_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = json.dumps(payload()).encode()
    monkeypatch.setattr(game_files, "MAX_FILE_BYTES", len(good) + 10)
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        add(tar, f"train/{PICK}-Mug-None-Shelf-1/big/game.tw-pddl", good + b" " * 11)
        add(tar, f"train/{GOOD}/game.tw-pddl", good)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(f"train/{PICK}-Mug-None-Shelf-1/big/game.tw-pddl", good + b" " * 11)
        archive.writestr(f"train/{GOOD}/game.tw-pddl", good)
    for name in ("a.tar", "a.zip"):
        found = GameSet.from_path(tmp_path / name)
        assert found.skip_counts() == {"too_large": 1}
        assert found.task_ids() == (f"train/{GOOD}",)


@pytest.mark.parametrize(("limit", "value"), [("MAX_ARCHIVE_BYTES", 1000), ("MAX_MEMBERS", 3)])
def test_bombs_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        for number in range(5):
            add(tar, f"train/x/{number}/readme", b"0" * 500)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for number in range(5):
            archive.writestr(f"train/x/{number}/game.tw-pddl", b"0" * 500)
    monkeypatch.setattr(game_files, limit, value)
    for name in ("a.tar.gz", "a.zip"):
        with pytest.raises(DataError, match="unpacks to more"):
            GameSet.from_path(tmp_path / name)


@pytest.mark.parametrize("name", ["a.tar", "a.tar.xz", "a.tgz", "a.zip"])
def test_damaged_archives(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"PK\3\4 this is no archive" * 50)
    with pytest.raises(DataError, match=r"archive|no ALFWorld games"):
        GameSet.from_path(tmp_path / name)


def test_cut_off_archive(tmp_path: Path) -> None:
    whole = tmp_path / "a.tar.xz"
    with tarfile.open(whole, "w:xz") as tar:
        add(tar, f"train/{GOOD}/game.tw-pddl", json.dumps(payload()).encode())
    data = whole.read_bytes()
    whole.write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError):
        GameSet.from_path(whole)


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz"])
@pytest.mark.parametrize("damage", ["header", "end"])
def test_a_tar_that_is_damaged_after_the_first_game(tmp_path: Path, name: str, damage: str) -> None:
    """`tarfile` would end there without a word, and the other games would be missing."""
    raw = io.BytesIO()
    starts = []
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for number in range(3):
            starts.append(raw.tell())
            trial = f"train/{PICK}-Mug-None-Shelf-1/trial_{number}"
            add(tar, f"{trial}/game.tw-pddl", json.dumps(payload()).encode())
    data = bytearray(raw.getvalue())
    if damage == "header":
        data[starts[1]] ^= 1
    else:
        del data[starts[2] :]
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    with pytest.raises(DataError, match=f"archive.*at byte {starts[1 + (damage == 'end')]}"):
        GameSet.from_path(tmp_path / name)


def test_damage_inside_of_a_compressed_member(tmp_path: Path) -> None:
    """Every way of packing has its own kind of error."""
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        path = tmp_path / f"{method}.zip"
        with zipfile.ZipFile(path, "w", method) as archive:
            archive.writestr(f"train/{GOOD}/game.tw-pddl", json.dumps(payload()))
        data = bytearray(path.read_bytes())
        data[600:640] = bytes(40)
        path.write_bytes(data)
        with pytest.raises(DataError, match="Cannot read the archive"):
            GameSet.from_path(path)


# ---------------------------------------------------------------------------- where from


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


def test_archive_of_real_games_equals_the_folder(
    tmp_path: Path, real_data: Path, real_games: GameSet
) -> None:
    ids = real_games.task_ids()[::60]
    for task_id in ids:
        write(tmp_path / TREE / task_id, dict(real_games.payload(task_id)))
    from_folder = GameSet.from_path(tmp_path)
    assert from_folder.task_ids() == ids
    for task_id in ids:
        assert from_folder.load(task_id).revision == real_games.load(task_id).revision
        assert from_folder.walkthrough(task_id) == real_games.walkthrough(task_id)


def test_set_survives_being_sent_to_another_process(tmp_path: Path) -> None:
    import pickle

    found = GameSet.from_path(make_tree(tmp_path))
    game = found.load(f"train/{GOOD}")
    copy = GameSet.__new__(GameSet)
    state = found.__getstate__()
    assert "_compiled" not in state
    copy.__setstate__(state)
    assert copy.load(f"train/{GOOD}").revision == game.revision
    assert pickle.loads(pickle.dumps(found.skipped)) == found.skipped
    assert os.path.exists(found.source)


def test_walkthrough_of_a_set() -> None:
    goal = TREAT.format(able="coolable", done="isCool", obj="MugType", rec="ShelfType")
    plan = ["go to fridge 1"]
    found = GameSet.from_games(
        [("train/pick_cool_then_place_in_recep-Mug/t", "train", payload(goal, walkthrough=plan))]
    )
    assert found.walkthrough(found.task_ids()[0]) == tuple(plan)
