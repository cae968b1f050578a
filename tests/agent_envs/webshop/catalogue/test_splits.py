"""Which goal is in which split."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_envs.errors import InvalidOption
from agent_envs.webshop.catalogue.splits import (
    check_kinds,
    check_split_by,
    deal_by_product,
    split_of,
    split_sizes,
)


@pytest.mark.parametrize(
    ("goals", "sizes"),
    [
        (0, (0, 0, 0)),
        (1, (0, 0, 1)),
        (2, (1, 0, 1)),
        (3, (1, 1, 1)),
        (4, (1, 1, 2)),
        (5, (1, 1, 3)),
        (13, (2, 4, 7)),
        (20, (3, 6, 11)),
        (1600, (266, 533, 801)),
        (2999, (499, 999, 1501)),
        (3000, (500, 1000, 1500)),
        (6910, (500, 1000, 5410)),
        (12000, (500, 1000, 10500)),
    ],
)
def test_sizes(goals: int, sizes: tuple[int, int, int]) -> None:
    assert split_sizes(goals) == sizes


@given(st.integers(0, 5000))
def test_o9_every_goal_is_in_one_split_in_the_published_order(goals: int) -> None:
    test, val, train = split_sizes(goals)
    assert test + val + train == goals
    assert goals < 3 or min(test, val, train) >= 1
    dealt = [split_of(number, goals) for number in range(goals)]
    assert dealt == ["test"] * test + ["val"] * val + ["train"] * train


def slow_deal(products: list[int]) -> dict[str, list[int]]:
    """Whole products in the order of their first goals, as the rule says it."""
    order: list[int] = []
    for product in products:
        if product not in order:
            order.append(product)
    test_size, val_size, _ = split_sizes(len(products))
    found: dict[str, list[int]] = {"test": [], "val": [], "train": []}
    waiting, reserve = list(order), max(1, min(2, len(order) - 1))
    while waiting and len(found["test"]) < test_size and len(waiting) > reserve:
        found["test"] += [i for i, p in enumerate(products) if p == waiting[0]]
        waiting.pop(0)
    while len(order) > 2 and len(waiting) > 1 and len(found["val"]) < val_size:
        found["val"] += [i for i, p in enumerate(products) if p == waiting[0]]
        waiting.pop(0)
    found["train"] = [i for i, p in enumerate(products) if p in waiting]
    return {split: sorted(numbers) for split, numbers in found.items()}


@given(st.lists(st.integers(0, 8), max_size=60))
def test_o9_split_by_product(products: list[int]) -> None:
    order, sizes = deal_by_product(np.array(products, dtype=np.int32))
    ends = np.cumsum([0, *sizes]).tolist()
    dealt = {
        split: order[start:stop].tolist()
        for split, start, stop in zip(("test", "val", "train"), ends, ends[1:], strict=False)
    }
    assert dealt == slow_deal(products)
    of = {split: {products[number] for number in numbers} for split, numbers in dealt.items()}
    assert not of["test"] & of["val"] | of["test"] & of["train"] | of["val"] & of["train"]
    kinds = len(set(products))
    assert sum(map(bool, of.values())) == min(kinds, 3)
    assert of["train"] or not products


def test_by_product_hand_worked() -> None:
    """Twelve goals: test wants 2, val wants 4. Product 5 comes first, with three goals."""
    products = [5, 1, 5, 2, 2, 3, 1, 5, 4, 4, 3, 2]
    order, sizes = deal_by_product(np.array(products, dtype=np.int32))
    assert sizes == (3, 5, 4)
    assert order.tolist() == [0, 2, 7, 1, 3, 4, 6, 11, 5, 8, 9, 10]


def test_names_are_checked() -> None:
    assert check_split_by("product") == "product"
    with pytest.raises(InvalidOption, match="'goal' or 'product'"):
        check_split_by("asin")
    assert check_kinds(["human"], ("human", "synthetic")) == {"human"}
    for wrong in ("human", ["people"], 3):
        with pytest.raises(InvalidOption):
            check_kinds(wrong, ("human", "synthetic"))  # type: ignore[arg-type]
