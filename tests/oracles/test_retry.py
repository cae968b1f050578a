"""Retry with a hint.

Promises:
1. The failed attempt is reflected on once, all of it where it is known, and the hint stands before
   the student's prompt at every step.
2. The hint is in the oracle's prompts only: not in the branch, nor in a thought or a detail, nor in
   what the student would see along the branch.
3. Without a hint nothing is done: TIMEOUT, or UNSUPPORTED where nothing has failed.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest

import agent_envs
from agent_envs.prompting import get_template
from oracles import History, HistoryItem, PlanStatus
from oracles.alfworld_planner import ALFWorldPlanner
from oracles.branch import Reason, run
from oracles.retry import RetryOracle, RetryState, among, hinted, reflection
from oracles.student_view import student_views
from oracles.text_model import Seen, prompt
from tests.oracles.test_text_model import Replies, says

FIELD = get_template("field")
FAILED = (
    HistoryItem("a room", "look", True),
    HistoryItem("still a room", "fly", False),
    HistoryItem("Nothing happens.", "go to desk 1", True),
)
ROOM = Seen("find it", ("look", "go to desk 1"))
HINT = "<hint> Open the\n drawer. </hint>"


def retry(model: Replies, **options: Any) -> RetryOracle:
    return RetryOracle(
        model, FIELD, sees=lambda view, history, seen: ROOM, privileged=False, **options
    )


def plain(history: History, observation: str) -> str:
    """The student's own prompt."""
    return prompt(FIELD, ROOM, history, observation)[0]["content"]


def test_the_question_to_the_reflector() -> None:
    assert reflection("find it", FAILED, 1, 2) == (
        "An attempt at a task in a text environment failed.\nThe task: find it\n\n"
        "(1 earlier step(s) are left out.)\n"
        "Step 2. Observation: still a room\nCommand: fly (refused)\n"
        "Step 3. Observation: Nothing happens.\nCommand: go to desk 1\n\n"
        "The attempt will be taken up again before step 2. Think about what went wrong. Then write "
        "a hint for the second try, inside <hint> and </hint>: in one to three sentences, what to "
        "do differently from there on."
    )
    assert "left out" not in reflection("find it", FAILED, 1, 3)


def test_it_reflects_once_and_hints_at_every_step() -> None:
    model = Replies("hm", HINT, says("look", "the hint says"), says("fly"), says("go to desk 1"))
    oracle = retry(model, attempt_of=among([FAILED[1:], FAILED]))
    state = oracle.start(None, FAILED[:1])
    first, state = oracle.act(state, None, "still a room")
    second, state = oracle.act(state, None, "a room again")
    assert (first.action, second.action) == ("look", "go to desk 1")
    assert (first.thought, first.detail) == (None, "")
    asked, again, one, two, three = model.chats
    assert asked[0]["content"] == reflection("find it", FAILED, 1, 30)
    assert again[1:] == [
        {"role": "assistant", "content": "hm"},
        {
            "role": "user",
            "content": "That reply cannot be used: it has no text inside <hint> and </hint>. Reply "
            "again, in the form that was asked for.",
        },
    ]
    lead = "An earlier attempt at this task failed. A hint for this one: Open the drawer.\n\n"
    assert one[0]["content"] == lead + plain(FAILED[:1], "still a room")
    longer = (*FAILED[:1], HistoryItem("still a room", "look", True))
    assert two[0]["content"] == three[0]["content"] == lead + plain(longer, "a room again")
    assert state == RetryState(
        (*longer, HistoryItem("a room again", "go to desk 1", True)), "Open the drawer."
    )


def test_which_attempt_is_reflected_on() -> None:
    attempt_of = among([FAILED, (*FAILED[:2], HistoryItem("elsewhere", "look", True))])
    assert attempt_of(FAILED[:2], "Nothing happens.") == FAILED
    other = attempt_of(FAILED[:2], "elsewhere")
    assert other is not None
    assert other[2].observation == "elsewhere"
    assert attempt_of(FAILED, "the end") is None
    assert attempt_of(FAILED[1:2], "Nothing happens.") is None
    # An attempt that is not known: the history itself.
    model = Replies(HINT, says("look"))
    oracle = retry(model, attempt_of=among([]))
    oracle.act(oracle.start(None, FAILED[:2]), None, "x")
    assert model.chats[0][0]["content"] == reflection("find it", FAILED[:2], 2, 30)


def test_another_model_may_reflect() -> None:
    reflector, model = Replies(HINT), Replies(says("look"))
    oracle = retry(model, reflector=reflector)
    decision, _ = oracle.act(oracle.start(None, FAILED), None, "x")
    assert decision.action == "look"
    assert (len(reflector.chats), len(model.chats)) == (1, 1)


def test_without_a_hint_nothing_is_done() -> None:
    model = Replies("hm", "<hint> </hint>", "hm")
    oracle = retry(model, retries=2)
    decision, state = oracle.act(oracle.start(None, FAILED), None, "x")
    assert (decision.status, decision.action) == (PlanStatus.TIMEOUT, None)
    assert decision.detail == "none of 3 replies has a hint"
    assert oracle.act(state, None, "x")[0].status is PlanStatus.TIMEOUT  # and is not asked again
    decision, _ = oracle.act(oracle.start(None, ()), None, "x")
    assert decision.status is PlanStatus.UNSUPPORTED
    assert "nothing has failed" in decision.detail
    unknown = RetryOracle(model, FIELD)
    assert unknown.act(unknown.start(None, FAILED), None, "x")[0].status is PlanStatus.UNSUPPORTED
    with pytest.raises(ValueError, match="shown_steps=0"):
        retry(model, shown_steps=0)


def test_the_hint_stays_out_of_the_branch() -> None:
    """The student's prompts along the branch are those of a branch without a hint."""
    env = gymnasium.make("SeroALFWorld-v0", data="generated:small?train=3")
    unwrapped: Any = env.unwrapped
    observation, _ = env.reset(seed=0)
    fork = agent_envs.fork(env)
    failed = []
    for command in ("look", "fly", "inventory"):
        seen, (observation, *_, info) = observation, env.step(command)
        failed.append(HistoryItem(seen, command, info["command_valid"]))
    root = agent_envs.snapshot(env)
    plan = ALFWorldPlanner(None).plan(unwrapped.privileged())
    way = [says(command, "the hint says XYZZY") for command in plan.actions]
    model = Replies("<hint>say XYZZY</hint>", *way)
    branch = run(fork, root, RetryOracle(model, FIELD), history=tuple(failed))
    assert branch.valid
    assert branch.success
    assert all("XYZZY" in chat[0]["content"] for chat in model.chats[1:])
    assert len(model.chats) == len(plan.actions) + 1
    assert "XYZZY" not in repr(branch)
    assert "XYZZY" not in repr(student_views(branch))
    told = run(fork, root, ALFWorldPlanner(None), history=tuple(failed))
    assert student_views(branch) == student_views(told)
    stuck = run(fork, root, RetryOracle(Replies(*["XYZZY"] * 3), FIELD), history=tuple(failed))
    assert stuck.reasons == (Reason.of_status(PlanStatus.TIMEOUT),)
    assert "XYZZY" not in repr(stuck)


def test_the_hint_stands_before_a_prompt_that_the_reply_continues() -> None:
    chat = [{"role": "user", "content": "goal\n> "}]
    assert hinted(chat, "h")[0]["content"].endswith("h\n\ngoal\n> ")  # type: ignore[arg-type]
    assert chat == [{"role": "user", "content": "goal\n> "}]
