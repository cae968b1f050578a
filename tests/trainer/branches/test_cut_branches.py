"""The gate of branches that `max_depth` cuts short: rewards over the same steps."""

from __future__ import annotations

import pytest

from oracles.branch import BranchStatus
from oracles.branches import BranchRunner
from oracles.walks import collect
from tests.oracles.toll import Backwards, Digger, Toll, leftwards
from trainer.branches.branching import gated
from trainer.branches.records import RootChoice
from trainer.config import SeroConfig


@pytest.mark.parametrize(
    ("oracle", "depth", "opens"), [(Backwards, 2, False), (Digger, None, True)]
)
def test_a_cut_branch_that_gains_nothing_opens_no_gate(
    oracle: type[Digger], depth: int | None, opens: bool
) -> None:
    with BranchRunner(oracle, Toll) as runner:
        rows, _ = collect(
            leftwards(Toll()), runner, 8, oracle="o", policy="p", seed=0, max_depth=depth
        )
    section = SeroConfig(target="reward", max_depth=depth)
    roots = [gated(RootChoice(0, r.branch.root_step), r.branch, r.own, section) for r in rows]
    assert any(r.branch.status is BranchStatus.HORIZON for r in rows) != opens
    assert any(root.gate > 0 for root in roots) == opens
    for root, row in zip(roots, rows, strict=True):
        assert (root.G_pi, root.G_O) == pytest.approx(row.returns("reward"))
