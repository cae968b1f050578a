"""Oracle report by hand."""

from __future__ import annotations

import math

import pytest

from trainer.auxiliary import BranchOutcome, oracle_report

COST = {"t_restore_ms": 100.0, "t_oracle_step_ms": 10.0, "t_iter_ms": 2000.0}


def test_report_by_hand():
    report = oracle_report(
        [
            BranchOutcome(True, 0.0, 1.0, 4),  # active, gate 1
            BranchOutcome(True, 0.0, 5.0, 6, c_R=10.0),  # active, gate 1/2, not a success
            BranchOutcome(True, 1.0, 1.0, 2),  # tie
            BranchOutcome(True, 0.9, 0.4, 8),  # worse
            BranchOutcome(False, 0.0, 1.0, 10),  # v_r = 0
            BranchOutcome(True, 0.0, math.nan, 3),  # invalid return
            BranchOutcome(True, 0.0, 1.0, 0),  # the oracle never acted
        ],
        aux_tokens=30,
        base_tokens=120,
        **COST,
    )
    assert report.n_root == 7
    assert report.reasons == {
        "invalid": 3,
        "oracle_not_better": 1,
        "oracle_worse": 1,
        "active": 2,
    }
    assert report.gate_zero_ratio == pytest.approx(5 / 7)
    assert report.gate_mean == pytest.approx(1.5 / 7)
    assert report.dG_mean == pytest.approx((1 + 5 + 0 - 0.5) / 4)
    assert report.oracle_success == 0.5
    assert report.env_overhead == pytest.approx((7 * 100 + 33 * 10) / 2000)
    assert report.token_overhead == 0.25


def test_report_of_nothing_has_no_nan():
    report = oracle_report([], aux_tokens=0, base_tokens=0, **(COST | {"t_iter_ms": 0.0}))
    assert report.reasons == dict.fromkeys(report.reasons, 0)
    numbers = (
        report.gate_zero_ratio,
        report.gate_mean,
        report.dG_mean,
        report.oracle_success,
        report.env_overhead,
        report.token_overhead,
    )
    assert numbers == (0.0,) * 6
