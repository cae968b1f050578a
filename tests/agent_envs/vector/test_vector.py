"""`make_vec` in one process: skipping, partial resets, infos, snapshots, arguments."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import vector as vector_wrappers

import agent_envs
from agent_envs import InvalidOption, ResetNeeded, SnapshotMismatch, TaskNotFound, make_vec
from agent_envs.vector.infos import gather_infos
from tests.agent_envs.lamp_env import ENV_ID
from tests.agent_envs.vector.vector_play import FAULTY, Accident, row

HOUSES = {"task_ids": ["house2/lamp2", "house2/lamp2", "house3/lamp3"]}


def lamps(n: int = 3, **kwargs: Any) -> Any:
    return make_vec(ENV_ID, n, **kwargs)


# ------------------------------------------------------------------ skipping and the end


def test_none_skips_a_sub_env():
    vec = lamps()
    first, before = vec.reset(seed=1)
    texts, rewards, terminated, truncated, infos = vec.step(["roll", None, "roll"])
    assert texts[1] == first[1]
    assert [text.startswith("The dice") for text in texts] == [True, False, True]
    assert rewards.tolist() == [0.25, 0.0, 0.25]
    assert not terminated.any()
    assert not truncated.any()
    assert infos["steps_left"].tolist() == [49, 50, 49]
    assert infos["_steps_left"].tolist() == [True, False, True]
    assert infos["admissible_actions"][1] == before["admissible_actions"][1]
    assert row(infos, 1) == {}
    assert vec.envs[1].unwrapped.remaining_steps == 50


def test_a_finished_sub_env_stays_where_it_is():
    vec = lamps(2, max_steps=3)
    vec.reset(seed=0, options={"task_ids": ["house2/lamp2", "house3/lamp3"]})
    for _ in range(2):
        vec.step(["roll", None])
    ended = vec.step(["roll", "roll"])
    assert ended[3].tolist() == [True, False]
    assert vec.live.tolist() == [False, True]
    with pytest.raises(ResetNeeded, match=r"sub-envs \[0\] are over.*None.*reset_mask.*No sub-env"):
        vec.step(["roll", "roll"])
    assert vec.envs[1].unwrapped.remaining_steps == 2, "the error came after a move"
    texts, rewards, _, truncated, infos = vec.step([None, "roll"])
    assert texts[0] == ended[0][0]
    assert rewards.tolist() == [0.0, 0.25]
    assert truncated.tolist() == [True, False]
    assert infos["stop_reason"].tolist() == ["step_limit", None]
    assert infos["_stop_reason"].tolist() == [False, True]


def test_what_was_returned_never_changes():
    vec = lamps(2)
    first, infos = vec.reset(seed=0)
    kept = first, {key: list(value) for key, value in infos.items()}
    second = vec.step(["roll", "fly"])
    values = [second[0], *(array.tolist() for array in second[1:4])]
    vec.step(["roll", "roll"])
    vec.reset(seed=5)
    assert (first, {key: list(value) for key, value in infos.items()}) == kept
    assert [second[0], *(array.tolist() for array in second[1:4])] == values


def test_group_rollouts_step_only_the_live_ones():
    """A group of four on one task: every step that is taken is one that was asked for."""
    vec = lamps(4, max_steps=6)
    vec.reset(seed=0, options={"task_id": "house2/lamp2"})
    lengths = np.zeros(4, dtype=int)
    plans = [["roll"] * 6, ["fly"] * 6, ["roll"] * 6, ["roll"] * 6]
    for env in (vec.envs[2], vec.envs[3]):
        room = env.unwrapped._state[0]
        way = ["go east"] * (2 - room) + ["go west"] * (room - 2) + ["light the lamp"]
        plans[2 if env is vec.envs[2] else 3] = way
    for step in range(6):
        live = vec.live
        vec.step([plans[i][step] if live[i] else None for i in range(4)])
        lengths += live
    assert not vec.live.any()
    assert lengths.tolist() == [6, 6, len(plans[2]), len(plans[3])]
    assert [env.unwrapped._taken for env in vec.envs] == lengths.tolist()


# ------------------------------------------------------------------ reset


def test_reset_mask_restarts_only_these():
    vec = lamps()
    vec.reset(seed=1)
    texts, *_ = vec.step(["roll"] * 3)
    mask = np.array([False, True, False])
    options = {"reset_mask": mask, "task_ids": [None, "house5/lamp5", None]}
    again, infos = vec.reset(seed=40, options=options)
    assert options == {"reset_mask": mask, "task_ids": [None, "house5/lamp5", None]}
    assert (again[0], again[2]) == (texts[0], texts[2])
    assert infos["_task_id"].tolist() == [False, True, False]
    assert infos["task_id"][1] == "house5/lamp5"
    assert infos["steps_left"].tolist() == [49, 50, 49]
    single = gymnasium.make(ENV_ID)
    assert again[1] == single.reset(seed=41, options={"task_id": "house5/lamp5"})[0]


def test_seeds_are_those_of_gymnasium():
    vec = lamps()
    for seed, seeds in ((7, (7, 8, 9)), ([3, None, 2], (3, 8, 2)), (np.int64(4), (4, 5, 6))):
        vec.reset(seed=seed)
        assert vec.np_random_seed == seeds
    expected = [gymnasium.make(ENV_ID).reset(seed=seed) for seed in (0, 1, 2)]
    texts, infos = vec.reset(seed=0)
    assert [(text, row(infos, i)) for i, text in enumerate(texts)] == expected
    assert vec.reset(seed=0)[0] == texts, "seed 0 is a seed"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reset_mask": np.array([1, 0, 1])}, r"bool array of shape \(3,\)"),
        ({"reset_mask": np.array([True])}, r"bool array of shape \(3,\)"),
        ({"reset_mask": np.zeros(3, dtype=bool)}, "at least one True"),
        ({"task_ids": ["house2/lamp2"]}, "1 entries for 3"),
        ({"task_ids": "house2/lamp2"}, r"options\['task_id'\]"),
        ({"task_ids": {"house2/lamp2", "house3/lamp3", "house4/lamp4"}}, "a sequence of ids"),
        ({**HOUSES, "task_id": "house2/lamp2"}, "not both"),
        ("house2/lamp2", "a mapping"),
        ({"task": 1}, "Unknown reset options"),
    ],
)
def test_options_of_the_wrong_form(options, message):
    vec = lamps()
    vec.reset(seed=1)
    texts = vec.step(["roll"] * 3)[0]
    with pytest.raises(InvalidOption, match=message):
        vec.reset(options=options)
    assert vec.step([None] * 3)[0] == texts


@pytest.mark.parametrize(
    "seed", [[1, 2], ["1", 2, 3], [1.5, 2, 3], 1.5, "123", {1, 2, 3}, -1, [0, -1, 2]]
)
def test_seeds_of_the_wrong_form(seed):
    with pytest.raises(InvalidOption, match="list of 3 ints"):
        lamps().reset(seed=seed)


def test_nothing_is_shown_of_an_env_that_never_began():
    vec = lamps()
    with pytest.raises(ResetNeeded, match=r"\[0, 1, 2\] were never reset"):
        vec.step(["roll"] * 3)
    with pytest.raises(ResetNeeded, match=r"\[0, 2\] were never reset"):
        vec.reset(options={"reset_mask": np.array([False, True, False])})
    assert not vec.live.any()


def test_an_error_of_one_leaves_the_others_consistent():
    vec = lamps()
    vec.reset(seed=0)
    with pytest.raises(TaskNotFound, match="house2/lamp2") as caught:
        vec.reset(options={"task_ids": ["house3/lamp3", "house2/lamp", "house4/lamp4"]})
    assert caught.value.__notes__ == ["Raised by sub-env 1 of 3."]
    *_, infos = vec.step(["fly"] * 3)
    ids = [env.unwrapped._task_id for env in vec.envs]
    assert ids[::2] == ["house3/lamp3", "house4/lamp4"]
    assert infos["task_id"].tolist() == ids
    faulty = make_vec(FAULTY, 2)
    faulty.reset(seed=0)
    with pytest.raises(Accident, match="the lamp fell"):
        faulty.step(["accident", "roll"])
    assert faulty.step([None, None])[0][1].startswith("The dice"), "what the other did is lost"


# ------------------------------------------------------------------ infos


def test_types_of_infos():
    nothing = {"provenance": agent_envs.FrozenDict(engine="x")}
    infos = gather_infos(
        [
            {"score": 0, "n": 1, "ok": True, "acts": ("a", "b"), "stop": None, **nothing},
            {"score": 0.5, "n": 2, "ok": False, "acts": ("c", "d"), "stop": "success", **nothing},
        ],
        np.array([True, True]),
    )
    assert infos["score"].tolist() == [0.0, 0.5], "an int in front must not round the rest"
    keys = ("score", "n", "ok", "acts", "stop", "provenance")
    assert "".join(infos[key].dtype.kind for key in keys) == "fibOOO"
    assert infos["acts"].shape == (2,)
    assert infos["acts"].tolist() == [("a", "b"), ("c", "d")]
    assert infos["provenance"][0]["engine"] == "x"


def test_missing_keys_nested_dicts_and_odd_values():
    huge = 1 << 70
    infos = gather_infos(
        [
            {"episode": {"r": 1.5, "l": 3}, "v": huge, "mixed": 1, "a": np.arange(2)},
            None,
            {"mixed": "x", "v": 2, "late": np.float32(0.5), "a": np.arange(3)},
        ],
        np.array([True, False, True]),
    )
    assert infos["_episode"].tolist() == [True, False, False]
    assert infos["episode"]["r"].tolist() == [1.5, 0.0, 0.0]
    assert infos["episode"]["_l"].tolist() == [True, False, False]
    assert infos["v"].tolist() == [huge, None, 2]
    assert infos["mixed"].tolist() == [1, None, "x"]
    assert (infos["late"].dtype, infos["late"].tolist()) == (np.float32, [0.0, 0.0, 0.5])
    assert infos["a"][2].tolist() == [0, 1, 2]
    for exact in (huge, (1 << 53) + 1, 10**400):
        both = gather_infos([{"v": exact}, {"v": 0.5}], np.array([True, True]))
        assert both["v"].tolist() == [exact, 0.5]
    stale = gather_infos([{"episode": {"r": 1.5}}, {"n": 1}], np.array([False, True]))
    assert set(stale) == {"n", "_n"}, "a finished episode is reported once"


def test_gymnasiums_wrappers_for_vector_envs():
    vec = vector_wrappers.DictInfoToList(lamps(2))
    _, infos = vec.reset(seed=0)
    assert infos[1] == gymnasium.make(ENV_ID).reset(seed=1)[1]
    *_, infos = vec.step(["roll", None])
    assert infos[0]["steps_left"] == 49
    assert infos[1] == {}


def test_wrappers_and_limits_of_sub_envs():
    vec = make_vec(
        ENV_ID,
        2,
        max_episode_steps=2,
        max_steps=9,
        wrappers=[gymnasium.wrappers.RecordEpisodeStatistics],
    )
    vec.reset(seed=0)
    vec.step(["roll", "fly"])
    *_, truncated, infos = vec.step(["roll", None])
    assert truncated.tolist() == [True, False]
    assert infos["episode"]["r"].tolist() == [0.5, 0.0]
    assert infos["_episode"].tolist() == [True, False]
    *_, infos = vec.step([None, "fly"])
    assert infos["_episode"].tolist() == [False, True]
    timed = make_vec(
        ENV_ID,
        2,
        max_episode_steps=5,
        wrappers=[
            lambda env: gymnasium.wrappers.TimeAwareObservation(
                env, flatten=False, normalize_time=False
            )
        ],
    )
    timed.reset(seed=0)
    observations, *_ = timed.step(["roll", None])
    assert observations in timed.observation_space
    assert observations["time"].tolist() == [[1], [0]]
    assert observations["obs"][0].startswith("The dice")


# ------------------------------------------------------------------ snapshots and calls


@pytest.mark.parametrize("workers", [None, 2])
def test_snapshots_of_single_sub_envs(workers):
    vec = lamps(3, max_steps=4, num_workers=workers)
    try:
        vec.reset(seed=2, options=HOUSES)
        vec.step(["roll"] * 3)
        snap = vec.snapshot(1)
        expected = [vec.step([None, "roll", None])[0][1] for _ in range(3)]
        assert vec.live.tolist() == [True, False, True]
        over = vec.snapshot(1)
        observation, info = vec.restore(1, snap)
        assert observation.startswith("The dice")
        assert info["steps_left"] == 3
        assert vec.live.all()
        assert [vec.step([None, "roll", None])[0][1] for _ in range(3)] == expected
        # Into another sub-env, which then goes on as the first did.
        vec.restore(0, agent_envs.Snapshot.from_bytes(snap.to_bytes()))
        assert vec.snapshot(0) == snap
        assert [vec.step(["roll", None, None])[0][0] for _ in range(3)] == expected
        vec.restore(2, over)
        assert vec.live.tolist() == [False, False, False]
        flags = vec.step([None] * 3)[2:4]
        assert [flag.tolist() for flag in flags] == [[False] * 3, [True] * 3]
        other = gymnasium.make("SeroALFWorld-v0", data="generated:small?train=2")
        other.reset(seed=0)
        with pytest.raises(SnapshotMismatch, match="SeroALFWorld-v0"):
            vec.restore(2, agent_envs.snapshot(other))
        with pytest.raises(InvalidOption, match="0 to 2"):
            vec.snapshot(3)
    finally:
        vec.close()


def test_calls_attributes_and_render():
    vec = lamps(2, render_mode="ansi")
    vec.reset(seed=0)
    assert vec.render() == vec.step([None, None])[0]
    assert vec.call("_admissible")[1] == vec.envs[1].unwrapped._admissible()
    assert vec.get_attr("max_steps") == (50, 50)
    vec.set_attr("mark", [1, 2])
    assert vec.get_attr("mark") == (1, 2)
    vec.set_attr("mark", "same")
    assert vec.get_attr("mark") == ("same", "same")
    with pytest.raises(InvalidOption, match="3 values"):
        vec.set_attr("mark", [1, 2, 3])


# ------------------------------------------------------------------ arguments and the end


def test_spaces_and_metadata():
    vec = gymnasium.make_vec("SeroALFWorld-v0", 3, data="generated:small?train=3")
    assert isinstance(vec, agent_envs.TextVectorEnv)
    assert isinstance(vec, VectorEnv)
    assert vec.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    assert vec.spec.id == "SeroALFWorld-v0"
    observations, _ = vec.reset(seed=0)
    assert observations in vec.observation_space
    assert type(observations) is tuple
    assert vec.action_space.sample() in vec.action_space
    again = gymnasium.make_vec(vec.spec)
    assert again.num_envs == 3
    assert again.reset(seed=0)[0] == observations


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_envs": 0}, "at least 1"),
        ({"num_envs": True}, "at least 1"),
        ({"vectorization_mode": "async"}, r"\['serial', 'process'\]"),
        ({"vectorization_mode": "serial", "num_workers": 2}, "has no workers"),
        ({"num_workers": 0}, "num_workers"),
        ({"num_workers": 1, "timeout": 0}, "timeout"),
        ({"num_workers": 1, "timeout": None}, "timeout"),
        ({"num_workers": 1, "timeout": "5"}, "timeout"),
        ({"autoreset_mode": "Sometimes"}, r"\['NextStep', 'SameStep', 'Disabled'\]"),
        ({"env_id": 7}, "registered id"),
    ],
)
def test_arguments_that_make_no_sense(arguments, message):
    with pytest.raises(InvalidOption, match=message):
        make_vec(**{"env_id": ENV_ID, **arguments})


def test_ids_with_a_module_and_specs():
    for env_id in (f"tests.agent_envs.lamp_env:{ENV_ID}", gymnasium.spec(ENV_ID)):
        assert make_vec(env_id, 2).reset(seed=0)[0] == lamps(2).reset(seed=0)[0]
    with pytest.raises(gymnasium.error.Error, match="NoSuch"):
        make_vec("NoSuch-v0", 2)


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ("roll", "list around it"),
        (["roll"], "1 actions"),
        (7, "per sub-env"),
        ({0: "roll", 1: "roll", 2: None}, "a sequence of one action"),
        ({"roll", "go east", "go west"}, "a sequence of one action"),
    ],
)
def test_actions_of_the_wrong_form(actions, message):
    vec = lamps()
    vec.reset(seed=0)
    with pytest.raises(InvalidOption, match=message):
        vec.step(actions)
    assert [env.unwrapped.remaining_steps for env in vec.envs] == [50] * 3


def test_numpy_integers_count():
    vec = lamps(np.int64(3))
    vec.reset(seed=0)
    for i in np.flatnonzero(vec.live):
        snap = vec.snapshot(i)
        assert vec.restore(i, snap)[1]["steps_left"] == 50
    for index in (True, 1.0, "1", None, np.int64(3), -1):
        with pytest.raises(InvalidOption, match="There is no sub-env"):
            vec.snapshot(index)


def test_envs_already_made_are_closed_where_a_later_one_fails():
    made, closed = [], []

    class Counted(gymnasium.Wrapper):
        def close(self) -> None:
            closed.append(self)

    def third_fails(env: Any) -> Any:
        if len(made) == 2:
            raise RuntimeError("no third")
        made.append(Counted(env))
        return made[-1]

    with pytest.raises(RuntimeError, match="no third"):
        lamps(3, wrappers=[third_fails])
    assert closed == made


def test_odd_actions_are_refused_by_the_sub_envs():
    vec = lamps(4)
    vec.reset(seed=0)
    *_, infos = vec.step(["", "a" * 100_000, 7, b"roll"])
    assert not infos["command_valid"].any()
    assert infos["steps_left"].tolist() == [49] * 4
    *_, infos = vec.step(np.array(["roll"] * 4))
    assert infos["command_valid"].all()


def test_closing_is_idempotent_and_final():
    vec = make_vec(FAULTY, 2)
    vec.reset(seed=0)
    vec.close()
    vec.close()
    for call in (vec.reset, lambda: vec.step(["roll"] * 2), lambda: vec.snapshot(0)):
        with pytest.raises(gymnasium.error.ClosedEnvironmentError):
            call()
