"""Which values to select: beside trying every combination, and where those are too many."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from random import Random

import pytest

from oracles.webshop_selection import Group, choose
from tests.support import full_count


def worth(groups: Sequence[Group], choice: Sequence[int]) -> tuple[int, int]:
    """(options matched, minus the clicks); no group may be clicked twice."""
    matched, used = 0, 0
    for group in groups:
        clicked = [bits for bits, number in group.moves if number in choice]
        assert len(clicked) <= 1
        used += len(clicked)
        matched |= clicked[0] if clicked else group.own
    assert used == len(choice)
    return matched.bit_count(), -used


def best(groups: Sequence[Group], limit: int | None) -> tuple[int, int]:
    offers = [(-1, *(number for _, number in group.moves)) for group in groups]
    combinations = (
        [number for number in numbers if number >= 0] for numbers in itertools.product(*offers)
    )
    return max(
        worth(groups, numbers) for numbers in combinations if limit is None or len(numbers) <= limit
    )


def few_calls(limit: int) -> Callable[[], bool]:
    calls = itertools.count()
    return lambda: next(calls) >= limit


@pytest.mark.parametrize("most_bits", [1, 2, 3])
def test_equals_every_combination(most_bits: int) -> None:
    draw = Random(most_bits)
    for _ in range(full_count(300, 5000)):
        wanted = draw.randrange(1, 7)

        def bits(least: int, wanted: int = wanted) -> int:
            count = draw.randrange(least, most_bits + 1)
            return sum(1 << place for place in draw.sample(range(wanted), min(count, wanted)))

        numbers = itertools.count()
        groups = [
            Group(
                bits(0) if draw.random() < 0.4 else 0,
                tuple((bits(1), next(numbers)) for _ in range(draw.randrange(4))),
            )
            for _ in range(draw.randrange(1, 6))
        ]
        limit = draw.choice([None, 0, 1, 2, 3])
        choice, certain = choose(groups, limit, lambda: False)
        assert certain
        assert worth(groups, choice) == best(groups, limit), (groups, limit)
        hasty, _ = choose(groups, limit, lambda: True)
        assert limit is None or len(hasty) <= limit
        assert worth(groups, hasty)[0] >= worth(groups, ())[0]


def test_usual_cases_are_quick() -> None:
    """40 groups and options: apart, all for all, and overlapping with the neighbours."""
    size = 40
    apart = [Group(0, ((1 << place, place),)) for place in range(size)]
    dense = [
        Group(0, tuple((1 << option, size * place + option) for option in range(size)))
        for place in range(size)
    ]
    chain = [Group(0, ((3 << place, place),)) for place in range(size)]
    for groups, expected in ((apart, (40, -40)), (dense, (40, -40)), (chain, (41, -21))):
        choice, certain = choose(groups, None, few_calls(3000))
        assert certain
        assert worth(groups, choice) == expected
        choice, certain = choose(groups, 7, few_calls(3000))
        assert (certain, len(choice)) == (True, 7)


def test_too_many_cases_end_in_time() -> None:
    draw, numbers = Random(0), itertools.count()
    groups = [
        Group(
            0,
            tuple(
                (sum(1 << place for place in draw.sample(range(30), 2)), next(numbers))
                for _ in range(30)
            ),
        )
        for _ in range(30)
    ]
    choice, certain = choose(groups, None, few_calls(100))
    assert not certain
    assert worth(groups, choice)[0] >= 20
