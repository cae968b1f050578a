"""Goals of generated shops can be found, told apart and won."""

from __future__ import annotations

from dataclasses import replace

import gymnasium
import pytest

import agent_envs  # noqa: F401 - registers the env
from agent_envs.webshop.generated import generated_files
from agent_envs.webshop.generated.spec import SMALL, STANDARD, ShopSpec
from agent_envs.webshop.model import Goal
from agent_envs.webshop.nouns import nouns_named
from agent_envs.webshop.reward import score
from agent_envs.webshop.shop import GoalSet, Shop, load_shop
from tests.support import full_count

KINDS = ("synthetic", "human")


@pytest.fixture(scope="module", params=["generated:standard", "generated:small"])
def shop(request: pytest.FixtureRequest) -> Shop:
    return load_shop(request.param)


@pytest.fixture(scope="module")
def standard() -> Shop:
    return load_shop("generated")


def sample(shop: Shop, kind: str, number: int) -> list[tuple[int, Goal]]:
    goals = shop.goals(kind)  # type: ignore[arg-type]
    step = max(1, len(goals) // full_count(number, len(goals)))
    return [(i, goals[i]) for i in range(0, len(goals), step)]


def wanted_values(goal: Goal) -> list[str]:
    return [option if isinstance(option, str) else option[1] for option in goal.options]


@pytest.mark.parametrize("kind", KINDS)
def test_every_goal_is_won_by_search_options_and_purchase(shop: Shop, kind: str) -> None:
    env = gymnasium.make("SeroWebShop-v0", data=shop, split=None, goal_source=kind, max_steps=8)
    for number, goal in sample(shop, kind, 60):
        env.reset(options={"task_id": f"{kind}-{number}"})
        title = shop.catalogue[shop.catalogue.number_of(goal.asin) or 0].title
        actions = [f"search[{title}]", f"click[{goal.asin}]"]
        actions += [f"click[{value}]" for value in wanted_values(goal)]
        for action in [*actions, "click[buy now]"]:
            _, reward, over, _, info = env.step(action)
            assert info["command_valid"], (action, goal)
        assert (over, reward, info["success"]) == (True, 1.0, True), (goal, info["reward_info"])


def test_products_are_found_by_what_the_instruction_says(shop: Shop) -> None:
    found = first_page = total = 0
    for _, goal in sample(shop, "synthetic", 150):
        words = " ".join([goal.query, *goal.attributes])
        hits = shop.index.search(words)
        number = shop.catalogue.number_of(goal.asin)
        found, first_page = found + (number in hits), first_page + (number in hits[:10])
        total += 1
    assert found >= 0.98 * total
    assert first_page >= 0.9 * total


def test_search_by_title_finds_the_product_first(shop: Shop) -> None:
    for number in range(0, len(shop.catalogue), full_count(7, 1)):
        assert shop.index.search(shop.catalogue[number].title)[0] == number


def test_results_hold_several_plausible_candidates(standard: Shop) -> None:
    rivals = []
    for _, goal in sample(standard, "synthetic", 100):
        hits = standard.index.search(" ".join([*goal.attributes, goal.query]))[:10]
        rivals.append(sum(standard.catalogue[hit].query == goal.query for hit in hits))
    assert sum(rivals) / len(rivals) > 2.5


def test_each_goal_of_a_small_shop_has_one_product() -> None:
    shop, nouns = load_shop("generated:small?n=160"), nouns_named("table")
    seen = set()
    for _, goal in sample(shop, "synthetic", 10_000):
        if goal.asin in seen:
            continue
        seen.add(goal.asin)
        options = goal.options[:0]
        winners = [
            product.asin
            for product in shop.catalogue
            if score(goal._replace(options=options), product, 0.0, (), nouns)[0] == 1.0
        ]
        assert winners == [goal.asin]
    assert len(seen) == 160


def test_a_wrong_product_of_the_same_sort_seldom_wins(standard: Shop) -> None:
    nouns, wins, tries = nouns_named("table"), 0, 0
    for _, goal in sample(standard, "synthetic", 80):
        for number in standard.catalogue.numbers_in(goal.category)[:60]:
            product = standard.catalogue[number]
            if product.asin == goal.asin or product.query != goal.query:
                continue
            values = {value: group for group, all_ in product.options for value in all_}
            picked = [(values[v], v) for v in wanted_values(goal) if v in values]
            reward, _ = score(goal, product, standard.catalogue.price(number), picked, nouns)
            wins, tries = wins + (reward == 1.0), tries + 1
    assert tries > 50
    assert wins / tries < 0.15


@pytest.mark.parametrize("seed", range(3))
def test_as_many_goals_as_the_public_set(seed: int) -> None:
    products, attributes, human = generated_files(replace(STANDARD, seed=seed))
    goals = 0
    for product in products:
        if "instruction" in attributes[product["asin"]]:
            count = 1
            for values in product["customization_options"].values():
                count *= len(values)
            goals += count
    assert 4000 < goals < 8500  # the public set has 6,910
    assert 300 < sum(map(len, human.values())) < 600


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("preset", [SMALL, STANDARD], ids=["small", "standard"])
@pytest.mark.parametrize("products", [3, 10])
def test_splits_are_never_empty(preset: ShopSpec, products: int, kind: str) -> None:
    files = generated_files(replace(preset, products=products, human=0.01, instructed=0.01))
    goals = GoalSet(Shop.from_raw(*files), kind)  # type: ignore[arg-type]
    assert all(len(goals.task_ids(split)) for split in ("train", "val", "test"))
