"""Times of single calls into the WebShop engine, and what its caches take."""

from __future__ import annotations

import gc
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium

import agent_envs
from agent_envs.webshop import engine
from agent_envs.webshop.catalogue import Shop
from trainer.bench.webshop_walks import Walk

BATCHES, CALLS = 5, 40
"""Calls are timed in batches, since one is too short for the clock; the quickest batch counts."""
PLACES = 40
"""At how many places snapshots are measured."""


def measure(env: Any, walks: Sequence[Walk]) -> dict[str, float]:
    """All figures of this module.

    Args:
        env: a WebShop env from `gymnasium.make`.
        walks: made in it; snapshots are taken in the middle of the first of them, and between
            these places restoring goes back and forth.
    """
    shop: Shop = env.unwrapped.shop
    snapshot, restore, gym_snapshot, gym_restore = snapshot_seconds(env, walks[:PLACES])
    reset, read = reset_seconds(shop)
    return {
        "reset_us": 1e6 * reset,
        "goal_us": 1e6 * read,
        "snapshot_us": 1e6 * snapshot,
        "restore_us": 1e6 * restore,
        "snapshot_restore_us": 1e6 * (snapshot + restore),
        "gym_snapshot_us": 1e6 * gym_snapshot,
        "gym_restore_us": 1e6 * gym_restore,
        "cache_kib_per_goal": cache_kib(shop, walks),
    }


def reset_seconds(shop: Shop) -> tuple[float, float]:
    """CPU seconds until the first page of a goal is there, its text and its actions; and of
    reading a goal from the data, which happens once as long as it is cached."""
    goals = shop.goals("synthetic")
    count = min(len(goals), CALLS)
    read = min(
        _seconds(lambda first=first: goals[first : first + count])  # type: ignore[misc]
        for first in range(0, min(BATCHES * count, len(goals) - count + 1), count)
    )
    goal = goals[0]

    def reset() -> None:
        session = engine.start()
        engine.observe(shop, goal, session)
        engine.clickables(shop, session)

    return _each(reset), read / count


def snapshot_seconds(env: Any, walks: Sequence[Walk]) -> tuple[float, float, float, float]:
    """CPU seconds of taking a state and of going back to it, medians over the places: in the
    engine twice, and with everything around it (budget, generator, wrappers) twice."""
    world = env.unwrapped
    times: tuple[list[float], ...] = ([], [], [], [])
    for walk in walks:
        stops = _stops(env, walk)
        agent_envs.restore(env, stops[1])
        times[0].append(_each(world._engine_state))
        times[2].append(_each(partial(agent_envs.snapshot, env)))
        go = partial(world._set_engine_state, walk.task_id)
        times[1].append(_each(partial(_in_turn, go, [stop.state[0] for stop in stops])) / 2)
        times[3].append(_each(partial(_in_turn, partial(agent_envs.restore, env), stops)) / 2)
    one, two, three, four = map(statistics.median, times)
    return one, two, three, four


def _in_turn(call: Callable[[Any], object], values: Sequence[Any]) -> None:
    for value in values:
        call(value)


def _stops(env: Any, walk: Walk) -> tuple[agent_envs.Snapshot, agent_envs.Snapshot]:
    """Snapshots at the start and in the middle of a walk."""
    env.reset(seed=0, options={"task_id": walk.task_id})
    start = agent_envs.snapshot(env)
    for action in walk.actions[: len(walk.actions) // 2]:
        env.step(action)
    return start, agent_envs.snapshot(env)


def cache_kib(shop: Shop, walks: Sequence[Walk]) -> float:
    """KiB that pages, products and search results of a walk leave in the caches, until these are
    full; a mean over the walks.

    Measured on a shop of its own over the same tables, so that its caches are empty.
    """
    # Other prices make another shop, which shares the search results; these are forgotten.
    first = shop.catalogue[0].asin
    other = shop.with_prices({first: shop.catalogue.price(0)})
    env = gymnasium.make("SeroWebShop-v0", data=other, split=None, max_steps=None)
    _replay(env, walks[:1])  # what is made once for all
    shop.index.cache.clear()
    gc.collect()
    tracemalloc.start()
    try:
        _replay(env, walks[1:])
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    env.close()
    return taken / max(len(walks) - 1, 1) / 1024


def _replay(env: Any, walks: Sequence[Walk]) -> None:
    for walk in walks:
        env.reset(seed=0, options={"task_id": walk.task_id})
        for action in walk.actions:
            env.step(action)


def _each(call: Callable[[], object]) -> float:
    """CPU seconds of one call."""

    def batch() -> None:
        for _ in range(CALLS):
            call()

    return min(_seconds(batch) for _ in range(BATCHES)) / CALLS


def _seconds(call: Callable[[], object]) -> float:
    begin = time.process_time()
    call()
    return time.process_time() - begin
