"""Eight envs at once, in every way there is, give exactly what they give one after another."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import agent_envs
from tests.agent_envs.kinds import KINDS, command
from tests.agent_envs.vector.vector_play import (
    arguments,
    play_single,
    play_singles,
    play_together,
    row,
)
from tests.support import full_count

N, STEPS = 8, 40
kinds = pytest.mark.parametrize("kind", KINDS)
MAKERS = {
    "serial": agent_envs.make_vec,
    "pool": partial(agent_envs.make_vec, vectorization_mode="process", num_workers=3),
    "entry point": lambda env_id, n, **kwargs: gymnasium.make_vec(
        env_id, n, vectorization_mode="vector_entry_point", **kwargs
    ),
    "entry point, pool": lambda env_id, n, **kwargs: gymnasium.make_vec(
        env_id, n, vectorization_mode="vector_entry_point", num_workers=2, **kwargs
    ),
}


@pytest.mark.parametrize(
    ("kind", "maker"),
    [(k, m) for k in KINDS for m in MAKERS if k == "alfworld" or "entry" not in m],
)
def test_eight_interleaved_equal_eight_in_a_row(kind, maker):
    chosen = arguments(kind, max_steps=9)
    vec = MAKERS[maker](chosen.pop("env_id"), N, **chosen)
    try:
        together = play_together(vec, STEPS)
    finally:
        vec.close()
    expected = play_singles(kind, N, STEPS, max_steps=9)
    assert together == expected
    ends = [answer[4]["stop_reason"] for answers in expected for answer in answers]
    assert ends.count("step_limit") > N, "episodes were to end and start again"
    assert any(answer[4]["command_valid"] is False for answer in expected[0])
    if kind == "lamp":
        assert ends.count("success") > 3
        assert expected[0][0][0].startswith("Welcome! ‘Café™’\t")


@pytest.mark.usefixtures("reference")
def test_a_pool_of_the_original_engine_answers_as_the_native_one():
    data = "generated:small?seed=5&train=1&valid_seen=0&valid_unseen=0"
    pool = agent_envs.make_vec("SeroALFWorld-v0", 4, num_workers=2, data=data, engine="textworld")
    native = agent_envs.make_vec("SeroALFWorld-v0", 4, data=data)
    try:
        texts, infos = pool.reset(seed=0)
        expected, their_infos = native.reset(seed=0)
        for step in range(full_count(6, 40)):
            assert texts == expected
            commands = infos["admissible_actions"]
            assert commands.tolist() == their_infos["admissible_actions"].tolist()
            actions = [
                commands[i][(7 * i + step) % len(commands[i])] if pool.live[i] else None
                for i in range(4)
            ]
            texts, *flags, infos = pool.step(actions)
            expected, *their_flags, their_infos = native.step(actions)
            assert [f.tolist() for f in flags] == [f.tolist() for f in their_flags]
        snap = pool.snapshot(3)
        pool.step([None, None, None, "inventory"])
        assert pool.restore(3, snap)[0] == expected[3]
    finally:
        pool.close()


@kinds
def test_eight_threads_equal_eight_in_a_row(kind):
    barrier = Barrier(N)

    def run(index: int) -> list:
        barrier.wait(60)  # all at the same games at the same time
        return play_single(kind, index % 4, STEPS, max_steps=9)

    with ThreadPoolExecutor(N) as pool:
        together = list(pool.map(run, range(N)))
    expected = play_singles(kind, 4, STEPS, max_steps=9)
    assert together == expected * 2


@kinds
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("workers", [None, 2])
def test_automatic_restarts_are_those_of_gymnasium(kind, mode, workers):
    chosen = arguments(kind, max_steps=4)
    env_id = chosen.pop("env_id")
    ours = agent_envs.make_vec(env_id, 3, autoreset_mode=mode, num_workers=workers, **chosen)
    peer = gymnasium.make_vec(
        env_id, 3, "sync", vector_kwargs={"autoreset_mode": AutoresetMode(mode)}, **chosen
    )
    try:
        assert ours.metadata["autoreset_mode"] is AutoresetMode(mode)
        mine, infos = ours.reset(seed=3)
        theirs, their_infos = peer.reset(seed=3)
        assert mine == theirs
        ends = 0
        for step in range(25):
            actions = tuple(command(row(infos, i), 5 * i + step) for i in range(3))
            actions = tuple(a if isinstance(a, str) else "nonsense" for a in actions)
            mine, *flags, infos = ours.step(actions)
            theirs, *their_flags, their_infos = peer.step(actions)
            assert mine == theirs
            for one, other in zip(flags, their_flags, strict=True):
                assert one.tolist() == other.tolist()
            assert [row(infos, i) for i in range(3)] == [row(their_infos, i) for i in range(3)]
            ends += int(flags[1].sum() + flags[2].sum())
            if mode == "SameStep" and flags[2][0]:
                assert infos["final_info"]["stop_reason"][0] == "step_limit"
                assert infos["stop_reason"][0] is None
        assert ends > 9
    finally:
        ours.close()
        peer.close()


def test_thousands_of_episodes_share_compiled_games():
    data = "generated:small?seed=5&train=8&valid_seen=0&valid_unseen=0"
    n, rounds = full_count(500, 2000), 6
    vec = agent_envs.make_vec("SeroALFWorld-v0", n, data=data, max_steps=2)
    games: dict[str, int] = {}
    held = []  # so that no id can be used again
    for _ in range(rounds):
        _, infos = vec.reset()
        for env, task_id in zip(vec.envs, infos["task_id"], strict=True):
            game = env.unwrapped.privileged().game
            assert games.setdefault(task_id, id(game)) == id(game)
            held.append(game)
        vec.step(["look"] * n)
    assert len(games) == 8
    assert len({id(env.unwrapped.games) for env in vec.envs}) == 1
    assert len(held) == n * rounds


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("kind", KINDS)
def test_o13_gymnasiums_own_vector_envs_with_default_arguments(kind, mode):
    chosen = arguments(kind)
    env_id = chosen.pop("env_id")
    vec = gymnasium.make_vec(env_id, 3, mode, **chosen)
    expected = [play_single(kind, i, 6, choose=False) for i in range(3)]
    try:
        observations, infos = vec.reset(seed=0)
        for step in range(7):
            assert type(observations) is tuple
            for i in range(3):
                assert observations[i] == expected[i][step][0]
                assert row(infos, i) == expected[i][step][4]
            if step < 6:
                actions = tuple(command(expected[i][step][4], 3 * i + step) for i in range(3))
                observations, _, _, _, infos = vec.step(actions)
    finally:
        vec.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_o13_long_and_odd_texts_arrive_whole(mode):
    texts = ["é™’😀\x00\ud800\t\n" * 800, "x" * 65_536, "", "\u4e2d" * 60_000]
    vec = gymnasium.make_vec("TestEcho-v0", 4, mode)
    try:
        vec.reset(seed=0)
        for shift in range(4):
            sent = tuple(np.roll(np.array(texts, dtype=object), shift))
            observations, *_ = vec.step(sent)
            assert observations == sent
    finally:
        vec.close()
