"""Every page of results in the transcripts of the original is found again."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_envs.webshop.search import document_text
from agent_envs.webshop.shop import Shop
from tests.agent_envs.webshop.search.reference import reference_scores

MARGIN = 1e-5
"""Of a score: documents that are closer may change places."""
NEAR_TIES = 0.005
"""Share of pages on which that may be so."""


def result_pages(path: Path) -> Iterator[tuple[str, int, int, list[str]]]:
    """(query, page, results in all, ASINs on the page) of every page of results."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        next(file)
        for line in file:
            query = ""
            for step in json.loads(line)["steps"]:
                asked = re.match(r"search\[(.+)\]", step["action"] or "")
                # A refused action leaves the page as it was, and its text is the same again.
                query = asked[1].lower() if asked else query
                shown = re.search(r"Page (\d+) \(Total results: (\d+)\)", step["observation"])
                if shown:
                    _, clickables = step["available"]
                    asins = [
                        item.upper() for item in clickables if re.fullmatch("[a-z0-9]{10}", item)
                    ]
                    yield query, int(shown[1]), int(shown[2]), asins


@pytest.mark.data
@pytest.mark.parametrize("name", ["text_synthetic", "text_human", "text_rich_synthetic"])
def test_pages_of_results(real_data: Path, real_shop: Shop, name: str) -> None:
    pages = list(result_pages(real_data / "transcripts" / f"webshop_{name}.jsonl.gz"))
    assert len(pages) > 90
    products = [real_shop.catalogue[number] for number in range(len(real_shop.catalogue))]
    texts, ids = list(map(document_text, products)), [product.asin for product in products]
    swapped = 0
    for query, page, total, asins in pages:
        found = [ids[number] for number in real_shop.index.search(query)]
        assert len(found) == total, query
        ours = found[(page - 1) * 10 : page * 10]
        if ours != asins:
            swapped += 1
            assert set(ours) == set(asins), query
            scores = dict(zip(ids, reference_scores(texts, query), strict=True))
            for here, there in zip(ours, asins, strict=True):
                assert scores[here] == pytest.approx(scores[there], rel=MARGIN), query
    assert swapped <= NEAR_TIES * len(pages)
    print(f"{name}: {len(pages)} pages, {swapped} with near ties in another order")
