"""Promises of prompt templates:

1. Verbs come from the env: whatever an env calls its commands, the prompt says the same.
2. The window shows the last steps with absolute numbers, and nothing hidden is lost by it.
3. The hash changes with the wording, the version and every option, and with nothing else.
4. A formatted command parses back to itself, and its spans cover it.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_envs.prompting import (
    CompactTemplate,
    FieldTemplate,
    History,
    PromptView,
    command_verb,
    get_template,
    named_verbs,
)
from agent_envs.prompting import compact as compact_module
from agent_envs.prompting import field as field_module

FIRST = (
    "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly "
    "around you, you see a safe 1, and a shelf 1.\n\nYour task is to: put two cd in safe."
)
GOAL = "put two cd in safe."


def text_of(template, view: PromptView) -> str:
    rendered = template.render(view)
    return rendered if isinstance(rendered, str) else rendered[0]["content"]


def listed_verbs(template, view: PromptView) -> set[str]:
    """Verbs found in the rendered text itself."""
    text = text_of(template, view)
    if isinstance(template, FieldTemplate):
        listed = re.search(r"possible now: \[(.*?)\]\.\n", text, re.DOTALL).group(1)
        return {command_verb(item) for item in re.findall(r"'([^']*)'", listed)}
    return {command_verb(line) for line in text.split("can:\n")[1].splitlines()}


@pytest.mark.parametrize("template", [FieldTemplate(), CompactTemplate()], ids=lambda t: t.name)
@pytest.mark.parametrize(
    "admissible",
    [
        ("go to safe 1", "help", "look", "move cd 1 to safe 1"),
        ("go to safe 1", "help", "look", "put cd 1 in/on safe 1"),
        ("frobnicate the knob", "go to safe 1"),
    ],
)
def test_o01_verbs_of_the_prompt_come_from_the_env(template, admissible):
    view = PromptView(GOAL, FIRST, admissible)
    offered = {command_verb(c) for c in admissible} - set(template.hidden)
    assert listed_verbs(template, view) == offered
    assert named_verbs(view, template.hidden) == offered


def test_o01_nothing_hidden_means_every_admissible_verb_is_named():
    admissible = ("go to safe 1", "help", "inventory", "look", "examine shelf 1")
    view = PromptView(GOAL, FIRST, admissible)
    for name in ("field", "compact"):
        template = get_template(name, hidden=())
        assert listed_verbs(template, view) == {command_verb(c) for c in admissible}


def test_field_prompt_of_the_first_step():
    view = PromptView(GOAL, FIRST, ("go to safe 1", "help", "look"))
    (message,) = FieldTemplate().render(view)
    assert message["role"] == "user"
    text = message["content"]
    assert text.count(GOAL) == 1  # the first observation states it already
    assert FIRST in text
    assert "['go to safe 1'\n 'look']" in text
    assert "<think>" in text
    assert "<action>" in text
    assert "Observation 1" not in text


def test_field_prompt_later_shows_the_last_two_steps_with_absolute_numbers():
    history = History()
    for i in range(1, 5):
        history = history.append(f"o{i}", f"a{i}", True)
    view = history.view(GOAL, "o5", ("look",))
    (message,) = FieldTemplate().render(view)
    text = message["content"]
    assert "[Observation 3: 'o3', Action 3: 'a3']\n[Observation 4: 'o4', Action 4: 'a4']\n" in text
    assert "o2" not in text
    assert "you have sent 4 command(s)" in text
    assert "step 5" in text
    assert text.count(GOAL) == 1


def test_compact_prompt_word_by_word():
    history = History().append(FIRST, "go to shelf 1", True).append("A cd 1.", "fly", False)
    view = history.view(GOAL, "Nothing happens.", ("go to safe 1", "help", "look", "examine cd 1"))
    assert CompactTemplate().render(view) == (
        "task: put two cd in safe.\n"
        "You are in the middle of a room. Looking quickly around you, you see a safe 1, and a "
        "shelf 1.\n> go to shelf 1\nA cd 1.\n> fly\nNothing happens.\ncan:\ngo to safe 1\n"
    )


def test_history_length_zero_shows_no_history():
    view = History().append("past", "walk", True).view(GOAL, "now", ("look",))
    for name in ("field", "compact"):
        text = text_of(get_template(name, history_length=0), view)
        assert "past" not in text
        assert "walk" not in text
        assert "now" in text


def test_templates_that_cannot_be_listed_are_shown():
    view = PromptView("buy a shoe", "a search bar", (), action_templates=("search[<query>]",))
    for name in ("field", "compact"):
        assert "search[<query>]" in text_of(get_template(name), view)


def test_braces_and_quotes_in_env_text_are_kept():
    view = PromptView("{goal}", "it's {0} %s", ("use {x}",))
    for name in ("field", "compact"):
        text = text_of(get_template(name), view)
        assert "{goal}" in text
        assert "it's {0} %s" in text
        assert "use {x}" in text


@pytest.mark.parametrize("name", ["field", "compact"])
def test_hash_covers_text_version_and_options(name, monkeypatch):
    module = {"field": field_module, "compact": compact_module}[name]
    plain = get_template(name).hash
    assert get_template(name).hash == plain
    others = {
        get_template(name, history_length=3).hash,
        get_template(name, tail=20).hash,
        get_template(name, hidden=("go",)).hash,
    }
    monkeypatch.setattr(module, "_TEXTS", module._TEXTS | {"extra": "one word more"})
    others.add(get_template(name).hash)
    monkeypatch.undo()
    monkeypatch.setattr(type(get_template(name)), "version", 2)
    others.add(get_template(name).hash)
    assert len(others) == 5
    assert plain not in others


def test_published_figures_keep_their_prompts():
    """Results that were recorded name these hashes, so the wording may not move under them."""
    assert {name: get_template(name).hash[:16] for name in ("field", "compact")} == {
        "field": "19ebe8f6f9990dff",
        "compact": "2905a44553272fa6",
    }
    view = PromptView(GOAL, "", ("go to safe 1",), (("", "look"),), 1)
    assert CompactTemplate().render(view) == (
        "task: put two cd in safe.\n\n> look\n\ncan:\ngo to safe 1\n"
    )


def test_the_two_templates_have_different_hashes():
    assert get_template("field").hash != get_template("compact").hash


_COMMANDS = st.text(st.sampled_from("abcdefgh 123[]"), min_size=1).map(str.strip).filter(bool)


@given(_COMMANDS, st.sampled_from(["field", "compact"]))
def test_formatted_command_parses_back(command, name):
    template = get_template(name)
    reply = template.format_command(command)
    parsed = template.parse(reply.text)
    assert (parsed.command, parsed.format_valid) == (command, True)
    assert parsed.command_span == reply.command_span
    assert reply.text[slice(*reply.closing_span)] == "</action>"
    assert reply.closing_span == (reply.command_span[1], len(reply.text))


def test_history_is_a_value():
    one = History().append("o", "a", True)
    two = one.append("p", "b", False)
    assert len(one) == 1
    assert two.last(1) == (("p", "b", False),)
    assert two.last(5) == (("o", "a", True), ("p", "b", False))
    assert two.last(0) == ()
    with pytest.raises(ValueError, match="history length is -1"):
        two.last(-1)


def test_unknown_template_suggests_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'compact'"):
        get_template("compct")
