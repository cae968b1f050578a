"""Files of indexes: what is written is read, and what is damaged is refused."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import stat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_envs.errors import CorruptData, DataError, MissingData
from agent_envs.webshop.search import SearchIndex, ranking
from agent_envs.webshop.search import index as index_module
from agent_envs.webshop.search.index import FILE_NAME
from tests.support import run_python

TEXTS = ["oak desk", "desk lamp", "red lamp", "", "the café 😀"]
IDS = list("DBACE")
QUERIES = ["desk", "lamp desk", "café", "😀", "zzz", "red red lamp"]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    SearchIndex.build(TEXTS, IDS).save(tmp_path)
    return tmp_path


def rewrite(folder: Path, change: object) -> None:
    """Change the description of the file and seal it again."""
    data = (folder / FILE_NAME).read_bytes()
    magic, _, text = data[:4096].split(b"\n")[:3]
    told = json.loads(text)
    change(told)  # type: ignore[operator]
    text = json.dumps(told).encode()
    block = magic + b"\n" + hashlib.sha256(text).hexdigest().encode() + b"\n" + text + b"\n"
    (folder / FILE_NAME).write_bytes(block.ljust(4096, b"\0") + data[4096:])


@given(texts=st.lists(st.text(max_size=30), max_size=8))
def test_what_is_saved_is_opened(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("index")
    built = SearchIndex.build(texts, [f"{number:03}" for number in range(len(texts))])
    built.save(folder)
    opened = SearchIndex.open(folder, verify=True)
    assert len(opened) == len(texts)
    for query in [*texts, "a", " ".join(texts)]:
        assert opened.find(query) == built.find(query)
        assert opened.scores(query).tolist() == built.scores(query).tolist()


def test_the_same_texts_give_the_same_bytes(tmp_path: Path, saved: Path) -> None:
    again = tmp_path / "again" / "deeper"
    SearchIndex.build(iter(TEXTS), tuple(IDS)).save(again)
    assert (again / FILE_NAME).read_bytes() == (saved / FILE_NAME).read_bytes()
    elsewhere = tmp_path / "elsewhere"
    run_python(
        "import sys; from pathlib import Path\n"
        "from agent_envs.webshop.search import SearchIndex\n"
        f"SearchIndex.build({TEXTS!r}, {IDS!r}).save(Path(sys.argv[1]))",
        str(elsewhere),
        env={"PYTHONHASHSEED": "7"},
    )
    assert (elsewhere / FILE_NAME).read_bytes() == (saved / FILE_NAME).read_bytes()


def test_saving_leaves_one_file_and_replaces_whole_files(saved: Path) -> None:
    opened = SearchIndex.open(saved)
    SearchIndex.build(["other"], ["X"]).save(saved)
    assert [path.name for path in saved.iterdir()] == [FILE_NAME]
    assert opened.find("desk") == (1, 0)  # what was mapped stays
    assert SearchIndex.open(saved).find("desk") == ()
    mode = stat.S_IMODE((saved / FILE_NAME).stat().st_mode)
    assert mode & 0o444 == 0o444 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_failed_save_leaves_nothing(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (saved / FILE_NAME).read_bytes()

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        SearchIndex.build(["other"], ["X"]).save(saved)
    assert [path.name for path in saved.iterdir()] == [FILE_NAME]
    assert (saved / FILE_NAME).read_bytes() == before


def test_an_opened_index_is_pickled_by_its_place(saved: Path) -> None:
    opened = SearchIndex.open(saved)
    data = pickle.dumps(opened)
    assert len(data) < 1000
    assert [pickle.loads(data).find(query) for query in QUERIES] == [
        opened.find(query) for query in QUERIES
    ]


def test_pages_are_given_back(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_SMALL", -1)
    monkeypatch.setattr(ranking, "_HELD_BYTES", 20)
    opened, built = SearchIndex.open(saved), SearchIndex.build(TEXTS, IDS)
    for query in QUERIES * 3:
        assert opened.find(query) == built.find(query)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="There is no search index"):
        SearchIndex.open(tmp_path)


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"\0" * 5000, b"sero search index 9\n" * 300])
def test_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(CorruptData, match="cannot be used"):
        SearchIndex.open(tmp_path)


def test_a_folder_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).mkdir()
    with pytest.raises(CorruptData, match="cannot be mapped"):
        SearchIndex.open(tmp_path)


def test_every_cut_is_noticed(saved: Path) -> None:
    data = (saved / FILE_NAME).read_bytes()
    for length in range(0, len(data), 61):
        (saved / FILE_NAME).write_bytes(data[:length])
        with pytest.raises(CorruptData):
            SearchIndex.open(saved, verify=False)
    (saved / FILE_NAME).write_bytes(data + b"\0")
    with pytest.raises(CorruptData):
        SearchIndex.open(saved, verify=False)


def test_every_changed_byte_is_noticed_by_the_checksums(saved: Path) -> None:
    data = bytearray((saved / FILE_NAME).read_bytes())
    described = data.index(b"\n", data.index(b"\n{"), 4096) + 1
    for place in [*range(described), *range(4096, len(data), 7)]:
        data[place] ^= 1
        (saved / FILE_NAME).write_bytes(data)
        with pytest.raises(CorruptData):
            SearchIndex.open(saved, verify=True)
        data[place] ^= 1


@given(changes=st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 255)), max_size=5))
def test_damage_is_a_typed_error_or_an_answer(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    """Without the check of the content, too."""
    folder = tmp_path_factory.getbasetemp() / "damaged"
    if not folder.exists():
        SearchIndex.build(TEXTS, IDS).save(folder)
        (folder / FILE_NAME).rename(folder / "whole")
    data = bytearray((folder / "whole").read_bytes())
    for place, change in changes:
        data[4096 + place % (len(data) - 4096)] ^= change
    (folder / FILE_NAME).write_bytes(data)
    try:
        opened = SearchIndex.open(folder, verify=False)
        for query in QUERIES:
            assert all(0 <= number < len(TEXTS) for number in opened.find(query))
    except DataError:
        pass


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told.pop("arrays"),
        lambda told: told.update(arrays=[1]),
        lambda told: told.update(arrays=3),
        lambda told: told["arrays"].pop("precedence"),
        lambda told: told["arrays"].update(extra=["<i4", 0, 4096]),
        lambda told: told["arrays"]["precedence"].pop(),
        lambda told: told["arrays"]["precedence"].__setitem__(0, "<f8"),
        lambda told: told["arrays"]["precedence"].__setitem__(1, -1),
        lambda told: told["arrays"]["precedence"].__setitem__(1, 10**12),
        lambda told: told["arrays"]["precedence"].__setitem__(1, 1.5),
        lambda told: told["arrays"]["precedence"].__setitem__(1, 2),
        lambda told: told["arrays"]["precedence"].__setitem__(2, 0),
        lambda told: told["arrays"]["precedence"].__setitem__(2, 10**30),
        lambda told: told["arrays"]["precedence"].__setitem__(2, "4096"),
        lambda told: told["arrays"]["starts"].__setitem__(1, 0),
    ],
)
def test_nonsense_in_a_sealed_description_is_refused(saved: Path, change: object) -> None:
    rewrite(saved, change)
    with pytest.raises(CorruptData):
        SearchIndex.open(saved, verify=False)


def test_small_files_are_checked_when_opened_and_large_ones_on_demand(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytearray((saved / FILE_NAME).read_bytes())
    data[4096] ^= 1  # of a hash
    (saved / FILE_NAME).write_bytes(data)
    with pytest.raises(CorruptData, match="does not match its checksum"):
        SearchIndex.open(saved)
    monkeypatch.setattr(index_module, "_VERIFIED_BYTES", 0)
    opened = SearchIndex.open(saved)
    with pytest.raises(CorruptData, match="does not match its checksum"):
        opened.verify()


def test_arrays_cannot_be_written_through(saved: Path) -> None:
    opened = SearchIndex.open(saved)
    with pytest.raises(ValueError, match="read-only"):
        opened._arrays["documents"][0] = np.int32(0)
