"""Branches that must not be used: each failure has a reason code, and none goes unnoticed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import agent_envs
from oracles import Decision, History, PlanStatus
from oracles.branch import BranchStatus, RootRecord, run
from tests.oracles.rooms import (
    SOLUTION,
    Patched,
    Scripted,
    branch_at,
    house,
    make,
    open_house,
    rolled_out,
)


def corrupt_observation(record: RootRecord) -> RootRecord:
    return replace(record, observation=record.observation + " ")


def corrupt_admissible(record: RootRecord) -> RootRecord:
    return replace(record, admissible=record.admissible[1:])


def corrupt_both(record: RootRecord) -> RootRecord:
    return corrupt_admissible(corrupt_observation(record))


@pytest.mark.parametrize("corrupt", [corrupt_observation, corrupt_admissible, corrupt_both])
def test_a_record_that_differs_is_a_restore_mismatch(
    corrupt: Callable[[RootRecord], RootRecord],
) -> None:
    env, history, record = rolled_out("go to shelf 1")
    oracle = Scripted(SOLUTION)
    branch = run(
        agent_envs.fork(env),
        agent_envs.snapshot(env),
        oracle,
        history=history,
        expected=corrupt(record),
    )
    assert branch.status is BranchStatus.NOT_STARTED
    assert (branch.valid, branch.reasons) == (False, ("restore_mismatch",))
    assert branch.steps == ()
    assert oracle.seen == []


def test_a_snapshot_of_other_data_is_a_restore_error() -> None:
    env, _, _ = rolled_out()
    branch = run(make(house()), agent_envs.snapshot(env), Scripted(SOLUTION))
    assert (branch.valid, branch.reasons) == (False, ("restore_error",))
    assert "SnapshotMismatch" in branch.detail


def test_a_root_after_the_end_is_refused() -> None:
    env, _history, record = rolled_out(*SOLUTION)
    branch = run(make(open_house()), agent_envs.snapshot(env), Scripted(("look",)), expected=record)
    assert (branch.valid, branch.reasons, branch.steps) == (False, ("episode_over",), ())


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (RuntimeError("boom"), "oracle_error"),
        (3, "oracle_error"),
        (Unprintable(), "oracle_error"),
        (Decision("found", "look"), "oracle_error"),  # type: ignore[arg-type]
        (Decision(None, "look"), "oracle_error"),  # type: ignore[arg-type]
        (SystemExit(0), "oracle_error"),
        (Decision(PlanStatus.FOUND, "look", thought=17), "oracle_error"),  # type: ignore[arg-type]
        (Decision(PlanStatus.FOUND, "look", thought="\ud800"), "oracle_error"),
        (Decision(PlanStatus.FOUND, "look\ud800"), "oracle_error"),
        (Decision(PlanStatus.UNSUPPORTED, None, "\ud800"), "oracle_unsupported"),
        (Decision(PlanStatus.FOUND, None), "no_action"),
        (Decision(PlanStatus.FOUND, "  "), "no_action"),
        ("take mug 1 from cabinet 1", "inadmissible"),
        ("Open cabinet 1", "inadmissible"),
        (Decision(PlanStatus.UNSOLVABLE, None, "full hands"), "oracle_unsolvable"),
        (Decision(PlanStatus.TIMEOUT, None), "oracle_timeout"),
        (Decision(PlanStatus.UNSUPPORTED, None), "oracle_unsupported"),
        (Decision(PlanStatus.ALREADY_DONE, None), "oracle_already_done"),
        (Decision(PlanStatus.OVER_BUDGET, "look"), "oracle_over_budget"),
    ],
)
def test_reason_codes_of_oracles_that_do_not_go_on(item: Any, reason: str) -> None:
    branch, _ = branch_at(("look", item), "go to cabinet 1")
    assert (branch.status, branch.valid) == (BranchStatus.STOPPED, False)
    assert branch.reasons == (reason,)
    assert [step.action for step in branch.steps] == ["look"]
    branch.detail.encode()  # as a bank keeps it


def test_an_oracle_that_fails_at_its_start() -> None:
    class Broken(Scripted):
        def start(self, view: Any, history: History) -> int:
            raise KeyError("history")

    env, _, _ = rolled_out()
    branch = run(make(open_house()), agent_envs.snapshot(env), Broken(SOLUTION))
    assert branch.reasons == ("oracle_error",)
    assert "KeyError" in branch.detail
    assert f"({Path(__file__).name}, line " in branch.detail


def test_an_oracle_that_does_not_say_whether_it_is_privileged() -> None:
    env, _, _ = rolled_out()
    oracle: Any = object()
    branch = run(make(open_house()), agent_envs.snapshot(env), oracle)
    assert (branch.valid, branch.reasons) == (False, ("oracle_error",))
    assert "privileged" in branch.detail


def test_a_command_that_the_env_refuses_after_listing_it() -> None:
    def refuse(result: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*result[:4], {**result[4], "command_valid": False})

    env = Patched(make(open_house()), refuse)
    env.reset(seed=0)
    branch = run(env, agent_envs.snapshot(env), Scripted(SOLUTION))
    assert (branch.valid, branch.reasons, len(branch.steps)) == (False, ("refused",), 1)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_returns_that_are_not_finite(value: float) -> None:
    env = Patched(make(open_house()), lambda result: (result[0], value, *result[2:]))
    env.reset(seed=0)
    branch = run(env, agent_envs.snapshot(env), Scripted(("look",)), 1)
    assert (branch.valid, branch.reasons) == (False, ("non_finite",))


def test_an_env_that_raises() -> None:
    def fail(result: tuple[Any, ...]) -> tuple[Any, ...]:
        raise OSError("disk")

    env = Patched(make(open_house()), fail)
    env.reset(seed=0)
    branch = run(env, agent_envs.snapshot(env), Scripted(("look",)))
    assert (branch.valid, branch.reasons, branch.steps) == (False, ("env_error",), ())


@pytest.mark.parametrize(
    "change",
    [
        lambda result: (result[0], None, *result[2:]),
        lambda result: (*result[:4], {}),
        lambda result: (*result[:4], {"command_valid": True}),
        lambda result: result[:4],
    ],
)
def test_a_step_that_lacks_what_a_branch_records(change: Callable[[Any], Any]) -> None:
    env = Patched(make(open_house()), change)
    env.reset(seed=0)
    branch = run(env, agent_envs.snapshot(env), Scripted(("look", "look")))
    assert (branch.valid, branch.reasons, branch.steps) == (False, ("env_error",), ())
