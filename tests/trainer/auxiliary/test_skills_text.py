"""Reading skills from replies, and where they go in a prompt."""

from __future__ import annotations

import numpy as np
import pytest

from trainer.auxiliary import skills
from trainer.auxiliary.skills import (
    EPISODE_TITLE,
    STEP_TITLE,
    SkillReply,
    insert_episode_skill,
    insert_skill,
    insert_step_skill,
    other_skill,
    parse_skill,
    skill_ok,
    skill_report,
)

GOOD = "Open closed drawers before shelves."
OTHER = "Never leave the lamp until last."


def skill_of(text, **options):
    reply = parse_skill(text, **options)
    return None if reply is None else reply.skill


@pytest.mark.parametrize(
    ("text", "ok"),
    [
        ("one two three four five", True),
        ("one two three four", False),
        ("  one\ntwo\tthree  four five ", True),
        (". . . . . .", False),
        ("… - ! ? … —", False),
        ("- - - - 1", True),
        ("", False),
        ("   ", False),
        (None, False),
    ],
)
def test_skill_ok(text, ok):
    assert skill_ok(text) is ok


def test_plain_reply():
    text = f'{{"episode_summary": " It worked. ", "episode_skill": " {GOOD}\\n"}}'
    assert parse_skill(text) == SkillReply(GOOD, True, "It worked.", {})


@pytest.mark.parametrize(
    "text",
    [
        f'Here it is: {{"episode_skill": "{GOOD}"}} Done.',
        f'{{"episode_skill": "{GOOD}",}}',
        f'{{"episode_skill": "{GOOD}", "more": [1, 2, ], }}',
        f"{{'episode_skill': '{GOOD}'}}",
        f"{{'episode_skill': '{GOOD}', 'note': None,}}",
        f'{{"note": {{"a": 1}}}} {{"episode_skill": "{GOOD}"}}',
        f'{{"result": {{"episode_skill": "{GOOD}"}}}}',
        f'{{"result": [1, {{"episode_skill": "{GOOD}"}}]}}',
        f"{{'result': ({{'episode_skill': '{GOOD}'}},)}}",
        f'{{broken: yes}} {{"episode_skill": "{GOOD}"}}',
        f'{{ never closed {{"episode_skill": "{GOOD}"}}',
        f'{{"episode_skill": "{GOOD}"}} {{"episode_skill": "{OTHER}"}}',
        f'```json\n{{"episode_skill": "{GOOD}"}}\n```',
        f'```\n{{"episode_skill": "{GOOD}"}}\n```',
        f'```json {{"episode_skill": "{GOOD}"}}```',
        f'{{"episode_skill": "{OTHER}"}} ```json\n{{"episode_skill": "{GOOD}"}}\n```',
        f'```text\nno object\n``` then ```json\n{{"episode_skill": "{GOOD}"}}\n```',
        f'```text\nno object\n``` then {{"episode_skill": "{GOOD}"}}',
        f'```json\n{{"summary": 1}}\n``` then {{"episode_skill": "{GOOD}"}}',
        f'```json\n{{"episode_skill": "{GOOD}"}}',
        f'[{{"episode_skill": "{GOOD}"}}]',
    ],
)
def test_replies_that_hold_the_skill(text):
    assert parse_skill(text).skill == GOOD
    assert parse_skill(text).ok


def test_strings_may_hold_anything():
    tricky = 'Say \\"{go}\\" , ] or } and don\'t stop, }'
    expected = 'Say "{go}" , ] or } and don\'t stop, }'
    assert skill_of(f'{{"episode_skill": "{tricky}"}}') == expected
    # The repair of trailing commas leaves commas inside strings alone.
    assert skill_of(f'{{"episode_skill": "{tricky}",}}') == expected
    assert skill_of('{"episode_skill": "first line\nsecond\tline is here",}') == (
        "first line\nsecond\tline is here"
    )
    assert skill_of('{"episode_skill": "' + r"a \\" + '", }') == "a \\"
    assert skill_of("{'episode_skill': 'It\\'s in the {box}.'}") == "It's in the {box}."


def test_search_goes_on_inside_what_cannot_be_read():
    assert skill_of(f'{{broken {{"episode_skill": "{GOOD}"}}}}') == GOOD
    assert skill_of(f'{{{{"episode_skill": "{GOOD}"}}') == GOOD
    # ... but not inside the strings of what can.
    quoted = f"{{'episode_skill': '{OTHER}'}}"
    assert skill_of(f'{{"page": "{quoted}"}} {{"episode_skill": "{GOOD}"}}') == GOOD
    assert skill_of(f'{{"page": "{quoted}"}}') == ""


def test_depth_limit():
    assert parse_skill('{"a":' + "[" * 29 + "]" * 29 + "}") == SkillReply("", False)
    assert parse_skill('{"a":' + "[" * 30 + "]" * 30 + "}") is None


def test_no_object_and_no_field():
    assert parse_skill("no object here") is None
    assert parse_skill("") is None
    assert parse_skill("[1, 2]") is None
    assert parse_skill("{not an object}") is None
    assert parse_skill("{1, 2}") is None
    assert parse_skill('{"episode_skill": "cut off in the midd') is None
    assert parse_skill('{"episode_summary": "s"}') == SkillReply("", False)


@pytest.mark.parametrize("value", ["null", "3", "true", '["a b c d e"]', '"   "', '{"a": 1}'])
def test_field_without_text(value):
    reply = parse_skill(f'{{"episode_skill": {value}}}')
    assert (reply.skill, reply.ok) == ("", False)


def test_short_skill_is_read_but_not_ok():
    reply = parse_skill('{"episode_skill": "Try harder.", "episode_summary": 7}')
    assert (reply.skill, reply.ok, reply.summary) == ("Try harder.", False, "")


def test_no_code_is_run():
    text = "{'episode_skill': __import__('os').system('false') or 'one two three four five'}"
    assert parse_skill(text) is None
    assert parse_skill("{'episode_skill': 'a b c d ' + 'e'}") is None


def test_hostile_replies_end_quickly():
    assert parse_skill("{" * 200_000) is None
    assert parse_skill('{"a":' * 5000 + "1" + "}" * 5000) is None
    assert parse_skill('{"' * 5000) is None
    nested = '{"a":' * 29 + f'{{"episode_skill": "{GOOD}"}}' + "}" * 29
    assert skill_of(nested) == GOOD
    # One deeper: the outermost is given up, its inside is found.
    assert skill_of('{"a":' + nested + "}") == GOOD
    assert parse_skill("{x} " * 49 + f'{{"episode_skill": "{GOOD}"}}').ok
    assert parse_skill("{x} " * 50 + f'{{"episode_skill": "{GOOD}"}}') is None


def steps_of(entries, n_steps=None):
    reply = parse_skill(f'{{"episode_skill": "{GOOD}", "step_skills": {entries}}}', n_steps)
    return dict(reply.steps)


def test_step_skills():
    entry = '{{"step": {}, "skill": "{}"}}'
    three = "[" + ", ".join(entry.format(i, f" {OTHER} ") for i in (2, 0, 7)) + "]"
    assert steps_of(three) == {2: OTHER, 0: OTHER, 7: OTHER}
    assert steps_of(three, 7) == {2: OTHER, 0: OTHER}
    assert steps_of(three, 8) == {2: OTHER, 0: OTHER, 7: OTHER}
    six = "[" + ", ".join(entry.format(i, OTHER) for i in range(6)) + "]"
    assert list(steps_of(six)) == [0, 1, 2, 3, 4]
    twice = f"[{entry.format(1, OTHER)}, {entry.format(1, GOOD)}]"
    assert steps_of(twice) == {1: OTHER}
    mixed = (
        f'[3, null, {{"step": true, "skill": "{OTHER}"}}, {{"step": -1, "skill": "{OTHER}"}}, '
        f'{{"step": 1.0, "skill": "{OTHER}"}}, {{"step": 1, "skill": "too short"}}, '
        f'{{"step": "2", "skill": "{OTHER}"}}, {{"skill": "{OTHER}"}}, {{"step": 4}}, '
        f"{entry.format(6, OTHER)}]"
    )
    assert steps_of(mixed) == {6: OTHER}
    assert steps_of('"none"') == {}
    assert steps_of("{}") == {}


def test_step_skill_takes_priority():
    reply = SkillReply(GOOD, True, "", {3: OTHER})
    assert reply.at(3) == ("step", OTHER)
    assert reply.at(2) == ("episode", GOOD)
    assert SkillReply(GOOD, True).at(0) == ("episode", GOOD)


PROMPT = (
    "You act in a house.\nYour task is to: cool a mug.\nHistory: task cool a mug. ok\n"
    "Now it's your turn to act.\nThink first."
)


def test_episode_skill_follows_the_task_line():
    got = insert_episode_skill(PROMPT, GOOD, "cool a mug.")
    assert got.place == "task"
    section = f"\n{EPISODE_TITLE}\n{GOOD}"
    head, tail = PROMPT.split("\nHistory")
    assert got.text == head + section + "\nHistory" + tail
    assert got.text.replace(section, "") == PROMPT


def test_task_on_the_last_line_and_over_two_lines():
    got = insert_episode_skill("Hello.\nTask: find it", GOOD, "find it", title="T")
    assert got == (f"Hello.\nTask: find it\nT\n{GOOD}", "task")
    got = insert_episode_skill("Task: find\nthe pen now\nGo.", GOOD, "find\nthe pen", title="T")
    assert got == (f"Task: find\nthe pen now\nT\n{GOOD}\nGo.", "task")
    got = insert_episode_skill("find it", GOOD, "find it", title="T")
    assert got.text == f"find it\nT\n{GOOD}"


@pytest.mark.parametrize("task", ["heat a mug.", ""])
def test_without_a_task_line_it_goes_before_the_turn(task):
    got = insert_episode_skill(PROMPT, GOOD, task, title="T")
    assert got.place == "turn"
    assert got.text == PROMPT.replace("Now it's", f"T\n{GOOD}\n\nNow it's")


def test_last_resort_is_the_end():
    got = insert_episode_skill("Hello.", GOOD, "x")
    assert got == (f"Hello.\n\n{EPISODE_TITLE}\n{GOOD}", "end")
    assert insert_step_skill("Hello.", GOOD) == (f"Hello.\n\n{STEP_TITLE}\n{GOOD}", "end")
    assert insert_step_skill(PROMPT, GOOD, turn_sentences=("", "Nope")).place == "end"
    assert insert_step_skill(PROMPT, GOOD, turn_sentences=()).place == "end"


def test_step_skill_goes_just_before_the_last_turn_sentence():
    quoted = "Now it's your turn, said the page.\n" + PROMPT
    got = insert_step_skill(quoted, OTHER, title="S")
    assert got.place == "turn"
    head, tail = quoted.rsplit("Now it's", 1)
    assert got.text == f"{head}S\n{OTHER}\n\nNow it's{tail}"
    at_start = insert_step_skill("Go now.", OTHER, title="S", turn_sentences=("Go",))
    assert at_start == (f"S\n{OTHER}\n\nGo now.", "turn")


@pytest.mark.parametrize(
    "sentence", ["Now it's your turn to act.", "It is your turn.", "Decide on the next command."]
)
def test_known_turn_sentences(sentence):
    assert insert_step_skill(f"Hello. {sentence}", GOOD).place == "turn"


def test_prompt_of_one_step():
    reply = SkillReply(GOOD, True, "", {1: OTHER})
    task = "cool a mug."
    assert insert_skill(PROMPT, reply, 0, task) == insert_episode_skill(PROMPT, GOOD, task)
    assert insert_skill(PROMPT, reply, 1, task) == insert_step_skill(PROMPT, OTHER)
    think = ("Think first.",)
    assert insert_skill(PROMPT, reply, 1, task, turn_sentences=think) == insert_step_skill(
        PROMPT, OTHER, turn_sentences=think
    )
    assert insert_skill(PROMPT, reply, 0, "", turn_sentences=think) == insert_episode_skill(
        PROMPT, GOOD, "", turn_sentences=think
    )
    with pytest.raises(ValueError, match="no valid skill"):
        insert_skill(PROMPT, SkillReply("Short.", False, "", {1: OTHER}), 1, task)


def test_shuffled_control_is_never_ones_own():
    for seed in range(50):
        valid = [True, False, True, True, False, True]
        partner = other_skill(valid, np.random.default_rng(seed))
        assert [partner[1], partner[4]] == [None, None]
        assert sorted(p for p in partner if p is not None) == [0, 2, 3, 5]
        assert all(p != i for i, p in enumerate(partner))
    draws = {tuple(other_skill([True] * 4, np.random.default_rng(s))) for s in range(60)}
    assert len(draws) == 6  # every cycle of four


def test_shuffled_control_of_few():
    generator = np.random.default_rng(0)
    assert other_skill([], generator) == []
    assert other_skill([False, True], generator) == [None, None]
    assert other_skill([True, False, True], generator) == [2, None, 0]


def test_report():
    good, four = SkillReply(GOOD, True), SkillReply("a b c d", False)
    long = SkillReply("one two three four five six seven eight nine", True)
    report = skill_report([good, four, None, long], [True, True, False, False])
    assert report == {
        "skill_valid": 0.5,
        "skill_valid_success": 0.5,
        "skill_valid_failure": 0.5,
        "skill_words": 7.0,
    }
    report = skill_report([good, good, None], [True, True, False])
    assert (report["skill_valid_success"], report["skill_valid_failure"]) == (1.0, 0.0)
    assert report["skill_valid"] == pytest.approx(2 / 3)
    alone = {"skill_valid": 1.0, "skill_words": 5.0}
    assert skill_report([good], [False]) == {
        **alone,
        "skill_valid_success": 0.0,
        "skill_valid_failure": 1.0,
    }
    assert skill_report([good], [True]) == {
        **alone,
        "skill_valid_success": 1.0,
        "skill_valid_failure": 0.0,
    }
    assert set(skill_report([], []).values()) == {0.0}
    with pytest.raises(ValueError, match="1 replies for 2 outcomes"):
        skill_report([good], [True, False])


def test_published_limits():
    assert (skills.MIN_WORDS, skills.MAX_STEP_SKILLS) == (5, 5)
    fields = (skills.SUMMARY_FIELD, skills.SKILL_FIELD, skills.STEPS_FIELD)
    assert fields == ("episode_summary", "episode_skill", "step_skills")
