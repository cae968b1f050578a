"""From text to terms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_envs.webshop.model import Product
from agent_envs.webshop.search import analyze, document_text
from agent_envs.webshop.search.analyzer import STOP_WORDS, term_of


def test_there_are_33_stop_words() -> None:
    assert len(STOP_WORDS) == 33
    assert analyze(" ".join(STOP_WORDS)) == []


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("The women's running shoes", ["women", "run", "shoe"]),
        ("WOMEN\u2019S WOMEN\uff07s", ["women", "women"]),
        ("it's", []),  # a stop word once the ending is off
        ("shoe shoes Shoe", ["shoe", "shoe", "shoe"]),
        ("İstanbul ΟΔΟΣ", ["istanbul", "οδοσ"]),  # one character for one, no final sigma
        ("s ss", ["s", "ss"]),
    ],
)
def test_terms_by_hand(text: str, terms: list[str]) -> None:
    assert analyze(text) == terms


@given(st.text(max_size=60))
def test_case_decides_nothing(text: str) -> None:
    lowered = "".join(char.lower() if len(char.lower()) == 1 else char for char in text)
    assert analyze(text) == analyze(lowered)


@given(st.text(st.sampled_from("aesingd'’s9é😀"), min_size=1, max_size=9))
def test_a_term_is_nothing_or_text(word: str) -> None:
    term = term_of(word)
    assert term is None or term


def product(**changes: object) -> Product:
    values: dict[str, object] = dict.fromkeys(Product._fields, "")
    values |= {"bullets": (), "options": (), "attributes": ("hidden",), "asin": "B000000000"}
    return Product(**(values | changes))  # type: ignore[arg-type]


def test_the_searched_text_of_a_product() -> None:
    text = document_text(
        product(
            title="Oak Desk",
            description="A DESK.",
            bullets=("First bullet", "second bullet"),
            options=(("color", ("red", "navy blue")), ("size", ("s",))),
            query="never",
            category="garden",
        )
    )
    assert text == "oak desk a desk. first bullet color: red, navy blue, and size: s"


def test_a_bare_product_has_a_text_too() -> None:
    assert document_text(product(title="Lamp")) == "lamp   "
