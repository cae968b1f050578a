"""Many envs at once give what each gives alone, and cost little."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from random import Random
from typing import Any

import gymnasium

from agent_envs.alfworld.households.generator import parse_source
from tests.agent_envs.alfworld.worlds import game_set, walk

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"extras": ("inventory", "location")},
    {"domain_randomization": True},
    {"max_steps": 7},
)


def envs(games: Any) -> list[gymnasium.Env[str, str]]:
    return [
        gymnasium.make("SeroALFWorld-v0", data=games, **OPTIONS[number % len(OPTIONS)])
        for number in range(8)
    ]


def play(env: gymnasium.Env[str, str], number: int, steps: int = 60) -> list[Any]:
    trace = [env.reset(seed=number % 3)]
    rng = Random(number)
    for _ in range(steps):
        trace += walk(env, trace[-1][-1], rng, 1)
    return trace


def test_eight_envs_interleaved_give_what_they_give_alone() -> None:
    games = parse_source("generated:small?train=3")
    assert games is not None
    alone = [play(env, number) for number, env in enumerate(envs(games))]
    together, rngs = envs(games), [Random(number) for number in range(8)]
    mixed = [[env.reset(seed=number % 3)] for number, env in enumerate(together)]
    order = Random(0)
    turns = [number for number in range(8) for _ in range(60)]
    order.shuffle(turns)
    for number in turns:
        trace = mixed[number]
        trace += walk(together[number], trace[-1][-1], rngs[number], 1)
    assert mixed == alone


def test_eight_envs_in_threads_give_what_they_give_alone() -> None:
    """Threads share the games: their cache, their memo, the words that are made on demand."""
    alone = [play(env, number, 300) for number, env in enumerate(envs(game_set()))]
    shared = game_set()
    found: dict[int, list[Any]] = {}
    gate = threading.Barrier(8)

    def work(number: int, env: gymnasium.Env[str, str]) -> None:
        gate.wait(60)
        found[number] = play(env, number, 300)

    threads = [
        threading.Thread(target=work, args=(number, env)) for number, env in enumerate(envs(shared))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)
    assert [found.get(number) for number in range(8)] == alone


def test_an_env_takes_less_than_five_kilobytes_beside_its_game() -> None:
    """Wrappers of `gymnasium.make` included, after a reset by the schedule and a few steps."""
    games = parse_source("generated:small?train=100")
    assert games is not None

    def made(number: int) -> gymnasium.Env[str, str]:
        env = gymnasium.make("SeroALFWorld-v0", data=games)
        _, info = env.reset(seed=number)
        walk(env, info, Random(number), 3)
        return env

    warm = [made(number) for number in range(200)]  # the games, and what is made once
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        more = [made(number) for number in range(200)]
        gc.collect()
        taken = (tracemalloc.get_traced_memory()[0] - before) / len(more)
    finally:
        tracemalloc.stop()
    assert len(warm) == len(more)
    assert 500 < taken < 5_000
