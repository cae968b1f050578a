"""`TextEnv`: seeds and schedule, steps, ends, info, conformance."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

import agent_envs
from agent_envs import InvalidOption, ResetNeeded, TaskNotFound, remaining_steps
from agent_envs.schedule import first_task
from tests.agent_envs.kinds import kinds, make, play
from tests.agent_envs.lamp_env import LampEnv
from tests.agent_envs.test_core_snapshot import plan_of

# ------------------------------------------------------------------ O2: which task


@kinds
def test_o2_a_task_can_be_replayed(kind):
    env = make(kind)
    env.reset(seed=0)
    for task_id in env.unwrapped.task_ids[:4]:
        first = env.reset(seed=5, options={"task_id": task_id})
        play(env, first[1], [4, 9, 3])
        again = env.reset(seed=5, options={"task_id": task_id})
        assert first == again
        assert again[1]["task_id"] == task_id


def test_o2_a_task_can_be_replayed_without_a_seed():
    env = make("alfworld")
    task_id = env.unwrapped.task_ids[2]
    first = env.reset(options={"task_id": task_id})
    play(env, first[1], [4, 9, 3])
    assert env.reset(options={"task_id": task_id}) == first


@kinds
def test_o2_an_unknown_task_suggests_the_nearest(kind):
    env = make(kind)
    env.reset(seed=0)
    task_id = env.unwrapped.task_ids[3]
    before = agent_envs.snapshot(env)
    typo = task_id[:-1] + "x" + task_id[-1]
    with pytest.raises(TaskNotFound, match="Did you mean") as caught:
        env.reset(seed=99, options={"task_id": typo})
    assert repr(task_id) in str(caught.value)
    with pytest.raises(KeyError):  # the built-in kind of error for a missing key
        env.reset(options={"task_id": 12})
    assert agent_envs.snapshot(env) == before
    assert env.unwrapped.np_random_seed == 0


def test_o2_the_schedule_takes_every_task_once_an_epoch():
    env = make("lamp", n_tasks=9)
    ids = [env.reset(seed=3)[1]["task_id"]] + [env.reset()[1]["task_id"] for _ in range(26)]
    epochs = [ids[:9], ids[9:18], ids[18:]]
    assert [sorted(epoch) for epoch in epochs] == [sorted(env.unwrapped.task_ids)] * 3
    assert epochs[0] != epochs[1] != epochs[2]


def test_o2_an_asked_for_task_leaves_the_schedule_alone():
    plain, asked = make("lamp"), make("lamp")
    plain.reset(seed=6)
    asked.reset(seed=6)
    expected = [plain.reset()[1]["task_id"] for _ in range(6)]
    found = []
    for _ in range(6):
        asked.reset(options={"task_id": "house0/lamp0"})
        found.append(asked.reset()[1]["task_id"])
    assert found == expected


def test_the_order_of_tasks_is_fixed():
    """Recorded once: another order moves learning curves and asks for a new version of the id."""
    env = make("lamp", n_tasks=6)
    ids = [env.reset(seed=0)[1]["task_id"]] + [env.reset()[1]["task_id"] for _ in range(7)]
    assert [int(task[5]) for task in ids] == [0, 2, 3, 4, 1, 5, 5, 2]


def test_first_tasks_by_hand():
    # 10 tasks: 6.18 rounds to 6, the next number without a common factor is 7.
    assert [first_task(seed, 10) for seed in (0, 1, 2, 3)] == [0, 7, 4, 1]
    assert [first_task(seed, 1) for seed in (0, 1)] == [0, 0]
    assert [first_task(seed, 2) for seed in (0, 1, 2)] == [0, 1, 0]


@kinds
def test_o2_ids_and_seeds_of_other_types_leave_plain_values(kind):
    """As picked by NumPy, or out of an enumeration: all of it goes through a snapshot's bytes."""
    env = make(kind)
    env.reset(seed=True, options={"task_id": np.str_(env.unwrapped.task_ids[1])})
    snap = agent_envs.Snapshot.from_bytes(agent_envs.snapshot(env).to_bytes())
    info = agent_envs.restore(make(kind), snap)[1]
    assert type(info["task_id"]) is str
    assert info["task_id"] == env.unwrapped.task_ids[1]
    assert env.reset(seed=True) == env.reset(seed=1)


@pytest.mark.parametrize(
    "options", [{"task": "x"}, {"task_id": None, "seed": 1}, {1: 2}, ["task_id"], "task_id", 0]
)
def test_unknown_options_are_errors(options):
    env = make("lamp")
    before = env.reset(seed=0)
    with pytest.raises(InvalidOption, match="task_id"):
        env.reset(options=options)
    assert env.reset(seed=0) == before


# ------------------------------------------------------------------ O12: seeds


@kinds
def test_o12_a_seed_names_one_start(kind):
    env = make(kind)
    starts = [env.reset(seed=1234) for _ in range(6)]
    assert all(start == starts[0] for start in starts)
    assert make(kind).reset(seed=1234) == starts[0]


@kinds
def test_o12_seed_zero_and_one_differ(kind):
    env = make(kind)
    assert env.reset(seed=0) != env.reset(seed=1)


@kinds
def test_o12_consecutive_seeds_begin_with_different_tasks(kind):
    env = make(kind)
    n_tasks = len(env.unwrapped.task_ids)
    for start in (0, 1000):
        seeds = range(start, start + n_tasks)
        assert len({env.reset(seed=seed)[1]["task_id"] for seed in seeds}) == n_tasks


def test_o12_seed_zero_and_one_differ_by_default():
    env = gymnasium.make("SeroALFWorld-v0", data="generated:standard")
    assert env.reset(seed=0)[0] != env.reset(seed=1)[0]


@kinds
def test_o12_a_seed_does_not_depend_on_the_past(kind):
    env = make(kind)
    first = env.reset(seed=42)
    played = play(env, first[1], range(1, 30))
    _, info = env.reset(seed=7)
    play(env, info, [4, 9, 3])
    env.reset(options={"task_id": env.unwrapped.task_ids[1]})
    again = env.reset(seed=42)
    assert again == first
    assert play(env, again[1], range(1, 30)) == played


def test_o12_global_generators_are_not_touched():
    import random

    random.seed(1)
    np.random.seed(1)
    states = random.getstate(), repr(np.random.get_state())
    env = make("alfworld")
    _, info = env.reset(seed=3)
    play(env, info, range(1, 20))
    make("lamp").reset()
    assert (random.getstate(), repr(np.random.get_state())) == states


def test_bad_seeds_change_nothing():
    env = make("lamp")
    env.reset(seed=0)
    before = agent_envs.snapshot(env)
    for seed in (-1, "x", 1.5):
        with pytest.raises(gymnasium.error.Error, match="Seed"):
            env.reset(seed=seed)
    assert agent_envs.snapshot(env) == before


# ------------------------------------------------------------------ O6: ends


@kinds
def test_o6_running_out_of_steps_is_no_success(kind):
    env = make(kind, max_steps=6)
    env.reset(seed=0)
    rewards = []
    for left in range(5, -1, -1):
        _, reward, terminated, truncated, info = env.step("look")
        rewards.append(reward)
        assert terminated is False
        assert truncated is (left == 0)
        assert info["success"] is False
        assert info["steps_left"] == left == remaining_steps(env)
        assert info["stop_reason"] == (None if left else "step_limit")
    assert sum(rewards) == 0


@kinds
def test_o6_winning_on_the_last_allowed_step(kind):
    task_id = make(kind).unwrapped.task_ids[1]
    start = {"seed": 1, "options": {"task_id": task_id}}
    probe = make(kind)
    probe.reset(**start)
    plan = plan_of(probe)
    env = make(kind, max_steps=len(plan))
    env.reset(**start)
    for action in plan[:-1]:
        _, _, terminated, truncated, info = env.step(action)
        assert (terminated, truncated, info["success"]) == (False, False, False)
    _, reward, terminated, truncated, info = env.step(plan[-1])
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info["success"] is True
    assert info["stop_reason"] == "success"
    assert info["steps_left"] == 0
    assert info["score"] == 1.0
    with pytest.raises(ResetNeeded, match="success"):
        env.step("look")


def test_no_limit_means_no_limit():
    env = make("lamp", max_steps=None)
    _, info = env.reset(seed=0)
    for _ in range(300):
        _, _, _, truncated, info = env.step("roll")
        assert truncated is False
    assert info["steps_left"] is None
    assert remaining_steps(env) is None


@pytest.mark.parametrize("value", [0, -1, 1.0, "50", True])
def test_max_steps_is_checked(value):
    with pytest.raises(InvalidOption, match="max_steps"):
        LampEnv(max_steps=value)


def test_steps_need_an_episode():
    env = LampEnv(render_mode="ansi")
    for call in (lambda: env.step("roll"), env.render):
        with pytest.raises(ResetNeeded, match="first reset"):
            call()
    with pytest.raises(gymnasium.error.ResetNeeded):  # Gymnasium's own type
        env.step("roll")
