"""Which spans: the choice is a text of its own, as from a config file."""

from __future__ import annotations

import pytest

from trainer.auxiliary.action_spans import action_spans

REPLY = "<action>look</action> or <action>go</action>"


def fresh(text: str) -> str:
    """An equal text that is another object."""
    other = "".join([text[:1], text[1:]])
    assert other is not text
    return other


def test_all_or_the_executed_one() -> None:
    assert action_spans(REPLY, which=fresh("all")) == ((8, 12), (33, 35))
    assert action_spans(REPLY, which=fresh("executed")) == ((8, 12),)
    with pytest.raises(ValueError, match="every"):
        action_spans(REPLY, which=fresh("every"))
