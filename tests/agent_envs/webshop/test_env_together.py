"""Many envs at once give what each gives alone, share what can be shared, and cost little."""

from __future__ import annotations

import copy
import gc
import threading
import tracemalloc
from random import Random
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

import agent_envs
from agent_envs.webshop.engine import Rules, engine_of
from agent_envs.webshop.shop import Shop
from tests.agent_envs.webshop.shops import make, raws, shop, walk

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"observation_mode": "text_rich", "max_steps": 7},
    {"num_prev_obs": 1, "num_prev_actions": 2},
    {"compat": True, "goal_source": "human", "split": None},
)


def envs(data: Shop) -> list[gymnasium.Env[str, str]]:
    return [make(data=data, **OPTIONS[number % len(OPTIONS)]) for number in range(8)]


def play(env: gymnasium.Env[str, str], number: int, steps: int = 80) -> list[Any]:
    trace = [env.reset(seed=number % 3)]
    rng = Random(number)
    for _ in range(steps):
        trace += walk(env, trace[-1][-1], rng, 1)
    return trace


def test_eight_envs_interleaved_give_what_they_give_alone() -> None:
    alone = [play(env, number) for number, env in enumerate(envs(shop()))]
    together, rngs = envs(shop()), [Random(number) for number in range(8)]
    mixed = [[env.reset(seed=number % 3)] for number, env in enumerate(together)]
    turns = [number for number in range(8) for _ in range(80)]
    Random(0).shuffle(turns)
    for number in turns:
        trace = mixed[number]
        trace += walk(together[number], trace[-1][-1], rngs[number], 1)
    assert mixed == alone


def test_eight_envs_in_threads_give_what_they_give_alone() -> None:
    """Threads share the caches of pages and of search, which are empty to begin with."""
    alone = [play(env, number, 200) for number, env in enumerate(envs(shop()))]
    fresh = Shop.from_raw(*raws(), source="by hand")
    found: dict[int, list[Any]] = {}
    gate = threading.Barrier(8)

    def work(number: int, env: gymnasium.Env[str, str]) -> None:
        gate.wait(60)
        found[number] = play(env, number, 200)

    threads = [
        threading.Thread(target=work, args=(number, env)) for number, env in enumerate(envs(fresh))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)
    assert [found.get(number) for number in range(8)] == alone


ACTIONS = ("search[desk]", "click[next >]", "click[< prev]", "foo", "click[b0desk0000]")


def _played(vector: Any) -> list[Any]:
    """Observations and rewards of a vector env, in lock-step."""
    seen = [tuple(vector.reset(seed=[5, 6, 7])[0])]
    for action in ACTIONS:
        observations, rewards, ends, cuts, _ = vector.step((action,) * 3)
        seen.append((tuple(observations), *(np.asarray(x).tolist() for x in (rewards, ends, cuts))))
    vector.close()
    return seen


def test_vector_envs_give_what_the_envs_give() -> None:
    singles = [make() for _ in range(3)]
    expected = [tuple(env.reset(seed=5 + place)[0] for place, env in enumerate(singles))]
    for action in ACTIONS:
        answers = [env.step(action)[:4] for env in singles]
        columns = list(zip(*answers, strict=True))
        expected.append((columns[0], *(list(column) for column in columns[1:])))
    made = [make for _ in range(3)]
    for vector in (
        agent_envs.make_vec("SeroWebShop-v0", 3, data=shop()),
        agent_envs.make_vec("SeroWebShop-v0", 3, data=shop(), num_workers=2),
        gymnasium.make_vec(
            "SeroWebShop-v0", 3, vectorization_mode="vector_entry_point", data=shop()
        ),
        SyncVectorEnv(made),
        AsyncVectorEnv(made),
    ):
        assert _played(vector) == expected


def test_o8_envs_share_one_catalogue_and_one_set_of_pages() -> None:
    many = [make() for _ in range(16)]
    assert len({id(env.unwrapped.shop.catalogue) for env in many}) == 1
    assert len({id(env.unwrapped.engine) for env in many}) == 1
    named = [gymnasium.make("SeroWebShop-v0", data="generated:small") for _ in range(16)]
    assert len({id(env.unwrapped.shop.catalogue) for env in named}) == 1
    copies = [copy.deepcopy(many[0]), agent_envs.make_vec("SeroWebShop-v0", 2, data=shop())]
    assert copies[0].unwrapped.shop is shop()  # type: ignore[attr-defined]


def test_o8_a_step_costs_the_same_with_any_number_of_goals() -> None:
    """Counted in objects and in search: nothing that a step does grows with goals or episodes."""

    def cost(number: int) -> tuple[int, int]:
        env = make(split=None, task_ids=[f"synthetic-{n}" for n in range(number)])
        _, info = env.reset(seed=0)
        walk(env, info, Random(0), 200)
        env.reset(seed=1, options={"task_id": "synthetic-0"})
        gc.collect()
        tracemalloc.start()
        try:
            for action in ("search[desk]", "click[b0desk0000]", "click[red]", "click[< prev]") * 3:
                env.step(action)
            kept, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        return kept, peak

    few, many = cost(2), cost(60)
    assert abs(many[0] - few[0]) < 2_000
    assert abs(many[1] - few[1]) < 4_000


def test_o8_episodes_leave_nothing_behind() -> None:
    """The original keeps every session for ever."""
    env = make(split=None, max_steps=5)

    def episodes(count: int) -> int:
        _, info = env.reset()
        walk(env, info, Random(1), count)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    episodes(500)
    tracemalloc.start()
    try:
        before = episodes(200)
        assert abs(episodes(1000) - before) < 20_000
    finally:
        tracemalloc.stop()


def test_an_env_takes_less_than_six_kilobytes_beside_its_shop() -> None:
    """Wrappers of `gymnasium.make` included, after a reset and a few steps."""

    def made(number: int) -> gymnasium.Env[str, str]:
        env = make()
        _, info = env.reset(seed=number)
        walk(env, info, Random(number), 3)
        return env

    warm = [made(number) for number in range(60)]
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        more = [made(number) for number in range(60)]
        gc.collect()
        taken = (tracemalloc.get_traced_memory()[0] - before) / len(more)
    finally:
        tracemalloc.stop()
    assert len(warm) == len(more)
    assert 500 < taken < 6_000


def test_an_engine_goes_with_its_shop() -> None:
    twin = Shop.from_raw(*raws())
    key = id(twin)
    env = make(data=twin)
    engine = env.unwrapped.engine
    assert engine_of(twin, Rules()) is engine
    assert engine_of(shop(), Rules()) is not engine
    del env, engine, twin
    gc.collect()
    from agent_envs.webshop import engine as module

    assert all(kept != key for kept, _ in module._engines)


def test_folders_of_the_original_s_files_are_taken(tmp_path: Any) -> None:
    import json

    for name, content in zip(("shuffle", "ins_v2", "human_ins"), raws(), strict=True):
        (tmp_path / f"items_{name}.json").write_text(json.dumps(content), encoding="utf-8")
    env = gymnasium.make("SeroWebShop-v0", data=tmp_path, goal_source="human", split=None)
    other = make(goal_source="human", split=None)
    for seed in range(3):
        assert env.reset(seed=seed)[0] == other.reset(seed=seed)[0]
        assert env.step("search[desk]")[0] == other.step("search[desk]")[0]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_process_pool_shares_snapshots(workers: int) -> None:
    vector = agent_envs.make_vec("SeroWebShop-v0", 2, data=shop(), num_workers=workers)
    try:
        vector.reset(seed=0)
        vector.step(("search[desk]", "search[lamp]"))
        first = vector.snapshot(0)
        expected, *_ = vector.step(("click[b0desk0003]", "click[next >]"))
        env = make()
        agent_envs.restore(env, first)
        assert env.step("click[b0desk0003]")[0] == expected[0]
    finally:
        vector.close()
