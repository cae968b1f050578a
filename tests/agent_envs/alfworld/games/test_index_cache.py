"""The index of games on disk: what it saves, and that it never tells of files that are no more."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_envs.alfworld.games import GameSet, index_cache
from agent_envs.alfworld.games.game_files import FileReader
from agent_envs.errors import CorruptGame
from tests.agent_envs.alfworld.household import payload
from tests.agent_envs.alfworld.trees import GOOD, PICK, TREE, make_tree, trajectory, write
from tests.support import ROOT

MORE = f"{PICK}-Mug-None-Shelf-2/trial_1"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, which also takes what was written this very moment."""
    monkeypatch.setenv("SERO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(index_cache, "SETTLED_NS", 0)
    return tmp_path / "cache"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = make_tree(tmp_path / "tree")
    write(root / TREE / "train" / MORE, payload(task="put a mug in shelf"), trajectory())
    return root


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are read."""
    read: list[str] = []
    call = FileReader.__call__

    def counted(self: FileReader) -> bytes:
        read.append(self.path)
        return call(self)

    monkeypatch.setattr(FileReader, "__call__", counted)
    return read


def facts(found: GameSet) -> object:
    refs = [found.meta(task_id) for task_id in found.task_ids()]
    return refs, found.manifest_hash, found.skip_details()


def test_a_second_opening_reads_no_game(cache: Path, tree: Path, reads: list[str]) -> None:
    first = GameSet.from_path(tree)
    assert len(reads) > 10
    reads.clear()
    second = GameSet.from_path(tree)
    assert [Path(path).parent.name for path in reads if path.endswith("tw-pddl")] == ["trial_7"]
    assert facts(second) == facts(first)
    assert len(second) == 2
    assert second.load(f"train/{GOOD}").revision == first.load(f"train/{GOOD}").revision
    # What could not be read is tried again each time: it may have been the disk.
    assert {Path(path).parent.name for path in reads[:-1]} >= {"trial_7", "trial_8"}


def restore_times(path: Path, change: Callable[[], object]) -> None:
    """Change a file and put its time of change back."""
    seen = path.stat()
    change()
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))


def test_a_changed_file_is_seen_even_with_size_and_time_of_change_kept(
    cache: Path, tree: Path
) -> None:
    first = GameSet.from_path(tree)
    file = tree / TREE / "train" / GOOD / "game.tw-pddl"
    text = file.read_text()
    restore_times(file, lambda: file.write_text(text.replace("some mug", "some MUG")))
    second = GameSet.from_path(tree)
    assert second.manifest_hash != first.manifest_hash
    assert second.load(f"train/{GOOD}").task_sentence == "put some MUG on shelf."
    with pytest.raises(CorruptGame, match="changed"):
        first.load(f"train/{GOOD}")
    restore_times(file, lambda: file.write_text(text))
    assert facts(GameSet.from_path(tree)) == facts(first)


def test_a_changed_trajectory_is_seen(cache: Path, tree: Path) -> None:
    assert len(GameSet.from_path(tree)) == 2
    write(tree / TREE / "train" / MORE, None, trajectory(sliced=True))
    found = GameSet.from_path(tree)
    assert found.task_ids() == (f"train/{GOOD}",)
    assert (f"train/{MORE}", "sliced_object") in found.skipped


def test_added_and_removed_games_are_seen(cache: Path, tree: Path) -> None:
    GameSet.from_path(tree)
    write(tree / TREE / "valid_seen" / GOOD, payload(), trajectory())
    shutil.rmtree(tree / TREE / "train" / MORE)
    (tree / TREE / "train" / GOOD / "traj_data.json").unlink()
    found = GameSet.from_path(tree)
    assert found.task_ids() == (f"train/{GOOD}", f"valid_seen/{GOOD}")
    assert found.annotations(f"train/{GOOD}") == ()
    shutil.move(tree / TREE / "valid_seen", tree / TREE / "valid_unseen")
    assert GameSet.from_path(tree).task_ids() == (f"train/{GOOD}", f"valid_unseen/{GOOD}")


def test_what_was_written_a_moment_ago_is_read_again(
    cache: Path, tree: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second change within the tick of the file system's clock would not show in the times."""
    monkeypatch.setattr(index_cache, "SETTLED_NS", 3600 * 10**9)
    first = GameSet.from_path(tree)
    number = len(reads)
    second = GameSet.from_path(tree)
    assert len(reads) == 2 * number
    assert facts(second) == facts(first)


def test_a_change_that_no_time_tells_is_found_at_reading_and_forgotten(
    cache: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_cache, "_times", lambda seen: [0, 0, 0])
    GameSet.from_path(tree)
    write(tree / TREE / "train" / GOOD, payload(task="put a mug in shelf"))
    found = GameSet.from_path(tree)
    with pytest.raises(CorruptGame, match="Start anew"):
        found.load(f"train/{GOOD}")
    assert GameSet.from_path(tree).load(f"train/{GOOD}").task_sentence == "put a mug in shelf."


@pytest.fixture
def archive(tmp_path: Path, tree: Path) -> Path:
    path = tmp_path / "games.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(tree / TREE, TREE)
        tar.add(tree / TREE / "train" / GOOD, f"../{GOOD}")
    return path


def test_an_archive_is_unpacked_once(
    cache: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = GameSet.from_path(archive)
    assert first.skip_counts()["unsafe_path"] == 2
    with monkeypatch.context() as patch:
        patch.setattr(tarfile, "open", lambda *a, **k: pytest.fail("it was opened again"))
        second = GameSet.from_path(archive)
        assert facts(second) == facts(first)
        for task_id in first.task_ids():
            assert second.payload(task_id) == first.payload(task_id)
            assert second.annotations(task_id) == first.annotations(task_id)
    shutil.copy(archive, archive.with_name("other.tar.gz"))
    assert GameSet.from_path(archive.with_name("other.tar.gz")).manifest_hash == first.manifest_hash
    with tarfile.open(archive, "w:gz"):
        pass
    restore_times(archive, lambda: archive.write_bytes(archive.read_bytes()))
    assert GameSet.from_path(archive.with_name("other.tar.gz")).task_ids() == first.task_ids()
    with pytest.raises(OSError, match="no ALFWorld games"):
        GameSet.from_path(archive)


@pytest.mark.parametrize("kind", ["tree", "archive"])
@pytest.mark.parametrize("damage", ["byte", "last", "cut", "empty", "nonsense", "folder"])
def test_a_damaged_cache_is_made_anew(
    cache: Path, kind: str, damage: str, request: pytest.FixtureRequest
) -> None:
    place = request.getfixturevalue(kind)
    first = GameSet.from_path(place)
    (file,) = (cache / "indexes").iterdir()
    whole = file.read_bytes()
    broken = bytearray(whole)
    if damage == "byte":
        broken[len(broken) // 2] ^= 1
    elif damage == "last":
        broken[-1] ^= 1
    file.write_bytes(
        {"cut": whole[:-9], "empty": b"", "nonsense": b"\0" * 500}.get(damage, bytes(broken))
    )
    if damage == "folder":
        file.unlink()
        file.mkdir()
    assert facts(GameSet.from_path(place)) == facts(first)
    if damage != "folder":
        assert file.read_bytes() == whole
        assert facts(GameSet.from_path(place)) == facts(first)


def test_another_version_of_the_code_does_not_trust_it(
    cache: Path, tree: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = GameSet.from_path(tree)
    number = len(reads)
    monkeypatch.setattr(index_cache, "_code_hash", lambda: "0" * 16)
    assert facts(GameSet.from_path(tree)) == facts(first)
    assert len(reads) == 2 * number


@pytest.mark.parametrize("place", ["off", "OFF", "a file", "\0"])
def test_without_a_cache_everything_works_in_silence(
    tree: Path,
    archive: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    recwarn: pytest.WarningsRecorder,
    capfd: pytest.CaptureFixture[str],
    place: str,
) -> None:
    if place == "a file":
        (tmp_path / "file").write_text("")
        place = str(tmp_path / "file" / "cache")
    if place == "\0":
        place = str(tmp_path / ("x" * 400))  # longer than a name may be
    monkeypatch.setenv("SERO_CACHE", place)
    before = sorted(tmp_path.rglob("*"))
    for data in (tree, archive, tree):
        found = GameSet.from_path(data)
        assert len(found) == 2
        assert found.load(f"train/{GOOD}").task_sentence == "put some mug on shelf."
    assert sorted(tmp_path.rglob("*")) == before
    assert not recwarn.list
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(os.name != "posix", reason="modes of folders are POSIX")
def test_others_cannot_write_to_the_cache(cache: Path, tree: Path) -> None:
    GameSet.from_path(tree).load(f"train/{GOOD}")
    for folder in ("indexes", "games"):
        assert (cache / folder).stat().st_mode & 0o077 == 0


def test_writers_at_the_same_time_leave_a_whole_cache(cache: Path, tree: Path) -> None:
    code = (
        "import sys; from agent_envs.alfworld.games import index_cache\n"
        "from agent_envs.alfworld.games import GameSet\n"
        "index_cache.SETTLED_NS = 0\n"
        "for n in range(15):\n"
        "    index_cache.remove(GameSet.from_path(sys.argv[1])._index_file)\n"
        "    found = GameSet.from_path(sys.argv[1])\n"
        "    assert found.manifest_hash == sys.argv[2], n\n"
        "    found.load(found.task_ids()[0])\n"
    )
    expected = GameSet.from_path(tree)
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tree), expected.manifest_hash],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for process in running:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    names = [path.name for path in (cache / "indexes").iterdir()]
    assert len(names) == 1
    assert facts(GameSet.from_path(tree)) == facts(expected)


def test_the_cache_is_bounded(
    cache: Path, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    GameSet.from_path(tree)
    (first,) = (cache / "indexes").iterdir()
    os.utime(first, (1, 1))
    monkeypatch.setattr(index_cache, "LIMIT_BYTES", first.stat().st_size + 100)
    GameSet.from_path(tree / TREE)
    assert first.exists()  # the same folder in the end: it was used
    GameSet.from_path(tree / TREE / "train")
    assert not first.exists()
    assert len(list((cache / "indexes").iterdir())) == 1


def test_odd_names_of_files_are_kept(cache: Path, tree: Path) -> None:
    odd = os.fsencode(tree / TREE / "train" / f"{PICK}-Mug-None-Shelf-1") + b"/trial_\xff"
    try:
        os.mkdir(odd)
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    with open(odd + b"/game.tw-pddl", "w") as file:
        json.dump(payload(), file)
    first = GameSet.from_path(tree)
    assert "unsafe_path" in first.skip_counts()
    assert facts(GameSet.from_path(tree)) == facts(first)
