"""GiGPO: both terms by hand, which turns form a pool, and what must not matter."""

from __future__ import annotations

import math
from statistics import mean, stdev

import pytest
import torch
from torch import tensor
from torch.testing import assert_close

from trainer.objectives import GroupError, grpo_advantages
from trainer.objectives.anchors import anchor_ids
from trainer.objectives.gigpo import check_mode, gigpo_advantages, gigpo_terms

FLAVORS = ["paper", "code", "code_traj"]
MODES = ["mean_std_norm", "mean_norm"]

# Group 4. Trajectory 0: s x, wins. Trajectory 1: s s x, malformed at its second turn.
# Trajectory 2: s y, gets 4 at once.
REWARD = tensor([0.0, 10.0, 0.0, 0.0, 0.0, 4.0, 0.0])
VALID = tensor([True, True, True, False, True, True, True])
UID = tensor([4, 4, 4, 4, 4, 4, 4])
TID = tensor([0, 0, 1, 1, 1, 2, 2])
T = tensor([0, 1, 0, 1, 2, 0, 1])
ANCHOR = anchor_ids(["s", "x", "s", "s", "x", "s", "y"], UID)
BATCH = (REWARD, VALID, UID, TID, T, ANCHOR)


def z(value, pool, eps=1e-6):
    return (value - mean(pool)) / (stdev(pool) + eps)


def close(got, want):
    assert got.dtype == torch.float64
    assert got.tolist() == pytest.approx(want, rel=1e-11, abs=1e-13)


def test_paper_by_hand():
    terms = gigpo_terms(*BATCH, gamma=0.5, penalty=0.2, omega=3.0)
    close(terms.step_return, [5.0, 10.0, -0.1, -0.2, 0.0, 4.0, 0.0])
    pool = [5.0, -0.1, -0.2, 4.0]
    a = z(10.0, [10.0, 0.0])
    step = [z(5.0, pool), a, z(-0.1, pool), z(-0.2, pool), -a, z(4.0, pool), 0.0]
    close(terms.step, step)
    score = [10.0, -0.2, 4.0]
    e, f, g = (z(s, score) for s in score)
    episode = [e, e, f, f, f, g, g]
    close(terms.episode, episode)
    close(terms.advantage, [x + 3.0 * y for x, y in zip(episode, step, strict=True)])
    assert terms.group_size.tolist() == [4, 2, 4, 4, 2, 4, 1]


def test_code_by_hand():
    terms = gigpo_terms(*BATCH, flavor="code", gamma=0.5, penalty=0.2, mode="mean_norm")
    close(terms.step_return, [5.0, 10.0, 0.0, -0.2, 0.0, 4.0, 0.0])
    step = [2.8, 5.0, -2.2, -2.4, -5.0, 1.8, 0.0]
    close(terms.step, step)
    centre = (20.0 - 0.2 + 8.0) / 7
    episode = [s - centre for s in [10.0, 10.0, 0.0, -0.2, 0.0, 4.0, 4.0]]
    close(terms.episode, episode)
    close(terms.advantage, [x + y for x, y in zip(episode, step, strict=True)])


def test_code_traj_shares_the_step_term_of_code():
    code, traj = (gigpo_terms(*BATCH, flavor=name) for name in ("code", "code_traj"))
    assert traj.step.tolist() == code.step.tolist()
    assert traj.step_return.tolist() == code.step_return.tolist()
    want = grpo_advantages(*BATCH[:5], flavor="code_traj")
    assert traj.episode.tolist() == want.tolist()
    assert traj.episode.tolist() != code.episode.tolist()


def test_defaults():
    terms = gigpo_terms(*BATCH)
    first = 0.95 * -0.1
    close(terms.step_return, [9.5, 10.0, first, -0.1, 0.0, 4.0, 0.0])
    pool = [9.5, first, -0.1, 4.0]
    score = [10.0, -0.1, 4.0]
    a = z(10.0, [10.0, 0.0])
    want = [z(10.0, score) + z(9.5, pool), z(10.0, score) + a]
    want += [z(-0.1, score) + z(first, pool), z(-0.1, score) + z(-0.1, pool), z(-0.1, score) - a]
    want += [z(4.0, score) + z(4.0, pool), z(4.0, score)]
    close(terms.advantage, want)
    assert gigpo_advantages(*BATCH).tolist() == terms.advantage.tolist()


def test_options_reach_both_terms():
    got = gigpo_terms(*BATCH, eps=0.5, penalty=2.0)
    score, pool = [10.0, -2.0, 4.0], [9.5, -1.9, -2.0, 4.0]
    close(got.episode[:1], [z(10.0, score, 0.5)])
    close(got.step[:1], [z(9.5, pool, 0.5)])
    got = gigpo_terms(*BATCH, mode="mean_norm")
    close(got.episode[:1], [10.0 - mean([10.0, -0.1, 4.0])])
    options = {"flavor": "code", "mode": "mean_norm", "omega": 0.25, "gamma": 0.5}
    want = gigpo_terms(*BATCH, **options)
    assert gigpo_advantages(*BATCH, **options).tolist() == want.advantage.tolist()
    close(want.advantage, (want.episode + 0.25 * want.step).tolist())
    only = gigpo_terms(*BATCH, omega=0.0)
    assert only.advantage.tolist() == grpo_advantages(*BATCH[:5]).tolist()


def test_raw_singleton_is_the_episode_terms_only():
    one = (tensor([10.0]), tensor([True]), tensor([0]), tensor([0]), None, tensor([0]))
    for flavor in FLAVORS:
        assert gigpo_advantages(*one, flavor=flavor).tolist() == [0.0]
    raw = gigpo_terms(*one, flavor="code", singleton="raw")
    close(raw.advantage, [10.0 / (1 + 1e-6)])
    assert raw.step.tolist() == [0.0]
    with pytest.raises(ValueError, match="'paper' a lone trajectory has advantage 0"):
        gigpo_terms(*one, singleton="raw")


@pytest.mark.parametrize("flavor", FLAVORS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_eight_equal_wins_give_exactly_nothing(flavor, mode, dtype):
    # Returns 9.025, 9.5, 10 eight times over: the float32 mean leaves a residue.
    reward = tensor([0.0, 0.0, 10.0] * 8, dtype=dtype)
    tid, anchor = torch.arange(24) // 3, torch.arange(24) % 3
    terms = gigpo_terms(reward, reward > -1, tid * 0, tid, None, anchor, flavor=flavor, mode=mode)
    assert terms.advantage.tolist() == [0.0] * 24
    assert terms.step.tolist() == terms.episode.tolist() == [0.0] * 24


@pytest.mark.parametrize("mode", MODES)
def test_among_wins_the_shorter_way_is_better(mode):
    # s g | s y g | no invalid reply: the episode term is 0, the step term is not
    reward = tensor([0.0, 10.0, 0.0, 0.0, 10.0])
    tid, anchor = tensor([0, 0, 1, 1, 1]), tensor([0, 2, 0, 1, 2])
    terms = gigpo_terms(reward, reward > -1, tid * 0, tid, None, anchor, mode=mode)
    assert terms.episode.tolist() == [0.0] * 5
    # 9.5 against 9.025
    size = 0.2375 if mode == "mean_norm" else 0.2375 / (0.2375 * math.sqrt(2) + 1e-6)
    close(terms.advantage, [size, 0.0, -size, 0.0, 0.0])


def test_nobody_wins_and_all_is_well_formed():
    reward = torch.zeros(5)
    tid = tensor([0, 0, 1, 1, 1])
    for flavor in FLAVORS:
        got = gigpo_advantages(reward, reward == 0, tid * 0, tid, None, tid, flavor=flavor)
        assert got.tolist() == [0.0] * 5


def test_equal_anchors_of_different_groups_do_not_meet():
    uid = tensor([8, 8, 8, -3, -3, -3])
    reward = tensor([1.0, 2.0, 6.0, 10.0, 30.0, 20.0])
    anchor = torch.full((6,), 77)
    terms = gigpo_terms(reward, reward > 0, uid, torch.arange(6), None, anchor, mode="mean_norm")
    close(terms.step, [-2.0, -1.0, 3.0, -10.0, 10.0, 0.0])
    assert terms.group_size.tolist() == [3] * 6


@pytest.mark.parametrize("flavor", FLAVORS)
def test_the_order_of_rows_is_irrelevant(flavor):
    generator = torch.Generator().manual_seed(3)
    rows = [(u, 4 * u + i, t) for u in range(3) for i in range(4) for t in range(1 + i)]
    uid, tid, t = (tensor(column) for column in zip(*rows, strict=True))
    reward = torch.rand(len(rows), generator=generator)
    valid = torch.rand(len(rows), generator=generator) < 0.7
    anchor = torch.randint(0, 3, (len(rows),), generator=generator)
    straight = gigpo_terms(reward, valid, uid, tid, t, anchor, flavor=flavor)
    by_rows = gigpo_terms(reward, valid, uid, tid, None, anchor, flavor=flavor)
    assert by_rows.advantage.tolist() == straight.advantage.tolist()
    for _ in range(4):
        p = torch.randperm(len(rows), generator=generator)
        # renamed anchors, too
        got = gigpo_terms(
            reward[p], valid[p], uid[p], tid[p], t[p], 9 - 4 * anchor[p], flavor=flavor
        )
        for name in ("advantage", "episode", "step", "step_return"):
            want = getattr(straight, name)[p]
            assert_close(getattr(got, name), want, rtol=1e-12, atol=1e-12)
        assert got.group_size.tolist() == straight.group_size[p].tolist()


def test_results_are_detached_and_empty_batches_work():
    terms = gigpo_terms(REWARD.clone().requires_grad_(), *BATCH[1:])
    for name in ("advantage", "episode", "step", "step_return"):
        assert not getattr(terms, name).requires_grad
    empty = torch.zeros(0, dtype=torch.int64)
    for flavor in FLAVORS:
        none = gigpo_terms(torch.zeros(0), empty.bool(), empty, empty, empty, empty, flavor=flavor)
        assert none.advantage.shape == none.group_size.shape == (0,)


def test_refusals_name_the_problem():
    with pytest.raises(ValueError, match="mode must be one of"):
        gigpo_terms(*BATCH, mode="std")
    with pytest.raises(ValueError, match="flavor must be one of"):
        gigpo_terms(*BATCH, flavor="verl")
    with pytest.raises(ValueError, match="gamma must be in"):
        gigpo_terms(*BATCH, gamma=2.0)
    with pytest.raises(ValueError, match="NaN or infinite"):
        gigpo_terms(REWARD * math.nan, *BATCH[1:])
    with pytest.raises(ValueError, match=r"equal length.*'anchor_M': \(3,\)"):
        gigpo_terms(*BATCH[:5], ANCHOR[:3])
    with pytest.raises(GroupError, match="more than one group"):
        gigpo_terms(REWARD, VALID, torch.arange(7), *BATCH[3:])
    twice = [torch.cat([column, column[:1]]) for column in BATCH]
    with pytest.raises(ValueError, match="before rows are duplicated"):
        gigpo_terms(*twice)
    check_mode("mean_norm")
