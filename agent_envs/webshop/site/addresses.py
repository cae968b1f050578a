"""Addresses of pages: all of a visit but goal and purchase is in them, as in the original.

A path has the original's segments, in its order. Texts of any content go through one segment:

* what would end or bend a segment (slash, percent sign, backslash, control characters, a lone
  surrogate, a segment of dots alone, a bracket that opens a list) is written ``~XX``, one pair of
  hexadecimal digits for each byte of its UTF-8;
* a text that would take more than `PLAIN_LIMIT` characters is compressed: ``~z`` and base64url;
* everything else is percent-encoded, as usual.

Reading also understands what scripts for the original site write: words as a Python list or as
plain text, options as a Python dict or as JSON.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from agent_envs.webshop.model import Page, Session

TEXT_LIMIT = 12_288
"""Characters in the text of one segment; longer ones have no address."""
ADDRESS_LIMIT = 60_000
"""Characters in a path. HTTP servers stop reading a request line at 64 kB."""
PLAIN_LIMIT = 4_000
PAGE_LIMIT = 1_000_000
"""Largest number of a page of results."""
SUB_PAGES = ("Description", "Features", "Reviews", "Attributes")


class BadAddress(ValueError):
    """A segment that is no text, list or mapping, or a text too long for an address."""


# ------------------------------------------------------------------ writing


def page_path(sid: str, session: Session, asin: str = "") -> str:
    """Path of the page that `session` is at; `asin` is that of its product.

    Raises:
        BadAddress: the query is too long.

    >>> page_path("s1", Session(page=Page.RESULTS, query="a/c 5%"))
    '/search_results/s1/a~2Fc%205~25/1'
    """
    page = Page(session.page)
    options = segment(json.dumps(dict(session.options), ensure_ascii=False))
    if page == Page.INDEX:
        return f"/{sid}"
    if page == Page.DONE:
        return _short_enough(f"/done/{sid}/{segment(asin)}/{options}")
    results = f"{segment(session.query or '')}/{session.number}"
    if page == Page.RESULTS:
        return _short_enough(f"/search_results/{sid}/{results}")
    if page == Page.ITEM:
        return _short_enough(f"/item_page/{sid}/{segment(asin)}/{results}/{options}")
    return _short_enough(
        f"/item_sub_page/{sid}/{segment(asin)}/{results}/{segment(session.sub)}/{options}"
    )


def segment(text: str) -> str:
    """One path segment that stands for `text`."""
    if not text:
        return "~-"
    if len(text) > TEXT_LIMIT:
        raise BadAddress(
            f"A text of {len(text):,} characters does not fit into an address; at most "
            f"{TEXT_LIMIT:,} do."
        )
    plain = quote(_escaped(text), safe="")
    if len(plain) <= PLAIN_LIMIT:
        return plain
    packed = zlib.compress(text.encode("utf-8", "surrogatepass"), 9)
    return "~z" + base64.urlsafe_b64encode(packed).decode("ascii").rstrip("=")


_BENDS = re.compile(r"[~/\\%\x00-\x1f\x7f-\x9f\ud800-\udfff]|^\[")
_DOTS = re.compile(r"\.+")


def _escaped(text: str) -> str:
    if _DOTS.fullmatch(text):
        return "~2E" * len(text)
    return _BENDS.sub(lambda found: _hex(found[0]), text)


def _hex(character: str) -> str:
    return "".join(f"~{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


def _short_enough(path: str) -> str:
    if len(path) > ADDRESS_LIMIT:
        raise BadAddress(f"An address of {len(path):,} characters; at most {ADDRESS_LIMIT:,} work.")
    return path


# ------------------------------------------------------------------ reading


def text_of(part: str) -> str:
    """The text that a segment (percent signs already decoded) stands for.

    Raises:
        BadAddress: it stands for none.
    """
    if part == "~-":
        return ""
    text = _unpacked(part[2:]) if part.startswith("~z") else _ESCAPE.sub(_unhex, part)
    if len(text) > TEXT_LIMIT:
        raise BadAddress(f"A text of more than {TEXT_LIMIT:,} characters.")
    return text


_ESCAPE = re.compile(r"(?:~[0-9A-F]{2})+")


def _unhex(found: re.Match[str]) -> str:
    return _decoded(bytes.fromhex(found[0].replace("~", "")))


def _unpacked(packed: str) -> str:
    try:
        data = base64.b64decode(packed + "=" * (-len(packed) % 4), b"-_", validate=True)
        # Bounded: a few bytes could unfold into gigabytes.
        unfolded = zlib.decompressobj().decompress(data, 4 * TEXT_LIMIT + 1)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise BadAddress(f"A compressed text that cannot be read: {error}.") from error
    return _decoded(unfolded)


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise BadAddress("Bytes that are no UTF-8.") from error


def query_of(part: str) -> str:
    """The query in a segment: text, or the original's list of words.

    >>> query_of("red shoes"), query_of("['red', 'shoes']")
    ('red shoes', 'red shoes')
    """
    if part.startswith("["):
        values = _literal(part, "[", "]")
        if values is not None:
            return " ".join(values)
    return text_of(part)


def options_of(part: str) -> tuple[tuple[str, str], ...]:
    """The selected options in a segment: JSON, or the original's Python dict.

    Raises:
        BadAddress: neither.

    >>> options_of("{'color': 'red'}"), options_of('{"size": "9", "color": "red"}')
    ((('color', 'red'),), (('size', '9'), ('color', 'red')))
    """
    values = _literal(text_of(part), "{", "}")
    if values is None:
        raise BadAddress("Options are a mapping such as {'color': 'red'}.")
    return tuple(dict(zip(values[::2], values[1::2], strict=True)).items())


def page_number(part: str) -> int:
    """The number of a page of results.

    Raises:
        BadAddress: no number from 1 to `PAGE_LIMIT`.
    """
    if part.isascii() and part.isdigit() and len(part) <= 7 and 1 <= int(part) <= PAGE_LIMIT:
        return int(part)
    raise BadAddress(f"Pages of results are numbered from 1 to {PAGE_LIMIT:,}.")


_STRING = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_LIST = re.compile(rf"\[\s*(?:(?:{_STRING})\s*(?:,\s*(?=[\"'])|(?=\])))*\]", re.DOTALL)
_DICT = re.compile(
    rf"\{{\s*(?:(?:{_STRING})\s*:\s*(?:{_STRING})\s*(?:,\s*(?=[\"'])|(?=\}})))*\}}", re.DOTALL
)
_STRINGS = re.compile(_STRING, re.DOTALL)
_BACKSLASH = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL
)
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


def _literal(text: str, opening: str, closing: str) -> Sequence[str] | None:
    """The strings in a list or mapping of strings, written as Python or JSON; None if it is none.

    No evaluation: the text comes from the network.
    """
    shape = _LIST if opening == "[" else _DICT
    if not text.endswith(closing) or shape.fullmatch(text) is None:
        return None
    return [_unquoted(found[0]) for found in _STRINGS.finditer(text)]


def _unquoted(literal: str) -> str:
    try:
        text = _BACKSLASH.sub(_character, literal[1:-1])
        # JSON writes characters beyond U+FFFF as two surrogates.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    except (ValueError, OverflowError) as error:
        raise BadAddress("An escape sequence that stands for no character.") from error


def _character(found: re.Match[str]) -> str:
    code = found[1] or found[2] or found[3]
    return chr(int(code, 16)) if code else _LETTERS.get(found[4], found[4])


def checked_options(
    selected: Sequence[tuple[str, str]], offered: Sequence[tuple[str, Sequence[str]]]
) -> str | None:
    """What is wrong with `selected` for a product that offers `offered`; None if nothing is."""
    groups: Mapping[str, Sequence[str]] = dict(offered)
    for group, value in selected:
        if group not in groups:
            return "The product has no such option."
        if value not in groups[group]:
            return "The product does not come in this option."
    return None
