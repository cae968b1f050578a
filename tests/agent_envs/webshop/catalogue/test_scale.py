"""What a catalogue of any size costs: memory that does not grow with it."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_envs.webshop.catalogue import GoalSet, Shop
from agent_envs.webshop.catalogue import store as store_module
from agent_envs.webshop.catalogue.importing import build_tables
from agent_envs.webshop.catalogue.lookup import Lookup
from agent_envs.webshop.catalogue.store import open_store
from tests.agent_envs.webshop.catalogue.raws import asin, options, raw_facts, raw_product
from tests.support import full_count

FEW, MANY = 200, full_count(1000, 20_000)


def products(number: int) -> Iterator[Any]:
    for place in range(number):
        yield raw_product(
            asin(place),
            full_description=f"{place} " * 500,
            customization_options=options(Size=["s", "m", "l"], Color=["red", "blue"]),
        )


def facts(number: int) -> Iterator[tuple[str, Any]]:
    return ((asin(place), raw_facts("light", f"a{place % 7}")) for place in range(number))


def peak_of(work: Callable[[], object]) -> int:
    """Bytes allocated at most while `work` ran, beyond what there was before."""
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def peaks(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[int, Path]]:
    found = {}
    for number in (FEW, MANY):
        folder = tmp_path_factory.mktemp(f"of{number}")
        peak = peak_of(
            lambda n=number, f=folder: build_tables(products(n), facts(n), (), f, source="here")  # type: ignore[misc]
        )
        found[number] = (peak, folder)
    return found


def test_importing_keeps_little_of_a_product(peaks: dict[int, tuple[int, Path]]) -> None:
    """A product has 2.5 KB in the file, and six goals; 400 to 550 bytes of it stay in memory, by
    how full the hash tables are."""
    grown = peaks[MANY][0] - peaks[FEW][0]
    assert grown / (MANY - FEW) < 700


def test_opening_costs_the_same_at_any_size(
    peaks: dict[int, tuple[int, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "VERIFIED_BYTES", 0)
    kept = []

    def open_and_ask(folder: Path) -> None:
        shop = Shop(open_store(folder))
        goals = GoalSet(shop)
        ids = goals.task_ids("train")
        kept.append((goals.goal(ids[len(ids) // 2]), shop.catalogue.number_of(asin(3))))

    costs = [peak_of(lambda n=n: open_and_ask(peaks[n][1])) for n in (FEW, FEW, MANY)]  # type: ignore[misc]
    assert abs(costs[2] - costs[1]) < 20_000  # nothing in proportion: 800 products have 2 MB
    assert kept[2][1] == 3
    assert kept[2][0].asin


def test_numbers_of_goals_at_both_sizes(peaks: dict[int, tuple[int, Path]]) -> None:
    for number, (_, folder) in peaks.items():
        assert len(Shop(open_store(folder)).goals("synthetic")) == 6 * number


def test_a_lookup_finds_the_last_of_equal_keys(tmp_path: Path) -> None:
    pairs = [(f"k{number % 700}", number) for number in range(2000)] + [("", -1), ("\ud800", -2)]
    lookup = Lookup(pairs, tmp_path)
    last = dict(pairs)
    assert {key: lookup.get(key) for key in last} == last
    assert dict(lookup.pairs()) == last
    assert len(list(lookup.pairs())) == len(last)
    assert lookup.get("k700") is None
    assert len(lookup) == len(pairs)
    lookup.close()


def test_a_lookup_tells_keys_of_one_hash_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_envs.webshop.catalogue.lookup._hash", lambda key: len(key))
    lookup = Lookup([("aa", 1), ("bb", 2), ("aa", 3), ("c", 4)])
    assert [lookup.get(key) for key in ("aa", "bb", "c", "cc", "")] == [3, 2, 4, None, None]
    assert list(lookup.pairs()) == [("bb", 2), ("aa", 3), ("c", 4)]
