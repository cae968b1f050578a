"""The parts of a score, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_envs.webshop.search import bm25
from tests.agent_envs.webshop.search.reference import kept_length


def test_lengths_that_a_byte_can_say() -> None:
    lengths = bm25.byte_lengths()
    assert lengths[:40].tolist() == list(range(40))
    assert lengths[40:50].tolist() == [40, 42, 44, 46, 48, 50, 52, 54, 56, 60]
    assert lengths[255] == 24 + 15 * 2**27
    assert (np.diff(lengths) > 0).all()


@given(st.integers(0, 2**31 - 1))
def test_a_length_is_rounded_down(length: int) -> None:
    code = bm25.length_bytes(np.array([length]))[0]
    assert bm25.byte_lengths()[code] == kept_length(length)


def test_a_score_by_hand() -> None:
    # Two of eight documents have the term; twice in a document of average length.
    weight = bm25.idf(8, 2)
    assert weight == pytest.approx(math.log(1 + 6.5 / 2.5))
    inverse = bm25.inverse_norms(20.0)[[20]]
    assert inverse[0] == pytest.approx(1 / 0.9)
    divisor = bm25.divisors(np.array([2], np.int32), inverse)
    assert divisor.dtype == np.float32
    score = bm25.term_scores(weight, divisor)
    assert score.dtype == np.float32
    assert score[0] == pytest.approx(weight * 2 / 2.9)


def test_shorter_documents_and_rarer_terms_score_higher() -> None:
    inverses = bm25.inverse_norms(100.0)
    assert (np.diff(inverses) < 0).all()
    assert bm25.idf(1000, 1) > bm25.idf(1000, 999) > 0
