"""The index against recorded Lucene results and against plain loops."""

from __future__ import annotations

import json
import pickle
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_envs.webshop.search import SearchIndex, builder
from agent_envs.webshop.search import index as index_module
from agent_envs.webshop.search.index import MAX_TERMS
from tests.agent_envs.webshop.search.reference import agrees, reference_scores

RECORDED = json.loads((Path(__file__).parent / "lucene_ranking.json").read_text("utf-8"))
IDS = [asin for asin, _ in RECORDED["documents"]]
TEXTS = [text for _, text in RECORDED["documents"]]

WORDS = ["desk", "desks", "lamp", "oak", "the", "red", "café", "😀", "women's", "3.5", "zzz"]
texts_of = st.lists(st.lists(st.sampled_from(WORDS), max_size=45).map(" ".join), max_size=14)
queries = st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join)


@pytest.fixture(scope="module")
def lamps() -> SearchIndex:
    return SearchIndex.build(TEXTS, IDS)


@pytest.fixture
def as_if_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small indexes are searched as large ones are."""
    monkeypatch.setattr(index_module, "_SMALL", -1)


def check_recorded(found: SearchIndex) -> None:
    for query, expected in RECORDED["results"]:
        assert [IDS[number] for number in found.find(query)] == [asin for asin, _ in expected]
        scores = found.scores(query)
        for asin, bits in expected:
            assert scores[IDS.index(asin)].tobytes() == struct.pack("<I", int(bits, 16)), query


def test_order_and_scores_are_those_that_lucene_gave(lamps: SearchIndex) -> None:
    check_recorded(lamps)


@pytest.mark.usefixtures("as_if_large")
def test_large_indexes_are_searched_to_the_same_effect(lamps: SearchIndex) -> None:
    check_recorded(lamps)
    for query, _ in RECORDED["results"]:
        for k in (1, 2, 5):
            assert lamps.find(query, k) == lamps.find(query)[:k]


@given(texts_of, queries, st.integers(1, 20), st.randoms(use_true_random=False))
def test_results_are_those_of_plain_loops(
    texts: list[str], query: str, k: int, rng: object
) -> None:
    ids = [f"B{number:03}" for number in range(len(texts))]
    rng.shuffle(ids)  # type: ignore[attr-defined]
    index = SearchIndex.build(iter(texts), ids)
    assert agrees(index.find(query, k), texts, ids, query, k, 1e-5)
    np.testing.assert_allclose(index.scores(query), reference_scores(texts, query), rtol=1e-5)


def test_equal_scores_come_in_order_of_ids() -> None:
    index = SearchIndex.build(["oak desk"] * 5, ["C", "B", "E", "A", "D"])
    assert index.find("desk") == (3, 1, 0, 4, 2)
    assert index.find("desk", 2) == (3, 1)


def test_a_repeated_word_counts_as_often() -> None:
    index = SearchIndex.build(["desk lamp", "desk desk", "lamp"], ["A", "B", "C"])
    once, thrice = index.scores("desk"), index.scores("desk Desks desk")
    np.testing.assert_allclose(thrice, 3 * once, rtol=1e-6)


@pytest.mark.parametrize("query", ["", " ", "zzz", "the of", "!?", "\ud800", "\x00"])
def test_nothing_is_found_by_nothing(lamps: SearchIndex, query: str) -> None:
    assert lamps.search(query) == ()
    assert not lamps.scores(query).any()


def test_fewer_than_one_result(lamps: SearchIndex) -> None:
    assert lamps.find("desk", 0) == lamps.find("desk", -1) == ()


def test_an_empty_index() -> None:
    index = SearchIndex.build([], [])
    assert len(index) == 0
    assert index.search("desk") == ()


def test_documents_without_terms_do_not_count() -> None:
    full = SearchIndex.build(["oak desk", "the", "lamp", ""], list("ABCD"))
    less = SearchIndex.build(["oak desk", "lamp"], list("AC"))
    assert full.scores("oak lamp")[[0, 2]].tolist() == less.scores("oak lamp").tolist()


def test_only_so_many_different_terms_count() -> None:
    words = [f"w{number}" for number in range(MAX_TERMS + 10)]
    index = SearchIndex.build(words, words)
    found = index.find(" ".join(words), k=5000)
    assert sorted(found) == list(range(MAX_TERMS))


def test_a_hundred_kilobytes_are_a_query_like_another(lamps: SearchIndex) -> None:
    long = ("desk lamp " * 10_000)[:100_000]
    assert len(lamps.find(long)) == 50
    assert lamps.search("x" * 100_000) == ()
    assert lamps.search(long) == lamps.find(long)
    assert lamps.cache.bytes < 300_000


def test_texts_and_ids_must_go_together() -> None:
    with pytest.raises(ValueError, match="more texts than the 1 ids"):
        SearchIndex.build(["a", "b"], ["A"])
    with pytest.raises(ValueError, match="1 texts and 2 ids"):
        SearchIndex.build(["a"], ["A", "B"])
    with pytest.raises(ValueError, match="1 of 2 ids"):
        SearchIndex.build(["a", "b"], ["A", "A"])


def test_batches_do_not_show(monkeypatch: pytest.MonkeyPatch, lamps: SearchIndex) -> None:
    monkeypatch.setattr(builder, "_BATCH", 7)
    monkeypatch.setattr(builder, "_SLICE", 11)
    monkeypatch.setattr(builder, "_REMEMBERED", 3)
    check_recorded(SearchIndex.build(TEXTS, IDS))


def test_words_of_equal_hashes_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zlib.crc32", lambda spelling: len(spelling))
    check_recorded(SearchIndex.build(TEXTS, IDS))


def test_forgotten_pieces_are_looked_up_again(
    monkeypatch: pytest.MonkeyPatch, lamps: SearchIndex
) -> None:
    monkeypatch.setattr(index_module, "_PIECES", 2)
    check_recorded(pickle.loads(pickle.dumps(lamps)))


def test_threads_get_what_one_alone_gets(lamps: SearchIndex) -> None:
    asked = [query for query, _ in RECORDED["results"]] * 20
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lamps.search, asked))
    assert found == [lamps.find(query) for query in asked]


def test_search_remembers_and_find_does_not() -> None:
    index = SearchIndex.build(TEXTS, IDS)
    index.find("desk")
    assert len(index.cache) == 0
    first = index.search("desk")
    assert index.search("desk") is first
    assert index.search("desk", 3) == first[:3]
    index.cache.clear()
    assert index.search("desk") == first
    assert index.search("desk") is not first
