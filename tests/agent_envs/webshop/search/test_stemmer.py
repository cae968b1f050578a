"""Stems are Porter's, in his revised version."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_envs.webshop.search.analyzer import analyze
from agent_envs.webshop.search.stemmer import stem

RECORDED = dict(
    line.split() for line in (Path(__file__).parent / "lucene_stems.txt").read_text().splitlines()
)


def test_stems_are_those_that_lucene_gave() -> None:
    assert len(RECORDED) > 1000
    assert {word: stem(word) for word in RECORDED} == RECORDED


@pytest.mark.parametrize(
    ("word", "stemmed"),
    [
        # The examples of the paper, a few for each step.
        ("caresses", "caress"),
        ("ponies", "poni"),
        ("cats", "cat"),
        ("agreed", "agre"),
        ("plastered", "plaster"),
        ("bled", "bled"),
        ("motoring", "motor"),
        ("sing", "sing"),
        ("conflated", "conflat"),
        ("hopping", "hop"),
        ("falling", "fall"),
        ("filing", "file"),
        ("happy", "happi"),
        ("sky", "sky"),
        ("relational", "relat"),
        ("digitizer", "digit"),
        ("triplicate", "triplic"),
        ("goodness", "good"),
        ("adoption", "adopt"),
        ("controll", "control"),
        ("rate", "rate"),
        ("cease", "ceas"),
        # Where the revised version departs from it.
        ("possibly", "possibl"),
        ("technologies", "technolog"),
        ("is", "is"),
        # A y is a vowel behind a consonant only.
        ("enjoyed", "enjoi"),
        ("crying", "cry"),
    ],
)
def test_stems_by_hand(word: str, stemmed: str) -> None:
    assert stem(word) == stemmed


@given(st.text(st.sampled_from("aeiouybdlnst7éц"), max_size=12))
def test_a_stem_is_the_word_up_to_an_ending(word: str) -> None:
    stemmed = stem(word)
    assert stemmed or not word
    assert len(stemmed) <= len(word)
    assert word.startswith(stemmed[:-1])  # what is put on is an e, an i or the end of a suffix


def test_characters_outside_the_basic_plane_count_two() -> None:
    # Two UTF-16 units and a letter make a word that is long enough to be stemmed.
    assert analyze("𝐚s") == ["𝐚"]
    assert analyze("és") == ["és"]
