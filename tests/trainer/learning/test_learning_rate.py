"""The learning-rate schedule, by hand-worked numbers."""

from __future__ import annotations

import pytest

from trainer.learning.optim import learning_rate


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (0, 0.25),  # first of four warm-up steps, no decay yet
        (3, 1.0 - 0.9 * 3 / 10),  # warm-up done
        (5, 0.55),
        (10, 0.1),  # the last of eleven steps
        (99, 0.1),  # past the end: stays
    ],
)
def test_warms_up_then_decays_to_a_tenth(step: int, expected: float) -> None:
    assert learning_rate(1.0, 4, 11, step) == pytest.approx(expected)


def test_without_decay_it_stays_at_its_peak() -> None:
    assert [learning_rate(2.0, 2, None, step) for step in range(4)] == [1.0, 2.0, 2.0, 2.0]


def test_no_warmup_and_one_step() -> None:
    assert learning_rate(3.0, 0, 1, 0) == 3.0
