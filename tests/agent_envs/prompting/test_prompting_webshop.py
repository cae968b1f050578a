"""Promises of the templates on WebShop's pages:

1. Every command that the page allows can be read in the prompt, spelt as it is sent.
2. The task stands in a prompt once, however often the pages repeat it.
3. What ALFWorld's prompts say does not depend on any of this: their hashes stay.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_envs.prompting import History, PromptView, get_template, project
from agent_envs.prompting import webshop as webshop_module
from agent_envs.prompting.parsing import WEBSHOP_TAIL
from agent_envs.prompting.webshop_pages import after_task, cut, short_page
from tests.support import full_count

GOAL = "Find me red shoes with color: red, and size: 9 | wide, and price lower than 40.00 dollars"
FORM = ("search[<query>]",)
INDEX = f"WebShop [SEP] Instruction: [SEP] {GOAL} [SEP] Search"
RESULTS = (
    f"Instruction: [SEP] {GOAL} [SEP] Back to Search [SEP] Page 2 (Total results: 14) [SEP] "
    "< Prev [SEP] Next > [SEP] B09ABCDEFG [SEP] Running Shoes, Red, for Men and Women with a Name "
    "that Goes on and on [SEP] $12.5 [SEP] B001234567 [SEP] Sock [SEP] $1.0 to $3.0"
)
ITEM = (
    f"Instruction: [SEP] {GOAL} [SEP] Back to Search [SEP] < Prev [SEP] color [SEP] red [SEP] blue "
    "[SEP] size [SEP] 8 [SEP] 9 | wide [SEP] Running Shoes, Red, for Men and Women with a Name "
    "that Goes on and on [SEP] Price: $12.5 [SEP] Rating: N.A. [SEP] Description [SEP] Features "
    "[SEP] Reviews [SEP] Buy Now"
)
FEATURES = (
    f"Instruction: [SEP] {GOAL} [SEP] Back to Search [SEP] < Prev [SEP] Light soles [SEP] Made of "
    "canvas"
)


def clicks(*texts: str) -> tuple[str, ...]:
    return tuple(f"click[{text}]" for text in texts)


ON_RESULTS = clicks("back to search", "< prev", "next >", "b09abcdefg", "b001234567")
ON_ITEM = clicks(
    "back to search", "< prev", "description", "features", "reviews", "buy now",
    "red", "blue", "8", "9 | wide",
)  # fmt: skip


def field_text(view: PromptView, **options: Any) -> str:
    (message,) = get_template("field", pages="webshop", **options).render(view)
    return message["content"]


def compact_text(view: PromptView, **options: Any) -> str:
    text = get_template("compact", pages="webshop", **options).render(view)
    assert isinstance(text, str)
    return text


# ------------------------------------------------------------------------------ field


def test_field_shows_the_fields_after_the_task_in_quotes() -> None:
    history = History().append(INDEX, "search[red shoes]", True)
    text = field_text(history.view(GOAL, RESULTS, ON_RESULTS))
    assert text.count(GOAL) == 1
    assert f"The task: {GOAL}\n" in text
    assert "[Observation 1: ''Search'', Action 1: 'search[red shoes]']" in text
    assert (
        "What you observe now: 'Back to Search' [SEP] 'Page 2 (Total results: 14)' [SEP] '< Prev' "
        "[SEP] 'Next >' [SEP] 'B09ABCDEFG' [SEP] 'Running Shoes, Red, for Men and Women with a "
        "Name that Goes on and on' [SEP] '$12.5' [SEP] 'B001234567' [SEP] 'Sock' [SEP] "
        "'$1.0 to $3.0'\n"
    ) in text
    assert (
        "possible now: [\n'click[back to search]',\n'click[< prev]',\n'click[next >]',\n"
        "'click[b09abcdefg]',\n'click[b001234567]',\n].\n"
    ) in text


def test_field_names_the_form_of_a_search_first() -> None:
    text = field_text(PromptView(GOAL, INDEX, clicks("x"), action_templates=FORM))
    assert "possible now: [\n'search[<your query>]',\n'click[x]',\n].\n" in text
    assert "<think>" in text
    assert "<action>" in text


def test_field_leaves_the_history_out_of_a_prompt_that_is_too_long() -> None:
    history = History().append(RESULTS, "click[b001234567]", True)
    view = history.view(GOAL, ITEM, ON_ITEM)
    whole, limit = field_text(view), 13_000
    assert "Observation 1" in whole
    length = len(whole)
    long = history.view(GOAL, ITEM.replace("canvas", "") + "x" * (limit - length), ON_ITEM)
    assert len(field_text(long)) == limit
    assert "Observation 1" in field_text(long)
    longer = history.view(GOAL, ITEM + "x" * (limit - length + 1), ON_ITEM)
    assert "Observation 1" not in field_text(longer)
    assert "This is step 2." in field_text(longer)
    assert "x'\nCommands" in field_text(longer), "the present page is never cut"


def test_field_keeps_a_text_that_is_no_page() -> None:
    text = field_text(PromptView(GOAL, "Thank you for shopping with us! [SEP] Your code:"))
    assert "What you observe: Thank you for shopping with us! [SEP] Your code:\n" in text


# ------------------------------------------------------------------------------ compact


def test_compact_results_word_by_word() -> None:
    history = History().append(INDEX, "search[red shoes]", True)
    history = history.append(RESULTS, "click[next >]", True)
    assert compact_text(history.view(GOAL, RESULTS, ON_RESULTS)) == (
        f"task: {GOAL}\n> search[red shoes]\n> click[next >]\npage 2 of 14 results\n"
        "click[b09abcdefg] Running Shoes, Red, for Men and Women with a Name that Goes $12.5\n"
        "click[b001234567] Sock $1.0 to $3.0\n"
        "can:\nclick[back to search]\nclick[< prev]\nclick[next >]\n"
    )


def test_compact_item_word_by_word() -> None:
    assert compact_text(PromptView(GOAL, ITEM, ON_ITEM), history_length=0) == (
        f"task: {GOAL}\ncolor click[red] click[blue]\nsize click[8] click[9 | wide]\n"
        "Running Shoes, Red, for Men and Women with a Name that Goes $12.5\n"
        "can:\nclick[back to search]\nclick[< prev]\nclick[description]\nclick[features]\n"
        "click[reviews]\nclick[buy now]\n"
    )


def test_compact_first_page_and_page_below_an_item() -> None:
    first = PromptView(GOAL, INDEX, action_templates=FORM)
    assert compact_text(first) == f"task: {GOAL}\ncan:\nsearch[<query>]\n"
    below = PromptView(GOAL, FEATURES, clicks("back to search", "< prev"))
    assert compact_text(below) == (
        f"task: {GOAL}\nLight soles\nMade of canvas\ncan:\nclick[back to search]\nclick[< prev]\n"
    )


def test_compact_cuts_between_words() -> None:
    assert cut("one two three", 7) == "one two"
    assert cut("one two three", 8) == "one two"
    assert cut("one two three", 13) == "one two three"
    assert cut("unbreakable", 5) == "unbre"


def test_an_option_of_the_name_of_a_button_is_still_listed() -> None:
    """A value `features` is hidden by the button of that name, as it is on the page."""
    item = ITEM.replace("blue", "Features", 1)
    view = PromptView(GOAL, item, ON_ITEM)
    text = compact_text(view)
    assert "color click[red]\n" in text
    assert text.count("click[features]\n") == 1


def test_rich_pages_are_kept_without_the_task() -> None:
    rich = f"Instruction:\n{GOAL}\n[button] Back to Search [button_]\nPage 1 (Total results: 0)"
    view = PromptView(GOAL, rich, clicks("back to search"))
    assert compact_text(view) == (
        f"task: {GOAL}\n[button] Back to Search [button_]\nPage 1 (Total results: 0)\n"
        "can:\nclick[back to search]\n"
    )
    assert field_text(view).count(GOAL) == 1


# ------------------------------------------------------------------------------ both


@pytest.mark.parametrize("name", ["field", "compact"])
def test_hashes_cover_the_pages_and_their_options(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(**options: Any) -> str:
        return get_template(name, pages="webshop", **options).hash

    plain = make()
    others = {
        get_template(name).hash,
        get_template(name, tail=WEBSHOP_TAIL, hidden=()).hash,
        make(history_length=5),
        make(tail=30),
        make(hidden=("click",)),
    }
    monkeypatch.setattr(webshop_module, "VERSION", 2)
    others.add(make())
    monkeypatch.undo()
    texts = "_FIELD_TEXTS" if name == "field" else "_COMPACT_TEXTS"
    monkeypatch.setattr(webshop_module, texts, {"past": "$", "field": "$"})
    others.add(make())
    monkeypatch.undo()
    assert make() == plain
    assert len(others) == 7
    assert plain not in others


def test_the_tail_of_a_reply_without_tags_is_twenty_characters() -> None:
    reply = "I would go on to click[Buy Now] NOW"
    for name in ("field", "compact"):
        parsed = get_template(name, pages="webshop").parse(reply)
        assert (parsed.command, parsed.format_valid) == ("o click[buy now] now", False)
        assert parsed.command == project(reply, 20)[0]


def test_commands_are_lower_cased_and_stripped() -> None:
    template = get_template("field", pages="webshop")
    reply = "<think>It is red.</think> <ACTION> Search[Red Shoes] </action>"
    assert template.parse(reply).command == "search[red shoes]"


def test_unknown_pages_are_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown kind of pages 'webshp'.*'webshop'"):
        get_template("field", pages="webshp")


def _recorded(real_data: Path, name: str) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """(goal, page, clicks) of recorded pages of the original, purchases left out."""
    with gzip.open(real_data / "transcripts" / name, "rt", encoding="utf-8") as file:
        next(file)
        for episode in (json.loads(line) for line in file):
            goal = episode["goal"]["instruction_text"]
            for step in episode["steps"]:
                links = [text for text in step["available"][1] if text != "search"]
                if not step.get("done"):
                    yield goal, step["observation"], clicks(*links)


@pytest.mark.parametrize("name", ["webshop_text_synthetic.jsonl.gz", "webshop_text_human.jsonl.gz"])
def test_every_link_of_recorded_pages_is_in_the_prompt(real_data: Path, name: str) -> None:
    template = get_template("compact", pages="webshop")
    seen = 0
    for goal, page, commands in list(_recorded(real_data, name))[: full_count(600, 10**9)]:
        if goal.strip() not in page:
            continue
        seen += 1
        text = template.render(PromptView(goal, page, commands))
        body = text.removeprefix(f"task: {goal}\n")
        assert goal.strip() not in body
        for command in commands:
            found = [f" {line} ".count(f" {command} ") for line in body.splitlines()]
            assert max(found) == 1, (command, body)
        (message,) = get_template("field", pages="webshop").render(PromptView(goal, page, commands))
        assert message["content"].count(goal.strip()) == 1
        for command in commands:
            assert f"\n'{command}',\n" in message["content"]
    assert seen > 200


def test_short_pages_say_which_commands_they_spell() -> None:
    page = short_page(ITEM, GOAL, ON_ITEM, 20, 20)
    assert page.commands == frozenset(clicks("red", "blue", "8", "9 | wide"))
    assert all(command in page.text for command in page.commands)
    assert after_task(ITEM, GOAL).startswith("Back to Search [SEP] ")
    assert after_task("elsewhere", GOAL) == "elsewhere"
