from __future__ import annotations

from trainer.bench.sessions import Conversation, measure


def test_both_ways_give_the_same_replies_and_figures() -> None:
    found = measure(Conversation(turns=3, rows=2, first=16, later=4, reply=2), repeats=1)
    assert found["same"] == 1
    assert found["parameters"] > 9e6
    assert found["ratio"] == found["without_s"] / found["with_s"] > 0
