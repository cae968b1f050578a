"""Branches that a limit cuts short, that an environment ends, and worlds without any limit.

1. Over cut branches, rewards are compared over the same steps: doing less is not doing better.
2. Where the environment has no step limit, a branch may take as many commands as the policy took.
3. A branch at which the environment failed is verified as far as it went.
4. A score that the commands alone do not bring about counts for nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oracles import Decision, PlanStatus
from oracles.bank import header_of, verify_bank, write_bank
from oracles.bench import measure
from oracles.bench.outcomes import NOT_REPEATED
from oracles.branch import BranchStatus
from oracles.branches import BranchRunner, EnvRecipe
from oracles.walks import collect, gate_shares
from tests.oracles.toll import Backwards, Digger, Toll, astray, leftwards


class NoLimit(Toll):
    edge = True

    def __init__(self) -> None:
        super().__init__(max_steps=None)


class BadView(Toll):
    trap = "view"


class BadStep(Toll):
    trap = "step"


class Shown(Toll):
    """Shows itself."""

    def privileged(self) -> Any:
        return self


class Generous(Digger):
    """Changes nothing but the score."""

    def act(self, state: None, view: Any, observation: str) -> tuple[Decision, None]:
        view.bonus = 1.0
        return Decision(PlanStatus.FOUND, "left"), None


def test_a_cut_branch_is_not_better_for_the_steps_that_it_did_not_take() -> None:
    with BranchRunner(Backwards, Toll) as runner:
        rows, _ = collect(leftwards(Toll()), runner, 8, oracle="o", policy="p", seed=0, max_depth=2)
    cut = [row for row in rows if row.branch.status is BranchStatus.HORIZON]
    assert cut
    assert all(row.branch.valid for row in rows)
    for row in cut:
        assert row.returns("reward") == (pytest.approx(-0.2), pytest.approx(-0.2))
    assert gate_shares(rows) == {"success": 0.0, "score": 0.0, "reward": 0.0}


def test_without_a_step_limit_a_branch_may_be_as_long_as_the_policy_s_way(tmp_path: Path) -> None:
    found = measure(NoLimit, astray(NoLimit()), Digger, roots=12, seed=0, from_reset=3)
    assert found.gate.invalid_by_reason == {}
    for probe in found.probes:
        assert len(probe.branch.steps) <= len(probe.own.actions)
    assert any(probe.branch.success for probe in found.probes)
    assert found.oracle.from_reset.wins == 3
    with BranchRunner(Digger, NoLimit) as runner:
        rows, _ = collect(astray(NoLimit()), runner, 6, oracle="o", policy="p", seed=0)
    path = tmp_path / "bank.parquet"
    pytest.importorskip("pyarrow")
    header = header_of(NoLimit(), EnvRecipe("x", {}), oracle="o", policy="p", seed=0)
    write_bank(path, header, rows)
    assert verify_bank(path, NoLimit).ok


@pytest.mark.parametrize("make", [BadView, BadStep])
def test_a_branch_at_which_the_environment_failed_is_verified(
    make: type[Toll], tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow")
    with BranchRunner(Digger, make) as runner:
        rows, _ = collect(leftwards(make()), runner, 4, oracle="o", policy="p", seed=0)
    assert ("env_error",) in [row.branch.reasons for row in rows]
    path = tmp_path / "bank.parquet"
    header = header_of(make(), EnvRecipe("x", {}), oracle="o", policy="p", seed=0)
    write_bank(path, header, rows)
    assert verify_bank(path, make).mismatches == ()


def test_a_score_that_only_the_oracle_s_hand_brings_is_not_repeated() -> None:
    found = measure(
        Shown, leftwards(Shown()), Generous, roots=8, seed=0, target="score", from_reset=0
    )
    assert found.gate.invalid_by_reason == {NOT_REPEATED: 8}
    assert found.gate.gap.mean == 0.0
