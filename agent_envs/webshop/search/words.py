"""Splitting text into words as Lucene's `StandardTokenizer` does (version 8, Unicode 9).

The rules are those of Unicode Standard Annex 29, with Lucene's choices: only runs with a letter or
a digit are words; an ideograph or a Hiragana character is a word of its own; a run of Southeast
Asian letters is one word; an emoji, with whatever joins it to others, is one word; a word of more
than 255 UTF-16 units is cut where the 255 are full.

Pieces between spaces are looked at apart. Those in ASCII, nearly all, are a word as they stand or
go through one regular expression. Others are translated to one letter per character, its class
(`word_classes.txt`), on which a second one works. What a repetition in them takes it keeps, so
time is linear in the length of the text.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

MAX_UNITS = 255
"""Longest word in UTF-16 units; characters outside the basic plane count two."""

# A run of underscores starts a word if a letter or digit ends it. It is tried at its first one
# only: elsewhere it would be in vain again.
_ascii_words = re.compile(
    r"(?:[A-Za-z0-9]|(?<!_)_++[A-Za-z0-9])\w*+"
    r"(?:(?:(?<=[A-Za-z])[:.'](?=[A-Za-z])|(?<=[0-9])[,;.'](?=[0-9]))\w++)*+",
    re.ASCII,
).findall

# In terms of classes: what extends the character before it, and that less the two style selectors.
_EXT = "[xtcvzgqS]*+"
_PLAIN = "[xczgqS]*+"

_LETTER = f"[aiH]{_EXT}"
_NUMBER = f"n{_EXT}"
_JOINER = f"e{_EXT}"
# A Hebrew letter may end in a quote, and hold a double quote together with another one. The letter
# behind a mark inside words belongs to the run of that mark, and may not.
_CORE = (
    f"(?:K{_EXT}(?:K{_EXT})*+"
    f"|(?:H{_EXT}(?:'{_EXT}|\"{_EXT}H{_EXT})"
    f"|{_LETTER}(?:[lo']{_EXT}{_LETTER})*+"
    f"|{_NUMBER}(?:[do']{_EXT}{_NUMBER})*+)++)"
)
_WORD = f"(?:{_JOINER})*+{_CORE}(?:(?:{_JOINER})++{_CORE})*+(?:{_JOINER})*+"
_PICTURE = f"(?:b{_PLAIN}m{_PLAIN}|[bpi]{_PLAIN}v?+|m{_PLAIN})"
# Pictures are linked by a zero-width joiner, which may be the last of what extends the one before.
_LINK = "(?:(?<=z)(?=[bpim])|(?<=v)(?:z++(?=[bpi])|z(?=m)))"
_EMOJI = (
    f"(?:(?:z*+(?=[bpi])|(?=m)){_PICTURE}(?:(?<=v)g++q|(?:{_LINK}{_PICTURE})*+)"
    f"|k(?:{_PLAIN}vc|[xzgqS]*+c){_PLAIN}"
    f"|r{_EXT}r{_EXT})"
)
_OTHER = f"[sS][sSxtcvzgq]*+|j{_EXT}"
_STARTS = re.compile("[aiHnKezbpmkrsSj]")
_IDLE_AT = re.compile("[eztxcvgq]++").match
_WORD_AT = re.compile(_WORD).match
_OTHER_AT = re.compile(f"{_EMOJI}|{_OTHER}").match
# Runs that come to nothing are taken whole (no group matches), so that none is tried again.
_ANY = re.compile(f"({_WORD}|{_EMOJI}|{_OTHER})|(?:e[xtcvgq]*+)++|z++")


def split_words(text: str) -> list[str]:
    """The words of `text` in order, as they are written."""
    words: list[str] = []
    # A space is in no word and decides nothing about what is beside it.
    for piece in text.split(" "):
        if len(piece) > MAX_UNITS:
            words += _with_care(piece, _class_string(piece))
        elif not piece.isascii():
            words += _any_words(piece, _class_string(piece))
        elif piece.isalnum():
            words.append(piece)
        else:
            words += _ascii_words(piece)
    return words


def _any_words(text: str, classes: str) -> list[str]:
    """The words of a text, given one letter for the class of each of its characters."""
    if "i" in classes or ("e" in classes and ("z" in classes or "S" in classes)):
        return _with_care(text, classes)
    spans = [match.span(1) for match in _ANY.finditer(classes)]
    if any(end - start > MAX_UNITS // 2 for start, end in spans):
        return _with_care(text, classes)
    return [text[start:end] for start, end in spans if end > start]


def _with_care(text: str, classes: str) -> list[str]:
    """The same, one word at a time: at every place the longest of what fits into the limit."""
    words = []
    basic = text.isascii() or max(text) <= "\uffff"
    start = 0
    while (found := _STARTS.search(classes, start)) is not None:
        start = found.start()
        end = start + MAX_UNITS if basic else _limit(text, start)
        word, other = _WORD_AT(classes, start, end), _OTHER_AT(classes, start, end)
        stop = max(word.end() if word else start, other.end() if other else start)
        if stop == start:
            # No limit that ends within such a run lets a word start in it.
            idle = _IDLE_AT(classes, start)
            start = max(start + 1, idle.end() - MAX_UNITS + 1 if idle else 0)
        else:
            words.append(text[start:stop])
            start = stop
    return words


def _limit(text: str, start: int) -> int:
    """Where `MAX_UNITS` from `start` on are full."""
    units = 0
    for position in range(start, min(len(text), start + MAX_UNITS)):
        units += 1 + (text[position] > "\uffff")
        if units > MAX_UNITS:
            return position
    return start + MAX_UNITS


def _class_string(text: str) -> str:
    code_points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return _classes()[code_points].tobytes().decode("ascii")


@lru_cache(maxsize=1)
def _classes() -> NDArray[np.uint8]:
    """(0x110000,): the class of every code point, as the ASCII code of its letter."""
    table = np.full(0x110000, ord("-"), np.uint8)
    listing = files("agent_envs.webshop.search").joinpath("word_classes.txt")
    for line in listing.read_text("ascii").splitlines():
        if not line.startswith("#"):
            letter, *ranges = line.split()
            for low, _, high in (item.partition("-") for item in ranges):
                table[int(low, 16) : int(high or low, 16) + 1] = ord(letter)
    return table
