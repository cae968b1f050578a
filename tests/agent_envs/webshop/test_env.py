"""``SeroWebShop-v0`` as a user gets it from `gymnasium.make`."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import agent_envs
from agent_envs.errors import (
    InvalidOption,
    MissingData,
    ResetNeeded,
    TaskNotFound,
)
from agent_envs.webshop.env import WebShopEnv
from agent_envs.webshop.model import PrivilegedShop
from agent_envs.webshop.shop import Shop, goal_to_dict
from tests.agent_envs.webshop.env_support import HUMAN, start
from tests.agent_envs.webshop.shops import BARE, DESKS, ODD, buy, make, raws, shop, walk
from tests.support import run_python


def test_a_whole_episode() -> None:
    env = make(**HUMAN)
    task_id = start(env)
    observation, info = env.reset(options={"task_id": task_id})
    assert info["goal"] == "i want desk number 0, and price lower than 50.00 dollars"
    assert observation == f"WebShop [SEP] Instruction: [SEP] {info['goal']} [SEP] Search"
    assert (info["task_type"], info["score"], info["steps_left"]) == ("human", 0.0, 15)
    assert info["admissible_actions"] == ()
    assert info["action_templates"] == ("search[<query>]",)
    actions = ["search[desk]", "click[b0desk0000]", "click[red]", "click[buy now]"]
    for action in actions[:-1]:
        observation, reward, terminated, truncated, info = env.step(action)
        assert (reward, terminated, truncated, info["command_valid"]) == (0.0, False, False, True)
        assert (info["action_templates"], info["reward_info"]) == ((), None)
    assert info["admissible_actions"] == (
        *("click[back to search]", "click[< prev]", "click[description]", "click[features]"),
        *("click[reviews]", "click[buy now]", "click[red]", "click[navy blue]"),
        *("click[7\" x 9']", "click[café]", "click[s]", "click[m]"),
    )
    observation, reward, terminated, truncated, info = env.step(actions[-1])
    assert observation.startswith("Thank you for shopping with us!")
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert (info["success"], info["score"], info["stop_reason"]) == (True, 1.0, "success")
    assert (info["admissible_actions"], info["steps_left"]) == ((), 11)
    # One attribute, one option and the price, each a third.
    third = pytest.approx(1 / 3)
    assert dict(info["reward_info"]) == {
        "r_type": 1.0, "r_att": 1.0, "w_att": third, "query_match": 1.0, "category_match": 1.0,
        "title_score": 1.0, "r_option": 1.0, "w_option": third, "r_price": 1.0, "w_price": third,
    }  # fmt: skip
    with pytest.raises(ResetNeeded):
        env.step("search[desk]")


def test_o11_a_wrong_button_is_no_purchase_and_a_wrong_purchase_is_worth_something() -> None:
    env = make(**HUMAN)
    start(env)
    env.step("search[desk]")
    page, *_, info = env.step("click[B0DESK0002]")
    again, reward, terminated, _, after = env.step("click[Add to Cart]")
    assert (again, reward, terminated, after["command_valid"]) == (page, 0.0, False, False)
    assert after["admissible_actions"] == info["admissible_actions"]
    _, reward, terminated, _, info = env.step("click[buy now]")
    # Of the right kind, easy to clean, in the price limit; no colour.
    assert (reward, terminated, info["success"]) == (pytest.approx(2 / 3), True, False)
    assert (info["stop_reason"], info["score"]) == ("purchase", reward)


def test_o2_the_same_task_on_request() -> None:
    env = make()
    first = env.reset(options={"task_id": "synthetic-40"})
    env.step("search[desk]")
    env.step("click[next >]")
    assert env.reset(options={"task_id": "synthetic-40"}) == first
    with pytest.raises(TaskNotFound, match="synthetic-0"):
        env.reset(options={"task_id": "desk"})


def test_o7_odd_actions_are_answered() -> None:
    env = make(max_steps=None)
    env.reset(seed=0)
    page, *_, info = env.step("search[desk]")
    for odd in ("", "\n", "search[a", "[" * 5000, "😀", "\x00", "search[" + "a" * 5000 + "]"):
        again, reward, _, _, after = env.step(odd)
        assert (again, reward, after["command_valid"]) == (page, 0.0, False)
    # Two in one line are the first one, as in the original.
    assert "Total results: 0" in env.step("search[zyzzyva] then click[b")[0]
    for query in ("😀", "\x00", "\u2028", "a\tb", "\ud800", "a" * 4000):
        assert env.step(f"search[{query}]")[4]["command_valid"]
        snap = agent_envs.snapshot(env)
        assert agent_envs.Snapshot.from_bytes(snap.to_bytes()) == snap
    assert info["action_templates"] == ()
    assert env.step("click[back to search]")[4]["action_templates"] == ("search[<query>]",)


def test_o6_the_end_of_the_budget_is_no_success_and_a_late_purchase_is_no_time_out() -> None:
    env = make(max_steps=4, **HUMAN)
    start(env)
    for left in (3, 2, 1, 0):
        _, reward, terminated, truncated, info = env.step("look")
        assert (reward, terminated, truncated) == (0.0, False, left == 0)
    assert (info["success"], info["stop_reason"]) == (False, "step_limit")
    for wanted, success in (("click[red]", True), ("click[s]", False)):
        start(env)
        for action in ("search[desk]", "click[b0desk0000]", wanted, "click[buy now]"):
            _, _, terminated, truncated, info = env.step(action)
        assert (terminated, truncated, info["success"]) == (True, False, success)
        assert info["steps_left"] == 0


@pytest.mark.parametrize("mode", ["text", "text_rich", "url", "html"])
def test_o13_check_env_is_silent(mode: str, recwarn: pytest.WarningsRecorder) -> None:
    if mode == "html":
        pytest.importorskip("jinja2")
    check_env(make(observation_mode=mode).unwrapped)
    assert [str(w.message) for w in recwarn] == []
    env = make(observation_mode=mode)
    observation, info = env.reset(seed=1)
    assert observation in env.observation_space
    for entry in walk(env, info, Random(1), 60):
        assert entry[-5 if len(entry) > 2 else 0] in env.observation_space
    for text in ("é™’\t\n", ""):
        assert text in env.observation_space


def test_o12_a_seed_has_one_start() -> None:
    env = make()
    first = env.reset(seed=1234)
    assert all(env.reset(seed=1234) == first for _ in range(5))
    assert env.reset(seed=0)[1]["task_id"] != env.reset(seed=1)[1]["task_id"]
    start = env.reset(seed=42)
    walk(env, env.reset(seed=7)[1], Random(0), 3)
    assert env.reset(seed=42) == start


def test_o10_same_number_same_goal_whatever_the_global_generator() -> None:
    code = """
import random, json, numpy, sys
random.seed(int(sys.argv[1])); numpy.random.seed(int(sys.argv[1]))
from tests.agent_envs.webshop import shops
before = random.getstate(), numpy.random.get_state()[1].tolist()
found = []
for source in ("synthetic", "human"):
    env = shops.make(goal_source=source, split=None)
    for task_id in env.unwrapped.task_ids:
        start = env.reset(options={"task_id": task_id})
        bare = env.unwrapped.privileged()
        plan = ["search[bare shelf]", "click[b0bare0001]", "click[buy now]"]
        rewards = [env.step(action)[1] for action in plan]
        found.append([task_id, start[0], bare.goal.price_upper, rewards])
found.append([env.unwrapped.shop.catalogue.price(n) for n in range(15)])
assert before == (random.getstate(), numpy.random.get_state()[1].tolist())
print(json.dumps(found))
"""
    one, two = (json.loads(run_python(code, seed)) for seed in ("1", "2"))
    assert one == two
    assert len(one) == 63 + 9 + 1
    assert 3.0 <= one[-1][-1] <= 7.5


def test_prices_follow_from_their_seed() -> None:
    bare = shop().catalogue.number_of(BARE)
    assert bare is not None
    env = gymnasium.make("SeroWebShop-v0", data=shop().with_price_seed(5))
    assert env.unwrapped.shop.catalogue.price(bare) != shop().catalogue.price(bare)
    assert env.reset(seed=0)[1]["provenance"]["price_seed"] == 5
    with pytest.raises(InvalidOption, match="with_price_seed"):
        make(price_seed=3)
    assert make(price_seed=0).unwrapped.shop is shop()


def test_a_goal_can_be_given() -> None:
    env = make()
    goal = next(g for g in shop().goals("human") if g.asin == DESKS[2])
    told = goal_to_dict(goal)
    first = env.reset(options={"goal": goal})
    assert env.reset(options={"goal": told}) == first
    info = first[1]
    assert info["task_id"].startswith("goal-")
    assert (info["goal"], info["split"], info["task_type"]) == (goal.instruction, "given", "human")
    assert [env.step(action)[1] for action in buy(env)][-1] == 1.0
    other = env.reset(options={"goal": {**told, "price_upper": 1}})[1]
    assert other == info  # nothing but the sentence of a goal shows, not even in its id
    # Another env knows the goal from the snapshot alone.
    env.step("search[desk]")
    fresh = make(**HUMAN)
    restored = agent_envs.restore(fresh, agent_envs.snapshot(env))
    # Which goals else there are is another matter.
    assert restored[1]["provenance"]["manifest_hash"] != info["provenance"]["manifest_hash"]
    assert agent_envs.snapshot(fresh).state[0] == agent_envs.snapshot(env).state[0]
    assert fresh.step("click[b0desk0002]")[0] == env.step("click[b0desk0002]")[0]
    again = fresh.reset(options={"task_id": info["task_id"]})[1]
    assert again["goal"] == info["goal"]
    with pytest.raises(TaskNotFound, match="goal"):
        make().reset(options={"task_id": info["task_id"]})


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        ({}, "instruction_text"),
        ({"instruction_text": ""}, "instruction_text"),
        ({"instruction_text": "x", "colour": 1}, "colour"),
        ({"instruction_text": "x" * 20_000}, "characters"),
        ({"instruction_text": "x", "price_upper": float("inf")}, "price_upper"),
        ({"instruction_text": "x", "attributes": "red"}, "attributes"),
        ("buy a desk", "keys"),
    ],
)
def test_a_goal_that_is_none_leaves_the_episode(goal: Any, message: str) -> None:
    env = make()
    env.reset(seed=0)
    before = agent_envs.snapshot(env)
    with pytest.raises(InvalidOption, match=message):
        env.reset(options={"goal": goal})
    assert agent_envs.snapshot(env) == before


def test_goal_and_task_exclude_each_other() -> None:
    env = make()
    env.reset(seed=0)
    goal = shop().goals("human")[0]
    with pytest.raises(InvalidOption, match="exclude"):
        env.reset(options={"goal": goal, "task_id": "synthetic-40"})


def test_splits_and_lists() -> None:
    assert {len(make(split=s).unwrapped.task_ids) for s in ("train", "val", "test")} == {32, 21, 10}
    env = make(split="test")
    assert env.reset(seed=0)[1]["split"] == "test"
    with pytest.raises(TaskNotFound, match="'train'"):
        env.reset(options={"task_id": "synthetic-62"})
    assert make(split=None).reset(options={"task_id": "synthetic-62"})[1]["split"] == "train"
    listed = make(task_ids=["synthetic-3", "synthetic-60"])
    assert [listed.reset()[1]["task_id"] for _ in range(3)] == [
        "synthetic-3",
        "synthetic-60",
        "synthetic-3",
    ]
    with pytest.raises(TaskNotFound, match="list"):
        listed.reset(options={"task_id": "synthetic-4"})
    with pytest.raises(TaskNotFound, match="synthetic-63"):
        env.reset(options={"task_id": "synthetic-63"})
    with pytest.raises(TaskNotFound, match="human"):
        make(task_ids=["human-1"])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"split": "valid"}, MissingData, "train"),
        ({"split": 3}, InvalidOption, "split"),
        ({"goal_source": "people"}, InvalidOption, "human"),
        ({"split_by": "shop"}, InvalidOption, "product"),
        ({"observation_mode": "pixels"}, InvalidOption, "text_rich"),
        ({"num_prev_obs": -1}, InvalidOption, "num_prev_obs"),
        ({"num_prev_actions": True}, InvalidOption, "num_prev_actions"),
        ({"show_attributes": 1}, InvalidOption, "show_attributes"),
        ({"compat": None}, InvalidOption, "compat"),
        ({"nouns": "verbs"}, InvalidOption, "table"),
        ({"task_ids": []}, InvalidOption, "at least one"),
        ({"task_ids": {"synthetic-3"}}, InvalidOption, "sequence"),
        ({"task_ids": ["synthetic-3"] * 2}, InvalidOption, "more than once"),
        ({"max_steps": 0}, InvalidOption, "max_steps"),
        ({"data": 3}, InvalidOption, "3"),
        ({"data": "/no/such/shop"}, MissingData, "no WebShop data"),
    ],
)
def test_constructor_says_what_is_wrong(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        WebShopEnv(**{"data": shop(), **options})


def test_privileged_view() -> None:
    env = make(**HUMAN)
    with pytest.raises(ResetNeeded):
        env.unwrapped.privileged()
    start(env)
    env.step("search[desk]")
    view = env.unwrapped.privileged()
    assert isinstance(view, PrivilegedShop)
    assert (view.goal.asin, view.session.query, view.steps_left) == (DESKS[0], "desk", 14)
    env.step("click[next >]")
    assert view.session.number == 1  # what was handed out stays as it was


def test_worlds_that_differ_in_hidden_things_look_the_same() -> None:
    """The wanted product, its attributes and options, the price limit: none of it shows."""
    goal = next(g for g in shop().goals("synthetic") if g.asin == DESKS[0])
    hidden = goal._replace(
        asin=ODD,
        category="grocery",
        query="soup",
        name="Soup",
        product_category="Food › Soup",
        attributes=("hot", "vegan", "cheap"),
        price_upper=1.0,
        options=(("size", "xxl"),),
    )
    products, attributes, humans = raws()
    twin = Shop.from_raw(products, attributes, humans, source="by hand")
    traces = []
    for data, wanted in ((shop(), goal), (twin, hidden)):
        env = gymnasium.make("SeroWebShop-v0", data=data, compat=False)
        observation, info = env.reset(seed=0, options={"goal": wanted})
        trace = [(observation, info)]
        for action in (
            *("search[odd desk lamp]", "click[b0odd00001]", "click[attributes]", "click[features]"),
            *("click[< prev]", "click[blue]", "foo", "click[< prev]", "click[b0desk0000]"),
            *("click[navy blue]", "click[description]"),
        ):
            *answer, info = env.step(action)
            trace.append((*answer, info))
        traces.append(json.dumps(trace, default=dict, sort_keys=True))
        assert env.step("click[< prev]")[0]
        assert "vegan" not in traces[-1]
        rewards = env.step("click[buy now]")[1]
        traces.append(rewards)
    assert traces[0] == traces[2]
    assert traces[1] > traces[3]


def test_close_ends_the_episode() -> None:
    env = make()
    env.reset(seed=0)
    env.step("search[desk]")
    env.close()
    with pytest.raises(ResetNeeded):
        env.unwrapped.step("search[desk]")
    with pytest.raises(ResetNeeded):
        env.unwrapped.privileged()
    assert env.reset(seed=0)[1]["admissible_actions"] == ()


def test_actions_of_other_string_types_are_taken() -> None:
    env = make()
    env.reset(seed=0)
    assert env.step(np.str_("search[desk]"))[4]["command_valid"]


def test_render() -> None:
    env = make(render_mode="ansi")
    observation, _ = env.reset(seed=0)
    assert env.render() == observation
