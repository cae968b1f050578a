"""The best documents for the terms of a query, in two ways to the same effect.

A small index is scored whole, from scores worked out beforehand. A large one is read where the
query's terms are, and only documents that may be among the best are sorted.

Both sort integers. Positive floats are ordered as their bits are, and a float32 leaves 29 of a
float64's bits unused: there goes the precedence of a document, which decides between equal scores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from agent_envs.webshop.search.bm25 import term_scores

_PRECEDENCE = (1 << 29) - 1
_HELD_BYTES = 24 << 20  # of a mapped file read before its pages are given back
_POSTING_BYTES = 8
_AROUND_BYTES = 4 << 20  # Linux may map 2 MiB around each of the two places of a term


class Postings(NamedTuple):
    """What `builder.TYPES` says of these arrays; `starts` as what gives single numbers quickly."""

    starts: memoryview
    documents: NDArray[np.int32]
    divisors: NDArray[np.float32]
    idfs: NDArray[np.float32]
    precedence: NDArray[np.int32]
    by_precedence: NDArray[np.int32]

    def part(self, term: int) -> slice:
        """Where the postings of a term are."""
        return slice(self.starts[term], self.starts[term + 1])

    def scores(self, term: int, boost: int) -> NDArray[np.float32]:
        """Scores of a term that is `boost` times in the query, by posting."""
        return term_scores(np.float32(boost) * self.idfs[term], self.divisors[self.part(term)])


class SmallRanking:
    """For indexes of up to about a million postings. Takes 16 bytes for each."""

    def __init__(self, postings: Postings) -> None:
        """Work out all scores.

        Raises:
            ValueError: the arrays make no sense together.
        """
        self._postings = postings
        count = len(postings.precedence)
        for numbers in (postings.documents, postings.by_precedence):
            if len(numbers) and not 0 <= numbers.min() <= numbers.max() < count:
                raise ValueError("it names documents that there are none of")
        repeats = np.diff(np.asarray(postings.starts))
        weights = np.repeat(postings.idfs, repeats)
        self._scores = term_scores(weights, postings.divisors).astype(np.float64)
        self._documents = postings.documents.astype(np.intp)
        self._precedence = postings.precedence.astype(np.int64)
        self._parts: dict[int, tuple[NDArray[np.intp], NDArray[np.float64]]] = {}

    def totals(self, terms: dict[int, int]) -> NDArray[np.float64]:
        """(documents,): sums of the terms' float32 scores, as in Lucene in float64."""
        documents, scores = [], []
        for term, boost in terms.items():
            known = self._parts.get(term)
            if known is None:  # cutting them out takes longer than adding them up
                part = self._postings.part(term)
                known = self._parts[term] = self._documents[part], self._scores[part]
            documents.append(known[0])
            scores.append(known[1] if boost == 1 else self._postings.scores(term, boost))
        joined = np.concatenate(documents), np.concatenate(scores)
        totals = np.bincount(*joined, minlength=len(self._precedence))
        return cast("NDArray[np.float64]", totals)

    def best(self, terms: dict[int, int], k: int) -> tuple[int, ...]:
        """Numbers of the `k` documents with the largest totals, equal ones by precedence."""
        keys = _score_bits(self.totals(terms))
        keys += self._precedence
        return _best_of(keys, self._postings.by_precedence, k)


class LargeRanking:
    """For indexes of any size."""

    def __init__(self, postings: Postings, release: Callable[[], None] | None) -> None:
        """Score `postings`. `release` gives up the pages of a mapped file, of which about
        24 MiB are held, as far as the system tells."""
        self._postings = postings
        self._release = release
        self._read = 0

    def totals(self, terms: dict[int, int]) -> NDArray[np.float64]:
        """(documents,): sums of the terms' float32 scores, as in Lucene in float64."""
        totals = np.zeros(len(self._postings.precedence))
        for term, boost in terms.items():
            documents = self._postings.documents[self._postings.part(term)].astype(np.intp)
            totals[documents] += self._postings.scores(term, boost)
            self._give_back(len(documents))
        return totals

    def best(self, terms: dict[int, int], k: int) -> tuple[int, ...]:
        """Numbers of the `k` documents with the largest totals, equal ones by precedence."""
        postings = self._postings
        totals = self.totals(terms)
        found = np.flatnonzero(totals > self._floor(totals, terms, k))
        keys = _score_bits(totals[found])
        keys += postings.precedence[found]
        best = _best_of(keys, postings.by_precedence, k)
        if best and not 0 <= min(best) <= max(best) < len(totals):
            raise IndexError("it names documents that there are none of")
        return best

    def _floor(self, totals: NDArray[np.float64], terms: dict[int, int], k: int) -> float:
        """A number that the `k` largest totals exceed, found without looking at all of them."""
        parts = [self._postings.part(term) for term in terms]
        enough = [part for part in parts if part.stop - part.start >= k]
        if not enough:
            return 0.0
        # The k-th largest of some documents is no larger than the k-th largest of all.
        rarest = min(enough, key=lambda part: part.stop - part.start)
        some = totals[self._postings.documents[rarest]]
        least = np.float32(np.partition(some, len(some) - k)[len(some) - k])
        return float(np.nextafter(least, np.float32(0)))  # a bit less may round to as much

    def _give_back(self, postings: int) -> None:
        """Count what was read for a term, and let go of a mapped file's pages now and then."""
        if self._release is not None:
            self._read += postings * _POSTING_BYTES + _AROUND_BYTES
            if self._read > _HELD_BYTES:
                self._read = 0
                self._release()


def _score_bits(totals: NDArray[np.float64]) -> NDArray[np.int64]:
    """Integers in the order of the totals rounded to float32; the lower 29 bits are 0."""
    bits: NDArray[np.int64] = totals.astype(np.float32).astype(np.float64).view(np.int64)
    return bits


def _best_of(keys: NDArray[np.int64], by_precedence: NDArray[np.int32], k: int) -> tuple[int, ...]:
    """Documents of the `k` largest keys that hold a score, the largest first. Reorders `keys`."""
    if len(keys) > k:
        keys.partition(len(keys) - k)
        keys = keys[len(keys) - k :]
    keys.sort()
    if len(keys) and keys.item(0) <= _PRECEDENCE:
        keys = keys[keys > _PRECEDENCE]
    return tuple(by_precedence[keys & _PRECEDENCE][::-1].tolist())
