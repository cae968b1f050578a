"""The branch runner.

Promises:
1. A branch runs what the oracle decides, in its own env: the env of the rollout is untouched.
2. It starts only from a verified restore; every failure is a reason code and makes it invalid.
3. The oracle gets the student's history, and the privileged view only if it is privileged.
4. What a branch shows of a state is what the student would have seen there, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import gymnasium
import pytest

import agent_envs
from agent_envs.alfworld.games import GameSet
from agent_envs.alfworld.model import TaskType
from oracles import Decision, History, HistoryItem, Oracle, PlanStatus
from oracles.alfworld_planner import ALFWorldPlanner
from oracles.branch import Branch, BranchStatus, RootRecord, run
from oracles.student_view import history_at, student_views
from tests.oracles.toy import House, Obj, Rec

Env = gymnasium.Env[str, str]
SOLUTION = (
    "go to shelf 1",
    "take mug 1 from shelf 1",
    "go to cabinet 1",
    "open cabinet 1",
    "move mug 1 to cabinet 1",
)


def house(mug_in: int = 0) -> House:
    """Two shelves with doors, a cabinet; the mug is on one of the shelves."""
    return House(
        TaskType.PICK,
        [
            Rec("Cabinet", 2, ("Mug",), openable=True),
            Rec("Shelf", 3, ("Mug",), openable=True),
            Rec("Shelf", 1, ("Mug",), openable=True),
        ],
        [Obj("Mug", (mug_in,)), Obj("Pen", (2,)), Obj("Pen", (1,))],
    )


def open_house() -> House:
    return House(
        TaskType.PICK,
        [Rec("Shelf", 1, ("Mug",)), Rec("Cabinet", 2, ("Mug",), openable=True)],
        [Obj("Mug", (0,)), Obj("TeddyBear", (0,))],
    )


def make(*houses: House, max_steps: int | None = 20) -> Env:
    games = GameSet.from_games(
        [(f"train/{h.task}-{i}/trial", "train", h.payload()) for i, h in enumerate(houses)]
    )
    return gymnasium.make("SeroALFWorld-v0", data=games, max_steps=max_steps)


def rolled_out(*commands: str, max_steps: int | None = 20) -> tuple[Env, History, RootRecord]:
    """An env after `commands`, with the student's record."""
    env = make(open_house(), max_steps=max_steps)
    observation, info = env.reset(seed=0)
    history = []
    for command in commands:
        before = observation
        observation, _, _, _, info = env.step(command)
        history.append(HistoryItem(before, command, info["command_valid"]))
    return env, tuple(history), RootRecord(observation, info["admissible_actions"])


@dataclass
class Scripted:
    """Says what it is told, one item after the other, and remembers what it was given."""

    script: tuple[Any, ...]
    privileged: bool = False

    def __post_init__(self) -> None:
        self.seen: list[tuple[Any, str]] = []
        self.history: History | None = None

    def start(self, view: Any, history: History) -> int:
        self.history = history
        return 0

    def act(self, state: int, view: Any, observation: str) -> tuple[Any, int]:
        self.seen.append((view, observation))
        item = self.script[state]
        if isinstance(item, Exception):
            raise item
        if isinstance(item, str):
            item = Decision(PlanStatus.FOUND, item)
        return item, state + 1


def branch_at(
    script: tuple[Any, ...], *commands: str, check: bool = True, **options: Any
) -> tuple[Branch, Scripted]:
    env, history, record = rolled_out(*commands)
    oracle = Scripted(script)
    expected = record if check else None
    branch = run(
        agent_envs.fork(env),
        agent_envs.snapshot(env),
        oracle,
        history=history,
        expected=expected,
        **options,
    )
    return branch, oracle


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


def test_an_oracle_that_fails_at_its_start() -> None:
    class Broken(Scripted):
        def start(self, view: Any, history: History) -> int:
            raise KeyError("history")

    env, _, _ = rolled_out()
    branch = run(make(open_house()), agent_envs.snapshot(env), Broken(SOLUTION))
    assert branch.reasons == ("oracle_error",)
    assert "KeyError" in branch.detail


def test_an_oracle_that_does_not_say_whether_it_is_privileged() -> None:
    env, _, _ = rolled_out()
    oracle: Any = object()
    branch = run(make(open_house()), agent_envs.snapshot(env), oracle)
    assert (branch.valid, branch.reasons) == (False, ("oracle_error",))
    assert "privileged" in branch.detail


def test_a_history_in_a_list_is_kept_as_a_value() -> None:
    env, history, _ = rolled_out("look")
    listed: Any = list(history)
    branch = run(make(open_house()), agent_envs.snapshot(env), Scripted(("look",)), history=listed)
    listed.clear()
    assert history_at(branch, 0) == history


class _Patched(gymnasium.Wrapper[str, str, str, str]):
    """Changes what comes back from a step."""

    def __init__(self, env: Env, change: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> None:
        super().__init__(env)
        self.change = change

    def step(self, action: str) -> Any:
        return self.change(self.env.step(action))


agent_envs.register_stateless_wrapper(_Patched)


def test_a_command_that_the_env_refuses_after_listing_it() -> None:
    def refuse(result: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*result[:4], {**result[4], "command_valid": False})

    env = _Patched(make(open_house()), refuse)
    env.reset(seed=0)
    branch = run(env, agent_envs.snapshot(env), Scripted(SOLUTION))
    assert (branch.valid, branch.reasons, len(branch.steps)) == (False, ("refused",), 1)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_returns_that_are_not_finite(value: float) -> None:
    env = _Patched(make(open_house()), lambda result: (result[0], value, *result[2:]))
    env.reset(seed=0)
    branch = run(env, agent_envs.snapshot(env), Scripted(("look",)), 1)
    assert (branch.valid, branch.reasons) == (False, ("non_finite",))


def test_an_env_that_raises() -> None:
    def fail(result: tuple[Any, ...]) -> tuple[Any, ...]:
        raise OSError("disk")

    env = _Patched(make(open_house()), fail)
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
    env = _Patched(make(open_house()), change)
    env.reset(seed=0)
    branch = run(env, agent_envs.snapshot(env), Scripted(("look", "look")))
    assert (branch.valid, branch.reasons, branch.steps) == (False, ("env_error",), ())


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

    env = _Patched(make(open_house()), templates)
    env.reset(seed=0)
    snapshot = agent_envs.snapshot(env)
    # the templates are known from the first step on
    free = run(env, snapshot, Scripted(("look", "search[a (red) mug]")), 2)
    assert (free.valid, free.reasons) == (True, ())
    for action in ("search[]", "search[mug", "xsearch[mug]", "find[mug]"):
        assert run(env, snapshot, Scripted(("look", action)), 2).reasons == ("inadmissible",)


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
