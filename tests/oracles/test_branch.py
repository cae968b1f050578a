"""The branch runner.

Promises:
1. A branch runs what the oracle decides, in its own env: the env of the rollout is untouched.
2. It starts only from a verified restore; every failure is a reason code and makes it invalid.
3. The oracle gets the student's history, and the privileged view only if it is privileged.
4. What a branch shows of a state is what the student would have seen there, and nothing else.
"""

from __future__ import annotations

from typing import Any

import pytest

import agent_envs
from oracles import Oracle
from oracles.alfworld_planner import ALFWorldPlanner
from oracles.branch import BranchStatus, run
from oracles.student_view import history_at
from tests.oracles.rooms import (
    SOLUTION,
    Patched,
    Scripted,
    branch_at,
    make,
    open_house,
    rolled_out,
)


def test_planner_branch_wins_from_a_visited_state() -> None:
    env, history, record = rolled_out("look", "go to cabinet 1", "nonsense")
    branch = run(
        agent_envs.fork(env),
        agent_envs.snapshot(env),
        ALFWorldPlanner(),
        history=history,
        expected=record,
    )
    assert branch.status is BranchStatus.OK
    assert (branch.valid, branch.reasons, branch.success) == (True, (), True)
    assert tuple(step.action for step in branch.steps) == SOLUTION
    assert (branch.score, branch.total_reward) == (1.0, 1.0)
    assert [step.terminated for step in branch.steps] == [False] * 4 + [True]
    assert branch.steps_left == 17
    assert branch.root_step == 3
    assert branch.steps[0].observation == "Nothing happens."
    assert branch.steps[0].next_observation == branch.steps[1].observation
    assert branch.goal == "put some mug on cabinet."


def test_a_branch_is_reproducible_and_equality_ignores_the_timings() -> None:
    env, history, record = rolled_out("go to cabinet 1")
    snapshot = agent_envs.snapshot(env)
    first, second = (
        run(make(open_house()), snapshot, ALFWorldPlanner(), history=history, expected=record)
        for _ in range(2)
    )
    assert first == second
    assert first.restore_s > 0
    assert first.oracle_s > 0
    assert first.env_s > 0


def test_the_env_of_the_rollout_is_untouched() -> None:
    env, history, record = rolled_out("go to shelf 1")
    other = agent_envs.fork(env)
    snapshot = agent_envs.snapshot(env)
    run(other, snapshot, ALFWorldPlanner(), history=history, expected=record)
    run(other, snapshot, Scripted(("go to cabinet 1", "open cabinet 1")), 2)
    assert agent_envs.snapshot(env) == snapshot
    # and it goes on as if nothing had happened
    untouched, _, _ = rolled_out("go to shelf 1")
    for command in ("take mug 1 from shelf 1", "go to cabinet 1", "examine cabinet 1"):
        assert env.step(command) == untouched.step(command)


def test_asking_the_planner_changes_nothing() -> None:
    env, _, _ = rolled_out("go to shelf 1")
    before = agent_envs.snapshot(env)
    base: Any = env.unwrapped
    view = base.privileged()
    planner = ALFWorldPlanner()
    plan = planner.plan(view, 50, 1.0)
    decision, _ = planner.act(planner.start(view, ()), view, "")
    assert plan.actions[0] == decision.action
    assert agent_envs.snapshot(env) == before
    assert base.privileged() == view


def test_o15_a_plan_longer_than_what_is_left_stops_the_branch() -> None:
    env, history, record = rolled_out("look", "look", max_steps=6)
    branch = run(
        agent_envs.fork(env),
        agent_envs.snapshot(env),
        ALFWorldPlanner(),
        history=history,
        expected=record,
    )
    assert branch.steps_left == 4  # and the way is 5 commands long
    assert (branch.status, branch.valid, branch.steps) == (BranchStatus.STOPPED, False, ())
    assert branch.reasons == ("oracle_over_budget",)


def test_horizon_limits_the_branch_and_leaves_it_valid() -> None:
    branch, _ = branch_at(SOLUTION, horizon=3)
    assert (branch.status, branch.valid, branch.success) == (BranchStatus.HORIZON, True, False)
    assert len(branch.steps) == 3
    exact, _ = branch_at(SOLUTION, horizon=5)
    assert (exact.status, exact.success) == (BranchStatus.OK, True)


def test_horizon_never_exceeds_the_remaining_steps() -> None:
    env, _, _ = rolled_out(*["look"] * 18)
    branch = run(agent_envs.fork(env), agent_envs.snapshot(env), Scripted(("look",) * 9), 9)
    assert (branch.status, len(branch.steps)) == (BranchStatus.OK, 2)
    assert branch.steps[-1].truncated
    assert (branch.valid, branch.success) == (True, False)


@pytest.mark.parametrize("limits", [(None, None), (20, 0)])
def test_without_any_step_to_take_nothing_is_run(limits: tuple[int | None, int | None]) -> None:
    max_steps, horizon = limits
    env = make(open_house(), max_steps=max_steps)
    env.reset(seed=0)
    branch = run(env, agent_envs.snapshot(env), Scripted(SOLUTION), horizon)
    assert (branch.valid, branch.reasons, branch.steps) == (False, ("no_horizon",), ())


def test_a_history_in_a_list_is_kept_as_a_value() -> None:
    env, history, _ = rolled_out("look")
    listed: Any = list(history)
    branch = run(make(open_house()), agent_envs.snapshot(env), Scripted(("look",)), history=listed)
    listed.clear()
    assert history_at(branch, 0) == history


def test_an_as_seen_oracle_gets_the_history_and_no_view() -> None:
    branch, oracle = branch_at(("look", "inventory"), "go to shelf 1", "fly", horizon=2)
    assert branch.valid
    assert oracle.history is not None
    assert [(item.action, item.command_valid) for item in oracle.history] == [
        ("go to shelf 1", True),
        ("fly", False),
    ]
    assert [view for view, _ in oracle.seen] == [None, None]
    assert [text for _, text in oracle.seen] == [step.observation for step in branch.steps]
    assert isinstance(oracle, Oracle)


def test_templates_admit_what_cannot_be_listed() -> None:
    def templates(result: tuple[Any, ...]) -> tuple[Any, ...]:
        info = {**result[4], "action_templates": ("search[<query>]",), "command_valid": True}
        return (*result[:4], info)

    env = Patched(make(open_house()), templates)
    env.reset(seed=0)
    snapshot = agent_envs.snapshot(env)
    # the templates are known from the first step on
    free = run(env, snapshot, Scripted(("look", "search[a (red) mug]")), 2)
    assert (free.valid, free.reasons) == (True, ())
    for action in ("search[]", "search[mug", "xsearch[mug]", "find[mug]"):
        assert run(env, snapshot, Scripted(("look", action)), 2).reasons == ("inadmissible",)
