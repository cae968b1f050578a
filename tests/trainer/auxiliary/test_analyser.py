"""The analyser's prompt, and the one retry."""

from __future__ import annotations

import pytest

from trainer.auxiliary.analyser import (
    Episode,
    EpisodeStep,
    analyse,
    analyser_prompt,
    reply_error,
)
from trainer.auxiliary.skills import SkillReply

GOOD = "Open closed drawers before shelves."
ANSWER = f'{{"episode_summary": "s", "episode_skill": "{GOOD}"}}'
STEPS = (
    EpisodeStep("a dark room", "<action>look</action>", True),
    EpisodeStep("nothing happens", "<action>fly</action>", False),
)
WON = Episode("find the pen", True, STEPS)
LOST = Episode("find the pen", False, STEPS)


def content(*args, **options):
    (message,) = analyser_prompt(*args, **options)
    assert message["role"] == "user"
    return message["content"]


class Scripted:
    """A model that gives its answers in turn and remembers what it was asked."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    def __call__(self, messages):
        self.asked.append(messages[-1]["content"])
        return self.answers.pop(0)


def test_prompt_shows_the_trajectory():
    text = content(WON)
    assert text.endswith(
        "Task: find the pen\nOutcome: success\n\n"
        "Step 0\nObservation: a dark room\nResponse: <action>look</action>\nAccepted: yes\n\n"
        "Step 1\nObservation: nothing happens\nResponse: <action>fly</action>\nAccepted: no"
    )
    assert "single valid JSON object" in text
    assert '"episode_summary"' in text
    assert '"episode_skill"' in text


def test_outcome_decides_what_is_asked():
    won, lost = content(WON), content(LOST)
    assert "workflow" in won
    assert "avoid" not in won
    assert "avoid" in lost
    assert "workflow" not in lost
    assert "Outcome: failure" in lost


def test_step_skills_are_asked_for_on_request_only():
    assert "step_skills" not in content(WON)
    assert content(WON, "episode_only") == content(WON)
    text = content(WON, "episode_step")
    assert '"step_skills": a list of at most 5' in text
    assert "from 0" in text


def test_error_is_appended():
    text = content(WON, error="It was empty.")
    assert text.startswith(content(WON))
    assert "could not be used: It was empty. Answer again" in text
    assert "could not be used" not in content(WON)


def test_long_texts_are_cut():
    episode = Episode("t", True, (EpisodeStep("abcde", "abcdef", True),))
    text = content(episode, text_limit=5)
    assert "Observation: abcde\n" in text
    assert "Response: abcde [...]\n" in text
    assert "[...]" not in content(episode)
    assert "Observation: a [...]\n" in content(episode, text_limit=1)


def test_errors_in_words():
    assert reply_error(None) == "It held no JSON object that could be read."
    assert 'no text under "episode_skill"' in reply_error(SkillReply("", False))
    assert "fewer than 5 words" in reply_error(SkillReply("a b", False))
    assert reply_error(SkillReply(GOOD, True)) == ""


def test_good_answer_needs_one_call():
    model = Scripted(ANSWER)
    got = analyse(model, LOST)
    assert (got.reply.skill, got.text, got.attempts, got.error) == (GOOD, ANSWER, 1, "")
    assert model.asked == [content(LOST)]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("no object", "held no JSON object"),
        ('{"x": 1}', "no text under"),
        ('{"episode_skill": "Try more."}', "fewer than 5 words"),
    ],
)
def test_one_retry_says_what_was_wrong(bad, reason):
    model = Scripted(bad, ANSWER)
    got = analyse(model, LOST, text_limit=3)
    assert (got.reply.skill, got.attempts, got.error) == (GOOD, 2, "")
    assert model.asked[0] == content(LOST, text_limit=3)
    assert model.asked[1].startswith(model.asked[0])
    assert reason in model.asked[1]


def test_after_the_last_attempt_the_error_stays():
    model = Scripted("first", '{"x": 1}', ANSWER)
    got = analyse(model, WON)
    assert (got.attempts, got.text) == (2, '{"x": 1}')
    assert "no text under" in got.error
    assert len(model.answers) == 1
    assert analyse(Scripted("first", ANSWER), WON, attempts=1).reply is None
    assert analyse(Scripted("a", "b", ANSWER), WON, attempts=3).error == ""


def test_step_skills_follow_the_mode():
    steps = ", ".join(f'{{"step": {i}, "skill": "{GOOD}"}}' for i in (0, 1, 2))
    text = f'{{"episode_skill": "{GOOD}", "step_skills": [{steps}]}}'
    model = Scripted(text)
    # The trajectory has two steps, so the third skill has no place.
    assert set(analyse(model, WON, "episode_step").reply.steps) == {0, 1}
    assert model.asked == [content(WON, "episode_step")]
    assert analyse(Scripted(text), WON).reply.steps == {}


def test_refusals():
    with pytest.raises(ValueError, match="Unknown skill mode 'both'"):
        analyser_prompt(WON, "both")
    with pytest.raises(ValueError, match="text_limit must be at least 1"):
        analyser_prompt(WON, text_limit=0)
    with pytest.raises(ValueError, match="no steps"):
        analyser_prompt(Episode("t", True, ()))
    with pytest.raises(ValueError, match="attempts must be at least 1"):
        analyse(Scripted(ANSWER), WON, attempts=0)
