"""`AnyText`, alone and under Gymnasium's vector envs with their default arguments."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Dict, Text
from gymnasium.spaces.utils import flatdim, flatten, flatten_space, unflatten
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import (
    batch_space,
    create_shared_memory,
    read_from_shared_memory,
    write_to_shared_memory,
)
from hypothesis import given
from hypothesis import strategies as st

from agent_envs import AnyText, ObservationTooLong
from tests.agent_envs.kinds import KINDS, make
from tests.agent_envs.lamp_env import LampEnv

any_text = st.text(st.characters(), max_size=40)  # surrogates and NUL included


def test_o13_samples_and_odd_texts_are_contained():
    space = AnyText(3000, seed=0)
    samples = [space.sample() for _ in range(200)]
    assert all(space.contains(sample) and sample.isprintable() for sample in samples if sample)
    assert len(set(samples)) > 150
    for text in ("é", "™", "’", "\t", "\n", "", "\x00", "😀", "\ud800", "x" * 3000):
        assert text in space
    for other in (b"x", 1, None, ["x"], ("x",), "x" * 3001):
        assert other not in space


def test_samples_are_seeded_and_bounded():
    assert [AnyText(9, seed=4).sample() for _ in range(3)] == [AnyText(9, seed=4).sample()] * 3
    space = AnyText(2, seed=1)
    assert {len(space.sample()) for _ in range(100)} == {0, 1, 2}
    assert AnyText(0, seed=1).sample() == ""
    mask = np.zeros(len(space.character_list), dtype=np.int8)
    mask[space.character_list.index("q")] = 1
    assert space.sample(mask=(2, mask)) == "qq"


def test_equality_copies_and_pickles():
    space = AnyText(30, seed=3)
    assert space == AnyText(30)
    assert space != AnyText(31)
    assert space != Text(30, min_length=0)
    assert Text(30, min_length=0) != space
    assert repr(space) == "AnyText(30)"
    for other in (copy.deepcopy(space), pickle.loads(pickle.dumps(space))):
        assert other == space
        expected = copy.deepcopy(other).sample()
        space.sample()
        assert other.sample() == expected, "the generator is shared"
        space = AnyText(30, seed=3)


@given(any_text)
def test_flattening_keeps_the_text(text):
    space = AnyText(40)
    codes = flatten(space, text)
    assert codes in flatten_space(space)
    assert codes.shape == (flatdim(space),)
    assert unflatten(space, codes) == text


@given(st.lists(any_text, min_size=3, max_size=3), any_text)
def test_shared_memory_keeps_the_text(texts, later):
    space = AnyText(40)
    memory = create_shared_memory(space, 3, multiprocessing)
    view = read_from_shared_memory(space, memory, 3)
    assert copy.deepcopy(view) == ("", "", "")
    for index, text in enumerate(texts):
        write_to_shared_memory(space, index, text, memory)
    kept = copy.deepcopy(view)
    assert kept == tuple(texts)
    write_to_shared_memory(space, 1, later, memory)
    assert kept == tuple(texts), "a copy moved"
    assert tuple(view) == (texts[0], later, texts[2])
    assert view[1] == view[-2] == later
    assert view[1:] == (later, texts[2])
    assert len(view) == 3
    with pytest.raises(IndexError):
        view[3]


def test_a_text_that_does_not_fit_is_a_typed_error():
    space = AnyText(5)
    memory = create_shared_memory(space, 2, multiprocessing)
    for value in ("123456", 7):
        with pytest.raises(ObservationTooLong, match="shared_memory=False"):
            write_to_shared_memory(space, 0, value, memory)


def test_batches():
    batched = batch_space(AnyText(5, seed=0), 3)
    assert ("a", "", "™") in batched
    assert batched.sample() in batched


# ------------------------------------------------------------------ vector envs


def singles(kind: str, n: int, steps: int) -> list[list[tuple]]:
    """What single envs answer: per env the first observation, then one per step."""
    found = []
    for index in range(n):
        env = make(kind)
        observation, info = env.reset(seed=index)
        answers = [(observation, info["goal"], info["admissible_actions"])]
        for step in range(steps):
            observation, _, _, _, info = env.step(action(info["admissible_actions"], step))
            answers.append((observation, info["goal"], info["admissible_actions"]))
        found.append(answers)
    return found


def action(admissible: tuple[str, ...], step: int) -> str:
    return "nonsense" if step == 1 else admissible[step % len(admissible)]


VECTORS = {
    "sync": SyncVectorEnv,
    "async": AsyncVectorEnv,
    "async pipes": partial(AsyncVectorEnv, shared_memory=False),
    "async spawn": partial(AsyncVectorEnv, context="spawn"),
    "async no copy": partial(AsyncVectorEnv, copy=False),
    "sync no copy": partial(SyncVectorEnv, copy=False),
}


# Starting interpreters is slow, and one kind of env shows it.
@pytest.mark.parametrize(
    ("kind", "vector"),
    [(kind, name) for kind in KINDS for name in VECTORS if kind == "lamp" or "spawn" not in name],
)
def test_vector_envs_give_the_exact_texts(kind, vector):
    expected = singles(kind, 3, 4)
    envs = VECTORS[vector]([partial(make, kind)] * 3)
    try:
        observations, infos = envs.reset(seed=0)
        for step in range(5):
            assert [
                (text, infos["goal"][i], infos["admissible_actions"][i])
                for i, text in enumerate(observations)
            ] == [answers[step] for answers in expected]
            if step < 4:
                actions = tuple(action(a, step) for a in infos["admissible_actions"])
                kept = tuple(observations)
                observations, _, _, _, infos = envs.step(actions)
                assert type(observations) is tuple or "no copy" in vector
                assert kept == tuple(answers[step][0] for answers in expected)
    finally:
        envs.close()


@pytest.mark.parametrize("vector", ["sync", "async"])
def test_groups_restart_alone_without_a_wasted_step(vector):
    make_one = partial(make, "lamp", max_steps=3)
    envs = VECTORS[vector]([make_one] * 2, autoreset_mode=AutoresetMode.DISABLED)
    try:
        first, _ = envs.reset(seed=4, options={"task_id": "house2/lamp2"})
        for _ in range(3):
            texts, _, _, truncated, infos = envs.step(("roll", "fly"))
        assert truncated.tolist() == [True, True]
        assert infos["stop_reason"].tolist() == ["step_limit"] * 2
        mask = np.array([False, True])
        again, _ = envs.reset(
            seed=[None, 5], options={"task_id": "house2/lamp2", "reset_mask": mask}
        )
        assert again == (texts[0], first[1])
    finally:
        envs.close()


class Chatty(LampEnv):
    """An env whose texts outgrow its space."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = AnyText(60)

    def _apply(self, command: str) -> tuple[str, float, str | None, float, bool]:
        return "x" * 61, 0.0, None, 0.0, True


@pytest.mark.filterwarnings("ignore::UserWarning")  # Gymnasium reports the worker's end
def test_async_with_an_overlong_text_names_the_argument():
    envs = AsyncVectorEnv([Chatty] * 2)
    try:
        envs.reset(seed=0)
        with pytest.raises(ObservationTooLong, match="shared_memory=False"):
            envs.step(("a", "b"))
    finally:
        envs.close(terminate=True)


@pytest.mark.parametrize("vector", ["sync", "async"])
def test_texts_inside_a_dict_space(vector):
    envs = VECTORS[vector]([partial(make, "lamp", "timed")] * 2)
    try:
        assert isinstance(envs.single_observation_space, Dict)
        envs.reset(seed=0)
        observations, *_ = envs.step(("roll", "roll"))
        expected = []
        for seed in (0, 1):
            env = make("lamp", "timed")
            env.reset(seed=seed)
            expected.append(env.step("roll")[0])
        assert observations["obs"] == tuple(one["obs"] for one in expected)
        assert observations["time"].tolist() == [one["time"].tolist() for one in expected]
    finally:
        envs.close()


def test_flattened_time_aware_observation():
    env = gymnasium.wrappers.TimeAwareObservation(make("lamp", "limit"), normalize_time=False)
    observation, _ = env.reset(seed=0)
    assert observation in env.observation_space
    text = make("lamp").reset(seed=0)[0]
    assert "".join(chr(int(c)) for c in observation[: len(text)]) == text
