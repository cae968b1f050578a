"""Feedback from a step's own future, from a sibling and from a judge."""

from __future__ import annotations

import inspect

import pytest

from trainer.auxiliary.feedback_context import (
    MODES,
    TITLES,
    ContextTurn,
    Section,
    Trajectories,
    by_trajectory,
    render_trajectory,
    serl_sections,
    step_contexts,
)
from trainer.auxiliary.judge_context import (
    JUDGE_MODES,
    JUDGE_TITLE,
    judge_contexts,
    judge_messages,
)


def turn(tid, t, success=False, uid="task", feedback="done", **fields):
    defaults = {
        "observation": f"obs {tid}{t}",
        "response": f"<think>why</think><action>{tid}{t}</action>",
        "next_observation": f"next {tid}{t}",
    }
    return ContextTurn(uid, tid, t, **{**defaults, **fields}, feedback=feedback, success=success)


# a failed, b and c succeeded; d of another task succeeded; rows in no order.
BATCH = [
    turn("d", 0, True, uid="other"),
    turn("a", 1),
    turn("a", 0),
    turn("b", 0, True),
    turn("c", 1, True),
    turn("c", 0, True),
]
B = "Step 1\nResponse: <action>b0</action>"
C = "Step 1\nResponse: <action>c0</action>\n\nStep 2\nResponse: <action>c1</action>"


def test_strict_rule_of_every_mode():
    everything = ["feedback", "future", "next_obs", "success"]
    for mode, names in MODES.items():
        if mode == "success_or_feedback":
            continue
        assert serl_sections(mode, everything) == names
        for missing in names:
            assert serl_sections(mode, set(everything) - {missing}) == ()
    assert serl_sections("success_or_feedback", everything) == ("success",)
    assert serl_sections("success_or_feedback", ["feedback", "future"]) == ("feedback",)
    assert serl_sections("success_or_feedback", ["future"]) == ()
    assert list(MODES.values()) == [
        ("feedback",),
        ("next_obs",),
        ("future",),
        ("success", "feedback"),
        ("success", "feedback"),
        ("success", "next_obs"),
        ("success", "future"),
        ("success", "future", "feedback"),
        ("success", "future", "next_obs"),
    ]
    with pytest.raises(ValueError, match="Unknown feedback mode 'feedback'"):
        serl_sections("feedback", everything)


def texts(mode, batch=BATCH, **options):
    return [[section.text for section in row] for row in step_contexts(batch, mode, **options)]


def test_sources_of_single_steps():
    rows = step_contexts(BATCH, "immediate_feedback")
    assert rows[1] == (Section(TITLES["feedback"], "done"),)
    assert texts("next_observation")[2] == ["next a0"]
    # The last step has no future.
    assert texts("future_trajectory") == [
        *([], []),
        ["Step 2\nResponse: <action>a1</action>"],
        *([], []),
        ["Step 2\nResponse: <action>c1</action>"],
    ]


def test_success_is_the_first_sibling_but_never_the_own():
    assert texts("success+feedback") == [
        [],
        [B, "done"],
        [B, "done"],
        [C, "done"],
        [B, "done"],
        [B, "done"],
    ]
    # Batch order, not the order of ids.
    rotated = [BATCH[4], BATCH[5], *BATCH[:4]]
    assert texts("success+feedback", rotated)[3] == [C, "done"]


def test_missing_sources_leave_rows_out():
    batch = [turn("a", 0, feedback=None), turn("a", 1, feedback=" \n"), turn("b", 0, True)]
    assert texts("immediate_feedback", batch) == [[], [], ["done"]]
    assert texts("success_or_feedback", batch) == [[B], [B], ["done"]]
    assert texts("success+feedback", batch) == [[], [], []]
    batch = [turn("a", 0, next_observation=None), turn("a", 1, next_observation=" ")]
    assert texts("next_observation", batch) == [[], []]
    assert texts("next_observation", [turn("a", 0, next_observation=" x ")]) == [["x"]]
    assert texts("success+feedback", []) == []


def test_sections_come_in_the_mode_s_order():
    row = step_contexts(BATCH, "success+future+feedback")[2]
    assert [section.title for section in row] == [
        TITLES[name] for name in ("success", "future", "feedback")
    ]
    row = step_contexts(BATCH, "success+future+next_observation")[2]
    assert [section.text for section in row] == [
        B,
        "Step 2\nResponse: <action>a1</action>",
        "next a0",
    ]


def test_titles_are_one_line_each():
    assert set(TITLES) == {"success", "future", "feedback", "next_obs"}
    assert len(set(TITLES.values())) == 4
    assert all(title.endswith(":") and "\n" not in title for title in TITLES.values())


def test_rendering():
    steps = [turn("a", t, observation=f" o{t}\n") for t in range(3)]
    assert render_trajectory(steps[:1], "observation_action") == (
        "Step 1\nObservation: o0\nAction: <action>a0</action>"
    )
    assert render_trajectory(steps, max_steps=2) == (
        "Step 1\nResponse: <action>a0</action>\n\nStep 2\nResponse: <action>a1</action>\n\n(1 more)"
    )
    assert render_trajectory(steps, max_steps=3) == render_trajectory(steps)
    assert "more" not in render_trajectory(steps)
    assert render_trajectory([]) == ""
    with pytest.raises(ValueError, match="rendering must be 'response' or"):
        render_trajectory(steps, "full")
    with pytest.raises(ValueError, match=r"max_steps must be at least 1 .* found 0"):
        render_trajectory(steps, max_steps=0)
    assert render_trajectory(steps, max_steps=1).endswith("(2 more)")


def test_options_reach_the_sections():
    got = texts("success+future", rendering="observation_action", max_steps=1)
    assert got[2] == [
        "Step 1\nObservation: obs b0\nAction: <action>b0</action>",
        "Step 2\nObservation: obs a1\nAction: <action>a1</action>",
    ]
    assert texts("success+feedback", max_steps=1)[3][0] == (
        "Step 1\nResponse: <action>c0</action>\n\n(1 more)"
    )
    with pytest.raises(ValueError, match="rendering must be"):
        step_contexts(BATCH, "immediate_feedback", rendering="full")
    for function in (step_contexts, judge_contexts, render_trajectory, Trajectories):
        parameters = inspect.signature(function).parameters
        assert parameters["rendering"].default == "response"
        assert parameters["max_steps"].default is None


def test_row_order_changes_nothing_but_which_success_comes_first():
    order = [3, 2, 5, 1, 0, 4]
    for mode in MODES:
        straight = step_contexts(BATCH, mode)
        assert step_contexts([BATCH[i] for i in order], mode) == [straight[i] for i in order]


def test_trajectories_are_checked():
    assert [[s.t for s in steps] for steps in by_trajectory(BATCH).values()] == [
        [0],
        [0, 1],
        [0],
        [0, 1],
    ]
    with pytest.raises(ValueError, match="'a' has two rows of one step"):
        by_trajectory([turn("a", 0), turn("a", 0)])
    with pytest.raises(ValueError, match="'a' occurs in two groups"):
        by_trajectory([turn("a", 0), turn("a", 1, uid="x")])
    with pytest.raises(ValueError, match="'a' succeeds on some rows only"):
        by_trajectory([turn("a", 0), turn("a", 1, True)])
    with pytest.raises(ValueError, match="Unknown feedback mode"):
        step_contexts(BATCH, "future")


def test_defaults_of_a_turn():
    bare = ContextTurn("u", "t", 0, "o", "r")
    assert (bare.feedback, bare.next_observation, bare.anchor) == (None, None, None)
    assert (bare.success, bare.episode_return) == (False, 0.0)


class Judge:
    """Records what it is asked and answers from a list, or its own count."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    def __call__(self, messages):
        self.asked.append(messages)
        return self.answers.pop(0) if self.answers else f"Comment {len(self.asked)}."


def test_judge_is_asked_once_a_trajectory():
    judge = Judge()
    got = judge_contexts(BATCH, "judge_current", judge)
    names = ["Comment 1.", "Comment 2.", "Comment 2.", "Comment 3.", "Comment 4.", "Comment 4."]
    assert got == [(Section(JUDGE_TITLE, name),) for name in names]
    assert len(judge.asked) == 4


def test_what_the_judge_sees():
    steps = [turn("a", 0), turn("a", 1, feedback=" the end ")]
    system, user = judge_messages(steps)
    assert (system["role"], user["role"]) == ("system", "user")
    attempt = "Step 1\nResponse: <action>a0</action>\n\nStep 2\nResponse: <action>a1</action>"
    assert user["content"] == (
        "The task and its first situation:\nobs a0\n\n"
        f"The attempt:\n{attempt}\n\n"
        "Outcome: failure.\n\n"
        "The environment's last answer:\nthe end"
    )
    won = [turn("b", 0, True, feedback=None)]
    _, user = judge_messages(won, steps, rendering="observation_action", max_steps=1)
    assert user["content"] == (
        "The task and its first situation:\nobs b0\n\n"
        "The attempt:\nStep 1\nObservation: obs b0\nAction: <action>b0</action>\n\n"
        "Outcome: success.\n\n"
        "For comparison, an attempt that succeeded:\n"
        "Step 1\nObservation: obs a0\nAction: <action>a0</action>\n\n(1 more)"
    )
    assert "goal" in system["content"]


def test_judge_with_a_reference():
    judge = Judge()
    got = judge_contexts(BATCH, "judge_current_success", judge)
    assert all(got)
    references = [m[1]["content"].rpartition("succeeded:\n")[2] for m in judge.asked]
    # d has no sibling and is its own reference; b gets c, the others b.
    assert references == ["Step 1\nResponse: <action>d0</action>", B, C, B]
    lost = [turn("a", 0), turn("x", 0)]
    judge = Judge()
    assert judge_contexts(lost, "judge_current_success", judge) == [(), ()]
    assert judge.asked == []
    assert "comparison" not in judge_messages(lost[:1])[1]["content"]


def test_judge_options_reach_its_prompt():
    judge = Judge()
    judge_contexts(BATCH, "judge_current", judge, rendering="observation_action", max_steps=1)
    assert "Action: <action>a0</action>\n\n(1 more)" in judge.asked[1][1]["content"]


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "  ",
        "None",
        "n/a",
        "N/A.",
        "NA",
        "null",
        "No comment.",
        "no assessment",
        "<think>x</think>",
    ],
)
def test_an_empty_assessment_gives_no_context(answer):
    assert judge_contexts([turn("a", 0)], "judge_current", Judge(answer)) == [()]


def test_thoughts_of_the_judge_are_removed():
    (got,) = judge_contexts([turn("a", 0)], "judge_current", Judge("<think>x</think> It failed. "))
    assert got == (Section(JUDGE_TITLE, "It failed."),)
    assert JUDGE_TITLE.endswith(":")


def test_judge_modes():
    assert JUDGE_MODES == ("judge_current", "judge_current_success")
    with pytest.raises(ValueError, match="Unknown judge mode 'judge'"):
        judge_contexts(BATCH, "judge", Judge())
    with pytest.raises(ValueError, match="max_steps"):
        judge_contexts([], "judge_current", Judge(), max_steps=0)
