"""The gate, its interval, the bins and the histogram, by hand and against plain recounts.

Promises:
1. gap = G_O - G_pi, 0 where the branch is invalid; gate = clip(gap / return_scale, 0, 1).
2. Every root has one reason; an invalid branch may have several codes.
3. Bins and statuses are recounts of the branches, with Wilson intervals.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from agent_envs.statistics import wilson
from oracles.alfworld_planner import ALFWorldPlanner
from oracles.bank import PolicyEnd
from oracles.bench import Probe, gate_figures, measure
from oracles.bench.outcomes import first_states
from oracles.branch import BranchStatus
from oracles.branches import EnvRecipe
from oracles.walks import PLAYERS, walks
from tests.oracles.bench.lamps import Clock, Lamp, Lighter, played


@pytest.fixture(scope="module")
def probe() -> Probe:
    found = measure(Lamp, played(Lamp), Lighter, roots=8, seed=0, from_reset=0, clock=Clock())
    return next(probe for probe in found.probes if probe.branch.success)


def changed(
    probe: Probe,
    oracle: float,
    own: float,
    reasons: tuple[str, ...] = (),
    status: BranchStatus = BranchStatus.OK,
) -> Probe:
    """The same root with other scores."""
    branch = replace(probe.branch, score=oracle, valid=not reasons, reasons=reasons, status=status)
    return replace(probe, branch=branch, own=PolicyEnd((), (), False, own))


def test_gaps_gates_and_reasons_by_hand(probe: Probe) -> None:
    probes = [
        changed(probe, 1.0, 0.25),
        changed(probe, 0.5, 0.5),
        changed(probe, 0.25, 0.5),
        changed(probe, 0.75, 0.5),
        changed(probe, 1.0, 0.0, ("refused", "non_finite")),
        changed(probe, 1.0, 0.0, ("restore_mismatch",), BranchStatus.NOT_STARTED),
        changed(probe, 1.0, float("nan")),
    ]
    found = gate_figures(probes, episodes=14, failed=7, target="score", return_scale=0.5, seed=0)
    assert found.roots == 7
    assert found.compared == 6
    assert found.by_reason == {
        "invalid": 3,
        "oracle_not_better": 1,
        "oracle_worse": 1,
        "active": 2,
    }
    assert found.invalid_by_reason == {"non_finite": 2, "refused": 1, "restore_mismatch": 1}
    assert set(found.invalid_examples) == set(found.invalid_by_reason)
    assert found.eligible_share == 0.5
    assert found.mean_gate == pytest.approx((1.0 + 0.5) / 7)
    assert found.zero_share == pytest.approx(5 / 7)
    assert found.gap.mean == pytest.approx((0.75 - 0.25 + 0.25) / 6)
    assert found.gap.low < found.gap.mean < found.gap.high
    assert found.oracle_success == 3 / 4  # of the four that are valid: 1.0, 0.5 and 0.75
    histogram = [(b.start, b.end, b.n) for b in found.gap_histogram if b.n]
    assert [n for _, _, n in histogram] == [1, 4, 1, 1]
    for (start, end, _), gap in zip(histogram, (-0.25, 0.0, 0.25, 0.75), strict=True):
        assert start <= gap <= end
    assert found.gap_histogram[-1].end == 0.75
    assert len(found.gap_histogram) == 21


def test_without_a_restored_root_there_is_no_gap(probe: Probe) -> None:
    lost = changed(probe, 1.0, 0.0, ("restore_error",), BranchStatus.NOT_STARTED)
    found = gate_figures([lost], episodes=1, failed=1)
    assert (found.compared, found.gap.mean, found.gap.low, found.gap.high) == (0, 0.0, 0.0, 0.0)
    assert found.oracle_success is None


def test_the_reward_counts_in_its_own_units(probe: Probe) -> None:
    own = replace(probe, own=PolicyEnd(("roll",), (0.25,), False, 0.0))
    found = gate_figures([own], episodes=1, failed=1, target="reward", return_scale=10.0)
    gap = own.branch.total_reward - 0.25
    assert found.gap.mean == pytest.approx(gap)
    assert gap == 0.75
    assert found.mean_gate == pytest.approx(gap / 10)
    assert found.oracle_success == 0.0


def test_bins_are_a_recount_of_the_branches() -> None:
    make = EnvRecipe("SeroALFWorld-v0", {"data": "generated:small?seed=3&train=40"})
    found = measure(
        make, walks(make(), PLAYERS["random"], 1), ALFWorldPlanner, roots=40, seed=1, from_reset=3
    )
    horizon = 50
    oracle = found.oracle
    assert sum(b.share.n for b in oracle.by_depth) == 40
    assert sum(b.share.n for b in oracle.by_steps_left) == 40
    for bins, place in (
        (oracle.by_depth, lambda t: t / horizon),
        (oracle.by_steps_left, lambda t: horizon - t),
    ):
        for one in bins:
            inside = [
                probe
                for probe in found.probes
                if one.start <= place(probe.t)
                and (place(probe.t) < one.end or bins is oracle.by_steps_left)
                and place(probe.t) <= one.end
            ]
            wins = sum(probe.branch.success for probe in inside)
            assert (one.share.n, one.share.wins) == (len(inside), wins)
            assert (one.share.low, one.share.high) == wilson(wins, len(inside))
    lengths = [len(p.branch.steps) for p in found.probes if p.branch.success]
    assert oracle.steps.mean == pytest.approx(sum(lengths) / len(lengths))
    assert oracle.steps.max == max(lengths)
    answers = Counter[str]()
    for p in found.probes:
        answers["found"] += len(p.branch.steps)
        if p.branch.reasons:
            answers[p.branch.reasons[0].removeprefix("oracle_")] += 1
    assert oracle.statuses == dict(answers)
    assert oracle.from_reset.n == oracle.from_reset.wins == 3
    times = oracle.decision_us
    assert times.p50 is not None
    assert times.p95 is not None
    assert times.max is not None
    assert 0 < times.p50 <= times.p95 <= times.max


def test_first_states_are_of_different_tasks() -> None:
    states = first_states(Lamp, 0, 50)
    assert len(states) == len({state.snapshot.task_id for state in states}) == 12
    assert [state.snapshot for state in first_states(Lamp, 0, 5)] == [
        state.snapshot for state in states[:5]
    ]
    assert first_states(Lamp, 0, 0) == []
