"""Archives of games: hostile, huge, damaged ones."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_envs.alfworld.games import GameSet, game_archives
from agent_envs.errors import (
    DataError,
)
from tests.agent_envs.alfworld.household import payload
from tests.agent_envs.alfworld.trees import GOOD, PICK, TREE, add, write

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
    monkeypatch.setattr(game_archives, "MAX_FILE_BYTES", len(good) + 10)
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
    monkeypatch.setattr(game_archives, limit, value)
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


def tar_header(kind: bytes, size: int) -> bytes:
    member = tarfile.TarInfo("x")
    member.type, member.size = kind, size
    return member.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_without_end_is_not_read_into_memory(tmp_path: Path, kind: bytes) -> None:
    path, size = tmp_path / "bomb.tar.gz", 48 << 20
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(tar_header(kind, size) + bytes(size) + bytes(1024))
    assert path.stat().st_size < 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"header of 50,331,648 bytes, expected 1,048,576"):
            GameSet.from_path(path)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_a_list_of_holes_without_end_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "pax.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        holes = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "x"}
        add(tar, "x", b"100000000\n" + b"1\n" * 100_000, pax_headers=holes)
    (tmp_path / "old.tar").write_bytes(tar_header(tarfile.GNUTYPE_SPARSE, 0) + bytes(1024))
    for name in ("pax.tar", "old.tar"):
        with pytest.raises(DataError, match="sparse"):
            GameSet.from_path(tmp_path / name)


def test_long_names_are_no_bombs(tmp_path: Path) -> None:
    good = json.dumps(payload()).encode()
    for number, format in enumerate((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)):
        path = tmp_path / f"{number}.tar"
        with tarfile.open(path, "w", format=format) as tar:
            add(tar, f"{'x' * 150}/{'é' * 100}/train/{GOOD}/game.tw-pddl", good)
        assert GameSet.from_path(path).task_ids() == (f"train/{GOOD}",)
