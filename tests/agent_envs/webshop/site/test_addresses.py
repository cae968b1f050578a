"""Texts through path segments and back."""

from __future__ import annotations

import base64
import tracemalloc
import zlib
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_envs.webshop.model import Page, Session
from agent_envs.webshop.site import addresses
from agent_envs.webshop.site.addresses import (
    BadAddress,
    checked_options,
    options_of,
    page_number,
    page_path,
    query_of,
    segment,
    text_of,
)

AWKWARD = [
    "a/b",
    "..",
    ".",
    "...",
    "%2F",
    "100%",
    "[x",
    "['a']",
    "{'a': 'b'}",
    "~z",
    "~-",
    "~2F",
    "~",
    "search_results",
    "item_page/done",
    "é™ 🙂",
    "\ud800x",
    "a\\b",
    "  two  blanks ",
    "?#&;+=",
    "\x00\n\r\t\x1b[2J",
    "x" * 12_288,
    "🙂é" * 6_000,
    '<script>alert("1")</script>',
]
TEXTS = st.one_of(
    st.sampled_from(AWKWARD),
    st.text(st.characters(), min_size=1, max_size=60),
    st.text("~[]{}'\":,/%\\.z2F", min_size=1, max_size=20),
)


@given(TEXTS)
def test_a_query_survives(text: str) -> None:
    part = segment(text)
    assert query_of(unquote(part)) == text
    assert part.isascii()
    assert not set(part) & set("/?#\\ ")
    assert unquote(part).strip(".") != ""  # browsers take dot segments away
    assert len(part) <= 50_000


@given(st.dictionaries(TEXTS, TEXTS, max_size=5))
def test_options_survive_in_order(options: dict[str, str]) -> None:
    session = Session(page=Page.DONE, product=0, options=tuple(options.items()))
    try:
        path = page_path("sid", session, "B01")
    except BadAddress:
        assert sum(map(len, [*options, *options.values()])) > 3_000
        return
    kind, sid, asin, part = path.removeprefix("/").split("/")
    assert (kind, sid, asin) == ("done", "sid", "B01")
    assert options_of(unquote(part)) == session.options


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), max_size=6))
def test_the_original_s_list_of_words_is_understood(words: list[str]) -> None:
    if words:  # url_for writes str(list)
        assert query_of(str(words)) == " ".join(words)


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
        max_size=4,
    )
)
def test_the_original_s_dict_is_understood(options: dict[str, str]) -> None:
    literal = str(options)
    if "~" not in literal:  # our own escapes
        assert options_of(literal) == tuple(options.items())


def test_plain_queries_look_like_themselves() -> None:
    session = Session(page=Page.RESULTS, query="red shoes 2", number=3)
    assert page_path("fixed_1", session) == "/search_results/fixed_1/red%20shoes%202/3"
    assert query_of("red shoes 2") == "red shoes 2"


@pytest.mark.parametrize(
    "part",
    ["", "x", "[]", "{", "{'a'}", "{'a': 1}", "{'a': {'b': 'c'}}", "{'a': 'b'", "{a: 'b'}", "{,}"],
)
def test_what_is_no_mapping_of_strings_is_refused(part: str) -> None:
    with pytest.raises(BadAddress):
        options_of(part)


@pytest.mark.parametrize("part", ["0", "-1", "1000001", "1e3", "", "１", "1.0", "9" * 5000, " 1"])
def test_what_is_no_page_number_is_refused(part: str) -> None:
    with pytest.raises(BadAddress):
        page_number(part)


@pytest.mark.parametrize("part", ["~zAAAA", "~z!", "~z" + "A" * 9001, "~FF", "~ED~A0", "~zé"])
def test_what_cannot_be_unpacked_is_refused(part: str) -> None:
    with pytest.raises(BadAddress):
        text_of(part)


def test_a_packed_bomb_is_not_unfolded() -> None:
    bomb = base64.urlsafe_b64encode(zlib.compress(b"a" * 100_000_000, 9)).decode().rstrip("=")
    tracemalloc.start()
    try:
        with pytest.raises(BadAddress):
            text_of(f"~z{bomb}")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000


def test_too_long_a_text_has_no_address() -> None:
    with pytest.raises(BadAddress):
        segment("x" * (addresses.TEXT_LIMIT + 1))


@pytest.mark.parametrize(
    "part",
    [
        "[" * 12_000,
        "{" * 12_000,
        "[" + '"a",' * 3_000,
        "['" + "\\\\" * 6_000,
        "{" + "'a':'b'," * 1_500 + "x}",
        "['" + "\\" * 11_999 + "]",
        "{" + "'a' " * 3_000 + "}",
    ],
)
def test_endless_literals_are_answered(part: str) -> None:
    """By a pattern that does not try everything twice; else this would take years."""
    if part[0] == "[":
        assert query_of(part) in (part, text_of(part))
    else:
        with pytest.raises(BadAddress):
            options_of(part)


def test_only_offered_options_pass() -> None:
    offered = (("color", ("red", "blue")), ("size", ("s",)))
    assert checked_options((("size", "s"), ("color", "blue")), offered) is None
    assert checked_options((), offered) is None
    assert "no such option" in (checked_options((("shape", "s"),), offered) or "")
    assert "this option" in (checked_options((("size", "m"),), offered) or "")
