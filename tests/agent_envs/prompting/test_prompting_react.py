from __future__ import annotations

import pytest

from agent_envs.prompting.react import is_thought, parse_react


@pytest.mark.parametrize(
    ("reply", "command"),
    [
        ("> think: the shelf may hold it\n> go to shelf 1", "go to shelf 1"),
        ("think: the shelf may hold it\ngo to shelf 1", "go to shelf 1"),
        ("Thought: the shelf may hold it\nAction: go to shelf 1", "go to shelf 1"),
        ("Thought 3: the shelf\nAction 3: go to shelf 1\nObservation 3: You", "go to shelf 1"),
        ("**Thought:** the shelf\n**Action:** go to shelf 1", "go to shelf 1"),
        ("> Thought: the shelf\r\n> Action: > go to shelf 1\r\n", "go to shelf 1"),
        ("I would like to look first.\nAction: look", "look"),
        ("Action:\ngo to shelf 1", "go to shelf 1"),
        ("**Thought**: the shelf\n**Action**: look\n**Observation**: You see", "look"),
        ("Action: think[red shoes are wanted]\nAction: search[red shoes]", "search[red shoes]"),
        ("Action 1: think: hm\nAction 2: look", "look"),
        ("Action: go to shelf 1\nAction: go to shelf 2", "go to shelf 1"),
        ("think[red shoes are wanted]\nsearch[Red Shoes]", "search[red shoes]"),
        ("> go to shelf 1\nYou arrive at shelf 1.\n> take pen 1 from shelf 1", "go to shelf 1"),
        ("GO TO SHELF 1", "go to shelf 1"),
    ],
)
def test_o5_the_command_is_found_behind_thoughts_and_marks(reply: str, command: str) -> None:
    parsed = parse_react(reply)
    assert (parsed.command, parsed.format_valid, parsed.reason) == (command, True, None)
    assert parsed.command_span is not None
    start, end = parsed.command_span
    assert reply[start:end].lower() == command


@pytest.mark.parametrize(
    "reply",
    ["", "\n \n", "> think: where is it?", "Thought: where is it?", "think[where is it?]", ">",
     "Observation: You see a pen.\n> take pen 1", "Action:", "Thought: hm\nAction: \n",
     "Action: think[where is it?]", "**Observation**: You see a pen."],
)  # fmt: skip
def test_o5_a_reply_without_a_command_says_so(reply: str) -> None:
    parsed = parse_react(reply)
    assert (parsed.command, parsed.format_valid, parsed.reason) == ("", False, "no_action")
    assert parsed.command_span is None


def test_nothing_but_a_thought() -> None:
    assert is_thought("> think: where is it?")
    assert is_thought("\nThought 2: where is it?\n")
    assert is_thought("Action: think[where is it?]")  # as in ReAct's prompts for WebShop
    assert is_thought("> Action 3: think: where is it?")
    assert not is_thought("Action: think[where is it?]\nAction: look")
    assert not is_thought("> think: where is it?\n> look")
    assert not is_thought("")
    assert not is_thought("> rethink the plan")
