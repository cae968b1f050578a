"""Words are those of Lucene's `StandardTokenizer`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_envs.webshop.search.words import MAX_UNITS, split_words

RECORDED = json.loads((Path(__file__).parent / "lucene_words.json").read_text("utf-8"))

# Characters of every class, so that rules meet.
AWKWARD = st.text(
    st.sampled_from(
        "aZé9٣_‿ .,:;'’·\"#*\u0301\u00ad\u200dאבアァ漢ひกั한"
        "\ufe0e\ufe0f\u20e3😀☝🏽🇫🇷ℹ©\U000e0020\U000e007f𝐚\ud800"
    ),
    max_size=40,
)


@pytest.mark.parametrize("number", range(0, len(RECORDED), 50))
def test_words_are_those_that_lucene_gave(number: int) -> None:
    for text, words in RECORDED[number : number + 50]:
        assert split_words(text) == words, text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Women's 3.5mm T-Shirt, 2-pack", ["Women's", "3.5mm", "T", "Shirt", "2", "pack"]),
        ("1,000 1;2 1:2 a:b a;b", ["1,000", "1;2", "1", "2", "a:b", "a", "b"]),
        ("snake_case __init__ ___ _", ["snake_case", "__init__"]),
        ("'quoted' end.", ["quoted", "end"]),
        ("Brand® ™ ©2020", ["Brand", "®", "™", "©", "2020"]),
        ("漢字ひらカタカナ", ["漢", "字", "ひ", "ら", "カタカナ"]),
        ("👩‍👩‍👧 🇫🇷🇩🇪 #️⃣ ☝🏽", ["👩‍👩‍👧", "🇫🇷", "🇩🇪", "#️⃣", "☝🏽"]),
        ("", []),
        ("\x00\ud800 \u2028", []),
    ],
)
def test_words_by_hand(text: str, words: list[str]) -> None:
    assert split_words(text) == words


def test_long_words_are_cut_where_255_units_are_full() -> None:
    assert [len(word) for word in split_words("a" * 600)] == [255, 255, 90]
    # A character outside the basic plane counts two, and is not cut in half.
    assert [len(word) for word in split_words("𝐚" * 200)] == [127, 73]
    # The mark at the limit joins nothing any more, and the rest starts afresh.
    assert split_words("a" * 254 + ".b") == ["a" * 254, "b"]
    assert split_words("_" * 300 + "a") == ["_" * 254 + "a"]
    assert split_words("_\u0301" * 300 + "a") == ["_\u0301" * 127 + "a"]
    assert split_words("_" + "\u200d" * 300 + "😀") == ["\u200d" * 253 + "😀"]
    assert [len(word) for word in split_words("é" * 255 + "9")] == [255, 1]


@given(AWKWARD, AWKWARD)
def test_a_space_separates(left: str, right: str) -> None:
    assert split_words(f"{left} {right}") == split_words(left) + split_words(right)


@given(AWKWARD | st.text(max_size=60))
def test_words_stand_in_the_text_in_order(text: str) -> None:
    place = 0
    for word in split_words(text):
        assert word
        place = text.index(word, place) + len(word)


@given(st.text(st.sampled_from("a9_.,'é漢😀"), min_size=4, max_size=12), st.integers(25, 80))
def test_no_word_is_longer_than_the_limit(text: str, times: int) -> None:
    words = split_words(text * times)
    assert all(len(word.encode("utf-16-le")) <= 2 * MAX_UNITS for word in words)
    letters = [letter for letter in text * times if letter in "a9é漢😀"]
    assert [letter for word in words for letter in word if letter in "a9é漢😀"] == letters


@pytest.mark.parametrize(
    "unit", ["_", "a.", "_é", "\u200d", "_\u200d", "#\u0301", "e\u0e31_", "א'"]
)
def test_hostile_text_takes_no_square_of_its_length(unit: str) -> None:
    # Thirty thousand of these would take hours if any rule looked ahead without a limit.
    split_words(unit * 30_000)
