"""The Porter stemmer, in the author's revised version.

M. F. Porter, "An algorithm for suffix stripping", Program 14(3), 1980, with the two changes that
the author made later in his own programs, which Lucene has too: -bli becomes -ble (the paper:
-abli, -able), and -logi becomes -log. Words of one or two letters stay as they are.

Terms below as in the paper: a word is [C](VC)^m[V], C and V runs of consonants and vowels; m is
its measure. Characters other than a, e, i, o, u and some y count as consonants, digits too.
"""

from __future__ import annotations


class _Shapes(dict[int, str]):
    """For `str.translate`: V for vowels, C for all else, y as it is."""

    def __missing__(self, letter: int) -> str:
        return "C"


_SHAPES = _Shapes({ord(letter): "V" for letter in "aeiou"} | {ord("y"): "y"})

_STEP2 = {
    "a": (("ational", "ate"), ("tional", "tion")),
    "c": (("enci", "ence"), ("anci", "ance")),
    "e": (("izer", "ize"),),
    "l": (("bli", "ble"), ("alli", "al"), ("entli", "ent"), ("eli", "e"), ("ousli", "ous")),
    "o": (("ization", "ize"), ("ation", "ate"), ("ator", "ate")),
    "s": (("alism", "al"), ("iveness", "ive"), ("fulness", "ful"), ("ousness", "ous")),
    "t": (("aliti", "al"), ("iviti", "ive"), ("biliti", "ble")),
    "g": (("logi", "log"),),
}
_STEP3 = {
    "e": (("icate", "ic"), ("ative", ""), ("alize", "al")),
    "i": (("iciti", "ic"),),
    "l": (("ical", "ic"), ("ful", "")),
    "s": (("ness", ""),),
}
_STEP4 = {
    "a": ("al",),
    "c": ("ance", "ence"),
    "e": ("er",),
    "i": ("ic",),
    "l": ("able", "ible"),
    "n": ("ant", "ement", "ment", "ent"),
    "o": ("ion", "ou"),
    "s": ("ism",),
    "t": ("ate", "iti"),
    "u": ("ous",),
    "v": ("ive",),
    "z": ("ize",),
}
"""Suffixes by their last letter but one; in each list the first that fits is the longest."""


def stem(word: str) -> str:
    """The stem of a lower-cased word. It is seldom a word, but the same for related words."""
    if len(word) <= 2:
        return word
    word = _step1(word)
    if len(word) > 1:
        word = _replaced(word, _STEP2)
    if len(word) > 1:
        word = _replaced(word, _STEP3)
    if len(word) > 1:
        word = _step4(word)
    return _step5(word)


def _shape(word: str) -> str:
    """A letter V or C for each of the word's. A y is a vowel just behind a consonant."""
    shape = word.translate(_SHAPES)
    if "y" in shape:
        shape = "C" + shape[1:] if shape[0] == "y" else shape
        while (place := shape.find("y")) >= 0:
            shape = f"{shape[:place]}{'V' if shape[place - 1] == 'C' else 'C'}{shape[place + 1 :]}"
    return shape


def _measure(shape: str) -> int:
    return shape.count("VC")


def _ends_double(word: str, shape: str) -> bool:
    """Whether it ends in one consonant twice."""
    return len(word) > 1 and word[-1] == word[-2] and shape[-1] == "C"


def _ends_short(word: str, shape: str) -> bool:
    """Whether it ends in consonant, vowel, consonant, the last none of w, x and y."""
    return shape.endswith("CVC") and word[-1] not in "wxy"


def _step1(word: str) -> str:
    """Plurals, -ed and -ing, and a y at the end."""
    if word.endswith("s"):
        if word.endswith(("sses", "ies")):
            word = word[:-2]
        elif word[-2] != "s":
            word = word[:-1]
    if word.endswith("eed"):
        if _measure(_shape(word[:-3])) > 0:
            word = word[:-1]
    elif word.endswith(("ed", "ing")):
        base = word[:-2] if word.endswith("ed") else word[:-3]
        if "V" in _shape(base):
            word = _mended(base)
    if word.endswith("y") and "V" in _shape(word[:-1]):
        word = word[:-1] + "i"
    return word


def _mended(base: str) -> str:
    """What is left before -ed or -ing, with the end that it has without them."""
    if base.endswith(("at", "bl", "iz")):
        return base + "e"
    shape = _shape(base)
    if _ends_double(base, shape):
        return base if base[-1] in "lsz" else base[:-1]
    if _measure(shape) == 1 and _ends_short(base, shape):
        return base + "e"
    return base


def _replaced(word: str, rules: dict[str, tuple[tuple[str, str], ...]]) -> str:
    """The first suffix that fits replaced, if a form is left before it."""
    for suffix, ending in rules.get(word[-1] if rules is _STEP3 else word[-2], ()):
        if word.endswith(suffix):
            base = word[: -len(suffix)]
            return base + ending if _measure(_shape(base)) > 0 else word
    return word


def _step4(word: str) -> str:
    """-ant, -ence and so on, if two forms are left."""
    for suffix in _STEP4.get(word[-2], ()):
        if word.endswith(suffix):
            base = word[: -len(suffix)]
            if suffix == "ion" and not base.endswith(("s", "t")):
                continue
            return base if _measure(_shape(base)) > 1 else word
    return word


def _step5(word: str) -> str:
    """An e at the end, and one of two l."""
    shape = _shape(word)
    forms = _measure(shape)
    if word.endswith("e"):
        base = word[:-1]
        if forms > 1 or (forms == 1 and not _ends_short(base, shape[:-1])):
            word = base
    if word.endswith("l") and forms > 1 and _ends_double(word, shape[: len(word)]):
        word = word[:-1]
    return word
