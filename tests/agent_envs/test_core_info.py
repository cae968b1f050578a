"""What every environment answers: steps, infos, Gymnasium's checks, frozen dicts."""

from __future__ import annotations

import pickle
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import agent_envs
from agent_envs import FrozenDict, InvalidOption
from tests.agent_envs.kinds import KINDS, kinds, make, play
from tests.agent_envs.lamp_env import LampEnv

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
