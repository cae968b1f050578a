"""The cache of results is bounded by entries and by bytes."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_envs.webshop.search.cache import QueryCache

keys = st.tuples(st.text(max_size=30), st.integers(1, 60))


@given(st.lists(st.tuples(keys, st.integers(0, 60)), max_size=60))
def test_it_stays_within_its_bounds(asked: list[tuple[tuple[str, int], int]]) -> None:
    cache = QueryCache(max_entries=7, max_bytes=40_000)
    for key, length in asked:
        cache.put(key, tuple(range(length)))
        assert len(cache) <= 7
        assert 0 <= cache.bytes <= 40_000
    for key, _ in asked:
        known = cache.get(key)
        assert known is None or len(known) in {n for other, n in asked if other == key}
    cache.clear()
    assert len(cache) == cache.bytes == 0


def test_the_least_recently_used_goes_first() -> None:
    cache = QueryCache(max_entries=2)
    cache.put(("a", 1), (1,))
    cache.put(("b", 1), (2,))
    assert cache.get(("a", 1)) == (1,)
    cache.put(("c", 1), (3,))
    assert cache.get(("b", 1)) is None
    assert cache.get(("a", 1)) == (1,)


def test_what_is_counted_is_no_less_than_what_is_held() -> None:
    cache = QueryCache()
    results = [tuple(range(1000 + n, 1050 + n)) for n in range(100)]
    held = 0
    for n, result in enumerate(results):
        query = f"query number {n}"
        cache.put((query, 50), result)
        held += sys.getsizeof(query) + sys.getsizeof(result) + 50 * sys.getsizeof(1000)
        held += sys.getsizeof((query, 50))
    assert cache.bytes >= held


def test_one_result_may_not_take_all() -> None:
    cache = QueryCache(max_bytes=16_000)
    cache.put(("x" * 2000, 50), ())
    assert len(cache) == 0


def test_threads() -> None:
    cache = QueryCache(max_entries=5)

    def use(n: int) -> bool:
        key = (str(n % 11), 1)
        cache.put(key, (n % 11,))
        return cache.get(key) in (None, (n % 11,))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(use, range(3000)))
    assert len(cache) <= 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_cache_in_use_while_forking_does_not_stop_the_child() -> None:
    cache = QueryCache()
    with cache._lock:  # as if another thread were at it
        assert cache.get(("a", 1)) is None
        cache.put(("a", 1), (1,))
    assert len(cache) == 0
