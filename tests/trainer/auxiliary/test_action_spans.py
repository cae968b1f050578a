"""Where the action of a reply is, in characters and in tokens."""

from __future__ import annotations

import inspect

import pytest

from agent_envs.prompting import parse_tagged
from trainer.auxiliary.action_spans import (
    EMPTY_ACTION,
    action_spans,
    action_token_mask,
    norm_action,
    remove_thoughts,
)
from trainer.rollouts.tokens import prefix_offsets


def executed(text):
    return [text[start:end] for start, end in action_spans(text)]


def everything(text):
    return [text[start:end] for start, end in action_spans(text, "all")]


def test_only_the_first_block_is_executed():
    text = "<action>look</action> or <ACTION>go to bed 1</ACTION>"
    assert executed(text) == ["look"]
    assert everything(text) == ["look", "go to bed 1"]
    assert inspect.signature(action_spans).parameters["which"].default == "executed"
    assert inspect.signature(action_token_mask).parameters["which"].default == "executed"


@pytest.mark.parametrize(
    "text",
    [
        "<think>x</think><action>\n go to bed 1 </action>",
        "<think>say <action>look</action>?</think><action>open box 1</action>",
        "<action><action>look</action></action>",
        "<action>unfinished <think>x</think> then </action> more <action>look</action>",
    ],
)
def test_executed_span_holds_what_the_environment_gets(text):
    (start, end), *others = action_spans(text)
    assert not others
    assert text[start:end].strip().lower() == parse_tagged(text).command


@pytest.mark.parametrize(
    "text",
    ["<action></action>", "<action> \n</action>", "</action><action>look</action>", "no tags", ""],
)
def test_nothing_executed_gives_no_span(text):
    assert action_spans(text) == ()


def test_all_blocks_keep_those_behind_an_early_closing_tag():
    assert everything("</action><action>look</action>") == ["look"]
    assert everything("<action></action>") == []


def test_fallbacks_without_a_pair_of_tags():
    assert executed("<think>x</think><action>open drawer 1") == ["open drawer 1"]
    assert executed("I choose click[buy now] or search[red]") == ["click[buy now]"]
    assert everything("I choose click[buy now] or search[red]") == ["click[buy now]", "search[red]"]
    assert executed("<action type='x'>look</action>") == ["look"]
    assert executed("look</action>") == []


def test_unknown_rule():
    with pytest.raises(ValueError, match="which must be 'executed' or 'all', found 'first'"):
        action_spans("look", "first")


def test_tokens_that_straddle_the_tags_count():
    text = "<action>look</action><action>go</action>"
    # "<action>" | "lo" | "ok<" | "/action>" | "" | "<action>g" | "o</action>"
    offsets = [(0, 8), (8, 10), (10, 13), (13, 21), (21, 21), (21, 30), (30, 40)]
    assert action_token_mask(text, offsets) == (False, True, True, False, False, False, False)
    assert action_token_mask(text, offsets, "all") == (False, True, True, False, False, True, True)
    assert action_token_mask("nothing", [(0, 7)]) == (False,)
    assert action_token_mask(text, []) == ()


class Bytes:
    """Tokens are pieces of UTF-8."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces

    def __call__(self, ids):
        return b"".join(self.pieces[i] for i in ids).decode("utf-8", errors="replace")


def offsets_of(*pieces):
    return prefix_offsets(range(len(pieces)), Bytes(*pieces))


def test_growing_prefixes_by_hand():
    assert offsets_of(b"<action>", b"lo", b"", b"ok") == [(0, 8), (8, 10), (10, 10), (10, 12)]
    assert offsets_of() == []


def test_a_character_of_several_tokens_belongs_to_each():
    e = "é".encode()
    assert offsets_of(b"a", e[:1], e[1:], b"b") == [(0, 1), (1, 2), (1, 2), (2, 3)]
    # The next token finishes the character and goes on.
    assert offsets_of(b"a", e[:1], e[1:] + b"b") == [(0, 1), (1, 2), (1, 3)]
    # Never finished: the replacement character is the text.
    assert offsets_of(b"a", e[:1]) == [(0, 1), (1, 2)]
    euro = "€".encode()
    assert offsets_of(euro[:1], euro[1:2], euro[2:], b"x") == [(0, 1), (0, 1), (0, 1), (1, 2)]


def test_prefixes_serve_the_token_mask():
    pieces = [b"<action>", b"caf", "é".encode()[:1], "é".encode()[1:], b"</action>"]
    decode = Bytes(*pieces)
    mask = action_token_mask(decode(range(5)), prefix_offsets(range(5), decode))
    assert mask == (False, True, True, True, False)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<think>a</think>\n<action> Go  TO\nFridge 1 </action>", "go to fridge 1"),
        ("<action>look</action><action>wait</action>", "look"),
        ("<action type='x'>Look</action>", "look"),
        ("<think>maybe click[a]</think> Click[B]", "click[b]"),
        ("<think>maybe</think> I  will look", "i will look"),
        ("<action>open Box 1", "open box 1"),
        ("<action> </action> look", EMPTY_ACTION),
        ("<think>only</think>", EMPTY_ACTION),
        ("", EMPTY_ACTION),
    ],
)
def test_normal_form_of_an_action(text, action):
    assert norm_action(text) == action
    assert EMPTY_ACTION == "(empty action)"


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("<think>a\nb</think> x ", "x"),
        ("<think>a</think>x<think>b</think>y", "xy"),
        ("a thought</think> x", "x"),
        ("one</think>two</think>x", "x"),
        ("<action>x</action></think>", "<action>x</action>"),
        ("<action>x</action></think>y</think>z", "<action>x</action>yz"),
        ("x <think>never closed", "x"),
        ("x <think>never <action>closed</action>", "x <action>closed</action>"),
        ("x <think>never <ACTION>closed</ACTION>", "x <ACTION>closed</ACTION>"),
        ("<action>a</action> <think>then", "<action>a</action>"),
        ("plain", "plain"),
        ("", ""),
    ],
)
def test_thoughts_are_removed(text, rest):
    assert remove_thoughts(text) == rest
