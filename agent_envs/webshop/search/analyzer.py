"""From text to index terms, as Lucene analyses English text under Anserini's defaults.

Words (`words.split_words`), less a possessive 's, lower-cased, less 33 stop words, stemmed.
"""

from __future__ import annotations

import numpy as np

from agent_envs.webshop.search.stemmer import stem
from agent_envs.webshop.search.words import split_words

STOP_WORDS = frozenset(
    [
        *("a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is"),
        *("it", "no", "not", "of", "on", "or", "such", "that", "the", "their", "then", "there"),
        *("these", "they", "this", "to", "was", "will", "with"),
    ]
)
"""Lucene's English stop words. They are neither indexed nor counted in a document's length."""

_APOSTROPHES = ("'", "\u2019", "\uff07")


def analyze(text: str) -> list[str]:
    """The index terms of `text`, in order, repetitions included.

    What a piece between spaces gives does not depend on the rest, so callers may split there.
    """
    terms = map(term_of, split_words(text))
    return [term for term in terms if term is not None]


def term_of(word: str) -> str | None:
    """The index term of one word, or None for a stop word."""
    if word[-1] in "sS" and len(word) > 1 and word[-2] in _APOSTROPHES:
        word = word[:-2]
    word = word.lower() if word.isascii() else "".join(map(_lower, word))
    if word in STOP_WORDS:
        return None
    if word.isascii() or max(word) <= "\uffff":
        return stem(word)
    # The stemmer that is matched counts UTF-16 units, which decide whether a word is too short.
    units = np.frombuffer(word.encode("utf-16-le"), np.uint16).tolist()
    return stem("".join(map(chr, units))).encode("utf-16-le", "surrogatepass").decode("utf-16-le")


def _lower(character: str) -> str:
    """One character for one: İ becomes i, and a sigma at the end is no special case."""
    lowered = character.lower()
    return lowered if len(lowered) == 1 else lowered[0]
