"""Sets of goals: ids, splits, and errors that say what to do."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_envs.errors import InvalidOption, MissingData, TaskNotFound
from agent_envs.webshop.catalogue import GoalSet, Shop, TaskIds
from agent_envs.webshop.catalogue.goal_set import parse_task_id
from tests.agent_envs.webshop.catalogue.raws import (
    asin,
    options,
    raw_facts,
    raw_product,
    small_raw,
    small_shop,
)


def shop_with(goals: int, products: int = 1) -> Shop:
    """A shop of so many synthetic goals, spread over so many products."""
    raws, facts = [], {}
    for number in range(products):
        share = goals // products + (number < goals % products)
        custom = options(Size=[str(value) for value in range(share)])
        raws.append(raw_product(asin(number), customization_options=custom))
        facts[asin(number)] = raw_facts("light")
    return Shop.from_raw(raws, facts)


@pytest.mark.parametrize("split_by", ["goal", "product"])
@pytest.mark.parametrize("goals", [3, 20, 1600, 12000])
def test_o9_splits_are_disjoint_and_whole(goals: int, split_by: Any) -> None:
    shop = shop_with(goals, products=min(goals, 40))
    made = GoalSet(shop, split_by=split_by)
    ids = {split: list(made.task_ids(split)) for split in ("train", "val", "test")}
    assert made.splits == ("train", "val", "test")
    together = [task_id for split in ids.values() for task_id in split]
    assert len(together) == len(set(together)) == goals == len(made)
    assert set(together) == set(made.task_ids())
    for split, some in ids.items():
        assert {made.meta(task_id).split for task_id in some[:50]} == {split}
    if split_by == "goal" and goals >= 3000:
        assert ids["test"] == [f"synthetic-{n}" for n in range(500)]
        assert ids["val"] == [f"synthetic-{n}" for n in range(500, 1500)]
    if split_by == "product":
        owners = {
            split: {shop.goals("synthetic").product_of(made.number_of(one)) for one in some}
            for split, some in ids.items()
        }
        assert (
            sum(map(len, owners.values())) == len(set().union(*owners.values())) == min(goals, 40)
        )


def test_o9_ids_do_not_move_with_the_price_seed() -> None:
    shop = shop_with(600, 30)
    for split_by in ("goal", "product"):
        for split in ("train", "val", "test"):
            ids = {
                tuple(GoalSet(one, split_by=split_by).task_ids(split))  # type: ignore[arg-type]
                for one in (shop, shop.with_price_seed(1), shop_with(600, 30))
            }
            assert len(ids) == 1


@pytest.mark.parametrize(("goals", "splits"), [(1, ("train",)), (2, ("train", "test"))])
def test_o9_tiny_sets_follow_the_rule(goals: int, splits: tuple[str, ...]) -> None:
    assert GoalSet(shop_with(goals, goals)).splits == splits
    assert GoalSet(shop_with(goals, goals), split_by="product").splits == splits
    assert GoalSet(shop_with(goals, 1), split_by="product").splits == ("train",)


def test_goals_of_a_task_id() -> None:
    shop = small_shop()
    for kind in ("synthetic", "human"):
        made = GoalSet(shop, kind)  # type: ignore[arg-type]
        for number, task_id in enumerate(made.task_ids()):
            assert task_id == f"{kind}-{number}"
            assert task_id in made
            assert made.goal(task_id) == shop.goals(kind)[number]  # type: ignore[arg-type]
            assert made.meta(task_id).task_type == kind
        assert list(made.task_ids(task_types=[kind])) == list(made.task_ids())
        other = "human" if kind == "synthetic" else "synthetic"
        assert list(made.task_ids(task_types=[other])) == []
        assert list(made.task_ids("valid_seen")) == []


@pytest.mark.parametrize(
    ("task_id", "part"),
    [
        ("synthetic-99999", "The last one is 'synthetic-"),
        ("human-0", "goal_source='human'"),
        ("synthetic-01", "from 'synthetic-0' to"),
        ("synthetic--1", "from 'synthetic-0' to"),
        ("synthetic-1 ", "from 'synthetic-0' to"),
        ("synthetic-٣", "from 'synthetic-0' to"),
        ("", "from 'synthetic-0' to"),
        (3, "from 'synthetic-0' to"),
        ("synthetic-" + "9" * 400, "from 'synthetic-0' to"),
    ],
)
def test_ids_that_name_no_goal(task_id: Any, part: str) -> None:
    made = GoalSet(small_shop())
    assert task_id not in made
    for ask in (made.goal, made.meta, made.number_of):
        with pytest.raises(TaskNotFound) as caught:
            ask(task_id)
        assert part in str(caught.value)


def test_a_kind_without_goals() -> None:
    products, facts, _ = small_raw()
    made = GoalSet(Shop.from_raw(products, facts), "human")
    assert (len(made), made.splits, list(made.task_ids())) == (0, (), [])
    with pytest.raises(MissingData, match=r"items_human_ins\.json.*goal_source"):
        made.need_goals()
    with pytest.raises(TaskNotFound, match="no such goals"):
        made.goal("human-0")
    GoalSet(small_shop()).need_goals()


def test_arguments_are_checked() -> None:
    shop = small_shop()
    with pytest.raises(InvalidOption, match="'goal' or 'product'"):
        GoalSet(shop, split_by="asin")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="'synthetic' or 'human'"):
        GoalSet(shop, "people")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="people"):
        GoalSet(shop).task_ids(task_types=["people"])


def test_the_manifest_is_about_everything_that_decides_a_task() -> None:
    shop = small_shop()
    hashes = {
        GoalSet(shop).manifest_hash,
        GoalSet(shop, "human").manifest_hash,
        GoalSet(shop, split_by="product").manifest_hash,
        GoalSet(shop.with_price_seed(1)).manifest_hash,
        GoalSet(shop.with_prices({asin(0): 3.0})).manifest_hash,
        GoalSet(small_shop(31)).manifest_hash,
    }
    assert len(hashes) == 6
    assert GoalSet(small_shop()).manifest_hash == GoalSet(shop).manifest_hash
    again = pickle.loads(pickle.dumps(GoalSet(shop, "human", split_by="product")))
    assert again.manifest_hash == GoalSet(shop, "human", split_by="product").manifest_hash


def test_ids_are_made_when_asked_for() -> None:
    ids = TaskIds("synthetic", range(500, 10**9))
    assert len(ids) == 10**9 - 500
    assert (ids[0], ids[-1], ids[10**6]) == (
        "synthetic-500",
        "synthetic-999999999",
        "synthetic-1000500",
    )
    assert "synthetic-499" not in ids
    assert "human-500" not in ids
    assert ids.index("synthetic-600") == 100
    assert sys.getsizeof(ids) < 100
    with pytest.raises(IndexError):
        ids[10**9]
    with pytest.raises(ValueError, match="synthetic-3"):
        ids.index("synthetic-3")


@given(st.sets(st.integers(0, 60)), st.integers(-70, 70), st.integers(-70, 70), st.integers(1, 5))
def test_ids_are_a_sequence_like_a_tuple(numbers: set[int], i: int, j: int, step: int) -> None:
    import numpy as np

    ids = TaskIds("human", np.array(sorted(numbers), dtype=np.int32))  # type: ignore[arg-type]
    plain = tuple(f"human-{number}" for number in sorted(numbers))
    assert tuple(ids) == plain
    assert ids == plain
    assert ids == TaskIds("human", sorted(numbers))
    assert hash(ids) == hash(TaskIds("human", sorted(numbers)))
    assert tuple(ids[i:j:step]) == plain[i:j:step]
    assert tuple(reversed(ids)) == plain[::-1]
    for number in range(62):
        one = f"human-{number}"
        assert (one in ids) == (one in plain)
        assert ids.count(one) == plain.count(one)
        if one in plain:
            assert ids[ids.index(one)] == one


@given(st.sampled_from(["synthetic", "human"]), st.integers(0, 10**18 - 1))
def test_ids_round_trip(kind: str, number: int) -> None:
    assert parse_task_id(f"{kind}-{number}") == (kind, number)
