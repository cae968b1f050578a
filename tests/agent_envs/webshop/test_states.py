"""States from elsewhere: every session that can be reached passes, and no other."""

from __future__ import annotations

import dataclasses
import json
from random import Random
from typing import Any

import pytest

import agent_envs
from agent_envs.errors import SnapshotMismatch
from agent_envs.webshop.engine import DONE, ITEM, RESULTS, START, SUB, Rules, engine_of
from agent_envs.webshop.model import Goal, Page, Session
from agent_envs.webshop.states import checked_goal, checked_session, goal_id
from tests.agent_envs.webshop.shops import make, shop, walk

ENGINE = engine_of(shop())
COMPAT = engine_of(shop(), Rules(compat=True))
RESULT = Session(RESULTS, "desk", 1, -1, "", (), (0, 3))
DESK = Session(ITEM, "desk", 2, 0, "", (("size", "m"), ("color", "red")), (3, 0))
BELOW = DESK._replace(page=SUB, sub="Features")


@pytest.mark.parametrize("compat", [False, True])
def test_sessions_of_walks_pass(compat: bool) -> None:
    env = make(compat=compat, split=None, max_steps=None)
    _, info = env.reset(seed=0)
    engine = env.unwrapped.engine
    rng = Random(0)
    pages = set()
    for _ in range(1500):
        info = walk(env, info, rng, 1)[-1][-1]
        session = env.unwrapped.privileged().session
        pages.add(session.page)
        plain = json.loads(json.dumps(session))
        assert checked_session(_tuples(plain), engine) == session
    assert pages >= {0, RESULTS, ITEM, SUB}


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


@pytest.mark.parametrize("session", [START, RESULT, DESK, BELOW, DESK._replace(page=DONE)])
def test_good_sessions(session: Session) -> None:
    assert checked_session(tuple(session), ENGINE) == session


@pytest.mark.parametrize(
    ("base", "change"),
    [
        (START, {"query": "desk"}),
        (START, {"number": 2}),
        (START, {"number": True}),
        (START, {"page": False}),
        (START, {"page": Page.INDEX}),
        (START, {"visited": (0,)}),
        (START, {"page": 5}),
        (START, {"page": -1}),
        (RESULT, {"query": None}),
        (RESULT, {"query": ""}),
        (RESULT, {"query": "Desk"}),
        (RESULT, {"query": "a\nb"}),
        (RESULT, {"query": "a" * 20_000}),
        (RESULT, {"number": 0}),
        (RESULT, {"number": 1.0}),
        (RESULT, {"number": 1 << 40}),
        (RESULT, {"product": 0}),
        (RESULT, {"options": (("size", "m"),)}),
        (RESULT, {"sub": "Features"}),
        (RESULT, {"visited": (0, 0)}),
        (RESULT, {"visited": (15,)}),
        (RESULT, {"visited": [0]}),
        (RESULT, {"visited": (-1,)}),
        (RESULT, {"draw": 1}),
        (RESULT, {"draw": -1}),
        (RESULT, {"draw": None}),
        (DESK, {"product": 1}),  # never visited
        (DESK, {"product": -1}),
        (DESK, {"product": 99, "visited": (99,)}),
        (DESK, {"product": 1, "visited": (1,)}),  # has no options
        (DESK, {"options": (("size", "m"), ("size", "s"))}),
        (DESK, {"options": (("size", "xl"),)}),
        (DESK, {"options": (("color", "m"),)}),
        (DESK, {"options": (("", "buy now"),)}),
        (DESK, {"options": (("size",),)}),
        (DESK, {"options": [("size", "m")]}),
        (DESK, {"options": "size"}),
        (DESK, {"sub": "Features"}),
        (BELOW, {"sub": ""}),
        (BELOW, {"sub": "Attributes"}),  # no button leads there
        (BELOW, {"sub": None}),
        (BELOW, {"page": 2.0}),
    ],
)
def test_impossible_sessions_are_refused(base: Session, change: dict[str, Any]) -> None:
    with pytest.raises(SnapshotMismatch):
        checked_session(tuple(base._replace(**change)), ENGINE)
    for part in (tuple(base)[:-1], None, list(base), "session"):
        with pytest.raises(SnapshotMismatch):
            checked_session(part, ENGINE)


def test_what_only_compat_can_reach() -> None:
    page_0 = RESULT._replace(number=0)
    drawn = RESULT._replace(query="<r> x", draw=7)
    for session in (page_0, drawn, BELOW._replace(sub="Attributes")):
        assert checked_session(tuple(session), COMPAT) == session
        with pytest.raises(SnapshotMismatch):
            checked_session(tuple(session), ENGINE)
    with pytest.raises(SnapshotMismatch):
        checked_session(tuple(drawn._replace(draw=0)), COMPAT)


def test_goals_of_the_shop_pass_and_their_ids_tell_sentences_apart() -> None:
    goals = [*shop().goals("synthetic"), *shop().goals("human")]
    ids = {goal_id(checked_goal(tuple(goal))) for goal in goals}
    assert len(ids) == len({goal.instruction for goal in goals})
    assert goal_id(goals[0]) == goal_id(goals[0]._replace(asin="other", attributes=()))
    pair, character = (goals[0]._replace(instruction=x) for x in ("\ud83d\ude00", "\U0001f600"))
    assert goal_id(pair) != goal_id(character)
    goal = goals[0]
    assert goal_id(goal) == goal_id(checked_goal(tuple(goal._replace(weight=goal.weight))))
    assert checked_goal(tuple(goal._replace(price_upper=None))).price_upper is None
    assert isinstance(checked_goal(tuple(goal._replace(price_upper=30))).price_upper, float)


@pytest.mark.parametrize(
    "change",
    [
        {"asin": 3},
        {"instruction": ""},
        {"instruction": "x" * 20_000},
        {"attributes": ["easy"]},
        {"attributes": (3,)},
        {"options": (("a", "b", "c"),)},
        {"options": (("a", 3),)},
        {"options": ("a", ("b", "c"))},
        {"price_upper": float("nan")},
        {"price_upper": True},
        {"price_upper": "30"},
        {"weight": None},
        {"weight": float("inf")},
    ],
)
def test_goals_that_are_none(change: dict[str, Any]) -> None:
    goal = shop().goals("synthetic")[0]
    with pytest.raises(ValueError):
        checked_goal(tuple(goal._replace(**change)))


def test_a_forged_goal_is_refused_and_nothing_changes() -> None:
    env = make()
    goal: Goal = shop().goals("human")[0]
    env.reset(options={"goal": goal})
    env.step("search[desk]")
    snap = agent_envs.snapshot(env)
    manner, _, *rest = snap.state[0]
    other_sentence = goal._replace(instruction="find me anything")
    for forged in (tuple(other_sentence), None, (), tuple(goal)[:-1], "goal"):
        other = dataclasses.replace(snap, state=((manner, forged, *rest), *snap.state[1:]))
        with pytest.raises(SnapshotMismatch):
            agent_envs.restore(env, other)
        assert agent_envs.snapshot(env) == snap
    # A numbered task has a goal of its own.
    env.reset(options={"task_id": "synthetic-40"})
    numbered = agent_envs.snapshot(env)
    manner, _, *rest = numbered.state[0]
    other = dataclasses.replace(numbered, state=((manner, tuple(goal), *rest), *numbered.state[1:]))
    with pytest.raises(SnapshotMismatch):
        agent_envs.restore(env, other)
