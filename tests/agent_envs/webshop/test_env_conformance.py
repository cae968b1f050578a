"""The promises of docs/environments.md, in every mode, and snapshots around purchases."""

from __future__ import annotations

from random import Random
from typing import Any

import gymnasium
import pytest

import agent_envs
from agent_envs.testing import PROMISES, check_snapshot_env
from tests.agent_envs.webshop.shops import DESKS, buy, make, shop, walk
from tests.support import full_count

HUMAN: dict[str, Any] = {"goal_source": "human", "split": None}
# One goal for the awkward product wants a value that only another group can be given.
DESK_TASKS = [f"synthetic-{i}" for i, g in enumerate(shop().goals("synthetic")) if g.asin in DESKS]
MODES: tuple[dict[str, Any], ...] = (
    {},
    {"observation_mode": "text_rich"},
    {"observation_mode": "url"},
    {"observation_mode": "html"},
    {"show_attributes": True, "split_by": "product"},
    {"max_steps": 7},
    {"max_steps": None, "goal_source": "synthetic", "task_ids": DESK_TASKS},
)


def _need(options: dict[str, Any]) -> None:
    if options.get("observation_mode") == "html":
        pytest.importorskip("jinja2")


@pytest.mark.parametrize("options", MODES, ids=lambda options: "-".join(map(str, options)) or "-")
def test_every_promise_is_kept(options: dict[str, Any]) -> None:
    _need(options)
    env = make(**{**HUMAN, **options})
    report = check_snapshot_env(env, plan=buy, walks=full_count(2, 6), steps=full_count(8, 14))
    endless = options.get("max_steps", 15) is None
    left = {name for name, _ in report.unchecked}
    assert left <= ({"step_budget"} if endless else set())
    assert set(report.passed) == PROMISES.keys() - left


@pytest.mark.parametrize(
    ("options", "broken"),
    [
        # A page before a refused action stands in later observations.
        ({"num_prev_obs": 2, "num_prev_actions": 1}, {"invalid_is_noop"}),
        # Goals are drawn with replacement, and shopping goes on after a purchase.
        ({"compat": True}, {"schedule", "seeds_differ", "step_after_end"}),
    ],
)
def test_what_history_and_compat_give_up(options: dict[str, Any], broken: set[str]) -> None:
    env = make(**HUMAN, **options)
    report = check_snapshot_env(env, plan=buy, walks=2, steps=8, skip=broken)
    assert {name for name, _ in report.unchecked} == broken
    assert set(report.passed) == PROMISES.keys() - broken


def test_conformance_on_real_products(real_shop: Any) -> None:
    env = gymnasium.make("SeroWebShop-v0", data=real_shop)
    report = check_snapshot_env(env, walks=full_count(2, 20), steps=full_count(10, 15))
    # No walk by chance ends in a success.
    assert {name for name, _ in report.unchecked} <= {"schedule", "success", "step_after_end"}


@pytest.mark.parametrize("compat", [False, True])
def test_o14_every_prefix_of_a_plan_can_be_resumed(compat: bool) -> None:
    options = {**HUMAN, "compat": compat}
    env, fresh = make(**options), make(**options)
    goals = shop().goals("human")
    task = next(i for i, goal in enumerate(goals) if goal.asin == DESKS[4])
    env.reset(options={"task_id": f"human-{task}"})
    plan = buy(env)
    if compat:
        plan = [*plan, "click[next >]", "search[desk]", *plan]
    else:
        plan = [plan[0], "click[next >]", "foo", "click[< prev]", *plan[1:]]
    for place in range(len(plan) + 1):
        env.reset(options={"task_id": f"human-{task}"})
        taken = [env.step(action) for action in plan[:place]]
        snap = agent_envs.snapshot(env)
        expected = [env.step(action) for action in plan[place:]]
        walked = Random(place)
        _, info = env.reset(seed=place)
        walk(env, info, walked, 5)
        for other in (env, fresh):
            resumed = agent_envs.restore(other, agent_envs.Snapshot.from_bytes(snap.to_bytes()))
            if taken:
                assert resumed == (taken[-1][0], taken[-1][-1])
            assert agent_envs.snapshot(other) == snap
            assert [other.step(action) for action in plan[place:]] == expected


def test_o14_a_time_limit_is_restored() -> None:
    env = gymnasium.make("SeroWebShop-v0", data=shop(), max_episode_steps=10)
    env.reset(seed=0)
    for _ in range(4):
        env.step("search[desk]")
    snap = agent_envs.snapshot(env)
    for _ in range(5):
        env.step("click[next >]")
    agent_envs.restore(env, snap)
    ends = [env.step("search[desk]")[3] for _ in range(6)]
    assert ends == [False] * 5 + [True]


def test_a_snapshot_of_another_manner_is_refused() -> None:
    env = make()
    env.reset(seed=0)
    snap = agent_envs.snapshot(env)
    for options in (
        {"observation_mode": "url"},
        {"compat": True},
        {"num_prev_obs": 1},
        {"show_attributes": True},
    ):
        other = make(**options)
        with pytest.raises(agent_envs.SnapshotMismatch, match="same options"):
            agent_envs.restore(other, snap)
    dear = gymnasium.make("SeroWebShop-v0", data=shop().with_prices({DESKS[0]: 1.0}))
    with pytest.raises(agent_envs.SnapshotMismatch, match="revision"):
        agent_envs.restore(dear, snap)
