"""The browser env against the in-process env, step for step."""

from __future__ import annotations

from random import Random
from typing import Any

import gymnasium
import pytest

import agent_envs
from agent_envs.errors import InvalidOption, ResetNeeded
from agent_envs.testing import check_snapshot_env
from agent_envs.webshop.catalogue import Shop
from tests.agent_envs.webshop import shops
from tests.agent_envs.webshop.browser.conftest import make
from tests.agent_envs.webshop.site.reading import Read
from tests.support import full_count

WORDS = (
    *("desk", "lamp", "a/b", "%", "search_results", "done", "item_page/x", "é™🙂", "\\", "~z"),
    *("[x", "..", "<script>alert(1)</script>", "5%", '"small"', "'q'", "?a=b#c", "{{7*7}}"),
)
ODD_ACTIONS = (
    "nonsense",
    "click[nope]",
    "click[search]",
    "search[]",
    "CLICK[buy now]",
    "search[a\rb]",
    "search[ ]",
    "search[x\ud800y]",
    "search[a\x00b]",
    "search[a\nb]",
    "search[" + "w" * 4088 + "]",
    "search[" + "é🙂" * 2040 + "]",
    "search[" + "w" * 4089 + "]",
    "click[buy now",
    "",
)


def action(info: dict[str, Any], rng: Random) -> str:
    """Something to do: mostly what is listed, also what is refused, also in capitals."""
    draw, listed = rng.random(), info["admissible_actions"]
    if draw < 0.1:
        return rng.choice(ODD_ACTIONS)
    if not listed or draw < 0.2:
        words = [*WORDS, *info["goal"].split()]
        return f"search[{' '.join(rng.sample(words, rng.randint(1, 3)))}]"
    if draw < 0.35 and "click[buy now]" in listed:
        return "click[buy now]"
    chosen: str = rng.choice(listed)
    return chosen if draw < 0.9 else f"click[{chosen[len('click[') : -1].upper()}] and more"


def compare(reference: Any, browsing: Any, seed: int, steps: int) -> int:
    """Play the same episode in both; how many steps it had."""
    rng = Random(seed)
    one, other = reference.reset(seed=seed), browsing.reset(seed=seed)
    taken = 0
    while True:
        assert other[0] == one[0]
        assert other[1:-1] == one[1:-1]
        assert plain(other[-1]) == plain(one[-1])
        assert browsing.unwrapped.privileged().session == reference.unwrapped.privileged().session
        if one[-1]["stop_reason"] is not None or taken == steps:
            return taken
        said = action(one[-1], rng)
        one, other = reference.step(said), browsing.step(said)
        taken += 1


def plain(info: dict[str, Any]) -> dict[str, Any]:
    """All that both envs say; the provenance names which one it is."""
    told = {key: value for key, value in info["provenance"].items() if key != "engine"}
    return {**info, "provenance": told}


def test_episodes_of_the_real_shop_agree(real_shop: Shop, browser: None) -> None:
    options: dict[str, Any] = {"data": real_shop, "split": "test", "max_steps": 12}
    reference = gymnasium.make("SeroWebShop-v0", **options)
    browsing = gymnasium.make("SeroWebShopBrowser-v0", **options)
    try:
        for seed in range(full_count(4, 30)):
            compare(reference, browsing, seed, 12)
    finally:
        browsing.close()


@pytest.mark.parametrize("mode", ["text", "text_rich", "url"])
def test_episodes_of_the_awkward_shop_agree(browser: None, mode: str) -> None:
    options: dict[str, Any] = {
        "data": shops.shop(),
        "split": None,
        "goal_source": "human",
        "observation_mode": mode,
        "num_prev_obs": 1,
        "num_prev_actions": 2,
        "show_attributes": True,
    }
    reference = gymnasium.make("SeroWebShop-v0", **options)
    browsing = gymnasium.make("SeroWebShopBrowser-v0", **options)
    try:
        steps = [compare(reference, browsing, seed, 15) for seed in range(full_count(3, 30))]
        assert sum(steps) > 10
    finally:
        browsing.close()


def test_every_product_of_the_awkward_shop_agrees(env: Any) -> None:
    """Each option and each page below, also those that random walks seldom meet."""
    reference = shops.make(goal_source="human", split=None, show_attributes=True, max_steps=None)
    browsing = make(split=None, show_attributes=True, max_steps=None)
    browsing.unwrapped._front = env.unwrapped.front  # no second browser
    for query, asin in (("odd lamp", shops.ODD), ("shelf", shops.BARE), ("desk", shops.DESKS[0])):
        reference.reset(seed=0)
        browsing.reset(seed=0)
        for said in (f"search[{query}]", f"click[{asin.lower()}]"):
            one, other = reference.step(said), browsing.step(said)
        for said in one[-1]["admissible_actions"]:
            if said in ("click[buy now]", "click[back to search]", "click[< prev]"):
                continue
            one, other = reference.step(said), browsing.step(said)
            assert other[0] == one[0], said
            assert plain(other[-1]) == plain(one[-1]), said
            if "click[buy now]" not in one[-1]["admissible_actions"]:
                reference.step("click[< prev]")
                browsing.step("click[< prev]")
        one, other = reference.step("click[buy now]"), browsing.step("click[buy now]")
        assert other[:-1] == one[:-1]
        assert plain(other[-1]) == plain(one[-1])


def test_html_is_the_page_that_the_text_is_of(browser: None) -> None:
    browsing = make(observation_mode="html", split=None)
    reference = shops.make(goal_source="human", split=None)
    try:
        one, other = reference.reset(seed=1), browsing.reset(seed=1)
        for said in (None, "search[desk]", f"click[{shops.DESKS[0].lower()}]", "click[features]"):
            if said is not None:
                one, other = reference.step(said), browsing.step(said)
            assert Read(other[0].partition("?>")[2] or other[0]).shown == one[0]
    finally:
        browsing.close()


INHERITED = (
    *("seeded_reset", "task_on_request", "schedule", "admissible_accepted", "info_immutable"),
    *("hostile_snapshots", "snapshot_bytes", "budget_restored"),
)
"""Promises that the browser has no part in; checked at the full count only, as each takes long."""


def test_it_keeps_the_promises_of_every_env(browser: None) -> None:
    skip = INHERITED[: full_count(len(INHERITED), 0)]
    env = make(task_ids=["human-0", "human-1", "human-2"], max_steps=6)
    try:
        report = check_snapshot_env(env, walks=full_count(1, 3), steps=4, plan=shops.buy, skip=skip)
        assert sorted(name for name, _ in report.unchecked) == sorted(skip)
    finally:
        env.close()


def test_a_snapshot_goes_on_in_either_env(env: Any) -> None:
    """By value: nothing of the first browser is needed."""
    env.reset(seed=3)
    for said in ("search[writing desk]", f"click[{shops.DESKS[0].lower()}]", "click[navy blue]"):
        observation = env.step(said)[0]
    point = agent_envs.snapshot(env)
    other = make(split=None, show_attributes=True)
    try:
        assert agent_envs.restore(other, point)[0] == observation
        assert other.unwrapped.front.pids == ()  # no browser yet
        assert other.step("click[m]")[0] == env.step("click[m]")[0]
        bought, again = env.step("click[buy now]"), other.step("click[buy now]")
        assert bought[:4] == again[:4]
        assert other.unwrapped.front.pids != env.unwrapped.front.pids
        agent_envs.restore(env, point)  # back before the purchase, in the same browser
        assert env.step("click[red]")[3] is False
        reward = env.step("click[buy now]")[1]
        session = env.unwrapped.privileged().session
        assert session.options == (("color", "red"),)
        shown = env.unwrapped.front.driver.find_element("css selector", "#reward pre")
        assert reward == float(shown.text)
    finally:
        other.close()


def test_a_restored_purchase_is_shown(env: Any) -> None:
    env.reset(seed=4)
    for said in ("search[desk]", f"click[{shops.DESKS[2].lower()}]", "click[buy now]"):
        last = env.step(said)
    point = agent_envs.snapshot(env)
    env.reset(seed=5)
    observation, info = agent_envs.restore(env, point)
    assert (observation, info["score"]) == (last[0], last[1])
    env.unwrapped.screenshot()
    assert "Thank you" in env.unwrapped.front.driver.find_element("id", "thankyou").text


def test_the_picture_is_a_picture(env: Any) -> None:
    env.reset(seed=0)
    assert env.unwrapped.screenshot().startswith(b"\x89PNG")
    fresh = make()
    with pytest.raises(ResetNeeded):
        fresh.unwrapped.screenshot()


def test_the_site_is_told_of_no_goal_but_by_its_sentence(env: Any) -> None:
    env.reset(options={"task_id": "human-1"})
    goal = env.unwrapped.privileged().goal
    driver = env.unwrapped.front.driver
    env.step("search[shelf]")
    source = driver.page_source
    assert goal.instruction in source
    assert goal.asin not in source
    assert "goal_options" not in source


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan"), "60", True])
def test_nonsense_options_are_refused(timeout: Any) -> None:
    with pytest.raises(InvalidOption, match="timeout"):
        make(timeout=timeout)
