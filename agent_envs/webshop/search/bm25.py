"""BM25 as Lucene 8 computes it, in its float32 arithmetic.

Robertson et al. 1994 ("Okapi at TREC-3"), in Lucene's form, which lacks the constant factor
(k1 + 1). The score of a document d for a query is the sum over the query's terms t of

    boost_t * idf_t * f / (f + k1 * (1 - b + b * |d| / avgdl)),
    idf_t = ln(1 + (N - n_t + 0.5) / (n_t + 0.5)),

f how often t occurs in d, |d| the number of terms of d, rounded down to what one byte can say, N
the number of documents with any term, n_t of those with t, avgdl the mean of their exact lengths,
boost_t how often t occurs in the query. k1 = 0.9 and b = 0.4 are Anserini's defaults.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

K1 = np.float32(0.9)
B = np.float32(0.4)
_EXACT = 24  # lengths below are kept; above, four bits and an exponent


def byte_lengths() -> NDArray[np.int64]:
    """(256,): the document length that each byte stands for (Lucene's `SmallFloat`), ascending."""
    codes = np.arange(256 - _EXACT, dtype=np.int64)
    fraction, shift = codes & 7, np.maximum((codes >> 3) - 1, 0)
    steps = np.where(codes < 8, fraction, (fraction | 8) << shift)
    return np.concatenate([np.arange(_EXACT), steps + _EXACT])


def length_bytes(lengths: NDArray[np.integer]) -> NDArray[np.uint8]:
    """The byte of each length: the largest that stands for no more than the length."""
    return (np.searchsorted(byte_lengths(), lengths, side="right") - 1).astype(np.uint8)


def inverse_norms(mean_length: float) -> NDArray[np.float32]:
    """(256,): 1 / (k1 * (1 - b + b * length / mean)) for the length of each byte.

    Args:
        mean_length: over the documents that have any term; rounded to float32 here.
    """
    lengths = byte_lengths().astype(np.float32)
    one = np.float32(1)
    return one / (K1 * ((one - B) + B * lengths / np.float32(mean_length)))


def divisors(
    frequencies: NDArray[np.integer], inverses: NDArray[np.float32]
) -> NDArray[np.float32]:
    """1 + f / norm, of arrays of one shape: what `term_scores` needs of a term in a document."""
    return np.float32(1) + frequencies.astype(np.float32) * inverses


def term_scores(
    weight: np.float32 | NDArray[np.float32], divisors: NDArray[np.float32]
) -> NDArray[np.float32]:
    """The scores of a term, its `weight` being boost * idf; or of many, with a weight for each.

    w * f / (f + norm) is worked out as w - w / (1 + f / norm), as there.
    """
    return weight - weight / divisors


def idf(documents: int, having: int) -> np.float32:
    """Inverse document frequency of a term that `having` of `documents` documents have."""
    return np.float32(math.log(1 + (documents - having + 0.5) / (having + 0.5)))
