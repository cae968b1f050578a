"""The WebShop environment at its edges: odd texts, odd products, forged snapshots."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import agent_envs
from agent_envs.errors import SnapshotMismatch
from agent_envs.webshop.shop import Shop
from tests.agent_envs.webshop.shops import DESKS, buy, make, raw, shop

ASKED = {"B1": {"attributes": ["a"], "instruction": "x", "instruction_attributes": ["a"]}}


def test_goals_given_with_one_sentence_are_told_apart_by_snapshots() -> None:
    env = make()
    goal = next(g for g in shop().goals("synthetic") if g.asin == DESKS[2])
    env.reset(options={"goal": goal})
    dear = agent_envs.snapshot(env)
    env.reset(options={"goal": goal._replace(price_upper=1.0, options=("red",))})
    assert agent_envs.snapshot(env).task_id == dear.task_id
    assert [env.step(action)[1] for action in buy(env)][-1] < 1.0
    _, info = agent_envs.restore(env, dear)
    assert info["task_type"] == "synthetic"
    assert agent_envs.snapshot(env) == dear
    unwrapped: Any = env.unwrapped
    assert unwrapped.privileged().goal == goal


def test_surrogates_survive_the_bytes_of_a_snapshot() -> None:
    """Two halves of a character side by side are not that character."""
    env = make(data=Shop.from_raw([raw("B1", "\U0001f600 lamp")], ASKED, {}), split=None)
    env.reset(seed=0)
    for halves in ("\ud83d\ude00", "\U0001f600"):
        listed = env.step(f"search[{halves}]")[4]["admissible_actions"]
        before = agent_envs.snapshot(env)
        after = agent_envs.Snapshot.from_bytes(before.to_bytes())
        assert after == before
        assert agent_envs.restore(env, after)[1]["admissible_actions"] == listed
    assert "click[b1]" in listed


def test_buttons_win_over_products_of_the_same_name() -> None:
    asins = ("next >", "< prev", *(f"B{number}" for number in range(10, 20)))
    asked = {"B10": ASKED["B1"]}
    data = Shop.from_raw([raw(asin, "lamp") for asin in asins], asked, {})
    env = make(data=data, split=None)
    env.reset(seed=0)
    env.step("search[lamp]")
    assert "Page 2" in env.step("click[next >]")[0]
    assert "Page 1" in env.step("click[< prev]")[0]


def test_no_snapshot_goes_on_after_a_purchase() -> None:
    env = make()
    env.reset(seed=0)
    for step in buy(env):
        before = agent_envs.snapshot(env)
        env.step(step)
    bought = agent_envs.snapshot(env)
    for state in (
        (*bought.state[:4], False, 0.0, None, bought.state[7]),
        (*before.state[:4], *bought.state[4:7], before.state[7]),
    ):
        with pytest.raises(SnapshotMismatch, match="purchase"):
            agent_envs.restore(env, dataclasses.replace(bought, state=state))
    assert agent_envs.snapshot(env) == bought


def test_o13_o14_the_longest_products_fit_the_space_and_longer_ones_are_left_out() -> None:
    groups = {"size": [{"value": f"{n:05}" + "s" * 55} for n in range(1_490)]}
    longest = {
        "B1": {"name": "lamp " + "t" * 19_995, "small_description": ["b" * 149_960]},
        "B2": {"name": "lamp", "full_description": "d" * 150_000},
        "B3": {"name": "lamp", "customization_options": groups},
    }
    longer = {
        "C1": {"name": "lamp " + "t" * 19_996},
        "C2": {"name": "lamp", "full_description": "d" * 150_001},
        "C3": {"name": "lamp", "small_description": ["b"] * 4_000},
        "C4": {"name": "lamp", "customization_options": {"s" * 150_000: [{"value": "x"}]}},
    }
    products = [raw(asin, **changes) for asin, changes in {**longest, **longer}.items()]
    data = Shop.from_raw(products, ASKED, {})
    assert data.report.skip_counts() == {"long_text": 4}
    assert "150,001 characters" in {a: why for a, _, why in data.report.skip_details()}["C2"]
    for mode in ("text", "text_rich"):
        env = make(data=data, split=None, max_steps=None, observation_mode=mode)
        env.reset(seed=0)
        for asin in longest:
            for action in ("search[lamp]", f"click[{asin}]", "click[description]", "click[< prev]"):
                observation, *_, info = env.step(action)
                assert info["command_valid"]
                assert observation in env.observation_space
                agent_envs.restore(env, agent_envs.snapshot(env))
            observation = env.step("click[features]")[0]
            assert observation in env.observation_space
