"""Promises of reply parsing:

1. The projection equals the published one, vector by vector and against a naive copy of its rule.
2. The command span covers exactly the executed characters, and an empty command has none.
3. Untagged replies lose their marks and thoughts; a reply without a command says so.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_envs.prompting import action_spans, command_verb, parse_plain, parse_tagged, project

VECTORS = Path(__file__).parents[2] / "vectors"


def _base(method: str) -> list[dict]:
    return json.loads((VECTORS / "base_objectives.json").read_text())["vectors"][method]


def _span_cases() -> list[dict]:
    cases = json.loads((VECTORS / "aux_objectives.json").read_text())["cases"]
    return [c for c in cases if c["objective"] == "serl.spans" and c["fn"] == "action_spans"]


@pytest.mark.parametrize("case", _base("projection"), ids=lambda c: c["name"])
def test_projection_vectors(case):
    action, valid = project(**case["params"])
    assert (action, int(valid)) == (case["expected"]["action"], case["expected"]["valid"])


@pytest.mark.parametrize("case", _span_cases(), ids=lambda c: c["id"])
def test_action_span_vectors(case):
    inputs = case["inputs"]
    spans = action_spans(inputs["text"], inputs.get("which", "all"))
    assert [list(span) for span in spans] == case["expected"]


def _naive(text: str, tail: int) -> tuple[str, bool]:
    """The published rule, written as slowly as it reads."""
    low = text.lower()
    start, end = low.find("<action>"), low.find("</action>")
    if start == -1 or end == -1:
        return low[-tail:], False
    valid = "<think>" in text and "</think>" in text
    valid = valid and not any("\u4e00" <= c <= "\u9fff" for c in text)
    return low[start + len("<action>") : end].strip(), valid


_PIECES = st.sampled_from(
    ["<action>", "</action>", "<ACTION>", "</Action>", "<think>", "</think>", "<THINK>", " ", "\n",
     "Go To shelf 1", "look", "你", "\u9fff", "\ua000", "İ", "K", "<", ">", "\u00a0"]
)  # fmt: skip


@given(st.lists(_PIECES, max_size=10).map("".join), st.integers(1, 30))
def test_projection_equals_the_naive_rule(text, tail):
    assert project(text, tail) == _naive(text, tail)


@given(st.lists(_PIECES, max_size=10).map("".join))
def test_command_span_holds_the_command(text):
    parsed = parse_tagged(text)
    if parsed.command_span is not None:
        start, end = parsed.command_span
        assert text[start:end].lower() == parsed.command
        assert parsed.command != ""


@pytest.mark.parametrize(
    ("reply", "command", "valid", "reason", "span"),
    [
        ("<think></think><action> Look </action>", "look", True, None, (24, 28)),
        ("<think>x</think><action></action>", "", True, None, None),
        ("<think>x</think><action>  </action>", "", True, None, None),
        ("<action>look</action>", "look", False, "missing_think_tag", (8, 12)),
        ("<think>好</think><action>look</action>", "look", False, "cjk_character", (24, 28)),
        ("go to shelf 1", "go to shelf 1", False, "missing_action_tag", None),
        ("", "", False, "missing_action_tag", None),
    ],
)
def test_reason_and_span(reply, command, valid, reason, span):
    parsed = parse_tagged(reply)
    assert (parsed.command, parsed.format_valid) == (command, valid)
    assert (parsed.reason, parsed.command_span) == (reason, span)


def test_only_the_first_block_is_executed():
    text = "<think></think><action>look</action><action>go to bed 1</action>"
    assert parse_tagged(text).command == "look"
    assert action_spans(text) == ((23, 27),)
    assert action_spans(text, "all") == ((23, 27), (44, 55))


def test_empty_block_gives_no_span():
    assert action_spans("<action></action>", "all") == ()


@pytest.mark.parametrize(
    ("reply", "command"),
    [
        ("> think: …\n> go to shelf 1", "go to shelf 1"),
        ("think: it may be there\ngo to shelf 1", "go to shelf 1"),
        ("> Go to Shelf 1", "go to shelf 1"),
        (">> open drawer 2  ", "open drawer 2"),
        ("Sure, here is my move.\n> think: hm\n> look", "look"),
        ("take mug 1 from desk 1\nthen something else", "take mug 1 from desk 1"),
    ],
)
def test_o05_marks_and_thoughts_never_reach_the_env(reply, command):
    parsed = parse_plain(reply)
    assert (parsed.command, parsed.format_valid, parsed.reason) == (command, True, None)
    start, end = parsed.command_span
    assert reply[start:end].lower() == command


@pytest.mark.parametrize("reply", ["", "\n\n", ">", "> think: where is it?", "think: a\nthink: b"])
def test_o05_no_action_is_malformed_with_a_reason(reply):
    parsed = parse_plain(reply)
    assert (parsed.command, parsed.format_valid, parsed.reason) == ("", False, "no_action")
    assert parsed.command_span is None


@pytest.mark.parametrize(
    ("command", "verb"),
    [("go to shelf 1", "go"), ("look", "look"), ("click[Buy Now]", "click"), ("", ""), ("[x]", "")],
)
def test_verb(command, verb):
    assert command_verb(command) == verb
