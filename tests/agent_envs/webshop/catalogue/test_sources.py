"""Where a shop comes from: arguments, the environment, files, the cache."""

from __future__ import annotations

import copy
import json
import os
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent_envs.errors import CorruptData, InvalidOption, MissingData, SeroError
from agent_envs.webshop.catalogue import Shop, import_files, load_shop, shop_cache, sources
from agent_envs.webshop.catalogue.sources import VARIABLE, find_raw
from tests.agent_envs.webshop.catalogue.raws import small_raw, small_shop, write_raw
from tests.support import run_python

SMALL = "generated:small?seed=4&n=24"


@pytest.fixture(autouse=True)
def nothing_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cache of its own for each test, and no shop that another one loaded."""
    monkeypatch.setenv("SERO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sources, "_SETTLED_NS", -3600 * 10**9)  # files of a moment ago count
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(sources, "_loaded", type(sources._loaded)())
    monkeypatch.setattr(sources, "_recent", type(sources._recent)())


def cached(tmp_path: Path) -> list[str]:
    folder = tmp_path / "cache" / "webshop"
    return sorted(os.listdir(folder)) if folder.is_dir() else []


def test_raw_files_are_imported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_raw(tmp_path / "raw", *small_raw())
    first = load_shop(tmp_path / "raw")
    assert first.revision == small_shop().revision
    assert len(cached(tmp_path)) == 1
    assert first.folder is not None
    sources._loaded.clear()
    monkeypatch.setattr(sources, "import_files", None)  # would fail if it were called
    again = load_shop(tmp_path / "raw")
    assert again is not first
    assert again.revision == first.revision
    assert again.folder == first.folder


def test_files_that_changed_are_imported_anew(tmp_path: Path) -> None:
    write_raw(tmp_path / "raw", *small_raw())
    assert len(load_shop(tmp_path / "raw").catalogue) == 30
    write_raw(tmp_path / "raw", *small_raw(31))
    assert len(load_shop(tmp_path / "raw").catalogue) == 31
    assert len(cached(tmp_path)) == 2


def test_files_that_changed_just_now_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_SETTLED_NS", 3600 * 10**9)
    write_raw(tmp_path / "raw", *small_raw())
    shop = load_shop(tmp_path / "raw")
    assert (shop.folder, cached(tmp_path)) == (None, [])
    assert shop.revision == small_shop().revision


@pytest.mark.parametrize("cache", ["off", "closed"])
def test_without_a_cache_the_shop_is_built_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str
) -> None:
    write_raw(tmp_path / "raw", *small_raw())
    (tmp_path / "closed").write_text("a file where the cache would be")
    monkeypatch.setenv("SERO_CACHE", "off" if cache == "off" else str(tmp_path / "closed"))
    for source in (tmp_path / "raw", SMALL):
        shop = load_shop(source)
        assert shop.folder is None
        assert shop.index.search("thing") or source == SMALL
    assert load_shop(tmp_path / "raw").revision == small_shop().revision


def test_a_damaged_cache_is_made_anew(tmp_path: Path) -> None:
    write_raw(tmp_path / "raw", *small_raw())
    shop = load_shop(tmp_path / "raw")
    revision, folder = shop.revision, shop.folder
    assert folder is not None
    for name in ("products.jsonl", "store.json", "synthetic_order.npy"):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        sources._loaded.clear()
        assert load_shop(tmp_path / "raw").revision == revision
        assert (folder / name).read_bytes() == whole
    (folder / "index" / "search.index").write_bytes(b"damaged")
    sources._loaded.clear()
    assert load_shop(tmp_path / "raw").index.find("thing") == small_shop().index.find("thing")


def test_the_cache_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_raw(tmp_path / "raw", *small_raw())
    load_shop(tmp_path / "raw")
    (oldest,) = cached(tmp_path)
    os.utime(tmp_path / "cache" / "webshop" / oldest / "store.json", (1, 1))
    abandoned = tmp_path / "cache" / "webshop" / ".x.part"
    abandoned.mkdir()
    os.utime(abandoned, (1, 1))
    (tmp_path / "cache" / "webshop" / "mine").mkdir()
    monkeypatch.setattr(shop_cache, "CACHE_BYTES", 1)
    load_shop(SMALL)
    left = cached(tmp_path)
    assert len(left) == 2
    assert "mine" in left
    assert oldest not in left


def test_o8_one_object_for_all_who_ask_for_the_same(tmp_path: Path) -> None:
    write_raw(tmp_path / "raw", *small_raw())
    import_files(find_raw(tmp_path / "raw"), tmp_path / "store")
    for source in (tmp_path / "raw", str(tmp_path / "store"), SMALL):
        shops = {id(load_shop(source)) for _ in range(16)}
        assert len(shops) == 1
        other = load_shop(source, price_seed=1)
        assert other is not load_shop(source)
        assert other.index is load_shop(source).index
        assert load_shop(other) is other


def test_price_seeds_are_whole_numbers() -> None:
    for wrong in ("0", None, 1.0, True, []):
        with pytest.raises(InvalidOption, match="price_seed"):
            load_shop(SMALL, price_seed=wrong)  # type: ignore[arg-type]


def test_generated_shops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = load_shop(SMALL)
    assert len(shop.catalogue) == 24
    assert len(shop.goals("synthetic")) > 0
    assert shop.report.skip_counts() == {}
    assert len(cached(tmp_path)) == 1
    assert load_shop("generated:small?n=24&seed=4") is shop
    monkeypatch.setenv("SERO_CACHE", "off")
    monkeypatch.setattr(sources, "_loaded", type(sources._loaded)())
    assert load_shop(SMALL).revision == shop.revision
    with pytest.raises(InvalidOption):
        load_shop("generated:tiny")


def test_without_data_the_shop_is_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(
        sources, "_load", lambda origin, price_seed: seen.append(origin.text) or small_shop()
    )
    load_shop()
    monkeypatch.setenv(VARIABLE, "")
    load_shop()
    assert seen == ["generated:standard?seed=0&n=1000"] * 2


def test_the_argument_takes_precedence_over_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_raw(tmp_path / "raw", *small_raw())
    monkeypatch.setenv(VARIABLE, SMALL)
    assert len(load_shop().catalogue) == 24
    assert len(load_shop(tmp_path / "raw").catalogue) == 30
    monkeypatch.setenv(VARIABLE, str(tmp_path / "raw"))
    assert load_shop() is load_shop(tmp_path / "raw")


@pytest.mark.parametrize("name", ["nowhere", "empty", "x\0y", "~nobody-of-this-name/shop"])
def test_o34_missing_data_names_variable_path_and_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "empty").mkdir()
    data = name if name.startswith("~") else str(tmp_path / name)
    with pytest.raises(MissingData):
        load_shop(data)
    if "\0" in name:
        return  # no variable can hold it
    monkeypatch.setenv(VARIABLE, data)
    with pytest.raises(MissingData) as caught:
        load_shop()
    for part in (f"${VARIABLE}", data, f"unset {VARIABLE}"):
        assert part in str(caught.value)
    if name in ("nowhere", "empty"):
        assert "sero data import webshop RAW --out STORE" in str(caught.value)


def test_o34_a_missing_attribute_file_is_named(tmp_path: Path) -> None:
    files = write_raw(tmp_path / "raw", *small_raw(), ending="_1000.json")
    files.attributes.unlink()
    with pytest.raises(MissingData, match=r"items_ins_v2_1000\.json"):
        load_shop(tmp_path / "raw")


def test_files_that_are_too_large_for_the_way_name_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_raw(tmp_path / "raw", *small_raw())
    monkeypatch.setattr(sources, "ON_THE_FLY_BYTES", 1000)
    with pytest.raises(InvalidOption) as caught:
        load_shop(tmp_path / "raw")
    assert f"sero data import webshop {tmp_path / 'raw'} --out STORE" in str(caught.value)


def test_which_files_belong_together(tmp_path: Path) -> None:
    small = write_raw(tmp_path, *small_raw(3)[:2], ending="_1000.json")
    full = write_raw(tmp_path, *small_raw(9))
    assert find_raw(tmp_path) == full  # the full catalogue, as the original takes it
    assert find_raw(small.products).attributes == small.attributes
    assert find_raw(small.products).humans == full.humans
    (tmp_path / "checkout").mkdir()
    shutil.move(str(full.products), tmp_path / "checkout" / "other.json")
    shutil.move(str(full.attributes), tmp_path / "checkout" / "items_ins_v2.json")
    found = find_raw(tmp_path / "checkout" / "other.json")
    assert found.attributes.name == "items_ins_v2.json"
    assert found.humans is None
    os.rename(tmp_path / "checkout" / "other.json", tmp_path / "checkout" / "items_shuffle.json")
    os.makedirs(tmp_path / "clone")
    os.rename(tmp_path / "checkout", tmp_path / "clone" / "data")
    assert find_raw(tmp_path / "clone").products.parent.name == "data"


def test_without_the_human_file_there_are_no_human_goals(tmp_path: Path) -> None:
    products, facts, _ = small_raw()
    write_raw(tmp_path / "raw", products, facts)
    shop = load_shop(tmp_path / "raw")
    assert (len(shop.goals("human")), len(shop.goals("synthetic")) > 0) == (0, True)


@pytest.mark.parametrize("data", [3, ["generated"], b"generated\xff", object()])
def test_what_names_no_shop(data: object) -> None:
    with pytest.raises(SeroError):
        load_shop(data)  # type: ignore[arg-type]


READ = """
import pickle, sys
shop = pickle.loads(bytes.fromhex(sys.argv[1]))
print(shop.revision, shop.price_seed, shop.goals("human")[0].instruction)
"""


def test_shops_travel_to_other_processes(tmp_path: Path) -> None:
    """By their source where they have one: what is sent is short."""
    write_raw(tmp_path / "raw", *small_raw())
    for source in (tmp_path / "raw", SMALL):
        shop = load_shop(source, price_seed=3)
        data = pickle.dumps(shop)
        assert len(data) < 1000
        told = run_python(READ, data.hex())
        first = shop.goals("human")[0].instruction
        assert told == f"{shop.revision} 3 {first}\n"
        assert pickle.loads(data).catalogue[0] == shop.catalogue[0]


def test_a_source_that_became_another_is_refused(tmp_path: Path) -> None:
    write_raw(tmp_path / "raw", *small_raw())
    data = pickle.dumps(load_shop(tmp_path / "raw"))
    write_raw(tmp_path / "raw", *small_raw(8))
    with pytest.raises(CorruptData, match="is not what it was"):
        pickle.loads(data)


def test_a_store_that_was_moved_is_the_same_shop(tmp_path: Path) -> None:
    write_raw(tmp_path / "raw", *small_raw())
    store = import_files(find_raw(tmp_path / "raw"), tmp_path / "store")
    before = load_shop(store).revision
    moved = store.rename(tmp_path / "moved")
    assert load_shop(moved).revision == before
    assert copy.deepcopy(load_shop(moved)).source == str(moved)


def test_a_checkout_of_files_with_the_published_names(real_data: Path, tmp_path: Path) -> None:
    folder = real_data / "webshop_1k"
    assert [file.name for file in find_raw(folder)] == [
        "items_shuffle_1000.json",
        "items_ins_v2_1000.json",
        "items_human_ins_1k.json",
    ]
    assert json.loads((folder / "items_human_ins_1k.json").read_text())
    assert isinstance(load_shop(folder), Shop)


def loads_without_import(
    monkeypatch: pytest.MonkeyPatch, raw: Path, *, index: bool = False
) -> Shop:
    """The shop, as a process that comes later finds it."""
    from agent_envs.webshop.catalogue import shop as shop_module

    sources._loaded.clear()
    sources._recent.clear()
    with monkeypatch.context() as patched:
        patched.setattr(sources, "import_files", None)  # would fail if it were called
        patched.setattr(sources, "read_files", None)
        if index:
            patched.setattr(shop_module, "build_index", None)
        shop = load_shop(raw)
        _ = shop.index
    return shop


@pytest.mark.parametrize("damage", ["no header", "a file", "an empty folder", "a dead link"])
def test_a_cache_entry_that_is_not_whole_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    write_raw(tmp_path / "raw", *small_raw())
    folder = load_shop(tmp_path / "raw").folder
    assert folder is not None
    if damage == "no header":  # what a killed `rmtree` leaves
        (folder / "store.json").unlink()
    else:
        shutil.rmtree(folder)
        if damage == "a file":
            folder.write_text("")
        elif damage == "an empty folder":
            folder.mkdir()
        else:
            folder.symlink_to(tmp_path / "nowhere")
    sources._loaded.clear()
    assert load_shop(tmp_path / "raw").folder == folder
    assert loads_without_import(monkeypatch, tmp_path / "raw").folder == folder
    assert cached(tmp_path) == [folder.name]


def test_a_damaged_search_index_of_the_cache_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_raw(tmp_path / "raw", *small_raw())
    folder = load_shop(tmp_path / "raw").folder
    assert folder is not None
    path = folder / "index" / "search.index"
    whole = path.read_bytes()
    for damaged in (whole[:-2] + bytes([whole[-2] ^ 4]) + whole[-1:], b"", None):
        path.unlink() if damaged is None else path.write_bytes(damaged)
        sources._loaded.clear()
        assert load_shop(tmp_path / "raw").index.find("thing") == small_shop().index.find("thing")
        assert path.read_bytes() == whole
        loads_without_import(monkeypatch, tmp_path / "raw", index=True)


def test_what_another_process_made_anew_is_not_discarded(tmp_path: Path) -> None:
    write_raw(tmp_path / "raw", *small_raw())
    folder = load_shop(tmp_path / "raw").folder
    assert folder is not None
    damaged = shop_cache._identity(folder)
    assert damaged is not None
    folder.rename(tmp_path / "old")  # stays, so that its number is not given away
    shutil.copytree(tmp_path / "old", folder)
    shop_cache._discard(folder, damaged)
    assert (folder / "store.json").is_file()
    assert cached(tmp_path) == [folder.name]


def test_entries_without_a_header_count_and_go_first(tmp_path: Path) -> None:
    write_raw(tmp_path / "raw", *small_raw())
    folder = load_shop(tmp_path / "raw").folder
    assert folder is not None
    (folder / "store.json").unlink()
    place, sizes = shop_cache.cached_shops() or (None, ())
    assert (place, len(sizes)) == (folder.parent, 1)
    assert sizes[0] > 1000
    shop = load_shop(SMALL)
    assert shop.folder is not None
    assert cached(tmp_path) == [shop.folder.name]


CACHED = """
import os, sys
from agent_envs.webshop.catalogue import load_shop, sources
sources._SETTLED_NS = -3600 * 10**9
shop = load_shop(sys.argv[1])
assert len(shop.index) == 30
print(shop.folder)
"""


def test_processes_at_the_same_time_repair_one_entry(tmp_path: Path) -> None:
    write_raw(tmp_path / "raw", *small_raw())
    folder = load_shop(tmp_path / "raw").folder
    assert folder is not None
    (folder / "store.json").unlink()
    with ThreadPoolExecutor(4) as threads:
        told = set(threads.map(lambda _: run_python(CACHED, str(tmp_path / "raw")), range(4)))
    assert told == {f"{folder}\n"}
    assert cached(tmp_path) == [folder.name]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with names")
@pytest.mark.parametrize("kind", ["pipe", "folder"])
@pytest.mark.parametrize("which", ["items_shuffle.json", "items_ins_v2.json"])
def test_only_regular_files_are_taken(tmp_path: Path, kind: str, which: str) -> None:
    write_raw(tmp_path / "raw", *small_raw(3))
    path = tmp_path / "raw" / which
    path.unlink()
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    with pytest.raises(MissingData, match="raw"):
        load_shop(tmp_path / "raw")
    with pytest.raises(MissingData, match="regular" if kind == "pipe" else "items_"):
        find_raw(path)


def test_price_seeds_have_64_bits_at_most() -> None:
    for wrong in (10**5000, 2**63, -(2**63) - 1):
        with pytest.raises(InvalidOption, match=r"price_seed is .* 64 bits"):
            load_shop(SMALL, price_seed=wrong)
        with pytest.raises(InvalidOption, match="price_seed"):
            small_shop().with_price_seed(wrong)
    assert small_shop(price_seed=2**63 - 1).price_seed == 2**63 - 1


@pytest.mark.parametrize(
    ("prices", "named"),
    [
        ({"B1": None}, "'B1'"),
        ({"B1": "x"}, "'x'"),
        ({"B1": True}, "'B1'"),
        ({5: 1.0}, "key 5"),
        ({"B1": float("nan")}, "nan"),
        ({"B1": float("inf")}, "inf"),
        ({"B1": -1.0}, "-1.0"),
        ({"B1": 10**400}, "'B1'"),
        ({"B1": 10**5000}, "'B1'"),
        ("x", "'x'"),
        (None, "None"),
    ],
)
def test_what_is_no_price_is_named(prices: object, named: str) -> None:
    with pytest.raises(InvalidOption, match=named):
        small_shop(3).with_prices(prices)  # type: ignore[arg-type]
