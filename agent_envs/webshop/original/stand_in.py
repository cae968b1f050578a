"""A search engine that takes the place of Lucene where the original runs without Java.

It gives plausible results at little cost, not Lucene's: use `OriginalShop.teach` to hand the
original the results of an index that does.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

_WORD = re.compile(r"[a-z0-9]+")
_K1, _B = 0.9, 0.4


class StandInIndex:
    """BM25 over title, description and bullets of raw products; words are not stemmed.

    Args:
        products: raw product dicts of the original's files. As there, the first of several
            products with one asin counts.
    """

    def __init__(self, products: Iterable[Mapping[str, Any]]) -> None:
        self._asins: list[str] = []
        self._postings: dict[str, list[tuple[int, int]]] = {}
        self._lengths: list[int] = []
        known = set()
        for product in products:
            asin = product["asin"]
            if asin in known:
                continue
            known.add(asin)
            bullets = product["small_description"]
            text = " ".join(
                (
                    product["name"] or "",
                    product["full_description"] or "",
                    bullets if isinstance(bullets, str) else " ".join(bullets or ()),
                )
            )
            words = _WORD.findall(text.lower())
            for word, count in Counter(words).items():
                self._postings.setdefault(word, []).append((len(self._asins), count))
            self._asins.append(asin)
            self._lengths.append(len(words))
        mean = sum(self._lengths) / max(len(self._lengths), 1)
        self._norms = [_K1 * (1 - _B + _B * n / max(mean, 1.0)) for n in self._lengths]

    def search(self, query: str, k: int) -> list[str]:
        """The best `k` asins, best first, ties by asin."""
        scores: dict[int, float] = {}
        for word in _WORD.findall(query.lower()):
            postings = self._postings.get(word, ())
            n = len(postings)
            idf = math.log(1 + (len(self._asins) - n + 0.5) / (n + 0.5))
            for number, count in postings:
                gain = idf * count / (count + self._norms[number])
                scores[number] = scores.get(number, 0.0) + gain
        best = sorted(scores, key=lambda number: (-scores[number], self._asins[number]))
        return [self._asins[number] for number in best[:k]]
