"""Snapshots. The promises:

1. Restoring a snapshot and going on equals never having left: every observation, reward, flag and
   info, over wrappers, the end of the episode and the following `reset()`.
2. The same in another env that was never reset, and in another process, from bytes.
3. snapshot, restore, snapshot: equal values.
4. A snapshot that does not fit is a typed error, and the running episode never notices.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys

import gymnasium
import pytest
from gymnasium import wrappers
from hypothesis import given, settings
from hypothesis import strategies as st

import agent_envs
from agent_envs import Snapshot, SnapshotMismatch, fork, remaining_steps, restore, snapshot
from tests.agent_envs.kinds import KINDS, STACKS, command, comparable, make, play
from tests.agent_envs.lamp_env import LampEnv
from tests.support import ROOT, full_count

numbers = st.lists(st.integers(0, 10**6), max_size=14)
seeds = st.integers(0, 2**32)


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=full_count(12, 150))
@given(seed=seeds, before=numbers, wander=numbers, after=numbers)
def test_restore_then_replay_equals_unbroken_play(kind, stack, seed, before, wander, after):
    env = make(kind, stack)
    first, info = env.reset(seed=seed)
    trace = play(env, info, before)
    last, info = (trace[-1][0], trace[-1][-1]) if trace else (first, info)
    snap = snapshot(env)
    expected = play(env, info, after)

    play(env, info, wander)
    observation, info_again = restore(env, snap)
    assert observation == last
    assert {k: v for k, v in info.items() if k != "episode"} == info_again
    assert snapshot(env) == snap
    assert play(env, info_again, after) == expected

    fresh = make(kind, stack)
    decoded = Snapshot.from_bytes(snap.to_bytes())
    assert decoded == snap
    assert hash(decoded) == hash(snap)
    assert restore(fresh, decoded)[0] == last
    assert snapshot(fresh) == snap
    assert play(fresh, info_again, after) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_restore_in_a_new_process(kind):
    cases, expected = [], []
    for index, stack in enumerate(STACKS):
        env = make(kind, stack)
        _, info = env.reset(seed=index)
        for number in range(3, 3 + 2 * (index % 4)):
            info = env.step(command(info, 11 * number))[-1]
            if info["stop_reason"] or remaining_steps(env) == 0:
                break
        snap = snapshot(env)
        observation, info = restore(env, snap)
        script = [13 * i + index for i in range(20)]
        case = {"kind": kind, "stack": stack, "numbers": script}
        cases.append({**case, "snapshot": snap.to_bytes().hex()})
        expected.append(repr((True, observation, play(env, info, script))))
    result = subprocess.run(
        [sys.executable, "-m", "tests.agent_envs.kinds"],
        cwd=ROOT,
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert [json.loads(line) for line in result.stdout.splitlines()] == expected


@pytest.mark.parametrize("kind", KINDS)
def test_o14_time_limit_goes_back_with_the_episode(kind):
    env_id, kwargs = KINDS[kind]
    env = gymnasium.make(env_id, max_episode_steps=10, **kwargs)
    env.reset(seed=0)
    for _ in range(4):
        env.step("look")
    snap = snapshot(env)
    assert remaining_steps(env) == 6
    for _ in range(5):
        env.step("look")
    assert remaining_steps(env) == 1
    restore(env, snap)
    truncations = [env.step("look")[3] for _ in range(6)]
    assert truncations == [False] * 5 + [True]


def plan_of(env: gymnasium.Env) -> tuple[str, ...]:
    """A winning plan of a task that was just begun."""
    base = env.unwrapped
    if isinstance(base, LampEnv):
        room, lamp = base._state[0], base._lamp
        ways = ("go east",) * (lamp - room) + ("go west",) * (room - lamp)
        return (*ways, "roll", "light the lamp")
    return base.privileged().game.walkthrough


def assert_every_prefix_resumes(env: gymnasium.Env, task_id: str) -> None:
    env.reset(seed=1, options={"task_id": task_id})
    plan = plan_of(env)
    env.reset(seed=1, options={"task_id": task_id})
    unbroken = [env.step(action) for action in plan]
    assert unbroken[-1][2] is True
    for cut in range(len(plan)):
        _, info = env.reset(seed=1, options={"task_id": task_id})
        for action in plan[:cut]:
            _, _, _, _, info = env.step(action)
        snap = snapshot(env)
        play(env, info, [17 * cut + 5 * i for i in range(5)])
        restore(env, snap)
        assert snapshot(env) == snap
        again = [env.step(action) for action in plan[cut:]]
        for (*values, info), (*values_again, info_again) in zip(unbroken[cut:], again, strict=True):
            assert values == values_again
            assert comparable(info) == comparable(info_again)


@pytest.mark.parametrize("kind", KINDS)
def test_o14_every_prefix_of_a_plan_resumes(kind):
    env = make(kind, "statistics")
    env.reset(seed=0)
    env = make(kind, "made")
    for task_id in env.unwrapped.task_ids[: full_count(4, 12)]:
        assert_every_prefix_resumes(env, task_id)


def test_o14_every_prefix_of_a_plan_resumes_in_real_games(real_games):
    env = gymnasium.make("SeroALFWorld-v0", data=real_games, split=None)
    ids = env.unwrapped.task_ids
    for task_id in ids[:: max(1, len(ids) // full_count(12, len(ids)))]:
        assert_every_prefix_resumes(env, task_id)


@settings(max_examples=full_count(25, 300))
@given(seed=seeds, before=numbers, after=numbers)
def test_real_games_resume_anywhere(real_games, seed, before, after):
    env = gymnasium.make("SeroALFWorld-v0", data=real_games, split=None, max_episode_steps=20)
    _, info = env.reset(seed=seed)
    trace = play(env, info, before)
    info = trace[-1][-1] if trace else info
    snap = Snapshot.from_bytes(snapshot(env).to_bytes())
    expected = play(env, info, after)
    fresh = gymnasium.make("SeroALFWorld-v0", data=real_games, split=None, max_episode_steps=20)
    _, info = restore(fresh, snap)
    assert play(fresh, info, after) == expected


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("kind", KINDS)
def test_o14_deepcopy_and_fork_keep_the_state(kind, stack):
    env = make(kind, stack)
    _, info = env.reset(seed=3)
    trace = play(env, info, [5, 8, 2])
    info = trace[-1][-1]
    snap = snapshot(env)
    script = [3, 9, 14, 6, 22, 41, 5, 8]
    for other in (fork(env), copy.deepcopy(env)):
        assert type(other) is type(env)
        assert other.unwrapped is not env.unwrapped
        assert snapshot(other) == snap
        played = play(other, info, script)
        assert snapshot(env) == snap, "the original moved with its copy"
        play(other, info, [1, 2, 3])
        restore(other, snap)
        assert play(other, info, script) == played
    assert play(env, info, script) == played


def test_fork_shares_the_games():
    env = make("alfworld")
    env.reset(seed=0)
    other = fork(env)
    assert other.unwrapped.games is env.unwrapped.games
    assert other.unwrapped.privileged().game is env.unwrapped.privileged().game


def test_generator_state_is_part_of_the_snapshot():
    env = make("lamp", n_rooms=1)
    env.reset(seed=11)
    snap = snapshot(env)
    rolls = [env.step("roll")[0] for _ in range(20)]
    env.reset(seed=12)
    env.step("roll")
    restore(env, snap)
    assert [env.step("roll")[0] for _ in range(20)] == rolls
    assert env.unwrapped.np_random_seed == 11


def test_schedule_is_part_of_the_snapshot():
    env = make("lamp", n_tasks=5)
    env.reset(seed=2)
    env.reset()
    snap = snapshot(env)
    tasks = [env.reset()[1]["task_id"] for _ in range(11)]
    restore(env, snap)
    assert [env.reset()[1]["task_id"] for _ in range(11)] == tasks


def test_snapshot_of_a_finished_episode():
    env = make("lamp", max_steps=2)
    env.reset(seed=0)
    env.step("roll")
    last = env.step("roll")
    snap = snapshot(env)
    env.reset(seed=1)
    observation, info = restore(env, snap)
    assert (observation, info) == (last[0], last[-1])
    assert remaining_steps(env) == 0
    with pytest.raises(agent_envs.ResetNeeded, match="step_limit"):
        env.step("roll")


def test_nothing_to_snapshot_before_reset():
    for call in (snapshot, fork):
        with pytest.raises(agent_envs.ResetNeeded, match="before the first reset"):
            call(make("lamp"))


def test_only_text_envs_have_snapshots():
    env = gymnasium.make("CartPole-v1")
    env.reset()
    for call in (snapshot, fork, remaining_steps):
        with pytest.raises(agent_envs.SnapshotError, match="CartPoleEnv"):
            call(env)


def test_remaining_steps_is_the_smallest_limit():
    assert remaining_steps(make("lamp", max_steps=None)) is None
    assert remaining_steps(make("lamp")) == 50
    env = wrappers.TimeLimit(make("lamp", max_steps=20), 8)
    assert remaining_steps(env) == 8
    env.reset(seed=0)
    env.step("roll")
    assert remaining_steps(env) == 7
    assert remaining_steps(env.env) == 19
    outer = wrappers.TimeLimit(env, 100)
    outer.reset()
    assert remaining_steps(outer) == 8
    unlimited = wrappers.TimeLimit(make("lamp", max_steps=None), 5)
    unlimited.reset()
    unlimited.step("roll")
    assert remaining_steps(unlimited) == 4


def test_remaining_steps_counts_steps_of_the_outermost_wrapper():
    env = wrappers.RepeatAction(make("lamp", max_steps=7), 2)
    env.reset(seed=0)
    assert remaining_steps(env) == 4
    taken = 0
    while not env.step("roll")[3]:
        taken += 1
    assert taken + 1 == 4


OTHERS = {
    "data revision": lambda: make("lamp", revision="lamp-2"),
    "max_steps": lambda: make("lamp", max_steps=30),
    "cannot load": lambda: make("lamp", n_tasks=1),
    "made by 'TestLamp-v0'": lambda: make("alfworld"),
    "TimeLimit": lambda: make("lamp", "limit"),
    "not possible": lambda: make("lamp", n_rooms=1),
}


@pytest.mark.parametrize("reason", OTHERS)
def test_a_snapshot_of_another_env_is_refused_and_changes_nothing(reason):
    source = make("lamp")
    _, info = source.reset(seed=4, options={"task_id": "house6/lamp0"})
    while source.unwrapped._state[0] < 3:
        source.step("go east")
    snap = snapshot(source)
    env = OTHERS[reason]()
    with pytest.raises(SnapshotMismatch, match=reason):
        restore(env, snap)
    with pytest.raises(agent_envs.ResetNeeded):
        snapshot(env)  # still as new as before
    _, info = env.reset(seed=9)
    before = snapshot(env)
    control = play(fork(env), info, range(1, 20))
    with pytest.raises(SnapshotMismatch, match=r"unchanged|not possible"):
        restore(env, snap)
    assert snapshot(env) == before
    assert play(env, info, range(1, 20)) == control


def test_a_snapshot_fits_another_selection_of_tasks():
    small, large = make("lamp", n_tasks=3), make("lamp", n_tasks=12)
    _, info = large.reset(seed=0, options={"task_id": "house1/lamp1"})
    snap = snapshot(large)
    restore(small, snap)
    assert play(small, info, range(1, 12))[:10] == play(large, info, range(1, 12))[:10]
    tasks = {small.reset()[1]["task_id"] for _ in range(3)}
    assert tasks == set(small.unwrapped.task_ids)


def test_restore_wants_a_snapshot():
    env = make("lamp")
    env.reset(seed=0)
    with pytest.raises(TypeError, match="from_bytes"):
        restore(env, snapshot(env).to_bytes())


def test_a_foreign_generator_is_refused():
    import numpy as np

    env = make("lamp")
    env.reset(seed=0)
    env.unwrapped.np_random = np.random.Generator(np.random.MT19937(0))
    with pytest.raises(SnapshotMismatch, match="MT19937"):
        snapshot(env)
