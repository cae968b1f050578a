"""Figures of prompts beyond the limit, of several ranks as one."""

from __future__ import annotations

from trainer.parallel.metrics import merged


def test_prompts_beyond_the_limit_are_merged_over_ranks() -> None:
    names = ("overflows", "overflow_share", "overflow_longest")
    left, right = (
        dict(zip((f"context_{name}" for name in names), values, strict=True))
        for values in ((3, 1.0, 700), (0, 0.0, None))
    )
    found = merged([(left, 3, 1, 1), (right, 1, 1, 1)])
    assert [found[f"context_{name}"] for name in names] == [3, 0.75, 700]


def test_the_length_of_branches_is_a_mean_over_open_branches() -> None:
    left, right = (
        {"turns": 1, "sero/roots": n, "sero/gate_zero_share": 0.0, "sero/branch_steps": steps,
         "sero/branch_s": seconds}
        for n, steps, seconds in ((1, 4.0, 2.0), (3, 2.0, 1.0))
    )  # fmt: skip
    found = merged([(left, 1, 1, 1), (right, 1, 1, 1)])
    assert found["sero/branch_steps"] == 2.5
    assert found["sero/branch_s"] == 2.0
