"""The teacher's prompt: where the sections go, and what a budget may cut."""

from __future__ import annotations

import inspect

import pytest

from trainer.auxiliary.feedback_context import Section
from trainer.auxiliary.teacher_prompt import CLOSING, ELLIPSIS, build_teacher_prompt

STUDENT = [
    {"role": "system", "content": "rules"},
    {"role": "user", "content": "first"},
    {"role": "assistant", "content": "reply"},
    {"role": "user", "content": "what now"},
]


def build(*texts, messages=STUDENT, **options):
    """Titles "T0", "T1", ...; one token a character."""
    sections = [Section(f"T{i}", text) for i, text in enumerate(texts)]
    return build_teacher_prompt(messages, sections, len, **options)


def test_layout_by_hand():
    got = build("one\ntwo", "three")
    assert got.messages[:3] == STUDENT[:3]
    assert got.messages[3] == {
        "role": "user",
        "content": f"what now\n\nT0\none\ntwo\n\nT1\nthree\n\n{CLOSING}",
    }
    assert (got.row_on, got.offered, got.kept, got.truncated, got.dropped) == (
        *(True, 12, 12, False),
        0,
    )


def test_wording():
    assert ELLIPSIS == " [...]"
    assert "\n" not in CLOSING
    assert CLOSING.endswith("correctly.")


def test_input_is_not_changed_and_later_messages_stay():
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "Sure:"}]
    got = build("hint", messages=messages, closing="Go.")
    assert messages[0]["content"] == "q"
    assert got.messages == [{"role": "user", "content": "q\n\nT0\nhint\n\nGo."}, messages[1]]


@pytest.mark.parametrize("texts", [(), ("",), (" \n", "")])
def test_an_empty_hint_gives_the_student_s_own_messages(texts):
    got = build(*texts, max_tokens=3)
    assert got.messages == STUDENT
    assert got.messages is not STUDENT
    assert (got.row_on, got.offered, got.kept, got.truncated) == (False, 0, 0, False)


def test_blank_sections_are_left_out():
    assert "T0" not in build(" ", "text").messages[3]["content"]


OTHERS = len("rules" + "first" + "reply")
FRAME = len("what now" + "\n\n" + "T0\n" + "\n\n" + CLOSING)


def test_exactly_fitting_is_not_cut():
    text = "x" * 40
    got = build(text, max_tokens=OTHERS + FRAME + 40)
    assert not got.truncated
    assert got.kept == 40
    got = build(text, max_tokens=OTHERS + FRAME + 39)
    assert got.truncated


def test_only_privileged_text_is_cut():
    text = "".join(chr(97 + i % 26) for i in range(100))
    budget = OTHERS + FRAME + len(ELLIPSIS) + 30
    got = build(text, max_tokens=budget)
    assert got.messages[:3] == STUDENT[:3]
    assert got.messages[3]["content"] == f"what now\n\nT0\n{text[:30]}{ELLIPSIS}\n\n{CLOSING}"
    assert sum(len(m["content"]) for m in got.messages) == budget
    assert (got.row_on, got.offered, got.kept, got.truncated, got.dropped) == (
        *(True, 100, 30, True),
        70,
    )


def test_the_template_s_own_tokens_count():
    budget = OTHERS + FRAME + len(ELLIPSIS) + 30
    assert build("x" * 100, max_tokens=budget + 7, overhead=7).kept == 30
    assert build("x" * 100, max_tokens=budget, overhead=7).kept == 23


def test_the_longest_section_loses_first():
    got = build("x" * 20, "z" * 200, max_tokens=OTHERS + FRAME + len("T1\n\n\n") + 80)
    content = got.messages[3]["content"]
    assert "x" * 20 + "\n\n" in content
    assert content.count("z") < 200
    assert content.count(ELLIPSIS) == 1
    assert got.kept == 20 + content.count("z")


def test_a_row_with_too_little_left_is_switched_off():
    budget = OTHERS + FRAME + len(ELLIPSIS)
    assert build("x" * 100, max_tokens=budget + 16).row_on
    got = build("x" * 100, max_tokens=budget + 15)
    assert (got.row_on, got.kept, got.offered, got.truncated) == (False, 0, 100, True)
    assert got.messages == STUDENT
    assert build("x" * 100, max_tokens=budget + 15, min_privileged=15).row_on
    # Nothing survives at all: off whatever the limit.
    assert not build("x" * 100, max_tokens=10, min_privileged=0).row_on
    assert inspect.signature(build_teacher_prompt).parameters["min_privileged"].default == 16


def test_a_context_that_is_short_by_itself_stays_on():
    got = build("Nothing.", max_tokens=OTHERS + FRAME + 8)
    assert got.row_on
    assert got.kept == 8


def test_other_tokenizers_stay_within_the_budget():
    words = lambda text: len(text.split())  # noqa: E731
    text = " ".join(f"word{i}" for i in range(300))
    for budget in range(40, 120, 7):
        got = build_teacher_prompt(
            STUDENT, [Section("A title", text)], words, max_tokens=budget, min_privileged=1
        )
        assert got.row_on
        total = sum(words(m["content"]) for m in got.messages)
        assert budget - 1 <= total <= budget
        assert got.messages[3]["content"].endswith(f"\n\n{CLOSING}")


def test_cut_text_does_not_end_in_white_space():
    got = build("ab" + " " * 100 + "c", max_tokens=OTHERS + FRAME + 60)
    assert f"ab{ELLIPSIS}" in got.messages[3]["content"]


def test_refusals():
    with pytest.raises(ValueError, match=r"Expected a user message .* roles \['system'\]"):
        build("x", messages=STUDENT[:1])
    for options in ({"max_tokens": -1}, {"overhead": -1}, {"min_privileged": -1}):
        with pytest.raises(ValueError, match="must not be negative"):
            build("x", **options)
