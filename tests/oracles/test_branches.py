"""Many branches at once: alike in one environment, in several, and in worker processes."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import pytest

import agent_envs
from agent_envs.errors import InvalidOption, WorkerError
from oracles import Decision, History, HistoryItem, PlanStatus
from oracles.alfworld_planner import ALFWorldPlanner
from oracles.branch import BranchStatus, RootRecord, run
from oracles.branches import (
    WORKER_ERROR,
    BranchRequest,
    BranchRunner,
    EnvRecipe,
    run_branches,
)
from tests.oracles.rooms import SOLUTION, make, open_house, rolled_out
from tests.support import full_count, run_python

WORLD = (
    "SeroALFWorld-v0",
    {"data": "generated:small?seed=3&train=12&valid_seen=0&valid_unseen=0", "max_steps": 12},
)


def roots(number: int) -> list[BranchRequest]:
    """States of `number` rollouts, each one step later than the one before, up to five."""
    env = EnvRecipe(*WORLD)()
    found = []
    observation, info = env.reset(seed=0)
    for i in range(number):
        if i:
            observation, info = env.reset()
        history = []
        for k in range(i % 5):
            before = observation
            command = info["admissible_actions"][k]
            observation, _, _, _, info = env.step(command)
            history.append(HistoryItem(before, command, info["command_valid"]))
        seen = RootRecord(observation, info["admissible_actions"])
        found.append(BranchRequest(agent_envs.snapshot(env), tuple(history), seen))
    return found


def at(*commands: str) -> BranchRequest:
    env, history, record = rolled_out(*commands)
    return BranchRequest(agent_envs.snapshot(env), history, record)


def room() -> gymnasium.Env[str, str]:
    return make(open_house())


class Dangerous:
    """Looks; does at certain roots what its argument says. Told apart by the student's steps."""

    privileged = False
    kinds = ("look", "exit", "sleep", "raise")

    def start(self, view: Any, history: History) -> int:
        return len(history)

    def act(self, state: int, view: Any, observation: str) -> tuple[Decision, int]:
        kind = self.kinds[state] if state < len(self.kinds) else "look"
        if kind == "exit":
            os._exit(7)
        if kind == "sleep":
            time.sleep(60)
        if kind == "raise":
            raise RuntimeError("no idea")
        return Decision(PlanStatus.FOUND, "look"), state


class CannotBeMade:
    def __init__(self) -> None:
        raise RuntimeError("no model at this place")


def test_branches_come_in_the_order_of_the_requests() -> None:
    commands: Sequence[Sequence[str]] = [SOLUTION[:2], (), SOLUTION[:4], SOLUTION[:1]]
    branches = run_branches([at(*done) for done in commands], ALFWorldPlanner, room)
    assert [tuple(s.action for s in b.steps) for b in branches] == [
        SOLUTION[2:],
        SOLUTION,
        SOLUTION[4:],
        SOLUTION[1:],
    ]
    assert [b.root_step for b in branches] == [2, 0, 4, 1]
    assert all(b.success and b.valid for b in branches)


def test_the_number_of_environments_and_workers_changes_nothing() -> None:
    requests = roots(full_count(14, 400))
    # a root that fails is in the middle, and a root that comes twice
    broken = replace(requests[1], expected=RootRecord("another room", ()))
    requests = [*requests[:4], broken, requests[0], *requests[4:]]
    env = EnvRecipe(*WORLD)
    one_by_one = [
        run(env(), r.snapshot, ALFWorldPlanner(), 9, history=r.history, expected=r.expected)
        for r in requests
    ]
    assert sum(b.success for b in one_by_one) > 5
    assert one_by_one[4].reasons == ("restore_mismatch",)
    for options in ({}, {"envs": 3}, {"workers": 1}, {"workers": 2}):
        with BranchRunner(ALFWorldPlanner, WORLD, **options) as runner:  # type: ignore[arg-type]
            assert runner.run(requests, 9) == one_by_one, options
            assert runner.run(requests[::-1], 9) == one_by_one[::-1], options
            assert runner.run([]) == []


@pytest.mark.parametrize(
    ("own", "depth", "taken"), [(None, None, 5), (None, 3, 3), (2, None, 2), (2, 3, 2), (4, 1, 1)]
)
def test_the_smallest_limit_holds(own: int | None, depth: int | None, taken: int) -> None:
    request = replace(at(), horizon=own)
    (branch,) = run_branches([request], ALFWorldPlanner, room, max_depth=depth)
    assert len(branch.steps) == taken
    assert branch.status is (BranchStatus.OK if taken == 5 else BranchStatus.HORIZON)
    assert branch.valid


def test_both_sides_share_what_was_left_at_the_root() -> None:
    request = at("look", *["inventory"] * 16)  # 17 of 20 steps: too few for five commands
    (branch,) = run_branches([request], ALFWorldPlanner, room, max_depth=9)
    assert branch.steps_left == 3
    assert branch.reasons == ("oracle_over_budget",)
    (branch,) = run_branches([request], Dangerous, room, max_depth=9)
    assert (len(branch.steps), branch.steps[-1].truncated) == (3, True)


def test_a_worker_that_dies_or_sleeps_costs_one_branch() -> None:
    env = EnvRecipe(*WORLD)()
    env.reset(seed=0)
    snapshot = agent_envs.snapshot(env)
    requests = [
        BranchRequest(snapshot, (HistoryItem("", "look", True),) * steps)
        for steps in (0, 1, 0, 2, 3, 9)
    ]
    with BranchRunner(Dangerous, WORLD, workers=2, timeout=1.5) as runner:
        branches = runner.run(requests, 2)
        again = runner.run(requests[:1], 2)
    assert [b.reasons for b in branches] == [
        (),
        (WORKER_ERROR,),
        (),
        (WORKER_ERROR,),
        ("oracle_error",),
        (),
    ]
    assert again == branches[:1]
    died, slept = branches[1], branches[3]
    assert "died (exit code 7)" in died.detail
    assert "gave no answer within 1.5 s" in slept.detail
    assert (died.status, died.valid, died.steps) == (BranchStatus.NOT_STARTED, False, ())
    assert (died.root, died.root_step) == (snapshot, 1)


def test_a_worker_that_dies_between_two_lists_costs_no_branch() -> None:
    requests = roots(3)
    with BranchRunner(ALFWorldPlanner, WORLD, workers=2) as runner:
        before = runner.run(requests)
        assert runner._workers is not None
        for worker in runner._workers._workers:
            worker.process.kill()
            worker.process.join()
        assert runner.run(requests) == before


def test_a_snapshot_that_is_none_fails_alike_everywhere() -> None:
    (request,) = roots(1)
    forged = replace(request, snapshot=replace(request.snapshot, state=(object(),)))
    here = run_branches([forged, request], ALFWorldPlanner, WORLD)
    there = run_branches([forged, request], ALFWorldPlanner, WORLD, workers=1)
    assert here == there
    assert here[0].reasons == ("restore_error",)
    assert here[1].success


def test_what_cannot_be_made_or_sent_is_said_at_once() -> None:
    with pytest.raises(InvalidOption, match="cannot be sent"):
        BranchRunner(lambda: ALFWorldPlanner(), WORLD, workers=1)
    with pytest.raises(WorkerError, match="did not start: RuntimeError: no model at this place"):
        BranchRunner(CannotBeMade, WORLD, workers=1)
    with pytest.raises(RuntimeError, match="no model at this place"):
        BranchRunner(CannotBeMade, WORLD)
    for options in ({"workers": -1}, {"envs": 0}, {"workers": 1, "envs": 2}, {"timeout": 0}):
        with pytest.raises(InvalidOption):
            BranchRunner(ALFWorldPlanner, WORLD, **options)  # type: ignore[arg-type]


def test_a_closed_runner_says_so() -> None:
    runner = BranchRunner(ALFWorldPlanner, WORLD)
    runner.close()
    runner.close()
    with pytest.raises(InvalidOption, match="closed"):
        runner.run([at()])


def test_workers_load_no_torch() -> None:
    code = "import sys, oracles.branch_workers; print('torch' in sys.modules)"
    assert run_python(code).strip() == "False"
