"""The search index: which products match a query best, exactly as the original's engine says.

The original searches with Lucene 8 through Pyserini. `SearchIndex` gives the same documents in
the same order, from arrays that a thousand environments and many processes share.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from agent_envs.webshop.search.analyzer import analyze
from agent_envs.webshop.search.builder import TYPES, build_arrays
from agent_envs.webshop.search.cache import QueryCache
from agent_envs.webshop.search.ranking import LargeRanking, Postings, SmallRanking
from agent_envs.webshop.search.storage import Arrays, MappedArrays, corrupt, write_arrays

FILE_NAME = "search.index"
TOP_K = 50
MAX_TERMS = 1024
"""Different terms of a query that count. The original's engine fails at more."""
_VERIFIED_BYTES = 64 << 20  # files up to here are checked whole when opened: less than 50 ms
_SMALL = 1 << 20  # postings up to here are scored beforehand
_PIECES, _PIECE_LENGTH = 1 << 13, 40


class SearchIndex:
    """Documents that can be searched. Safe to use from several threads.

    Attributes:
        cache: results of earlier queries; `find` goes past it.
    """

    def __init__(self, arrays: Arrays, mapped: MappedArrays | None = None) -> None:
        """Use `build` or `open`. `arrays` are described at `builder.TYPES`."""
        self._arrays = arrays
        self._mapped = mapped
        self.cache = QueryCache()
        # Single numbers come quicker out of a memoryview.
        self._hashes = arrays["hashes"].data
        self._spelling_starts = arrays["spelling_starts"].data
        self._spellings = arrays["spellings"].data
        self._pieces: dict[str, tuple[int, ...]] = {}
        postings = Postings(
            starts=arrays["starts"].data,
            documents=cast("NDArray[np.int32]", arrays["documents"]),
            divisors=cast("NDArray[np.float32]", arrays["divisors"]),
            idfs=cast("NDArray[np.float32]", arrays["idfs"]),
            precedence=cast("NDArray[np.int32]", arrays["precedence"]),
            by_precedence=cast("NDArray[np.int32]", arrays["by_precedence"]),
        )
        self._ranking: SmallRanking | LargeRanking
        if len(postings.documents) <= _SMALL:
            self._ranking = SmallRanking(postings)
        else:
            self._ranking = LargeRanking(postings, mapped.release if mapped else None)

    @classmethod
    def build(cls, texts: Iterable[str], ids: Sequence[str]) -> SearchIndex:
        """Index documents, numbered as they come.

        Args:
            texts: one per document; read once, none kept.
            ids: one per document, all different. Of documents with equal scores that with the
                smaller id comes first.

        Raises:
            ValueError: not as many texts as ids, or an id twice.
        """
        return cls(build_arrays(texts, ids))

    def save(self, folder: Path) -> None:
        """Write the index into `folder`, whole or not at all."""
        write_arrays(Path(folder) / FILE_NAME, self._arrays)

    @classmethod
    def open(cls, folder: Path, *, verify: bool | None = None) -> SearchIndex:
        """The index that `save` wrote into `folder`, mapped into memory.

        Args:
            verify: read all of it and compare checksums. None: if it has at most 64 MiB.

        Raises:
            MissingData: there is none.
            CorruptData: it is damaged.
        """
        mapped = MappedArrays(Path(folder) / FILE_NAME, TYPES)
        if verify or (verify is None and mapped.size <= _VERIFIED_BYTES):
            mapped.verify()
        _check(mapped)
        try:
            return cls(mapped.arrays, mapped)
        except ValueError as error:
            raise corrupt(mapped.path, str(error)) from None

    def verify(self) -> None:
        """Compare a mapped index with its checksum.

        Raises:
            CorruptData: it is damaged.
        """
        if self._mapped is not None:
            self._mapped.verify()

    def __len__(self) -> int:
        return self._arrays["precedence"].size

    @property
    def terms(self) -> int:
        """How many different terms the documents have."""
        return len(self._hashes)

    @property
    def postings(self) -> int:
        """How many pairs of a document and one of its terms there are."""
        return self._arrays["documents"].size

    def __reduce__(self) -> tuple[object, ...]:
        if self._mapped is not None:
            return type(self).open, (self._mapped.path.parent,)
        return type(self), (self._arrays,)

    def search(self, query: str, k: int = TOP_K) -> tuple[int, ...]:
        """Numbers of the `k` documents that match `query` best, the best first.

        A document matches if it has any term of the query. Remembered for the next time.
        """
        key = (query, k)
        known = self.cache.get(key)
        if known is None:
            known = self.find(query, k)
            self.cache.put(key, known)
        return known

    def find(self, query: str, k: int = TOP_K) -> tuple[int, ...]:
        """What `search` answers, always worked out anew."""
        terms = self._query_terms(query)
        if not terms or k < 1:
            return ()
        try:
            return self._ranking.best(terms, k)
        except (IndexError, ValueError) as error:  # not if the content is what was written
            raise corrupt(self._mapped.path if self._mapped else None, str(error)) from None

    def scores(self, query: str) -> NDArray[np.float32]:
        """(documents,): the score of every document, 0 where none of the terms occurs."""
        terms = self._query_terms(query)
        if not terms:
            return np.zeros(len(self), np.float32)
        return self._ranking.totals(terms).astype(np.float32)

    def _query_terms(self, query: str) -> dict[int, int]:
        """Term -> how often it occurs in the query, for terms that any document has."""
        known = self._pieces
        counts: dict[int, int] = {}
        for piece in query.split(" "):
            numbers = known.get(piece)
            if numbers is None:
                numbers = self._look_up(piece)
            for number in numbers:
                if number in counts:
                    counts[number] += 1
                elif len(counts) < MAX_TERMS:
                    counts[number] = 1
        return counts

    def _look_up(self, piece: str) -> tuple[int, ...]:
        """Numbers of the terms in a piece of text between spaces; remembered."""
        found = (self._number(term.encode()) for term in analyze(piece))
        numbers = tuple(number for number in found if number >= 0)
        if len(piece) <= _PIECE_LENGTH:
            if len(self._pieces) >= _PIECES:  # less than 16 MB
                self._pieces.clear()
            self._pieces[piece] = numbers
        return numbers

    def _number(self, spelling: bytes) -> int:
        hashes, starts = self._hashes, self._spelling_starts
        value = zlib.crc32(spelling)
        number = bisect_left(hashes, value)
        while number < len(hashes) and hashes[number] == value:
            if self._spellings[starts[number] : starts[number + 1]] == spelling:
                return number
            number += 1
        return -1


def _check(mapped: MappedArrays) -> None:
    """That the sizes of the arrays fit together."""
    size = {name: array.size for name, array in mapped.arrays.items()}
    terms = size["hashes"]
    if not (
        size["idfs"] == terms
        and size["starts"] == size["spelling_starts"] == terms + 1
        and size["documents"] == size["divisors"] == mapped.arrays["starts"][-1]
        and size["precedence"] == size["by_precedence"]
        and size["spellings"] == mapped.arrays["spelling_starts"][-1]
    ):
        raise corrupt(mapped.path, f"its arrays do not fit together ({size})")
