"""KL in the reward (O22): per token and per turn, without gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch import tensor
from torch.testing import assert_close

from trainer.objectives import grpo_advantages
from trainer.objectives.kl_reward import kl_token_rewards, kl_turn_rewards
from trainer.objectives.ppo import ppo_turnwise

LOG2 = math.log(2)
# d = ref - new: -log 2, log 2, 0
NEW = tensor([[-1.0, -2.0, -3.0]]).double()
REF = NEW + tensor([[-LOG2, LOG2, 0.0]], dtype=torch.float64)
ESTIMATES = {
    "k1": [LOG2, -LOG2, 0.0],
    "k2": [LOG2**2 / 2, LOG2**2 / 2, 0.0],
    "k3": [0.5 + LOG2 - 1, 2 - LOG2 - 1, 0.0],
}


@pytest.mark.parametrize("kind", ESTIMATES)
def test_token_rewards_by_hand(kind):
    reward = tensor([[1.0, 0.0, 5.0]])
    got = kl_token_rewards(reward, NEW, REF, torch.ones(1, 3), coef=0.5, kind=kind)
    expected = [r - 0.5 * k for r, k in zip([1.0, 0.0, 5.0], ESTIMATES[kind], strict=True)]
    assert_close(got[0].tolist(), expected, rtol=1e-12, atol=1e-12)
    assert got.dtype == torch.float64


@pytest.mark.parametrize("kind", ESTIMATES)
def test_turn_rewards_by_hand(kind):
    # Turn 2 has two tokens, in two rows; turn 0 one; turn 1 none.
    new, ref = NEW.expand(2, 3), REF.expand(2, 3)
    mask = tensor([[1, 1, 0], [1, 0, 0]])
    turn = tensor([[2, 0, -1], [2, 99, 1]])
    reward = tensor([10.0, 20.0, 30.0], dtype=torch.float32)
    got = kl_turn_rewards(reward, new, ref, mask, turn, coef=0.5, kind=kind)
    a, b, _ = ESTIMATES[kind]
    assert_close(got.tolist(), [10 - 0.5 * b, 20.0, 30 - 0.5 * 2 * a], rtol=1e-12, atol=1e-12)
    assert got.dtype == torch.float64


def test_defaults_are_k1_and_the_limit_of_k3():
    zero, ones = torch.zeros(1, 3), torch.ones(1, 3)
    turn = torch.zeros(1, 3, dtype=torch.int64)
    assert kl_token_rewards(zero, NEW, REF, ones, coef=1.0).tolist() == (REF - NEW).tolist()
    # -log 2 + log 2 + 0
    assert abs(kl_turn_rewards(zero[0, :1], NEW, REF, ones, turn, coef=1.0).item()) < 1e-12
    far = NEW + 5.0
    for limit, value in (({}, 10.0), ({"clamp": 3.0}, 3.0), ({"clamp": None}, math.exp(5) - 6)):
        token = kl_token_rewards(zero, NEW, far, ones, coef=1.0, kind="k3", **limit)
        whole = kl_turn_rewards(zero[0, :1], NEW, far, ones, turn, coef=1.0, kind="k3", **limit)
        assert_close(token[0].tolist(), [-value] * 3)
        assert_close(whole.item(), -3 * value)


def test_zero_coefficient_keeps_the_rewards():
    reward = tensor([[1.0, 2.0, 3.0]])
    got = kl_token_rewards(reward, NEW, REF, tensor([[1, 0, 1]]), coef=0.0)
    assert got.tolist() == [[1.0, 0.0, 3.0]]
    turn = torch.zeros(1, 3, dtype=torch.int64)
    same = kl_turn_rewards(reward[0, :1], NEW, REF, torch.ones(1, 3), turn, coef=0.0)
    assert same.tolist() == [1.0]


@pytest.mark.parametrize("kind", ESTIMATES)
@pytest.mark.parametrize("junk", [1e30, math.inf, -math.inf, math.nan])
def test_garbage_outside_the_mask_changes_nothing(kind, junk):
    mask = tensor([[1, 0, 1]]).bool()
    turn = tensor([[0, 0, 1]])
    results = []
    for fill in (None, junk):
        reward, new, ref = tensor([[1.0, 2.0, 3.0]]), NEW.clone(), REF.clone()
        if fill is not None:
            reward[~mask], new[~mask], ref[~mask] = fill, fill, -fill
        token = kl_token_rewards(reward, new, ref, mask, coef=0.5, kind=kind)
        whole = kl_turn_rewards(tensor([1.0, 2.0]), new, ref, mask, turn, coef=0.5, kind=kind)
        results.append((token.tolist(), whole.tolist()))
    assert results[0] == results[1]
    assert results[1][0][0][1] == 0.0


def test_no_gradient_flows():
    new, ref = NEW.clone().requires_grad_(), REF.clone().requires_grad_()
    reward = torch.zeros(1, 3, requires_grad=True)
    turn = torch.zeros(1, 3, dtype=torch.int64)
    mask = torch.ones(1, 3)
    assert not kl_token_rewards(reward, new, ref, mask, coef=1.0).requires_grad
    assert not kl_turn_rewards(reward[0, :1], new, ref, mask, turn, coef=1.0).requires_grad


def test_rows_may_be_cut_or_shuffled():
    g = torch.Generator().manual_seed(0)
    new, ref = (torch.randn((5, 4), generator=g).double() for _ in range(2))
    mask = torch.rand((5, 4), generator=g) < 0.7
    turn = torch.randint(3, (5, 4), generator=g)
    reward = torch.randn(3, generator=g).double()
    whole = kl_turn_rewards(reward, new, ref, mask, turn, coef=0.3)
    p = torch.randperm(5, generator=g)
    assert_close(kl_turn_rewards(reward, new[p], ref[p], mask[p], turn[p], coef=0.3), whole)
    part = kl_turn_rewards(reward, new[:2], ref[:2], mask[:2], turn[:2], coef=0.3)
    assert_close(kl_turn_rewards(part, new[2:], ref[2:], mask[2:], turn[2:], coef=0.3), whole)


def test_it_reaches_group_and_critic_estimators():
    # Two winners of one group; the second strayed from the reference.
    new = torch.zeros(2, 2).double()
    ref = tensor([[0.0, 0.0], [0.0, -1.0]])
    mask, turn = torch.ones(2, 2), tensor([[0, 0], [1, 1]])
    reward, valid = tensor([10.0, 10.0]), torch.ones(2).bool()
    uid, tid = tensor([0, 0]), tensor([0, 1])
    shaped = kl_turn_rewards(reward, new, ref, mask, turn, coef=0.5)
    assert shaped.tolist() == [10.0, 9.5]
    adv = grpo_advantages(shaped, valid, uid, tid, use_std=False)
    assert adv.tolist() == [0.25, -0.25]
    penalty = kl_token_rewards(torch.zeros(2, 2), new, ref, mask, coef=0.5)
    value = torch.zeros(2, 2)
    got = ppo_turnwise(reward, valid, tid, value, mask, token_rewards_M_T=penalty)
    assert got.returns.tolist() == [[10.0, 10.0], [9.5, 9.5]]


def test_nothing_at_all():
    none = torch.zeros(0, 3)
    assert kl_token_rewards(none, none, none, none, coef=1.0).shape == (0, 3)
    turn = none.long()
    assert kl_turn_rewards(torch.ones(2), none, none, none, turn, coef=1.0).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, t: kl_token_rewards(m[:, :1], m, m, m, coef=1.0), "one shape"),
        (lambda m, t: kl_token_rewards(m, m, m[:1], m, coef=1.0), "one shape"),
        (lambda m, t: kl_token_rewards(m, m, m, 2 * m, coef=1.0), "only 0 and 1"),
        (lambda m, t: kl_token_rewards(m, m, m, m, coef=1.0, kind="k4"), "Unknown KL estimator"),
        (lambda m, t: kl_token_rewards(m, m, m, m, coef=-0.1), "not negative, found -0.1"),
        (lambda m, t: kl_token_rewards(m, m, m, m, coef=math.inf), "coef must be finite"),
        (lambda m, t: kl_token_rewards(m * math.nan, m, m, m, coef=1.0), "reward_B_T has a NaN"),
        (lambda m, t: kl_token_rewards(m, m, -m * math.inf, m, coef=1.0), "is not finite: logprob"),
        (lambda m, t: kl_turn_rewards(m[0], m, m, m, t[:, :1], coef=1.0), "one shape"),
        (lambda m, t: kl_turn_rewards(m, m, m, m, t, coef=1.0), r"\(M,\), found shape \(2, 3\)"),
        (lambda m, t: kl_turn_rewards(m[0], m, m, m, t + 3, coef=1.0), "must lie in 0..2"),
        (lambda m, t: kl_turn_rewards(m[0], m, m, m, t - 1, coef=1.0), "belongs to no turn"),
        (lambda m, t: kl_turn_rewards(m[0] / 0, m, m, m, t, coef=1.0), "step_rewards_M has a NaN"),
        (lambda m, t: kl_turn_rewards(m[0], m * math.nan, m, m, t, coef=1.0), "is not finite"),
        (lambda m, t: kl_turn_rewards(m[0], m, m, m, t, coef=math.nan), "coef must be finite"),
    ],
)
def test_wrong_inputs_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.ones(2, 3), torch.zeros(2, 3, dtype=torch.int64))
