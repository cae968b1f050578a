"""The order of tasks as five numbers."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from agent_envs.schedule import Schedule, first_task


def taken(schedule: Schedule, n: int) -> list[int]:
    order = []
    for _ in range(n):
        order.append(schedule.peek())
        assert schedule.peek() == order[-1]
        schedule.advance()
    return order


def drawn(seed: int, n_tasks: int) -> Schedule:
    return Schedule.drawn_from(np.random.default_rng(seed), seed, n_tasks)


@pytest.mark.parametrize("n_tasks", [1, 2, 3, 7, 40])
def test_epochs_are_permutations_and_the_first_begins_with_the_tasks_of_the_seed(
    n_tasks: int,
) -> None:
    for seed in range(12):
        order = taken(drawn(seed, n_tasks), 3 * n_tasks)
        assert order[0] == first_task(seed, n_tasks)
        for epoch in range(3):
            assert sorted(order[epoch * n_tasks : (epoch + 1) * n_tasks]) == list(range(n_tasks))


def test_the_first_epoch_is_the_keys_permutation_with_two_places_exchanged() -> None:
    for seed in range(20):
        schedule = drawn(seed, 9)
        seeds = np.random.SeedSequence((schedule.key, 0))
        plain = np.random.Generator(np.random.PCG64(seeds)).permutation(9).tolist()
        place = plain.index(schedule.first)
        plain[0], plain[place] = plain[place], plain[0]
        assert taken(schedule, 9) == plain


def test_a_list_is_taken_in_its_order() -> None:
    schedule = Schedule.as_listed(3)
    assert taken(schedule, 7) == [0, 1, 2, 0, 1, 2, 0]
    again = Schedule.from_state(schedule.to_state())
    assert taken(again, 4) == [1, 2, 0, 1]
    assert taken(schedule.for_tasks(2), 3) == [0, 1, 0]
    assert taken(copy.deepcopy(schedule), 2) == [1, 2]


def test_orders_are_shared_and_not_kept_by_the_schedule() -> None:
    """A schedule of 3,553 tasks is five numbers, however far it went."""
    one, other = drawn(1, 3553), drawn(1, 3553)
    assert taken(one, 5) == taken(other, 5)
    assert set(Schedule.__slots__) == {"key", "n_tasks", "first", "epoch", "position"}


@pytest.mark.parametrize(
    "state",
    [
        (-1, 3, 1, 0, 0),  # a list begins with its first task
        (-2, 3, 0, 0, 0),
        (1 << 63, 3, 0, 0, 0),
        (5, 0, 0, 0, 0),
        (5, 3, 3, 0, 0),
        (5, 3, 0, -1, 0),
        (5, 3, 0, 0, 4),
        (5, 3, 0, 0, True),
        (5, 3, 0, 0),
    ],
)
def test_impossible_numbers_are_refused(state: tuple[int, ...]) -> None:
    with pytest.raises(ValueError):
        Schedule.from_state(state)
