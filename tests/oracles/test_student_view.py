"""What a branch shows of a state is what the student would have seen there, nothing else."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import pytest

import agent_envs
from oracles import HistoryItem
from oracles.alfworld_planner import ALFWorldPlanner
from oracles.branch import BranchStatus, RootRecord, run
from oracles.student_view import history_at, student_views
from tests.oracles.rooms import (
    SOLUTION,
    house,
    make,
    rolled_out,
)


def test_student_views_continue_the_students_own_record() -> None:
    env, history, record = rolled_out("go to cabinet 1", "fly")
    branch = run(
        agent_envs.fork(env),
        agent_envs.snapshot(env),
        ALFWorldPlanner(),
        history=history,
        expected=record,
    )
    views = student_views(branch)
    assert len(views) == 5
    assert [view.step for view in views] == [2, 3, 4, 5, 6]
    assert views[0].history == history
    assert views[0].observation == record.observation
    assert views[0].admissible == record.admissible
    assert views[3].history == (
        *history,
        HistoryItem(record.observation, SOLUTION[0], True),
        HistoryItem(branch.steps[0].next_observation, SOLUTION[1], True),
        HistoryItem(branch.steps[1].next_observation, SOLUTION[2], True),
    )
    # exactly what a student that gives these commands itself would record
    _, own, own_record = rolled_out("go to cabinet 1", "fly", *SOLUTION[:3])
    assert views[3].history == own
    assert (views[3].observation, views[3].admissible) == (
        own_record.observation,
        own_record.admissible,
    )
    assert [history_at(branch, k) for k in range(5)] == [view.history for view in views]
    assert history_at(branch, 5)[-1].action == SOLUTION[-1]
    with pytest.raises(IndexError, match="give 0 to 5"):
        history_at(branch, 6)


def plain(value: Any) -> bool:
    """Only text, numbers, flags, None and tuples or records of these."""
    if is_dataclass(value):
        return all(plain(getattr(value, f.name)) for f in fields(value))
    if type(value) is tuple:
        return all(map(plain, value))
    return type(value) in (str, bool, int, float, type(None), BranchStatus)


def test_nothing_leaks_two_worlds_look_alike_until_they_are_seen_to_differ() -> None:
    """The mug is behind one door or another; until a door opens nobody can tell."""
    env = make(house(mug_in=1), house(mug_in=2))
    first, second = env.unwrapped.task_ids  # type: ignore[attr-defined]
    starts = {}
    for task in (first, second):
        starts[task] = env.reset(options={"task_id": task})
    assert starts[first][0] == starts[second][0]
    own = {"task_id", "provenance"}  # names and hashes of the game
    for key in starts[first][1].keys() - own:
        assert starts[first][1][key] == starts[second][1][key], key

    for here, other in ((first, second), (second, first)):
        observation, info = env.reset(options={"task_id": here})
        branch = run(
            agent_envs.fork(env),
            agent_envs.snapshot(env),
            ALFWorldPlanner(),
            expected=RootRecord(observation, info["admissible_actions"]),
        )
        assert branch.success
        views = student_views(branch)
        assert plain(views)
        assert plain(branch.steps)
        observation, info = env.reset(options={"task_id": other})
        alike = 0
        for view, step in zip(views, branch.steps, strict=True):
            if observation != view.observation:
                break
            alike += 1
            assert info["admissible_actions"] == view.admissible
            assert "mug 1" not in str((view.observation, view.admissible, view.history))
            observation, _, _, _, info = env.step(step.action)
        # "go to shelf", "open shelf" and what comes then, which is where the mug is seen
        assert alike == 2
        assert "mug 1" in views[2].observation
        assert "mug 1" not in observation
