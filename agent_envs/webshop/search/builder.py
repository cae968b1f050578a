"""Making the arrays of an index from texts, in one pass and little memory.

Texts are taken as they come and forgotten. What stays is, for every document and each of its
terms, eight bytes, and as many again when lists by document become lists by term: some 2 GB for a
million products, in a few minutes.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agent_envs.webshop.search.analyzer import analyze
from agent_envs.webshop.search.bm25 import divisors, idf, inverse_norms, length_bytes
from agent_envs.webshop.search.storage import Arrays

_BATCH = 1 << 15  # documents
_SLICE = 1 << 22  # postings
_REMEMBERED, _REMEMBERED_LENGTH = 1 << 21, 64  # pieces of text: some 400 MB

TYPES = {
    "hashes": "<u4",
    "spelling_starts": "<i8",
    "spellings": "|u1",
    "idfs": "<f4",
    "starts": "<i8",
    "documents": "<i4",
    "divisors": "<f4",
    "precedence": "<i4",
    "by_precedence": "<i4",
}
"""The arrays of an index of N documents, T terms and P postings:

- ``hashes`` (T,): CRC-32 of the UTF-8 spelling, ascending; equal ones in order of the spellings;
- ``spelling_starts`` (T + 1,), ``spellings``: the spellings in this order, end to end;
- ``idfs`` (T,): inverse document frequencies;
- ``starts`` (T + 1,): where the postings of each term start;
- ``documents`` (P,): numbers of the documents with the term, ascending;
- ``divisors`` (P,): 1 + f / norm for the term in the document, see `bm25.term_scores`;
- ``precedence`` (N,): of documents with equal scores that with the larger precedence comes first:
  N - 1 for the smallest id, 0 for the largest;
- ``by_precedence`` (N,): the documents from precedence 0 up.
"""


class _Numbers(dict[str, tuple[int, ...]]):
    """Piece of text between spaces -> numbers of its terms, which are given as they turn up."""

    def __init__(self) -> None:
        super().__init__()
        self.terms: dict[str, int] = {}

    def __missing__(self, piece: str) -> tuple[int, ...]:
        terms = self.terms
        numbers = tuple(terms.setdefault(term, len(terms)) for term in analyze(piece))
        if len(piece) <= _REMEMBERED_LENGTH:
            if len(self) == _REMEMBERED:
                self.clear()
            self[piece] = numbers
        return numbers


class _Batch(NamedTuple):
    """Postings of some documents, by term and then by document."""

    terms: NDArray[np.int64]
    """Different terms, ascending."""
    counts: NDArray[np.int64]
    """Documents with each."""
    documents: NDArray[np.int32]
    frequencies: NDArray[np.int32]


def build_arrays(texts: Iterable[str], ids: Sequence[str]) -> Arrays:
    """The arrays of an index, as `TYPES` describes them.

    Raises:
        ValueError: not as many texts as ids, or an id twice.
    """
    if len(set(ids)) != len(ids):
        raise ValueError(f"{len(ids) - len(set(ids))} of {len(ids)} ids are there twice.")
    numbers = _Numbers()
    lengths = np.zeros(len(ids), np.int64)
    batches = list(_batches(texts, numbers, lengths))
    order, spelled = _spellings(list(numbers.terms))
    numbers.clear()
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    starts, documents, frequencies = _by_term(batches, place)
    return {
        **spelled,
        **_statistics(starts, documents, frequencies, lengths),
        **_precedence(ids),
    }


def _batches(
    texts: Iterable[str], numbers: _Numbers, lengths: NDArray[np.int64]
) -> Iterable[_Batch]:
    """Postings of every so many documents; fills in the lengths of all."""
    numbers_of = numbers.__getitem__
    found, counts, first = array("i"), array("q"), 0
    for text in texts:
        if first + len(counts) == len(lengths):
            raise ValueError(f"There are more texts than the {len(lengths)} ids.")
        before = len(found)
        found.extend(chain.from_iterable(map(numbers_of, text.split(" "))))
        counts.append(len(found) - before)
        if len(counts) == _BATCH:
            yield _batch(found, counts, first, lengths)
            first += len(counts)
            found, counts = array("i"), array("q")
    if first + len(counts) != len(lengths):
        raise ValueError(f"There are {first + len(counts)} texts and {len(lengths)} ids.")
    yield _batch(found, counts, first, lengths)


def _batch(found: array[int], counts: array[int], first: int, lengths: NDArray[np.int64]) -> _Batch:
    terms = np.frombuffer(found, np.int32) if found else np.empty(0, np.int32)
    documents = np.repeat(np.arange(len(counts)), np.asarray(counts, np.int64))
    lengths[first : first + len(counts)] = counts
    keys = terms.astype(np.int64) * _BATCH + documents
    keys.sort()
    heads = np.flatnonzero(np.diff(keys, prepend=-1))
    frequencies = np.diff(heads, append=len(keys)).astype(np.int32)
    keys = keys[heads]
    terms_of, tops = np.unique(keys // _BATCH, return_index=True)
    return _Batch(
        terms_of,
        np.diff(tops, append=len(keys)),
        (keys % _BATCH + first).astype(np.int32),
        frequencies,
    )


def _spellings(terms: list[str]) -> tuple[NDArray[np.int64], Arrays]:
    """Numbers of the terms in the order in which they are kept, and the arrays to find them."""
    spelled = [term.encode() for term in terms]
    hashes = list(map(zlib.crc32, spelled))
    order = sorted(range(len(terms)), key=lambda number: (hashes[number], spelled[number]))
    lengths = np.fromiter((len(spelled[number]) for number in order), np.int64, len(order))
    return np.array(order, np.int64), {
        "hashes": np.array([hashes[number] for number in order], np.uint32),
        "spelling_starts": _starts(lengths),
        "spellings": np.frombuffer(b"".join(spelled[number] for number in order), np.uint8),
    }


def _by_term(
    batches: list[_Batch], place: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
    """Starts, documents and frequencies of all, by place of the term. Empties `batches`."""
    counts = np.zeros(len(place), np.int64)
    for batch in batches:
        counts[place[batch.terms]] += batch.counts
    starts = _starts(counts)
    documents = np.empty(starts[-1], np.int32)
    frequencies = np.empty(starts[-1], np.int32)
    free = starts[:-1].copy()
    batches.reverse()
    while batches:
        batch = batches.pop()
        places = place[batch.terms]
        # Each group of the batch moves as a whole, to what is free of its term's postings.
        to = np.repeat(free[places] - _starts(batch.counts)[:-1], batch.counts)
        to += np.arange(len(to))
        documents[to] = batch.documents
        frequencies[to] = batch.frequencies
        free[places] += batch.counts
    return starts, documents, frequencies


def _statistics(
    starts: NDArray[np.int64],
    documents: NDArray[np.int32],
    frequencies: NDArray[np.int32],
    lengths: NDArray[np.int64],
) -> Arrays:
    """What scores are made of. Overwrites `frequencies`."""
    filled = int(np.count_nonzero(lengths))
    mean = int(lengths.sum()) / filled if filled else 1.0
    inverses = inverse_norms(mean)[length_bytes(lengths)]
    divided = frequencies.view(np.float32)
    for start in range(0, len(documents), _SLICE):
        part = slice(start, start + _SLICE)
        divided[part] = divisors(frequencies[part], inverses[documents[part]])
    idfs = [idf(filled, count) for count in np.diff(starts).tolist()]
    return {
        "idfs": np.array(idfs, np.float32),
        "starts": starts,
        "documents": documents,
        "divisors": divided,
    }


def _starts(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def _precedence(ids: Sequence[str]) -> Arrays:
    ordered = np.array(sorted(range(len(ids)), key=ids.__getitem__, reverse=True), np.int32)
    precedence = np.empty(len(ids), np.int32)
    precedence[ordered] = np.arange(len(ids), dtype=np.int32)
    return {"precedence": precedence, "by_precedence": ordered}
