"""The store: complete or absent, and never misread."""

from __future__ import annotations

import gc
import json
import os
import shutil
import threading
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from agent_envs.errors import CorruptData, DataError, InvalidOption, MissingData
from agent_envs.webshop.catalogue import Shop, import_files, load_shop
from agent_envs.webshop.catalogue import store as module
from agent_envs.webshop.catalogue.importing import RawFiles, build_tables
from agent_envs.webshop.catalogue.records import FileBlob
from agent_envs.webshop.catalogue.report import EXAMPLES
from agent_envs.webshop.catalogue.store import HEADER, open_store, verify_store
from tests.agent_envs.webshop.catalogue.raws import (
    options,
    raw_human,
    raw_product,
    small_raw,
    small_shop,
    write_raw,
)


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> RawFiles:
    return write_raw(tmp_path_factory.mktemp("raw"), *small_raw())


@pytest.fixture(scope="module")
def original(raw: RawFiles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return import_files(raw, tmp_path_factory.mktemp("made") / "store")


@pytest.fixture
def store(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "store"))


def rewrite_header(store: Path, **changes: object) -> None:
    _, _, body = (store / HEADER).read_bytes().partition(b"\n")
    body = json.dumps({**json.loads(body), **changes}).encode()
    (store / HEADER).write_bytes(sha256(body).hexdigest().encode() + b"\n" + body)


def test_a_store_holds_what_the_files_hold(original: Path) -> None:
    stored, memory = load_shop(original), small_shop()
    assert stored.revision == memory.revision
    assert list(stored.catalogue) == list(memory.catalogue)
    for kind in ("synthetic", "human"):
        assert list(stored.goals(kind)) == list(memory.goals(kind))  # type: ignore[arg-type]
        assert np.array_equal(stored.goals(kind).weights, memory.goals(kind).weights)  # type: ignore[arg-type]
    assert stored.report == memory.report
    for query in ("thing", "red", "B000000004"):
        assert stored.index.find(query) == memory.index.find(query)


def test_the_same_files_give_the_same_bytes(raw: RawFiles, original: Path, tmp_path: Path) -> None:
    again = import_files(raw, tmp_path / "again")
    names = sorted(file.relative_to(original) for file in original.rglob("*") if file.is_file())
    for name in names:
        assert (again / name).read_bytes() == (original / name).read_bytes(), name


def test_arrays_are_mapped_and_records_stay_on_disk(original: Path) -> None:
    tables = open_store(original)
    for values in tables.arrays.values():
        assert isinstance(values.base, np.memmap) or not values.size
        assert not values.flags.writeable
    assert {type(blob) for blob in tables.blobs.values()} == {FileBlob}


def test_every_file_is_checked(store: Path) -> None:
    """A changed byte, a lost byte, a lost file: of each file of the store."""
    names = [name for name in os.listdir(store) if (store / name).is_file()]
    assert len(names) == 25
    for name in names:
        whole = (store / name).read_bytes()
        middle = len(whole) // 2
        changed = bytes([whole[middle] ^ 1])
        for damaged in (whole[:middle] + changed + whole[middle + 1 :], whole[:-1], b""):
            if damaged == whole:
                continue
            (store / name).write_bytes(damaged)
            with pytest.raises(CorruptData) as caught:
                open_store(store)
            for part in (str(store), "sero data import webshop"):
                assert part in str(caught.value)
        (store / name).unlink()
        with pytest.raises(
            MissingData if name == HEADER else CorruptData, match="sero data import"
        ):
            open_store(store)
        (store / name).write_bytes(whole)
    open_store(store)


def test_a_large_store_is_checked_record_by_record(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "VERIFIED_BYTES", 0)
    lines = (store / "products.jsonl").read_bytes().split(b"\n")
    lines[3] = lines[3].replace(b"A thing.", b"A thong.")
    (store / "products.jsonl").write_bytes(b"\n".join(lines))
    shop = Shop(open_store(store))
    assert shop.catalogue[2].title.startswith("Thing")
    with pytest.raises(CorruptData, match=r"Record 3 .*products\.jsonl.*sero data import"):
        shop.catalogue[3]
    with pytest.raises(CorruptData, match=r"SHA-256 of products\.jsonl"):
        verify_store(store)
    with pytest.raises(CorruptData, match="SHA-256"):
        open_store(store, verify=True)


def test_a_store_that_is_cut_off_while_it_is_open(store: Path) -> None:
    shop = load_shop(store)
    os.truncate(store / "products.jsonl", 100)
    with pytest.raises(CorruptData, match="Record 20"):
        _ = shop.catalogue[20]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="the system does not tell")
def test_open_files_are_closed_with_the_shop(store: Path) -> None:
    def files() -> int:
        return len(os.listdir("/proc/self/fd"))

    gc.collect()
    before = files()
    for _ in range(20):
        shop = Shop(open_store(store))
        assert shop.catalogue.number_of(shop.goals("synthetic")[0].asin) is not None
        del shop
    gc.collect()
    assert files() <= before


def test_another_version_is_refused(store: Path) -> None:
    rewrite_header(store, version=module.VERSION + 1)
    with pytest.raises(CorruptData) as caught:
        load_shop(store)
    for part in (f"version {module.VERSION + 1}", f"reads {module.VERSION}", "sero data import"):
        assert part in str(caught.value)


@pytest.mark.parametrize("header", [b"", b"x\n[]", b"x\n{}", b"\xff\xfe", b'{"format": 1}'])
def test_what_is_no_header(store: Path, header: bytes) -> None:
    (store / HEADER).write_bytes(header)
    with pytest.raises(CorruptData, match="no header"):
        open_store(store)


def test_a_search_index_of_other_products_is_refused(store: Path, tmp_path: Path) -> None:
    other = import_files(write_raw(tmp_path / "raw", *small_raw(7)), tmp_path / "other")
    shutil.rmtree(store / "index")
    shutil.copytree(other / "index", store / "index")
    with pytest.raises(CorruptData, match="is of 7 products, the store has 30"):
        _ = load_shop(store).index


def test_a_store_without_its_search_index(store: Path) -> None:
    shutil.rmtree(store / "index")
    with pytest.raises(DataError, match="index"):
        _ = load_shop(store).index


def test_nothing_is_overwritten(store: Path, raw: RawFiles, tmp_path: Path) -> None:
    before = (store / HEADER).read_bytes()
    with pytest.raises(InvalidOption, match="--force"):
        import_files(raw, store)
    with pytest.raises(InvalidOption, match="no WebShop store"):
        import_files(raw, tmp_path, replace=True)
    with pytest.raises(InvalidOption, match="no WebShop store"):
        import_files(raw, raw.products, replace=True)
    assert (store / HEADER).read_bytes() == before


def test_a_store_is_replaced_while_it_is_open(store: Path, tmp_path: Path) -> None:
    shop = load_shop(store)
    import_files(write_raw(tmp_path / "raw", *small_raw(5)), store, replace=True)
    assert len(load_shop(store).catalogue) == 5
    assert [shop.catalogue[n].title for n in (0, 29)] == ["Thing B000000000", "Thing B000000029"]
    assert sorted(os.listdir(tmp_path)) == ["raw", "store"]


def test_an_empty_folder_is_a_place(raw: RawFiles, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    assert len(load_shop(import_files(raw, tmp_path / "store")).catalogue) == 30


@pytest.mark.parametrize("cut", ["products", "attributes", "humans"])
def test_a_failed_import_leaves_nothing_behind(cut: str, tmp_path: Path) -> None:
    files = write_raw(tmp_path / "raw", *small_raw())
    path: Path = getattr(files, cut)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(CorruptData) as caught:
        import_files(files, tmp_path / "store")
    assert str(path) in str(caught.value)
    assert "cut off" in str(caught.value)
    assert os.listdir(tmp_path) == ["raw"]


def test_a_folder_that_cannot_be_written(raw: RawFiles, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="Cannot write"):
        import_files(raw, tmp_path / "file" / "store")


def test_writers_at_the_same_time_leave_one_whole_store(raw: RawFiles, tmp_path: Path) -> None:
    outcomes: list[str] = []

    def write() -> None:
        try:
            import_files(raw, tmp_path / "store")
            outcomes.append("written")
        except InvalidOption:
            outcomes.append("taken")

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(outcomes) == ["taken"] * 3 + ["written"]
    assert os.listdir(tmp_path) == ["store"]
    verify_store(tmp_path / "store")


def test_a_shop_without_products() -> None:
    for products in ([], [{"asin": "nan"}]):
        with pytest.raises(MissingData, match=r"no product.*items_shuffle\.json"):
            build_tables(products, (), (), None, source="here")


def test_only_the_first_entries(raw: RawFiles, tmp_path: Path) -> None:
    shop = load_shop(import_files(raw, tmp_path / "store", products=4))
    assert list(shop.catalogue) == list(small_shop().catalogue)[:4]


def test_wrong_shapes_name_file_product_and_key(tmp_path: Path) -> None:
    products, facts, humans = small_raw(3)
    for place, wrong in (
        ("products", ([[1]], facts, humans)),
        ("products", ({"a": 1}, facts, humans)),
        ("products", ([{**products[0], "name": 3}], facts, humans)),
        ("attributes", (products, [1], humans)),
        ("attributes", (products, {"B000000000": "x"}, humans)),
        ("humans", (products, facts, {"B000000000": {"x": 1}})),
    ):
        files = write_raw(tmp_path / "raw", *wrong)
        with pytest.raises(CorruptData) as caught:
            import_files(files, tmp_path / "store")
        assert str(getattr(files, place).parent) in str(caught.value)


def test_a_link_to_a_store_is_followed(store: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(store)
    (tmp_path / "raw").mkdir()
    files = write_raw(tmp_path / "raw", *small_raw(5))
    assert import_files(files, tmp_path / "link", replace=True) == tmp_path / "link"
    assert (tmp_path / "link").is_symlink()
    assert len(load_shop(store).catalogue) == 5
    assert sorted(os.listdir(tmp_path)) == ["link", "raw", "store"]


def test_a_store_that_cannot_be_moved_leaves_nothing_beside_it(
    store: Path, raw: RawFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rename(old: Path, new: Path) -> None:
        raise PermissionError(1, "not permitted")

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(DataError, match="Cannot write the store"):
        import_files(raw, store, replace=True)
    assert os.listdir(tmp_path) == ["store"]


def test_long_asins_fill_no_header(tmp_path: Path) -> None:
    """Also texts that JSON writes with twelve bytes a character."""
    long = "\U0001f600" * 1500
    products = [*small_raw(3)[0], *(raw_product(f"{n}{long}") for n in range(1200))]
    products.append(raw_product("C", customization_options=options(**{f"A{long}": ["x", "X"]})))
    files = write_raw(tmp_path / "raw", products, {}, {long: [raw_human()]})
    shop = load_shop(import_files(files, tmp_path / "store"))
    assert shop.report.counts["long_asin"] == 1200
    assert shop.report.counts["value_collision"] == 1
    assert 0 < len(shop.report.examples["long_asin"]) <= EXAMPLES
    assert shop.report.examples["long_asin"][0][0].startswith("0\U0001f600")
    assert (tmp_path / "store" / HEADER).stat().st_size < 2 << 20
