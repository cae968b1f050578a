"""The grammar of actions: exactly what the original's regular expression takes."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_envs.webshop.actions import click, is_sayable, parse, plain_argument


@given(st.text(alphabet="ab[]\n \r", max_size=24))
def test_parse_is_the_expression_of_the_original(action: str) -> None:
    match = re.match(r"(.+)\[(.+)\]", action)
    assert parse(action) == (match.groups() if match else None)


@pytest.mark.parametrize(
    ("action", "parts"),
    [
        ("search[Red Shoes]", ("search", "Red Shoes")),
        ("click[a] and more", ("click", "a")),
        ("click[x]]", ("click", "x]")),
        ("click[a[]", ("click", "a[")),
        ("I say click[a]", ("I say click", "a")),
        ("search[a [b]]", ("search[a ", "b]")),
        ("search[a]\nclick[b]", ("search", "a")),
        ("search[]", None),
        ("[a]", None),
        ("search[a\n]", None),
        ("search a", None),
        ("", None),
    ],
)
def test_parse_by_example(action: str, parts: tuple[str, str] | None) -> None:
    assert parse(action) == parts


def test_many_brackets_take_no_time_to_speak_of() -> None:
    """The expression tries every pair of them: hours for this one."""
    assert parse("[" * 1_000_000) is None


@pytest.mark.parametrize(
    ("text", "sayable"),
    [
        ("red", True),
        ("b]", True),
        ("a[", True),
        ("2 pack [blue]", False),
        ("two\nlines", False),
        ("Red", False),
        ("search", False),
        ("", False),
    ],
)
def test_what_the_original_can_click(text: str, sayable: bool) -> None:
    assert is_sayable(text) is sayable


def test_plain_argument_gets_at_any_text() -> None:
    for text in ("2 pack [blue]", "two\nlines", "", "[", "]"):
        assert plain_argument(click(text)) == text
    for action in ("click", "click[a", "search[a]", " click[a]"):
        assert plain_argument(action) is None
