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
