"""3SPO: score, rollouts, step reward, and the counts behind them."""

from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError, asdict

import pytest
import torch
from torch import tensor
from torch.testing import assert_close

from trainer.objectives.spo3 import VisitCounts, spo3_reward, spo3_rollouts, spo3_score


def score(total, success, t, **options):
    return spo3_score(tensor([total]), tensor([success]), t, **options).item()


def test_score_by_hand():
    # exp(-2 * ln 3 * 1 / (4 + 1)) = 9^(-1/5)
    assert_close(score(4, 1, 3, alpha=2.0, eps=1.0), 9 ** (-1 / 5), rtol=1e-12, atol=0)
    # defaults: 3^(-50 / (4 + 1e-6))
    assert_close(score(4, 1, 3), 3 ** (-50 / (4 + 1e-6)), rtol=1e-12, atol=0)
    assert_close(score(12, 2, 50), 50 ** (-100 / (12 + 1e-6)), rtol=1e-12, atol=0)


def test_unseen_states_score_one_and_failures_keep_a_state_until_there_are_too_many():
    assert score(0, 0, 1000) == 1.0
    assert score(9, 0, 1000) == 1.0  # nine failures: below xi
    assert score(10, 0, 1000) == 0.0
    assert score(3, 0, 1000, xi=3) == 0.0
    assert score(2, 0, 1000, xi=3) == 1.0
    # With xi = 0 even an unseen state has too many failures, and still is unseen.
    assert score(0, 0, 1000, xi=0) == 1.0


def test_a_success_rate_above_zeta_keeps_a_state_with_many_failures():
    assert score(12, 1, 50) == 0.0  # 11 failures, rate 0.083
    assert score(12, 2, 50) > 0.0  # 10 failures, rate 0.167
    assert score(19, 2, 50) > 0.0  # 17 failures, rate 0.105
    assert score(20, 2, 50) == 0.0  # rate just below 0.1, because of eps
    assert score(20, 2, 50, zeta=0.09) > 0.0
    assert score(20, 10, 50, zeta=0.5, eps=0.0) == 0.0  # the rate must exceed zeta
    assert score(20, 10, 1, zeta=0.49) == 1.0


def test_time_sharpens_the_score():
    assert score(5, 5, 1) == 1.0  # ln 1 = 0
    scores = [score(5, 1, t, alpha=1.0) for t in (1, 2, 8, 64)]
    assert scores == sorted(scores, reverse=True)
    assert_close(scores[2], 8 ** (-1 / (5 + 1e-6)), rtol=1e-12, atol=0)


def test_scores_of_many_states_at_once():
    got = spo3_score(tensor([0, 4, 12]), tensor([0, 1, 1]), 3)
    assert got.dtype == torch.float64
    assert_close(got.tolist(), [1.0, 3 ** (-50 / (4 + 1e-6)), 0.0], rtol=1e-12, atol=0)
    none = torch.zeros(0, dtype=torch.int64)
    assert spo3_score(none, none, 1).tolist() == []


def test_refusals_of_the_score():
    with pytest.raises(ValueError, match="t counts visits from 1 on, found 0"):
        score(1, 0, 0)
    for total, success in ((3, 4), (3, -1)):
        with pytest.raises(ValueError, match="between 0 and total_S"):
            score(total, success, 1)
    assert score(3, 3, 1) == 1.0
    with pytest.raises(ValueError, match="equal length"):
        spo3_score(tensor([1, 2]), tensor([0]), 1)


def test_rollouts_round_up():
    got = spo3_rollouts(tensor([0.0, 1e-30, 0.125, 0.126, 0.5, 1.0], dtype=torch.float64))
    assert got.tolist() == [0, 1, 1, 2, 4, 8]
    assert got.dtype == torch.int64
    assert spo3_rollouts(tensor([1.0, 0.34]), g_max=3).tolist() == [3, 2]


def reward(now, later, total, changed, success, **options):
    columns = (tensor([x], dtype=torch.float64) for x in (now, later))
    won = tensor([success], dtype=torch.float64)
    return spo3_reward(*columns, tensor([total]), tensor([changed]), won, **options).item()


def test_reward_by_hand():
    # first visit: w = 1/2, so only novelty counts
    assert reward(0.9, 0.2, 0, True, 0.0) == 0.5
    assert reward(0.9, 0.2, 0, False, 0.0) == 0.0
    # w = 1/2 * exp(-0.3)
    w = 0.5 * math.exp(-0.3)
    assert_close(reward(0.9, 0.2, 3, True, 0.0), w + (0.5 - w) * 0.7, rtol=1e-12, atol=0)
    assert_close(reward(0.9, 0.2, 3, False, 0.0), (0.5 - w) * 0.7, rtol=1e-12, atol=0)
    assert_close(reward(0.2, 0.9, 3, False, 10.0), 5 - (0.5 - w) * 0.7, rtol=1e-12, atol=0)
    w = 0.5 * math.exp(-2.0)
    got = reward(0.5, 0.25, 4, True, 1.0, omega_k=0.5)
    assert_close(got, w + (0.5 - w) * 0.25 + 0.5, rtol=1e-12, atol=0)


def test_reward_is_detached_double_and_refuses_what_is_not_finite():
    one, yes = tensor([1.0]), tensor([True])
    got = spo3_reward(one.clone().requires_grad_(), one, tensor([2]), yes, one)
    assert got.dtype == torch.float64
    assert not got.requires_grad
    bad = tensor([math.nan])
    with pytest.raises(ValueError, match=r"^score_M has a NaN"):
        spo3_reward(bad, one, tensor([2]), yes, one)
    with pytest.raises(ValueError, match=r"^next_score_M has a NaN"):
        spo3_reward(one, bad, tensor([2]), yes, one)
    with pytest.raises(ValueError, match=r"^success_reward_M has a NaN"):
        spo3_reward(one, one, tensor([2]), yes, bad)
    with pytest.raises(ValueError, match="equal length"):
        spo3_reward(one, one, tensor([2, 2]), yes, one)


KEYS = ["hall", "kitchen", "shelf", "unmet"]


def batch(**changes):
    """A win hall, kitchen, hall, hall and a loss hall, shelf."""
    columns = {
        "keys": KEYS,
        "state_M": tensor([0, 1, 0, 0, 0, 2]),
        "tid_M": tensor([8, 8, 8, 8, 5, 5]),
        "success_M": tensor([True, True, True, True, False, False]),
    }
    return {**columns, **changes}


def test_a_trajectory_counts_once_for_each_distinct_state():
    counts = VisitCounts().with_batch(**batch())
    assert counts.keys == ("hall", "kitchen", "shelf")
    assert counts.total == (2, 1, 1)
    assert counts.success == (1, 1, 0)
    assert counts.t == 5
    assert VisitCounts().t == 1
    total, success = counts.of(["shelf", "never", "hall"])
    assert total.tolist() == [1, 0, 2]
    assert success.tolist() == [0, 0, 1]
    assert total.dtype == success.dtype == torch.int64


def test_order_of_rows_changes_nothing():
    order = tensor([3, 5, 0, 4, 1, 2])
    shuffled = batch(**{name: batch()[name][order] for name in ("state_M", "tid_M", "success_M")})
    assert VisitCounts().with_batch(**shuffled) == VisitCounts().with_batch(**batch())


def test_counts_add_up_over_batches_and_old_values_stay():
    first = VisitCounts().with_batch(**batch())
    second = first.with_batch(
        ["shelf", "attic", "hall"], tensor([0, 1]), tensor([8, 8]), tensor([True, True])
    )
    assert second.keys == ("hall", "kitchen", "shelf", "attic")
    assert second.total == (2, 1, 2, 1)
    assert second.success == (1, 1, 1, 1)
    assert first.total == (2, 1, 1)
    with pytest.raises(FrozenInstanceError):
        first.total = (1, 1, 1)
    none = torch.zeros(0, dtype=torch.int64)
    assert first.with_batch(KEYS, none, none, none.bool()) == first
    assert VisitCounts().with_batch([], none, none, none.bool()) == VisitCounts()


def test_counts_survive_json():
    counts = VisitCounts().with_batch(**batch())
    assert VisitCounts(**json.loads(json.dumps(asdict(counts)))) == counts


def test_counts_lead_to_scores_and_rewards():
    # In the hall one of two trajectories won; t = 5. The win's own way is hall -> kitchen.
    counts = VisitCounts().with_batch(**batch())
    total, success = counts.of(KEYS)
    scores = spo3_score(total, success, counts.t, alpha=1.0)
    assert_close(scores[0].item(), 5 ** (-1 / (2 + 1e-6)), rtol=1e-12, atol=0)
    assert scores[2:].tolist() == [1.0, 1.0]


def test_refusals_of_the_counts():
    for fields in ((("a",), (1,), ()), (("a",), (), (0,)), ((), (1,), (0,))):
        with pytest.raises(ValueError, match="of one length"):
            VisitCounts(*fields)
    with pytest.raises(ValueError, match="state key occurs twice; give each state once"):
        VisitCounts(("a", "a"), (1, 1), (0, 0))
    for total, success in ((1, 2), (1, -1), (0, 0)):
        with pytest.raises(ValueError, match=f"'a' has {success} successes in {total} traj"):
            VisitCounts(("a",), (total,), (success,))
    assert VisitCounts(("a",), (1,), (1,)).success == (1,)

    with pytest.raises(ValueError, match="occurs twice in keys"):
        VisitCounts().with_batch(**batch(keys=["a", "b", "b"]))
    with pytest.raises(ValueError, match="State ids run from 0 to 2, but there are 2 keys"):
        VisitCounts().with_batch(**batch(keys=["a", "b"]))
    assert VisitCounts().with_batch(**batch(keys=["a", "b", "c"])).total == (2, 1, 1)
    with pytest.raises(ValueError, match="State ids run from -1 to 1"):
        VisitCounts().with_batch(**batch(state_M=batch()["state_M"] - 1))
    mixed = tensor([True, True, True, False, False, False])
    with pytest.raises(ValueError, match="differs between turns of one trajectory"):
        VisitCounts().with_batch(**batch(success_M=mixed))
    with pytest.raises(ValueError, match="equal length"):
        VisitCounts().with_batch(**batch(tid_M=tensor([8])))
