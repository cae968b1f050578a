"""The catalogue: products by number, numbers by asin, prices, shared and bounded."""

from __future__ import annotations

import copy
import os
import pickle
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_envs.errors import CorruptData
from agent_envs.webshop.catalogue import Shop, import_files, load_shop
from agent_envs.webshop.catalogue import catalogue as module
from agent_envs.webshop.catalogue.cleaning import fold
from tests.agent_envs.webshop.catalogue.raws import (
    asin,
    options,
    raw_facts,
    raw_product,
    small_raw,
    small_shop,
    write_raw,
)

ODD_ASINS = [
    "A",
    "a\u0301",
    "É",
    "#?&/",
    "<b>",
    "%2F",
    "'\"",
    "\\",
    "🛒",
    "B 1",
    "B 1 ",
    "x\0",
    "x",
]


def shop_of(*asins: str) -> Shop:
    return Shop.from_raw([raw_product(one) for one in asins], {})


def test_numbers_are_those_of_the_file_without_what_is_left_out() -> None:
    names = ["B2", "B1", "nan", "B2", "12345678901", "B3", "B1"]
    shop = shop_of(*names)
    assert [product.asin for product in shop.catalogue] == ["B2", "B1", "B3"]
    assert [shop.catalogue.number_of(one) for one in ("B1", "B2", "B3")] == [1, 0, 2]
    assert shop.report.skip_counts() == {"nan_asin": 1, "long_asin": 1, "repeated_asin": 2}
    assert ("B2", "repeated_asin", "entry 3 repeats it") in shop.report.skip_details()


def test_the_first_of_repeated_asins_counts() -> None:
    shop = Shop.from_raw([raw_product("B1", name="first"), raw_product("B1", name="second")], {})
    assert shop.catalogue[0].title == "first"


def test_look_ups_that_find_nothing() -> None:
    catalogue = small_shop().catalogue
    for wrong in ("", "B", "B999999999", "B0000000010", "\0", "z" * 100, "\ud800"):
        assert catalogue.number_of(wrong) is None
    for number in (-1, len(catalogue), 10**20):
        with pytest.raises(IndexError):
            catalogue[number]
        with pytest.raises(IndexError):
            catalogue.asin(number)


def test_o17_odd_asins_round_trip_exactly(tmp_path: Path) -> None:
    shop = shop_of(*ODD_ASINS)
    files = write_raw(tmp_path / "raw", [raw_product(one) for one in ODD_ASINS], {})
    stored = load_shop(import_files(files, tmp_path / "store"))
    for catalogue in (shop.catalogue, stored.catalogue):
        for number, name in enumerate(ODD_ASINS):
            assert catalogue[number].asin == catalogue.asin(number) == name
            assert catalogue.number_of(name) == catalogue.number_of(name.lower()) == number
    assert len(stored.index) == len(ODD_ASINS)


def test_o17_odd_names_round_trip_exactly(tmp_path: Path) -> None:
    """Up to what cleaning does: lower case, blanks around a value, and slashes."""
    odd = ["é™’", "a\tb\n c", "[x]", "'a', \"b\"", "\\n", "{}", "‮", "𝔘", "\ud800", "0", "ı", ";--"]
    custom = options(**{one: [one] for one in odd})
    raw = raw_product(name="".join(odd), customization_options=custom)
    files = write_raw(tmp_path / "raw", [raw], {"B000000001": raw_facts(*odd)})
    product = load_shop(import_files(files, tmp_path / "store")).catalogue[0]
    assert product.title == "".join(odd)
    assert product.attributes == (*odd, "extra")
    assert product.options == tuple((one.lower(), (one.lower(),)) for one in odd)


@pytest.mark.parametrize(("one", "other"), [("b000000001", "B000000001"), ("ß", "SS"), ("é", "É")])
def test_o17_asins_that_differ_in_case_only_are_an_error_that_names_both(
    one: str, other: str
) -> None:
    for pair in ((one, other), (other, one)):
        with pytest.raises(CorruptData) as caught:
            shop_of("B1", *pair)
        assert repr(one) in str(caught.value)
        assert repr(other) in str(caught.value)


@given(st.lists(st.text(min_size=1, max_size=10), unique_by=fold, min_size=1, max_size=20))
def test_o17_look_ups_invert_numbers(asins: list[str]) -> None:
    kept = [one for one in asins if one != "nan"] or ["x"]
    catalogue = shop_of(*kept).catalogue
    assert [catalogue.number_of(one) for one in kept] == list(range(len(kept)))
    assert [catalogue.asin(number) for number in range(len(kept))] == kept


def test_prices() -> None:
    shop = small_shop()
    catalogue = shop.catalogue
    assert [catalogue.price(number) for number in (0, 2, 3)] == [5.99, 100.0, 1250.0]
    assert 20 <= catalogue.price(1) <= 35.5
    assert catalogue.price(1) == catalogue.price(1) != shop.with_price_seed(1).catalogue.price(1)
    assert catalogue.price(1) != catalogue.price(5)
    given_price = shop.with_prices({asin(1): 7.0, "unknown": 8.0}).catalogue
    assert [given_price.price(number) for number in (0, 1)] == [5.99, 7.0]


def test_magic_look_ups_equal_a_loop(real_shop: Shop) -> None:
    catalogue = real_shop.catalogue
    products = list(catalogue)
    for category in ("beauty", "garden", "nothing"):
        assert catalogue.numbers_in(category) == tuple(
            n for n, product in enumerate(products) if product.category == category
        )
    for query in ("desks", "console tables", "Desks"):
        assert catalogue.with_query(query) == tuple(
            n for n, product in enumerate(products) if product.query == query
        )
    for attribute in ("non slip", "DUMMY_ATTR", "non"):
        assert catalogue.with_attribute(attribute) == tuple(
            n for n, product in enumerate(products) if attribute in product.attributes
        )


def test_decoded_products_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PRODUCTS_KEPT", 5)
    catalogue = small_shop().catalogue
    for number in range(len(catalogue)):
        assert catalogue[number] is catalogue[number]
    assert catalogue._product.cache_info().currsize == 5
    before = catalogue._product.cache_info()
    assert len(list(catalogue)) == 30
    assert catalogue._product.cache_info() == before  # a walk leaves the cache alone


def test_copies_share_and_pickles_of_a_shop_in_memory_are_equal() -> None:
    shop = small_shop(price_seed=3).with_prices({asin(0): 1.0})
    assert copy.deepcopy(shop) is copy.copy(shop) is shop
    assert copy.deepcopy(shop.catalogue) is shop.catalogue
    assert copy.deepcopy(shop.goals("human")) is shop.goals("human")
    again = pickle.loads(pickle.dumps(shop))
    assert again.revision == shop.revision
    assert list(again.catalogue) == list(shop.catalogue)
    assert list(again.goals("synthetic")) == list(shop.goals("synthetic"))
    assert pickle.loads(pickle.dumps(shop)) is again  # one shop for all who were sent it


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    folder = tmp_path_factory.mktemp("shop")
    return load_shop(import_files(write_raw(folder / "raw", *small_raw(300)), folder / "store"))


def test_threads_read_the_same(stored: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PRODUCTS_KEPT", 3)
    shop = Shop(stored._tables)
    expected = list(stored.goals("synthetic"))
    wrong: list[object] = []

    def read(start: int) -> None:
        goals = shop.goals("synthetic")
        for place in range(len(expected)):
            number = (place * 7 + start) % len(expected)
            if goals[number] != expected[number]:
                wrong.append(number)

    threads = [threading.Thread(target=read, args=(start,)) for start in range(0, 80, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_forked_children_read_the_same(stored: Shop) -> None:
    """Also while another thread of the parent is loading a shop, which holds a lock."""
    expected = [stored.goals("synthetic")[number].instruction for number in range(100)]
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            load_shop(stored.source, price_seed=5)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        children = []
        for _ in range(8):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    shop = load_shop(stored.source)
                    found = [shop.goals("synthetic")[number].instruction for number in range(100)]
                    code = 0 if found == expected else 2
                finally:
                    os._exit(code)
            children.append(child)
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 8
    finally:
        stop.set()
        thread.join(60)
