"""Promises of the contexts and layouts:

1. A window shows exactly the last `history_length` steps.
2. With `instruction_first` what never changes comes first, so successive prompts share a prefix.
3. A conversation states rules and task once, and every later message only what is new.
4. ReAct's layout is a transcript, and its target parses back to the command.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_envs.prompting import (
    TEMPLATES,
    ChatTemplate,
    FieldTemplate,
    History,
    PromptView,
    get_template,
)

GOAL = "put a clean mug in the coffeemachine."
COMMANDS = ("go to shelf 1", "take mug 1 from shelf 1", "help")
PAGES = ("plain", "webshop")


def _views(count: int, pages: str = "plain") -> list[PromptView]:
    history, views = History(), []
    for number in range(count):
        observation = f"You see the thing number {number} there."
        if pages == "webshop":
            observation = f"Instruction: [SEP] {GOAL} [SEP] page {number} [SEP] Buy Now"
        views.append(history.view(GOAL, observation, (*COMMANDS, f"open {number}"), ("say[<x>]",)))
        history = history.append(observation, f"command number {number}", True)
    return views


def _text(template, view: PromptView) -> str:
    rendered = template.render(view)
    return rendered if isinstance(rendered, str) else rendered[-1]["content"]


def _shared(left: str, right: str) -> int:
    """Characters that both begin with."""
    return next(i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("pages", PAGES)
@pytest.mark.parametrize("length", [0, 1, 2, 4, 5])
def test_a_window_shows_exactly_the_last_steps(name, pages, length):
    template = get_template(name, history_length=length, pages=pages)
    for view in _views(8, pages):
        text = _text(template, view)
        shown = [n for n in range(view.step) if f"command number {n}" in text]
        assert shown == list(range(max(0, view.step - length), view.step))


@pytest.mark.parametrize("pages", PAGES)
@pytest.mark.parametrize("length", [2, 4, 5])
def test_instruction_first_puts_what_changes_last(pages, length):
    made = [
        get_template("field", history_length=length, pages=pages, layout=layout)
        for layout in ("standard", "instruction_first")
    ]
    views = _views(8, pages)
    for before, after in pairwise(views):
        standard, first = (_shared(_text(t, before), _text(t, after)) for t in made)
        text = _text(made[1], after)
        constant = text.index(GOAL) + len(GOAL)
        assert first > constant > 300
        assert first > standard
        # While the window still grows, its older steps are part of what both begin with.
        if 0 < before.step < length:
            assert f"command number {before.step - 1}" in text[:first]
    text = _text(made[1], views[-1])
    for part in ("<think>", "</action>", GOAL):
        assert text.count(part) == 1 or pages == "webshop"
    assert text.index("<think>") < text.index(GOAL) < text.index("command number")


def test_layouts_have_hashes_of_their_own_and_the_standard_one_keeps_its_own():
    hashes = {
        get_template("field").hash,
        get_template("field", layout="instruction_first").hash,
        get_template("field", context="chat").hash,
        get_template("field", context="chat", pages="webshop").hash,
        get_template("compact", context="chat").hash,
        get_template("react").hash,
        get_template("react", pages="webshop").hash,
    }
    assert len(hashes) == 7
    assert FieldTemplate().hash == FieldTemplate(layout="standard").hash


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("pages", PAGES)
def test_a_conversation_states_its_rules_and_its_task_once(name, pages):
    template = get_template(name, pages=pages, context="chat")
    assert isinstance(template, ChatTemplate)
    alone = get_template(name, pages=pages)
    views = _views(4, pages)
    contents = [template.message(view)["content"] for view in views]
    assert GOAL in contents[0]
    for view, content in zip(views, contents, strict=True):
        assert content == content.strip()
        assert f"open {view.step}" in content
        assert f"number {view.step} " in content or f"page {view.step}" in content
        assert "command number" not in content, "the conversation itself is the history"
        assert ("help" in content) == ("help" not in alone.hidden)
    for content in contents[1:]:
        assert len(content) < len(contents[0])
        assert "<think>" not in content
        assert GOAL not in content
    assert template.render(views[0]) == [{"role": "user", "content": contents[0]}]
    with pytest.raises(ValueError, match="turn 1 of a conversation"):
        template.render(views[1])


def test_react_is_a_transcript():
    template = get_template("react", history_length=1)
    (message,) = template.render(_views(3)[2])
    assert message["content"].splitlines()[1:] == [
        f"Task: {GOAL}",
        "Observation 2: You see the thing number 1 there.",
        "Action 2: command number 1",
        "Observation 3: You see the thing number 2 there.",
        "Possible commands: go to shelf 1 | take mug 1 from shelf 1 | open 2 | say[<x>]",
    ]


@given(st.text("abc 1/", min_size=1).map(str.strip).filter(bool))
def test_the_target_of_react_parses_back(command):
    template = get_template("react")
    reply = template.format_command(command)
    parsed = template.parse(reply.text)
    assert (parsed.command, parsed.format_valid) == (command, True)
    assert parsed.command_span == reply.command_span
    thought = template.parse(f"Thought: it may be there\n{reply.text}")
    assert thought.command == command


@pytest.mark.parametrize("name", ["compact", "react"])
def test_options_that_a_template_does_not_have_are_refused(name):
    with pytest.raises(ValueError, match="has no option layout"):
        get_template(name, layout="instruction_first")
    with pytest.raises(ValueError, match="did you mean 'chat'"):
        get_template(name, context="chats")


def test_react_has_no_tail():
    with pytest.raises(ValueError, match="has no option tail"):
        get_template("react", tail=20)
