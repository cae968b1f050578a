"""Which goals are for training, which for validation, which for the test.

Splits follow from the number of goals alone: not from a seed, a worker or a batch size.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from agent_envs.errors import InvalidOption

Split = Literal["train", "val", "test"]
SplitBy = Literal["goal", "product"]

SPLITS: tuple[Split, ...] = ("train", "val", "test")
IN_ORDER: tuple[Split, ...] = ("test", "val", "train")
"""Splits in the order in which goals are dealt out."""
SPLIT_BY: tuple[SplitBy, ...] = ("goal", "product")

TEST, VAL = 500, 1000
"""Published sizes: goals 0 to 499 and 500 to 1499."""


def split_sizes(goals: int) -> tuple[int, int, int]:
    """Numbers of goals in test, val and train.

    The published sizes from 3,000 goals up; below, a sixth and a third, at least one each. A
    single goal is for training; two are one for the test and one for training.

    >>> split_sizes(6910), split_sizes(20), split_sizes(3), split_sizes(2), split_sizes(1)
    ((500, 1000, 5410), (3, 6, 11), (1, 1, 1), (1, 0, 1), (0, 0, 1))
    """
    if goals < 3:
        return (1, 0, 1) if goals == 2 else (0, 0, goals)
    test = max(1, min(TEST, goals // 6))
    val = max(1, min(VAL, goals // 3))
    return test, val, goals - test - val


def split_of(number: int, goals: int) -> Split:
    """The split of goal `number` of `goals`, dealt out goal by goal: test, val, train."""
    test, val, _ = split_sizes(goals)
    return "test" if number < test else "val" if number < test + val else "train"


def deal_by_product(products_N: NDArray[np.int32]) -> tuple[NDArray[np.int32], tuple[int, ...]]:
    """Deal out goals so that no product is in two splits.

    Products are walked in the order of their first goals; whole products go to test until it has
    the size that `split_sizes` gives it, then to val, then to train. With three products or more
    each split gets one at least; with two, test and train do.

    Args:
        products_N: the product of each goal, in the order of the goals.

    Returns:
        Goal numbers, those of test first, then val, then train, each in ascending order; and the
        three sizes.
    """
    goals = len(products_N)
    wanted_test, wanted_val, _ = split_sizes(goals)
    counts = np.bincount(products_N)
    first = np.full(len(counts), goals, dtype=np.int32)
    # Of several values for one place the last one stays: that of the first goal.
    first[products_N[::-1]] = np.arange(goals - 1, -1, -1, dtype=np.int32)
    total = int(np.count_nonzero(counts))
    walk = np.argsort(first, kind="stable")[:total]
    codes = np.full(len(counts), 2, dtype=np.int8)
    test = val = 0
    for place, product in enumerate(walk.tolist()):
        left = total - place - 1  # products behind this one
        has_val = total >= 3
        if test < wanted_test and left >= (2 if has_val else 1):
            codes[product], test = 0, test + int(counts[product])
        elif val < wanted_val and left >= 1 and has_val:
            codes[product], val = 1, val + int(counts[product])
        else:
            break
    codes_N = codes[products_N]
    parts = [np.flatnonzero(codes_N == code).astype(np.int32) for code in range(3)]
    return np.concatenate(parts), (test, val, goals - test - val)


def check_split_by(split_by: object) -> SplitBy:
    """`split_by`, if it is known.

    Raises:
        InvalidOption: otherwise.
    """
    for known in SPLIT_BY:
        if split_by == known:
            return known
    raise InvalidOption(f"split_by is {split_by!r}; choose 'goal' or 'product'.")


def check_kinds(kinds: Iterable[str], known: tuple[str, ...]) -> frozenset[str]:
    """Names of task types, checked.

    Raises:
        InvalidOption: an unknown name, or a single text where several names belong.
    """
    if isinstance(kinds, str) or not isinstance(kinds, Iterable):
        raise InvalidOption(f"task_types must be a sequence of strings, found {kinds!r}.")
    names = [str(kind) for kind in kinds]
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise InvalidOption(f"Unknown task types {unknown}; there are {sorted(known)}.")
    return frozenset(names)
