"""Asking an oracle: the command at a state, an episode from it, and the student's rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from oracles.alfworld_planner import ALFWorldPlanner
from oracles.base import Decision, HistoryItem, PlanStatus
from oracles.branch import RootRecord
from tests.trainer import small
from tests.trainer.methods.imitation_support import config_of, mixed, setup_of
from tests.trainer.test_webshop_training import first_come, scripted, scripted_student, shop_config
from trainer.methods.imitation.oracle_rows import (
    OracleDesk,
    first_of_groups,
    oracle_episode,
    oracle_label,
)
from trainer.methods.protocol import Setup
from trainer.rollouts.rollout import PlaySettings, Trajectory, play
from trainer.worlds.tasks import make_env, open_tasks, split_tasks


def _desk(**overrides: Any) -> tuple[OracleDesk, list[Trajectory]]:
    config = config_of("dagger", **overrides)
    return OracleDesk(setup_of(config, small.model()), config.auxiliary.dagger), mixed(config)


def _failed(trajectories: list[Trajectory]) -> Trajectory:
    return next(t for t in trajectories if not t.success)


class Says:
    """An oracle that always says the same; it counts how often and with what it was asked."""

    privileged = False

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        self.seen: list[Any] = []

    def start(self, view: Any, history: Any) -> None:
        self.seen.append((view, history))

    def act(self, state: Any, view: Any, observation: str) -> tuple[Decision, None]:
        self.seen.append(observation)
        return self.decision, None


def test_a_label_is_the_first_command_of_the_plan_at_that_state() -> None:
    desk, trajectories = _desk()
    trajectory = _failed(trajectories)
    env = make_env(config_of(None).env, small.games(), "train")
    env.reset(options={"task_id": trajectory.episode.task_id})
    late = 0
    for t, turn in enumerate(trajectory.turns):
        view = env.unwrapped.privileged()  # type: ignore[attr-defined]
        plan = ALFWorldPlanner(None).plan(view)
        late += len(plan.actions) > view.steps_left
        assert desk.label(trajectory, t) == plan.actions[0]
        env.step(turn.command)
    assert late > 0, "a label counts also where the remaining steps do not suffice"


def test_there_is_no_label_where_the_state_is_another_or_the_command_will_not_do() -> None:
    desk, trajectories = _desk()
    trajectory = _failed(trajectories)
    snapshot, turn = trajectory.snapshots[2], trajectory.turns[2]
    found = Decision(PlanStatus.FOUND, "inventory")
    record = RootRecord(turn.observation, turn.admissible)

    def label(decision: Decision, expected: RootRecord | None = None) -> str | None:
        return oracle_label(desk.env, Says(decision), snapshot, expected=expected)

    assert label(found) == label(found, record) == "inventory"
    assert label(found, RootRecord("elsewhere", turn.admissible)) is None
    assert label(found, RootRecord(turn.observation, turn.admissible[1:])) is None
    assert label(Decision(PlanStatus.FOUND, "fly to the moon")) is None
    assert label(Decision(PlanStatus.UNSOLVABLE, None)) is None
    assert label(Decision(PlanStatus.TIMEOUT, None)) is None
    assert label(Decision(PlanStatus.OVER_BUDGET, None)) is None
    assert label(Decision(PlanStatus.OVER_BUDGET, "inventory")) == "inventory"


def test_an_oracle_gets_the_students_record_and_no_view_unless_it_is_privileged() -> None:
    desk, trajectories = _desk()
    trajectory = _failed(trajectories)
    oracle = desk.oracle = Says(Decision(PlanStatus.FOUND, "inventory"))
    assert desk.label(trajectory, 3) == "inventory"
    (view, history), observation = oracle.seen
    assert view is None
    assert observation == trajectory.turns[3].observation
    assert history == tuple(
        HistoryItem(turn.observation, turn.command, turn.command_valid)
        for turn in trajectory.turns[:3]
    )


@pytest.mark.parametrize("t", [0, 3])
def test_rows_of_an_episode_are_those_of_a_rollout_with_the_same_commands(t: int) -> None:
    desk, trajectories = _desk(env__max_steps=12)
    trajectory = _failed(trajectories)
    episode = desk.episode(trajectory, t)
    assert episode.solved
    assert len(episode.rows) == len(episode.branch.steps) >= 2
    script = [turn.command for turn in trajectory.turns[:t]]
    script += [row.step.action for row in episode.rows]
    commands = iter(script)
    (driven,) = play(
        [trajectory.episode],
        [make_env(config_of(None, env__max_steps=12).env, small.games(), "train")],
        desk.student,
        small.CommandSampler(lambda request, prompt: next(commands)),
        PlaySettings(64),
    )
    assert driven.success
    for row, turn in zip(episode.rows, driven.turns[t:], strict=True):
        assert row.prompt_ids == turn.prompt_ids
        assert row.target.ids == turn.response_ids
        assert row.view.step == turn.t
        kept = [i for i, on in zip(row.segment().ids, row.segment().loss_mask, strict=True) if on]
        assert small.tokenizer().decode(kept) == f"{turn.command}</action><end>"


def test_an_episode_that_does_not_fit_or_does_not_end_is_not_used() -> None:
    desk, trajectories = _desk(env__max_steps=12)
    trajectory = _failed(trajectories)
    assert desk.episode(trajectory, 0).reasons == ()
    late = desk.episode(trajectory, 11)
    assert (late.reasons, late.rows, late.solved) == (("oracle_over_budget",), (), False)
    short = desk.episode(trajectory, 0, horizon=1)
    assert (len(short.rows), short.valid, short.solved) == (1, True, False)
    desk.max_target_tokens = 5
    long = desk.episode(trajectory, 0)
    assert (long.reasons, long.rows, long.valid) == (("target_too_long",), (), False)
    assert desk.target("go to shelf 1") is None
    desk.max_target_tokens = len(desk.student.target("go to shelf 1").ids)
    assert desk.target("go to shelf 1") == desk.student.target("go to shelf 1")
    desk.max_target_tokens = 64
    assert desk.target("go to <end>") is None, "a control token is broken up"
    narrow = replace(desk.student, max_prompt_tokens=20)
    beside = oracle_episode(
        desk.env, desk.oracle, trajectory.snapshots[0], narrow, max_target_tokens=64
    )
    assert (beside.reasons, beside.rows) == (("prompt_too_long",), ())
    metrics = desk.metrics("x")
    assert metrics["x/asked"] == 4
    assert metrics["x/invalid_reasons"] == {
        "oracle_over_budget": 1,
        "target_too_long": 2,
        "unsayable": 1,
    }
    assert metrics["x/oracle_s"] > 0
    desk.oracle = Says(Decision(PlanStatus.TIMEOUT, None))
    assert desk.label(trajectory, 0) is None
    assert desk.metrics("x")["x/invalid_reasons"]["no_command"] == 1
    desk.start()
    assert desk.metrics("x") == {"x/asked": 0, "x/invalid_reasons": {}, "x/oracle_s": 0.0}


def test_one_rollout_of_each_group_that_has_a_turn() -> None:
    _, trajectories = _desk()
    first = replace(trajectories[0], turns=(), snapshots=())
    found = list(first_of_groups([first, *trajectories[1:]]))
    assert [index for index, _ in found] == [1, 4]
    assert found[0][1] is trajectories[1]


def test_a_shop_is_searched_by_a_template() -> None:
    config = shop_config(auxiliary__sero=None, auxiliary__dagger={"oracle": "goal"})
    goals = open_tasks(config.env)
    tasks = list(split_tasks(config.env, goals, "train")[:2])
    (trajectory, _) = scripted(config, goals, tasks, first_come)

    def new_env() -> Any:
        return make_env(config.env, goals, "train")

    setup = Setup(config, scripted_student(config), small.model(), new_env)
    desk = OracleDesk(setup, config.auxiliary.dagger)
    desk.max_target_tokens = 400
    label = desk.label(trajectory, 0)
    assert label is not None
    assert label.startswith("search[")
    assert label not in trajectory.turns[0].admissible
    episode = desk.episode(trajectory)
    assert episode.rows[0].step.action == label
    assert episode.rows[0].view.action_templates == trajectory.turns[0].action_templates
    assert episode.rows[0].prompt_ids == trajectory.turns[0].prompt_ids
    assert episode.rows[-1].step.action == "click[buy now]"
