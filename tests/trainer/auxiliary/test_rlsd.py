"""RLSD: every response token, the rollout's log-probs, and which rollouts take part."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from torch import tensor
from torch.testing import assert_close

from trainer.auxiliary.rlsd import rlsd_advantages, rollout_rows
from trainer.auxiliary.serl import reweight_advantages

# Groups 7: signs +, -, 0. Group 3: +, + (the second row's first response token is token 1).
ADV = tensor([[1.0, 1.0], [-1.0, -1.0], [0.0, 0.0], [2.0, 2.0], [-9.0, 1.0]]).double()
RESPONSE = tensor([[1, 1], [1, 0], [1, 1], [1, 1], [0, 1]])
UID = tensor([7, 7, 7, 3, 3])
OLD = torch.zeros(5, 2)
TEACHER = torch.full((5, 2), 3.0)


def rows(name, **options):
    return rollout_rows(ADV, RESPONSE, rollout_filter=name, **options).int().tolist()


def test_filters_by_hand():
    assert rows("all") == [1, 1, 1, 1, 1]
    assert rows("positive") == [1, 0, 0, 1, 1]
    assert rows("negative") == [0, 1, 0, 0, 0]
    assert rows("mixed", uid_B=UID) == [1, 1, 1, 0, 0]
    assert rollout_rows(ADV, RESPONSE).all()


def test_filters_do_not_depend_on_row_order():
    p = tensor([3, 0, 4, 2, 1])
    for name in ("positive", "negative", "mixed"):
        straight = rollout_rows(ADV, RESPONSE, rollout_filter=name, uid_B=UID)
        shuffled = rollout_rows(ADV[p], RESPONSE[p], rollout_filter=name, uid_B=UID[p])
        assert shuffled.equal(straight[p])


def test_a_group_of_losses_only_is_not_mixed():
    adv, ones = tensor([[-1.0], [-2.0], [1.0], [-1.0]]), torch.ones(4, 1)
    uid = tensor([0, 0, 1, 1])
    got = rollout_rows(adv, ones, rollout_filter="mixed", uid_B=uid)
    assert got.tolist() == [False, False, True, True]


def test_masked_entries_and_empty_rows_have_no_sign():
    adv = ADV.masked_fill(RESPONSE == 0, math.nan)
    got = rollout_rows(adv, RESPONSE, rollout_filter="positive")
    assert got.int().tolist() == [1, 0, 0, 1, 1]
    nothing = torch.zeros(5, 2)
    for name in ("positive", "negative", "mixed"):
        assert not rollout_rows(ADV, nothing, rollout_filter=name, uid_B=UID).any()
        empty = rollout_rows(ADV[:, :0], RESPONSE[:, :0], rollout_filter=name, uid_B=UID)
        assert empty.tolist() == [False] * 5
    none = torch.zeros(0, 2)
    uid = torch.zeros(0, dtype=torch.int64)
    assert rollout_rows(none, none, rollout_filter="mixed", uid_B=uid).shape == (0,)


def test_advantages_by_hand():
    got = rlsd_advantages(ADV, OLD, TEACHER, RESPONSE, alpha=0.5)
    expected = [[1.1, 1.1], [-0.9, 0.0], [0.0, 0.0], [2.2, 2.2], [0.0, 1.1]]
    assert_close(got.adv, tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)
    got = rlsd_advantages(ADV, OLD, TEACHER, RESPONSE, alpha=1.0, clip=0.5)
    assert got.adv[1, 0].item() == -0.5


def test_rows_that_do_not_pass_keep_their_advantage():
    got = rlsd_advantages(ADV, OLD, TEACHER, RESPONSE, alpha=0.5, rollout_filter="mixed", uid_B=UID)
    expected = [[1.1, 1.1], [-0.9, 0.0], [0.0, 0.0], [2.0, 2.0], [0.0, 1.0]]
    assert_close(got.adv, tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)
    got = rlsd_advantages(
        ADV,
        OLD,
        TEACHER,
        RESPONSE,
        tensor([0, 1, 1, 1, 1]),
        alpha=0.5,
        rollout_filter="positive",
    )
    expected = [[1.0, 1.0], [-1.0, 0.0], [0.0, 0.0], [2.2, 2.2], [0.0, 1.1]]
    assert_close(got.adv, tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)
    assert got.stats.rows_on == 2


def test_it_is_serl_without_action_mask():
    generator = torch.Generator().manual_seed(0)
    old, teacher = (-torch.rand(5, 2, generator=generator) for _ in range(2))
    got = rlsd_advantages(ADV, old, teacher, RESPONSE, alpha=0.3)
    serl = reweight_advantages(ADV, old, teacher, RESPONSE, alpha=0.3)
    assert got.adv.equal(serl.adv)
    assert got.weight.equal(serl.weight)
    assert got.stats == serl.stats
    off = rlsd_advantages(ADV, old, teacher, RESPONSE, alpha=0.0)
    assert off.adv.equal(ADV.masked_fill(RESPONSE == 0, 0.0))
    signature = inspect.signature(rlsd_advantages).parameters
    assert signature["clip"].default == 0.2
    assert signature["rollout_filter"].default == "all"


def test_refusals_name_the_problem():
    with pytest.raises(ValueError, match="rollout_filter must be one of"):
        rollout_rows(ADV, RESPONSE, rollout_filter="best")
    with pytest.raises(ValueError, match=r"needs uid_B of shape \(5,\), found None"):
        rollout_rows(ADV, RESPONSE, rollout_filter="mixed")
    with pytest.raises(ValueError, match=r"needs uid_B of shape \(5,\), found \(4,\)"):
        rollout_rows(ADV, RESPONSE, rollout_filter="mixed", uid_B=UID[:4])
    with pytest.raises(ValueError, match="one shape"):
        rollout_rows(ADV, RESPONSE[:4])
    with pytest.raises(ValueError, match=r"row_mask_B of shape \(5,\), found \(1,\)"):
        rlsd_advantages(ADV, OLD, TEACHER, RESPONSE, torch.ones(1), alpha=0.5)
