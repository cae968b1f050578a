"""The benchmark of search: its documents, and that its figures are there."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from agent_envs.webshop.search import SearchIndex
from trainer.bench.webshop_search import (
    compare_bm25s,
    make_documents,
    make_queries,
    search_scale,
)

TEXTS = [
    f"{colour} {thing} number {n} made of {stuff} for every room in the house"
    for n, (colour, thing, stuff) in enumerate(
        (colour, thing, stuff)
        for colour in ("red", "blue", "green")
        for thing in ("desk", "lamp", "sofa")
        for stuff in ("oak", "steel")
    )
]


def test_documents_are_drawn_by_seed_and_number() -> None:
    few, many = list(make_documents(TEXTS, 20, 1)), list(make_documents(TEXTS, 50, 1))
    assert many[:20] == few
    assert list(make_documents(TEXTS, 20, 2)) != few
    known = {word for text in TEXTS for word in text.split()}
    for document in many:
        *words, number = document.split()
        assert len(words) == 13
        assert known.issuperset(words)
        assert number.startswith("kx")
    assert len({document.split()[-1] for document in many}) == 50
    quarters = [tuple(text.split()[:3]) for text in TEXTS]
    assert all(tuple(document.split()[:3]) in quarters for document in many)


def test_queries_are_two_to_five_words_of_a_document() -> None:
    asked = make_queries(TEXTS, 40, 0)
    assert asked == make_queries(TEXTS, 40, 0)
    assert {len(query.split()) for query in asked} == {2, 3, 4, 5}
    assert all(any(set(query.split()) <= set(text.split()) for text in TEXTS) for query in asked)


def test_figures() -> None:
    figures = search_scale(TEXTS, (30, 60), queries=5, peer_limit=0)
    assert list(figures) == ["30", "60"]
    for size, row in figures.items():
        assert row["bm25s"] is None
        assert row["postings"] > row["terms"] > int(size)
        assert row["bytes"] > 8 * row["postings"]
        assert 0 < row["p50_ms"] <= row["p99_ms"]
        assert row["build_s"] > 0 < row["open_ms"]
        if sys.platform == "linux":
            assert 0 < row["queries_own_mb"] < row["queries_mb"] <= row["peak_mb"]
            assert row["start_mb"] <= row["open_mb"]
    assert figures["60"]["bytes"] > figures["30"]["bytes"]


@pytest.mark.skipif(importlib.util.find_spec("bm25s") is None, reason="bm25s is not installed")
def test_the_other_engine_finds_much_the_same() -> None:
    documents = list(make_documents(TEXTS, 60, 0))
    index = SearchIndex.build(documents, [f"{number:02}" for number in range(60)])
    peer = compare_bm25s(iter(documents), make_queries(TEXTS, 20, 0), index)
    assert peer is not None
    assert 0.5 < peer["overlap"] <= 1


def test_without_the_other_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bm25s", None)
    assert compare_bm25s([], [], SearchIndex.build([], [])) is None
