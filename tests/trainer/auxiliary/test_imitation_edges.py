"""Many roots: lengths that are equal as numbers and not as objects."""

from __future__ import annotations

import pytest

from trainer.auxiliary.imitation import expert_correction_coefficients

MANY = 300


def test_corrections_of_many_roots() -> None:
    got = expert_correction_coefficients([True] * MANY, [True] * MANY, [[2]] * MANY, n_root=MANY)
    assert got == [[1 / (2 * MANY)]] * MANY


def test_lengths_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="found 2 successes, 1 validities and 2 branches"):
        expert_correction_coefficients([True] * 2, [True], [[1]] * 2, n_root=2)
    with pytest.raises(ValueError, match="found 2 successes, 2 validities and 1 branches"):
        expert_correction_coefficients([True] * 2, [True] * 2, [[1]], n_root=2)
