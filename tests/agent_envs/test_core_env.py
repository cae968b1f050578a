"""`TextEnv`: seeds and schedule, steps, ends, info, conformance."""

from __future__ import annotations

import pickle
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import agent_envs
from agent_envs import FrozenDict, InvalidOption, ResetNeeded, TaskNotFound, remaining_steps
from agent_envs.schedule import first_task
from tests.agent_envs.kinds import KINDS, make, play
from tests.agent_envs.lamp_env import LampEnv
from tests.agent_envs.test_core_snapshot import plan_of

INFO_KEYS = {
    "task_id",
    "task_type",
    "split",
    "goal",
    "admissible_actions",
    "action_templates",
    "command_valid",
    "success",
    "score",
    "steps_left",
    "stop_reason",
    "provenance",
}

kinds = pytest.mark.parametrize("kind", KINDS)


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


# ------------------------------------------------------------------ steps and info


@kinds
@pytest.mark.parametrize("action", [None, 3, 2.5, b"look", ["look"], ("look",), np.array(["look"])])
def test_an_action_that_is_no_string_is_refused_and_spent(kind, action):
    env = make(kind)
    _, before = env.reset(seed=0)
    engine = agent_envs.snapshot(env).state[0]
    observation, reward, terminated, truncated, info = env.step(action)
    assert observation == "Nothing happens."
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info["command_valid"] is False
    assert info["steps_left"] == before["steps_left"] - 1
    assert info["admissible_actions"] == before["admissible_actions"]
    assert agent_envs.snapshot(env).state[0] == engine


@kinds
@pytest.mark.parametrize("action", ["", "\n", "look\nlook", "x" * 5000, "😀", "\x00", "\ud800"])
def test_text_that_means_nothing_is_refused_and_spent(kind, action):
    env = make(kind)
    _, before = env.reset(seed=0)
    engine = agent_envs.snapshot(env).state[0]
    observation, reward, _, _, info = env.step(action)
    assert observation in env.observation_space
    assert reward == 0
    assert info["command_valid"] is False
    assert info["steps_left"] == before["steps_left"] - 1
    assert agent_envs.snapshot(env).state[0] == engine
    assert env.step(info["admissible_actions"][0])[-1]["command_valid"] is True


def test_a_refusal_keeps_the_score():
    env = make("lamp")
    env.reset(seed=0, options={"task_id": "house0/lamp0"})
    env.unwrapped._state = (1, 0, False)
    assert env.step("go west")[-1]["score"] == 0.5
    assert env.step(None)[-1]["score"] == 0.5


@kinds
def test_a_string_of_another_type_counts_by_its_characters(kind):
    class Odd(str):
        def __str__(self) -> str:
            raise RuntimeError("no")

    env = make(kind)
    _, info = env.reset(seed=0)
    twin = agent_envs.fork(env)
    command = info["admissible_actions"][0]
    assert env.step(Odd(command)) == twin.step(command)


@kinds
def test_numpy_strings_are_commands(kind):
    env = make(kind)
    _, info = env.reset(seed=0)
    action = info["admissible_actions"][0]
    expected = env.step(action)
    env.reset(seed=0)
    assert env.step(np.str_(action)) == expected


@kinds
def test_info_is_complete_new_and_immutable(kind):
    env = make(kind)
    _, info = env.reset(seed=0)
    kept = [(info, repr(info))]
    for number in (3, 0, 5, 7, 2):
        _, _, _, _, info = env.step(
            info["admissible_actions"][number % 2] if number else "nonsense"
        )
        kept.append((info, repr(info)))
    assert len({id(info) for info, _ in kept}) == 6
    for info, text in kept:
        assert set(info) == INFO_KEYS
        assert repr(info) == text
        assert isinstance(info["admissible_actions"], tuple)
        assert isinstance(info["action_templates"], tuple)
        hash(tuple(info.values()))  # every value is immutable
    for name in ("engine", "data_revision"):
        assert info["provenance"][name]
    with pytest.raises(TypeError):
        info["provenance"]["engine"] = "other"


@kinds
def test_command_valid_tells_what_was_accepted(kind):
    env = make(kind)
    _, info = env.reset(seed=0)
    assert info["command_valid"] is True
    for action in info["admissible_actions"]:
        snap = agent_envs.snapshot(env)
        assert env.step(action)[-1]["command_valid"] is True
        agent_envs.restore(env, snap)
    assert env.step("fly away")[-1]["command_valid"] is False


# ------------------------------------------------------------------ O13 and Gymnasium


@kinds
def test_o13_check_env_is_silent(kind):
    env_id, kwargs = KINDS[kind]
    env = gymnasium.make(env_id, **kwargs).unwrapped
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env)


def test_o13_check_env_is_silent_by_default(monkeypatch):
    for name in ("SERO_ALFWORLD_DATA", "ALFWORLD_DATA"):
        monkeypatch.delenv(name, raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make("SeroALFWorld-v0").unwrapped)


@kinds
def test_o13_observations_are_in_the_space(kind):
    env = make(kind)
    observation, info = env.reset(seed=0)
    assert observation in env.observation_space
    for answer in play(env, info, range(60)):
        assert answer[0] in env.observation_space


def test_register_envs_works():
    gymnasium.register_envs(agent_envs)
    assert gymnasium.spec("SeroALFWorld-v0").max_episode_steps is None
    env = gymnasium.make("agent_envs:SeroALFWorld-v0", data=KINDS["alfworld"][1]["data"])
    assert env.unwrapped.env_id == "SeroALFWorld-v0"


@kinds
def test_rendering(kind):
    env = make(kind, render_mode="ansi")
    observation, _ = env.reset(seed=0)
    assert env.render() == observation
    assert env.render() == observation
    assert env.step("look")[0] == env.render()
    assert make(kind).unwrapped.render() is None
    listed = make(kind, render_mode="ansi_list")
    first, _ = listed.reset(seed=0)
    assert listed.render() == [first]
    with pytest.raises(InvalidOption, match="human"):
        type(env.unwrapped)(render_mode="human")


def test_privileged_is_closed_by_default():
    with pytest.raises(agent_envs.PrivilegedAccess, match="TestLamp-v0"):
        LampEnv().privileged()


def test_a_subclass_must_give_the_static_info():
    class Forgetful(LampEnv):
        def _info_static(self):
            return {"goal": "x"}

    assert Forgetful.env_id == "Forgetful"
    with pytest.raises(TypeError, match="task_type"):
        Forgetful().reset(seed=0)


# ------------------------------------------------------------------ FrozenDict


def test_frozen_dict():
    frozen = FrozenDict({"a": 1}, b="x")
    assert frozen == {"a": 1, "b": "x"}
    assert dict(frozen) == {"a": 1, "b": "x"}
    assert hash(frozen) == hash(FrozenDict(b="x", a=1))
    assert pickle.loads(pickle.dumps(frozen)) == frozen
    assert not isinstance(frozen, dict)
    for change in (lambda: setattr(frozen, "a", 2), lambda: frozen.__setattr__("_items", {})):
        with pytest.raises(AttributeError, match="immutable"):
            change()


def test_an_end_is_a_known_reason():
    class Wrong(LampEnv):
        def _apply(self, command):
            return (*super()._apply(command)[:2], False, 0.0, True)

    env = Wrong()
    env.reset(seed=0)
    with pytest.raises(TypeError, match=r"one of \['success'\], or None, got False"):
        env.step("roll")
