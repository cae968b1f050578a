"""The three estimators with a critic: hand-worked numbers, turns, ends and holes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor
from torch.testing import assert_close

from trainer.objectives.ppo import last_tokens, ppo_trajectory, ppo_turnwise, turn_gae

# Trajectory 7: two turns, won, first reply malformed. Trajectory 3: one turn, lost.
REWARD = tensor([0.0, 8.0, 0.0])
VALID = tensor([False, True, True])
TID = tensor([7, 7, 3])
T = tensor([0, 1, 0])
VALUE = tensor([[1.0, 2.0, 99.0], [3.0, 99.0, 99.0], [4.0, 5.0, 6.0]])
MASK = tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1]])
TURN_VALUE = tensor([1.0, 3.0, 4.0])


def turnwise(**options):
    return ppo_turnwise(REWARD, VALID, TID, VALUE, MASK, **options)


def along(t=T, **options):
    return ppo_trajectory(REWARD, VALID, TID, VALUE, MASK, t, **options)


def over_turns(t=T, **options):
    return turn_gae(REWARD, VALID, TID, TURN_VALUE, t, **options)


def batch(seed=0, sizes=(3, 1, 4), width=4):
    """Rewards, flags, ids, values and ragged masks of some trajectories, in order."""
    g = torch.Generator().manual_seed(seed)
    tid = tensor([10 - i for i, n in enumerate(sizes) for _ in range(n)])
    t = tensor([2 * k for n in sizes for k in range(n)])
    reward = torch.randn(len(t), generator=g).double()
    valid = torch.rand(len(t), generator=g) < 0.6
    value = torch.randn((len(t), width), generator=g).double()
    length = torch.randint(1, width + 1, (len(t),), generator=g)
    return reward, valid, tid, value, torch.arange(width) < length[:, None], t


# ---------------------------------------------------------------------------- turn-wise


def test_turnwise_by_hand():
    got = turnwise(penalty=0.5)
    # 8 - 0.5 on the malformed turn, 8 on the other, 0 on the lost one, at every token
    assert got.returns.tolist() == [[7.5, 7.5, 0.0], [8.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    assert got.raw.tolist() == [[6.5, 5.5, 0.0], [5.0, 0.0, 0.0], [-4.0, -5.0, -6.0]]
    raw = [6.5, 5.5, 5.0, -4.0, -5.0, -6.0]
    mean = sum(raw) / 6
    std = math.sqrt(sum((x - mean) ** 2 for x in raw) / 5 + 1e-8)
    assert_close(got.advantages[MASK.bool()].tolist(), [(x - mean) / std for x in raw])
    assert got.advantages[MASK == 0].tolist() == [0.0] * 3
    assert {x.dtype for x in got} == {torch.float64}


def test_turnwise_defaults():
    assert turnwise().returns[0, 0].item() == 8 - 0.1
    assert turnwise().raw.tolist() == turnwise(gamma=1.0, lam=1.0, penalty=0.1).raw.tolist()
    assert turnwise().advantages.tolist() == turnwise(whitened=True).advantages.tolist()


def test_turnwise_discounts_tokens_within_the_turn_only():
    got = turnwise(gamma=0.5, lam=0.25, penalty=0.0, whitened=False)
    # turn 0: last 8 - 2 = 6, first 0 + 2/2 - 1 + 6/8
    # turn 2: last -6, then 6/2 - 5 - 6/8 = -2.75, then 5/2 - 4 - 2.75/8
    assert got.raw.tolist() == [
        [0.75, 6.0, 0.0],
        [5.0, 0.0, 0.0],
        [2.5 - 4 - 2.75 / 8, -2.75, -6.0],
    ]
    assert got.advantages.tolist() == got.raw.tolist()
    assert_close(got.returns, (got.raw + VALUE) * MASK)


def test_turnwise_adds_token_rewards_inside_the_mask():
    extra = tensor([[1.0, -2.0, math.nan], [0.5, math.inf, 9.0], [0.0, 0.0, 4.0]])
    got = turnwise(penalty=0.0, token_rewards_M_T=extra)
    assert got.returns.tolist() == [[7.0, 6.0, 0.0], [8.5, 0.0, 0.0], [4.0, 4.0, 4.0]]


# ---------------------------------------------------------------------------- along the trajectory


def test_trajectory_by_hand():
    got = along(gamma=0.5, lam=0.25, token_gamma=0.75, token_lam=0.5, penalty=0.5)
    # last turn: 8 - 3 = 5. Turn 0's last token: -0.5 + 0.5 * 3 - 2 + 0.125 * 5; its first:
    # 0.75 * 2 - 1 + 0.375 * that.
    last = -0.5 + 1.5 - 2 + 0.625
    lost = [-6.0]
    lost.insert(0, 0.75 * 6 - 5 + 0.375 * lost[0])
    lost.insert(0, 0.75 * 5 - 4 + 0.375 * lost[0])
    assert got.raw.tolist() == [[0.5 + 0.375 * last, last, 0.0], [5.0, 0.0, 0.0], lost]
    assert got.advantages.tolist() == got.raw.tolist()
    assert_close(got.returns, (got.raw + VALUE) * MASK)


def test_trajectory_defaults():
    named = {"gamma": 0.95, "lam": 0.95, "token_gamma": 1.0, "token_lam": 1.0, "penalty": 0.1}
    assert along().raw.tolist() == along(**named).raw.tolist()
    for key in named:
        assert along(**{**named, key: 0.5}).raw.tolist() != along().raw.tolist()
    assert along().advantages.tolist() == along(whitened=False).advantages.tolist()
    # 5 in the last turn; -0.1 + 0.95 * 3 - 2 + 0.9025 * 5 before it
    assert_close(along().raw[0, 1].item(), 0.75 + 4.5125)


def test_trajectory_whitens_over_trained_tokens():
    got = along(whitened=True)
    raw = got.raw[MASK.bool()]
    expected = (raw - raw.mean()) / (raw.var() + 1e-8).sqrt()
    assert_close(got.advantages[MASK.bool()], expected)
    assert got.advantages[MASK == 0].tolist() == [0.0] * 3
    assert got.returns.tolist() == along().returns.tolist()


def test_trajectory_with_token_rewards():
    extra = torch.zeros(3, 3)
    extra[1, 0], extra[1, 2] = -1.0, math.nan
    got = along(gamma=0.5, lam=1.0, penalty=0.0, token_rewards_M_T=extra)
    assert_close(got.returns, tensor([[3.5, 3.5, 0], [7.0, 0, 0], [0, 0, 0]]).double())


def test_bootstrap_is_read_at_the_last_turn_only():
    # Rows out of time order: row 0 is the last turn of trajectory 7.
    rows = [1, 2, 0]
    boot = tensor([16.0, 0.0, math.nan])
    plain = ppo_trajectory(
        REWARD[rows], VALID[rows], TID[rows], VALUE[rows], MASK[rows], T[rows], lam=0.5, gamma=0.5
    )
    got = ppo_trajectory(
        REWARD[rows],
        VALID[rows],
        TID[rows],
        VALUE[rows],
        MASK[rows],
        T[rows],
        lam=0.5,
        gamma=0.5,
        bootstrap_M=boot,
    )
    # + 0.5 * 16 at the last turn's only token, a quarter of that at the turn before
    assert (got.raw - plain.raw).tolist() == [[8.0, 0, 0], [0, 0, 0], [2.0, 2.0, 0]]
    turns = [
        turn_gae(
            REWARD[rows],
            VALID[rows],
            TID[rows],
            TURN_VALUE[rows],
            T[rows],
            gamma=0.5,
            lam=0.5,
            bootstrap_M=b,
        ).raw
        for b in (None, boot)
    ]
    assert_close((turns[1] - turns[0]).tolist(), [8.0, 0.0, 2.0])


def test_a_turn_without_tokens_hands_its_reward_back():
    reward, valid = tensor([1.0, 2.0, 4.0, 8.0, 16.0]), torch.ones(5).bool()
    tid = tensor([0, 0, 0, 0, 1])
    value = torch.full((5, 1), math.nan)
    mask = tensor([[0], [1], [0], [0], [0]])
    value[1] = 3.0
    got = ppo_trajectory(reward, valid, tid, value, mask, gamma=0.5, lam=0.5)
    # 2 + 4 + 8 reach the acting turn whole; 1 came before it, 16 belongs to another trajectory
    assert got.returns.tolist() == [[0.0], [14.0], [0.0], [0.0], [0.0]]
    boot = tensor([0.0, 0.0, 0.0, 6.0, 50.0])
    cut = ppo_trajectory(reward, valid, tid, value, mask, gamma=0.5, lam=0.5, bootstrap_M=boot)
    assert cut.returns[1].item() == 14.0 + 3.0
    # An empty turn at the start of a trajectory is not paid to the one before it.
    early = ppo_trajectory(
        tensor([1.0, 9.0, 2.0]),
        valid[:3],
        tensor([0, 1, 1]),
        torch.zeros(3, 1),
        tensor([[1], [0], [1]]),
    )
    assert early.returns.tolist() == [[1.0], [0.0], [2.0]]


def test_a_trajectory_of_one_turn_is_one_row_of_gae():
    reward, valid, _, value, mask, _ = batch(4)
    tid = torch.arange(len(reward))
    options = {"penalty": 0.3, "whitened": False}
    a = ppo_turnwise(reward, valid, tid, value, mask, gamma=0.9, lam=0.8, **options)
    b = ppo_trajectory(reward, valid, tid, value, mask, token_gamma=0.9, token_lam=0.8, **options)
    assert_close(a.raw, b.raw)
    assert_close(a.returns, b.returns)


def test_replies_of_one_token_make_it_the_estimator_over_turns():
    reward, valid, tid, value, _, t = batch(5)
    one = torch.ones(len(t), 1)
    a = ppo_trajectory(reward, valid, tid, value[:, :1], one, t)
    b = turn_gae(reward, valid, tid, value[:, 0], t)
    assert_close(a.raw[:, 0], b.raw)
    assert_close(a.returns[:, 0], b.returns)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    cut=st.booleans(),
)
def test_trajectory_equals_a_slow_loop(seed, sizes, cut):
    reward, valid, tid, value, mask, t = batch(seed, sizes)
    boot = torch.linspace(-2, 3, len(t)).double() if cut else None
    got = ppo_trajectory(
        reward, valid, tid, value, mask, t, token_gamma=0.9, token_lam=0.7, bootstrap_M=boot
    )
    for key in set(tid.tolist()):
        rows = [m for m in range(len(t)) if tid[m] == key]
        steps = [(m, k) for m in rows for k in range(mask.shape[1]) if mask[m, k]]
        after = 0.0 if boot is None else float(boot[rows[-1]])
        ahead = 0.0
        for m, k in reversed(steps):
            leaves = k + 1 == int(mask[m].sum())
            discount, decay = (0.95, 0.95) if leaves else (0.9, 0.7)
            r = float(reward[m]) - (0.0 if valid[m] else 0.1) if leaves else 0.0
            ahead = r + discount * after - float(value[m, k]) + discount * decay * ahead
            after = float(value[m, k])
            assert abs(got.raw[m, k].item() - ahead) < 1e-9
            assert abs(got.returns[m, k].item() - ahead - after) < 1e-9


# ---------------------------------------------------------------------------- over turns


def test_turns_by_hand():
    got = over_turns(gamma=0.5, lam=0.25, penalty=0.5)
    # last 8 - 3 = 5, first -0.5 + 0.5 * 3 - 1 + 0.125 * 5; the lost one -4
    assert got.raw.tolist() == [0.625, 5.0, -4.0]
    assert got.returns.tolist() == [1.625, 8.0, 0.0]
    assert got.advantages.tolist() == got.raw.tolist()


def test_turn_defaults():
    named = {"gamma": 0.95, "lam": 0.95, "penalty": 0.1}
    assert over_turns().raw.tolist() == over_turns(**named).raw.tolist()
    assert_close(over_turns().raw.tolist(), [-0.1 + 0.95 * 3 - 1 + 0.9025 * 5, 5.0, -4.0])
    assert over_turns().advantages.tolist() == over_turns(whitened=False).advantages.tolist()
    raw = over_turns().raw
    white = over_turns(whitened=True)
    assert_close(white.advantages, (raw - raw.mean()) / (raw.var() + 1e-8).sqrt())
    assert white.returns.tolist() == over_turns().returns.tolist()


# ---------------------------------------------------------------------------- all of them


def estimate(name, rows, t, value, mask, **options):
    if name == "turnwise":
        return ppo_turnwise(*rows, value, mask, **options)
    if name == "trajectory":
        return ppo_trajectory(*rows, value, mask, t, **options)
    return turn_gae(*rows, value[:, 0], t, **options)


NAMES = ["turnwise", "trajectory", "turns"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("whitened", [True, False])
def test_row_order_is_irrelevant(name, whitened):
    reward, valid, tid, value, mask, t = batch(2)
    straight = estimate(name, (reward, valid, tid), t, value, mask, whitened=whitened)
    g = torch.Generator().manual_seed(1)
    for _ in range(5):
        p = torch.randperm(len(t), generator=g)
        got = estimate(
            name, (reward[p], valid[p], tid[p]), t[p], value[p], mask[p], whitened=whitened
        )
        for a, b in zip(got, straight, strict=True):
            assert_close(a, b[p], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["trajectory", "turns"])
def test_without_t_rows_are_in_time_order_even_when_trajectories_interleave(name):
    reward, valid, tid, value, mask, t = batch(2, sizes=(2, 2))
    p = tensor([2, 0, 3, 1])
    with_t = estimate(name, (reward[p], valid[p], tid[p]), t[p], value[p], mask[p])
    without = estimate(name, (reward[p], valid[p], tid[p]), None, value[p], mask[p])
    assert with_t.raw.tolist() == without.raw.tolist()
    reverse = estimate(name, (reward[p], valid[p], tid[p]), -t[p], value[p], mask[p])
    assert reverse.raw.tolist() != without.raw.tolist()


@pytest.mark.parametrize("name", ["turnwise", "trajectory"])
@pytest.mark.parametrize("junk", [1e30, math.inf, -math.inf, math.nan])
def test_masked_tokens_anywhere_change_no_bit(name, junk):
    reward, valid, tid, value, mask, t = batch(6)
    clean = estimate(name, (reward, valid, tid), t, value, mask, gamma=0.9, lam=0.8)
    wide = torch.full((len(t), 2 * mask.shape[1] + 1), junk).double()
    wide[:, 1::2] = torch.where(mask, value, junk)
    holes = torch.zeros(wide.shape)
    holes[:, 1::2] = mask.float()
    got = estimate(name, (reward, valid, tid), t, wide, holes, gamma=0.9, lam=0.8)
    for a, b in zip(got, clean, strict=True):
        assert a[:, 1::2].tolist() == b.tolist()
        assert a[:, ::2].abs().max().item() == 0.0


@pytest.mark.parametrize("name", NAMES)
def test_single_precision_values_of_a_perfect_critic_give_exactly_nothing(name):
    n = 8
    reward = torch.full((n,), 0.35, dtype=torch.float32)
    value = reward[:, None].expand(n, 3)
    rows = (reward, torch.ones(n).bool(), torch.arange(n))
    got = estimate(name, rows, None, value, torch.ones(n, 3), whitened=True)
    assert got.raw.abs().max().item() == 0.0
    assert got.advantages.abs().max().item() == 0.0


@pytest.mark.parametrize("name", NAMES)
def test_detached_and_empty(name):
    rows = (REWARD.clone().requires_grad_(), VALID, TID)
    got = estimate(name, rows, T, VALUE.clone().requires_grad_(), MASK)
    assert not any(x.requires_grad for x in got)
    none = torch.zeros(0, dtype=torch.int64)
    empty = estimate(name, (none.float(), none, none), none, torch.zeros(0, 2), torch.zeros(0, 2))
    assert all(x.shape[0] == 0 for x in empty)
    if name != "turns":
        for width in (0, 3):
            zero = torch.zeros(3, width)
            blank = estimate(name, rows, T, zero, zero)
            assert all(x.tolist() == zero.tolist() for x in blank)


def test_last_tokens_with_holes_and_empty_rows():
    mask = tensor([[1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]])
    assert last_tokens(mask).long().tolist() == [
        [0, 0, 1, 0],
        [0, 1, 0, 0],
        [0, 0, 0, 0],
        [0, 0, 0, 1],
    ]
    assert last_tokens(torch.zeros(2, 0)).shape == (2, 0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reward": tensor([0.0, math.inf, 0.0])}, "step_rewards_M has a NaN or infinite"),
        ({"valid": torch.ones(2)}, "equal length"),
        ({"tid": tensor([0, 1])}, "equal length"),
        ({"value": VALUE * math.nan}, "has a NaN or infinite entry"),
        ({"value": VALUE[:2], "mask": MASK[:2]}, "one row of tokens per turn, 3, found 2|equal"),
        ({"gamma": 1.5}, "gamma must lie"),
        ({"lam": -0.5}, "lam must lie"),
    ],
)
def test_wrong_inputs_are_refused(name, change, message):
    given_ = {"reward": REWARD, "valid": VALID, "tid": TID, "value": VALUE, "mask": MASK, **change}
    rows = tuple(given_.pop(key) for key in ("reward", "valid", "tid"))
    with pytest.raises(ValueError, match=message):
        estimate(name, rows, T, **given_)


@pytest.mark.parametrize("call", [along, over_turns])
def test_refusals_of_time_and_bootstrap(call):
    with pytest.raises(ValueError, match="Trajectory 7 has two turns of t = 4"):
        call(t=tensor([4, 4, 4]))
    with pytest.raises(ValueError, match="equal length"):
        call(t=tensor([0, 1]))
    with pytest.raises(ValueError, match="bootstrap_M has a NaN"):
        call(bootstrap_M=tensor([0.0, math.nan, 0.0]))
    with pytest.raises(ValueError, match="equal length"):
        call(bootstrap_M=torch.zeros(2))


def test_refusals_of_token_options():
    for call in (turnwise, along):
        with pytest.raises(ValueError, match="token_rewards_M_T has a NaN"):
            call(token_rewards_M_T=torch.full((3, 3), math.nan))
        with pytest.raises(ValueError, match="one shape"):
            call(token_rewards_M_T=torch.zeros(3, 2))
    with pytest.raises(ValueError, match="token_gamma must lie"):
        along(token_gamma=1.1)
    with pytest.raises(ValueError, match="token_lam must lie"):
        along(token_lam=-0.1)
    for value, mask in ((VALUE, MASK[:, :2]), (VALUE[:, 0], MASK)):
        for estimator in (ppo_turnwise, ppo_trajectory):
            with pytest.raises(ValueError, match=r"one shape \(B, T\), found {'value_M_T'"):
                estimator(REWARD, VALID, TID, value, mask)
    with pytest.raises(ValueError, match="only 0 and 1"):
        ppo_turnwise(REWARD, VALID, TID, VALUE, 2 * MASK)
