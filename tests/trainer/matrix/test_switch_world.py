"""The world of the matrix: the commands that it calls best are, and snapshots keep its promises."""

from __future__ import annotations

from itertools import product

import gymnasium
import pytest

from agent_envs.testing import check_snapshot_env
from oracles.base import PlanStatus
from tests.trainer.matrix import harness
from tests.trainer.matrix.switch_world import (
    COLOURS,
    COMMANDS,
    ENV_ID,
    ROOMS,
    Electrician,
    State,
    SwitchEnv,
    Wanted,
    after,
    best,
    goal_of,
    way,
)

SWITCHES = tuple(product(range(len(ROOMS)), COLOURS))
WANTED = [pair for pair in product(SWITCHES, SWITCHES) if pair[0] != pair[1]]
STATES = tuple(product(range(len(ROOMS)), range(2)))


def _accepted(state: State) -> list[str]:
    refused = {0: "go down", len(ROOMS) - 1: "go up"}.get(state[0])
    return [command for command in COMMANDS if command != refused]


def _distances(wanted: Wanted) -> dict[State, int]:
    """Commands to the goal, by relaxation over all accepted commands."""
    far = 99
    distance = {(room, 2): 0 for room in range(len(ROOMS))}
    for _ in range(20):
        for state in STATES:
            steps = [distance.get(after(state, c, wanted), far) for c in _accepted(state)]
            distance[state] = min(distance.get(state, far), 1 + min(steps))
    return distance


@pytest.mark.parametrize("wanted", WANTED, ids=goal_of)
def test_the_best_command_is_the_only_one_that_comes_nearer(wanted: Wanted) -> None:
    distance = _distances(wanted)
    for state in STATES:
        nearer = [
            command
            for command in _accepted(state)
            if distance[after(state, command, wanted)] < distance[state]
        ]
        assert nearer == [best(state, wanted)]
        assert len(way(state, wanted)) == distance[state]


def test_what_is_shown_tells_the_best_command() -> None:
    env = SwitchEnv()
    for task in env.task_ids:
        observation, info = env.reset(options={"task_id": task})
        for refused in ("go nowhere", "press green"):
            observation, *_, info = env.step(refused)
            assert not info["command_valid"]
            assert harness.best_at(info["goal"], observation) == best(*env.privileged())
        while info["stop_reason"] is None:
            command = harness.best_at(info["goal"], observation)
            assert command in info["admissible_actions"]
            assert command == best(*env.privileged())
            observation, *_, info = env.step(command)
        assert info["success"]


def test_a_wrong_switch_blows_the_fuse() -> None:
    env = SwitchEnv()
    env.reset(options={"task_id": "cellar: blue cellar, red hall"})
    assert env.step("press blue")[0] == "You are in the cellar. 1 pressed."
    assert env.step("press red")[0] == "The fuse blows. You are in the cellar. 0 pressed."


def test_the_electrician_plans_to_the_end() -> None:
    wanted: Wanted = ((1, "red"), (2, "blue"))
    plan = Electrician().plan(((0, 0), wanted), 3, None)
    assert plan.status is PlanStatus.OVER_BUDGET
    assert plan.actions == ("go up", "press red", "go up", "press blue")
    assert Electrician().plan(((2, 2), wanted), None, None).status is PlanStatus.ALREADY_DONE


def test_snapshots_keep_their_promises() -> None:
    env = gymnasium.make(ENV_ID)
    check_snapshot_env(env, plan=lambda env: way(*env.unwrapped.privileged()))
