"""Snapshots of ended episodes, restored in a vector env: over in the way they were."""

from __future__ import annotations

from typing import Any

import pytest

from agent_envs import Snapshot, make_vec
from tests.agent_envs.lamp_env import ENV_ID


def flags(vec: Any) -> tuple[list[bool], list[bool]]:
    """terminated and truncated, as a step shows them that moves nobody."""
    _, _, terminated, truncated, _ = vec.step([None] * vec.num_envs)
    return terminated.tolist(), truncated.tolist()


@pytest.mark.parametrize("workers", [None, 1])
def test_a_purchase_is_an_end_and_no_running_out_of_steps(workers: int | None) -> None:
    vec = make_vec("SeroWebShop-v0", 2, data="generated:small", num_workers=workers)
    try:
        _, infos = vec.reset(seed=0)
        _, _, _, _, infos = vec.step(["search[lamp]", None])
        product = infos["admissible_actions"][0][2]
        vec.step([product, None])
        *_, infos = vec.step(["click[buy now]", None])
        assert infos["stop_reason"][0] == "purchase"
        assert flags(vec) == ([True, False], [False, False])
        snap = vec.snapshot(0)
        for place in (0, 1):
            vec.restore(place, Snapshot.from_bytes(snap.to_bytes()))
        assert flags(vec) == ([True, True], [False, False])
        assert not vec.live.any()
    finally:
        vec.close()


@pytest.mark.parametrize("limit", [2, 3])
def test_a_win_on_the_last_step_of_a_time_limit(limit: int) -> None:
    vec = make_vec(ENV_ID, 1, n_tasks=1, n_rooms=1, max_episode_steps=limit)
    vec.reset(seed=0)
    vec.step(["roll"])
    vec.step(["light the lamp"])
    ended = flags(vec)
    assert ended == ([True], [limit == 2])
    vec.restore(0, vec.snapshot(0))
    assert flags(vec) == ended
    vec.close()
