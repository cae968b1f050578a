"""Feedback from what was tried in the same state."""

from __future__ import annotations

import inspect

import pytest

from trainer.auxiliary.anchor_context import (
    ANCHOR_TITLES,
    action_stats,
    anchor_contexts,
    anchor_groups,
)
from trainer.auxiliary.feedback_context import TITLES, ContextTurn, Section


def turn(tid, t, action, anchor="hall", won=False, value=0.0, feedback="", uid="task", nxt=""):
    return ContextTurn(
        uid,
        tid,
        t,
        observation="o",
        response=f"<action>{action}</action>",
        feedback=feedback,
        next_observation=nxt,
        success=won,
        episode_return=value,
        anchor=anchor,
    )


# Three rollouts of one task meet the hall; a comes back to it.
BATCH = [
    turn("a", 2, "go north", feedback="A wall.", nxt="hall"),
    turn("a", 0, "go east", feedback="You go.", nxt="yard"),
    turn("a", 1, "go west", anchor="yard", feedback="Back.", nxt="hall"),
    turn("b", 0, "Go  East", won=True, value=10.0, feedback="You run.", nxt="yard"),
    turn("b", 1, "dig", anchor="yard", won=True, value=10.0, feedback="Gold!", nxt="end"),
    turn("c", 0, "go east", value=2.0, feedback="You go.", nxt="lake"),
]
A1 = "Step 2\nResponse: <action>go west</action>"
A2 = "Step 3\nResponse: <action>go north</action>"
B1 = "Step 2\nResponse: <action>dig</action>"
B_ALL = f"Step 1\nResponse: <action>Go  East</action>\n\n{B1}"


def test_groups_by_hand():
    uids = ["b", "a", "b", "a", "b"]
    anchors = ["x", "x", "y", "x", "x"]
    # Group b first (it appears first), its rows by step.
    assert anchor_groups(uids, [2, 0, 1, 5, 0], anchors) == [0, 2, 1, 2, 0]
    assert anchor_groups(uids, [1, 0, 0, 5, 2], anchors) == [1, 2, 0, 2, 1]
    assert anchor_groups([], [], []) == []


def test_equal_steps_keep_batch_order():
    assert anchor_groups(["u"] * 3, [0, 0, 0], ["q", "p", "q"]) == [0, 1, 0]
    assert anchor_groups(["u"] * 3, [1, 0, 0], ["q", "p", "r"]) == [2, 0, 1]


@pytest.mark.parametrize("similarity", [None, 0.95])
def test_unknown_anchors_stay_alone(similarity):
    got = anchor_groups(["u"] * 5, range(5), [None, "x", None, "x", "None"], similarity)
    assert got == [0, 1, 2, 1, 3]


def test_similarity_is_first_fit_against_the_first_member():
    # 20 letters: one differs -> 0.95, two differ -> 0.9
    first, near, far = "a" * 20, "a" * 19 + "b", "a" * 18 + "bb"
    rows = (["u"] * 3, [0, 1, 2], [first, near, far])
    assert anchor_groups(*rows) == [0, 1, 2]
    assert anchor_groups(*rows, similarity=0.95) == [0, 0, 1]
    assert anchor_groups(*rows, similarity=0.9) == [0, 0, 0]
    assert anchor_groups(*rows, similarity=1.0) == [0, 1, 2]
    # By time: the middle text comes first and takes both.
    assert anchor_groups(["u"] * 3, [1, 0, 2], rows[2], similarity=0.95) == [0, 0, 0]
    # Never across groups.
    assert anchor_groups(["u", "v", "u"], [0, 1, 2], rows[2], similarity=0.5) == [0, 1, 0]


def test_groups_refuse_nonsense():
    for similarity in (0.0, 1.01, -1.0, float("nan")):
        with pytest.raises(ValueError, match=r"similarity must be in \(0, 1\]"):
            anchor_groups([], [], [], similarity)
    with pytest.raises(ValueError, match="equal length"):
        anchor_groups(["u"], [0], [])
    assert inspect.signature(anchor_groups).parameters["similarity"].default is None


def test_statistics_by_hand():
    hall = [row for row in BATCH if row.anchor == "hall"]
    east, north = action_stats(hall)
    assert (east.action, east.count, east.successes, east.mean_return) == ("go east", 3, 1, 4.0)
    assert (east.best.tid, east.worst.tid) == ("b", "a")
    assert (east.success.tid, east.failure.tid) == ("b", "a")
    assert (north.action, north.count, north.successes, north.mean_return) == (
        *("go north", 1, 0),
        0.0,
    )
    assert north.best is north.worst is north.failure is BATCH[0]
    assert north.success is None
    assert action_stats([BATCH[4]])[0].failure is None
    assert action_stats([]) == []


def test_outcomes_rank_success_before_return_and_keep_the_earliest():
    rows = [
        turn("p", 1, "x", won=True, value=1.0),
        turn("q", 0, "x", won=False, value=5.0),
        turn("r", 0, "x", won=True, value=1.0),
        turn("s", 0, "x", won=False, value=5.0),
        turn("v", 0, "x", won=True, value=3.0),
        turn("w", 0, "x", won=False, value=6.0),
    ]
    (entry,) = action_stats(rows)
    assert (entry.best.tid, entry.worst.tid) == ("v", "q")
    assert (entry.success.tid, entry.failure.tid) == ("v", "q")
    (entry,) = action_stats(rows[:4])
    assert (entry.best.tid, entry.worst.tid) == ("r", "q")


def contexts(mode, batch=BATCH, **options):
    return anchor_contexts(batch, mode, **options)


def test_immediate_feedback_is_a_list_of_lines():
    got = contexts("immediate_feedback")
    hall = Section(
        ANCHOR_TITLES["feedback"], "go east: You go.\ngo east: You run.\ngo north: A wall."
    )
    yard = Section(ANCHOR_TITLES["feedback"], "go west: Back.\ndig: Gold!")
    assert got == [(hall,), (hall,), (yard,), (hall,), (yard,), (hall,)]


TRIED = (
    "go east: tried 3 time(s), 1 of them in successful attempts, mean return 4; best outcome "
    "success with return 10, worst outcome failure with return 0.\n"
    "go north: tried 1 time(s), 0 of them in successful attempts, mean return 0; best outcome "
    "failure with return 0, worst outcome failure with return 0."
)


def test_next_observations_of_best_and_worst():
    row = contexts("next_observation")[1]
    # go east led to the yard both at best and at worst: said once.
    assert row == (
        Section(ANCHOR_TITLES["tried"], TRIED),
        Section(
            ANCHOR_TITLES["next_obs"],
            "go east (best outcome):\nyard\n\ngo north (best outcome):\nhall",
        ),
    )


def test_feedback_of_best_and_worst_beside_a_success():
    row = contexts("success+feedback")[5]
    assert row == (
        Section(TITLES["success"], B_ALL),
        Section(ANCHOR_TITLES["tried"], TRIED),
        Section(
            ANCHOR_TITLES["feedback"],
            "go east (best outcome):\nYou run.\n\ngo east (worst outcome):\nYou go.\n\n"
            "go north (best outcome):\nA wall.",
        ),
    )


def test_futures_of_one_success_and_one_failure():
    row = contexts("future_trajectory")[3]
    assert row[1] == Section(
        ANCHOR_TITLES["future"],
        f"go east, up to a success:\n{B1}\n\ngo east, up to a failure:\n{A1}\n\n{A2}",
    )
    assert [s.title for s in contexts("success+future+feedback")[0]] == [
        TITLES["success"],
        ANCHOR_TITLES["tried"],
        ANCHOR_TITLES["future"],
        ANCHOR_TITLES["feedback"],
    ]


def test_success_is_optional_and_the_own_is_none():
    # b is the only success, so its own rows show none; strict modes would leave them out.
    row = contexts("success+feedback")[3]
    assert [s.title for s in row] == [ANCHOR_TITLES["tried"], ANCHOR_TITLES["feedback"]]
    assert contexts("success_or_feedback")[0] == (Section(TITLES["success"], B_ALL),)
    assert contexts("success_or_feedback")[3] == row
    # A mode that does not name it never shows it.
    assert TITLES["success"] not in [s.title for s in contexts("future_trajectory")[0]]


def test_other_sources_are_required():
    silent = [turn("a", 0, "x", feedback=" "), turn("b", 0, "y", won=True, anchor="yard")]
    for mode in ("immediate_feedback", "next_observation", "future_trajectory"):
        assert contexts(mode, silent) == [(), ()]
    assert contexts("success+feedback", silent) == [(), ()]
    assert len(contexts("success_or_feedback", silent)[0]) == 1
    both = [turn("a", 0, "x", feedback="f"), turn("a", 1, "x", anchor="end")]
    assert contexts("success+future+feedback", both)[1] == ()
    assert len(contexts("success+future+feedback", both)[0]) == 3


def test_a_blank_best_or_worst_is_left_out():
    batch = [turn("a", 0, "x", nxt="seen"), turn("b", 0, "x", won=True, nxt=" ")]
    assert contexts("next_observation", batch)[0][1].text == "x (worst outcome):\nseen"
    batch = [turn("a", 0, "x", nxt=""), turn("b", 0, "x", won=True, nxt="seen ")]
    assert contexts("next_observation", batch)[0][1].text == "x (best outcome):\nseen"


def test_anchors_that_are_too_small_are_left_out():
    sizes = [4, 4, 2, 4, 2, 4]
    for least in (1, 2, 3, 4, 5):
        got = contexts("immediate_feedback", anchor_min_size=least)
        assert [bool(row) for row in got] == [size >= least for size in sizes]
    with pytest.raises(ValueError, match="anchor_min_size must be at least 1, found 0"):
        contexts("immediate_feedback", anchor_min_size=0)


def test_only_the_first_visit_on_request():
    got = contexts("immediate_feedback", anchor_first_only=True)
    assert [bool(row) for row in got] == [False, True, True, True, True, True]
    # What was tried at later visits is still told.
    assert "go north" in got[1][0].text


def test_options_reach_the_sections():
    row = contexts("success+future", rendering="observation_action", max_steps=1)[1]
    assert row[0].text == "Step 1\nObservation: o\nAction: <action>Go  East</action>\n\n(1 more)"
    assert row[2].text.endswith("Observation: o\nAction: <action>go west</action>\n\n(1 more)")
    batch = [turn("a", 0, "x", anchor="room 1", feedback="f"), turn("b", 0, "y", anchor="room 2")]
    assert contexts("immediate_feedback", batch, similarity=0.8)[1][0].text == "x: f"
    assert contexts("immediate_feedback", batch)[1] == ()
    parameters = inspect.signature(anchor_contexts).parameters
    defaults = {name: parameters[name].default for name in list(parameters)[2:]}
    assert defaults == {
        "similarity": None,
        "anchor_min_size": 1,
        "anchor_first_only": False,
        "rendering": "response",
        "max_steps": None,
    }
    with pytest.raises(ValueError, match="Unknown feedback mode"):
        contexts("anchor_future")


def test_groups_do_not_mix():
    other = [turn("z", 0, "swim", uid="other", feedback="Wet.")]
    got = contexts("immediate_feedback", BATCH + other)
    assert got[:6] == contexts("immediate_feedback")
    assert got[6][0].text == "swim: Wet."


def test_titles_are_one_line_each():
    assert len(set(ANCHOR_TITLES.values())) == 4
    assert all(title.endswith(":") and "\n" not in title for title in ANCHOR_TITLES.values())
