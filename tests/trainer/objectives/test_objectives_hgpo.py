"""HGPO: levels, weights and what is left out, by hand."""

from __future__ import annotations

import math
from statistics import mean, pstdev

import pytest
import torch
from torch import tensor
from torch.testing import assert_close

from trainer.objectives import GroupError, grpo_advantages
from trainer.objectives.anchors import anchor_ids
from trainer.objectives.hgpo import hgpo_advantages, hgpo_terms

FLAVORS = ["paper", "code", "code_traj"]
MODES = ["mean_std_norm", "mean_norm"]

# Three trajectories: a b c | a b c | z b c. With gamma 0 the return is the reward.
REWARD = tensor([6.0, 2.0, 9.0, 2.0, 4.0, 1.0, 0.0, 9.0, 2.0])
VALID = torch.ones(9).bool()
UID = torch.full((9,), 5)
TID = tensor([1, 1, 1, 0, 0, 0, 7, 7, 7])
T = tensor([0, 1, 2] * 3)
ANCHOR = anchor_ids(list("abcabczbc"), UID)
BATCH = (REWARD, VALID, UID, TID, T, ANCHOR)

# R - mean at each level; None where the turn has no such level.
LEVEL_0 = [2.0, -3.0, 5.0, -2.0, -1.0, -3.0, 0.0, 4.0, -2.0]
LEVEL_1 = [None, -1.0, 5.0, None, 1.0, -3.0, None, 0.0, -2.0]
LEVEL_2 = [None, None, 4.0, None, None, -4.0, None, None, 0.0]
SIZES = [[2, 3, 3, 2, 3, 3, 1, 3, 3], [0, 2, 3, 0, 2, 3, 0, 1, 3], [0, 0, 2, 0, 0, 2, 0, 0, 1]]
W = 1e-6


def means(**options):
    return hgpo_terms(*BATCH, gamma=0.0, mode="mean_norm", **options)


def close(got, want):
    assert got.dtype == torch.float64
    assert got.tolist() == pytest.approx(want, rel=1e-11, abs=1e-13)


def test_levels_by_hand():
    terms = means()
    assert terms.step_return.tolist() == REWARD.tolist()
    for k, level in enumerate([LEVEL_0, LEVEL_1, LEVEL_2]):
        close(terms.level[k], [value or 0.0 for value in level])
    assert terms.group_size.tolist() == SIZES
    assert terms.group_size.dtype == torch.int64
    assert terms.episode.tolist() == [0.0] * 9


def test_paper_weights_by_hand():
    third, sixth = 1 / 3, 1 / 6
    want = [2.0, (-3 - 2) * third, (5 + 10 + 12) * sixth]
    want += [-2.0, (-1 + 2) * third, (-3 - 6 - 12) * sixth]
    # alone at level 0, at level 1, at level 2: contributes 0, keeps its weight
    want += [0.0, (4 + 0) * third, (-2 - 4 + 0) * sixth]
    close(means().advantage, want)


@pytest.mark.parametrize("flavor", ["code", "code_traj"])
def test_code_weights_by_hand(flavor):
    want = [4 / (2 + W), (-6 - 3) / (5 + W), (10 + 15 + 16) / (9 + W)]
    want += [-4 / (2 + W), (-2 + 3) / (5 + W), (-6 - 9 - 16) / (9 + W)]
    # alone: left out, weight included
    want += [0.0, 8 / (2 + W), (-4 - 6) / (5 + W)]
    close(means(flavor=flavor).advantage, want)


def test_exponent_of_the_weights():
    close(means(alpha=2.0).advantage[2:3], [(5 + 4 * 5 + 9 * 4) / 14])
    close(means(alpha=0.0).advantage[2:3], [(5 + 5 + 4) / 3])
    root, cube = 2**0.5, 3**0.5
    half = means(alpha=0.5, flavor="code").advantage
    close(half[1:2], [(-3 * root - cube) / (root + cube + W)])
    code = means(alpha=2.0, flavor="code").advantage
    close(code[2:3], [(4 * 5 + 9 * 5 + 16 * 4) / (29 + W)])
    close(code[:1], [8 / (4 + W)])


def test_depth_limits_the_levels():
    zero, one, four = (means(depth=depth) for depth in (0, 1, 4))
    close(zero.advantage, LEVEL_0)
    assert zero.level.shape == (1, 9)
    close(one.advantage[2:3], [(5 + 10) / 3])
    # No turn has more than two before it, so further levels are empty.
    assert four.advantage.tolist() == means().advantage.tolist()
    assert four.group_size[3:].tolist() == [[0] * 9] * 2
    assert four.level[3:].tolist() == [[0.0] * 9] * 2


def test_the_deviation_is_that_of_the_population():
    def z(value, pool, eps=1e-6):
        return (value - mean(pool)) / (pstdev(pool) + eps)

    got = hgpo_advantages(*BATCH, gamma=0.0)
    close(got[:1], [z(6.0, [6.0, 2.0])])
    close(got[1:2], [(z(2.0, [2.0, 4.0, 9.0]) + 2 * z(2.0, [2.0, 4.0])) / 3])
    c = z(9.0, [9.0, 1.0, 2.0])
    close(got[2:3], [(3 * c + 3 * z(9.0, [9.0, 1.0])) / 6])
    wide = hgpo_advantages(*BATCH, gamma=0.0, eps=0.5)
    close(wide[:1], [z(6.0, [6.0, 2.0], 0.5)])


def test_defaults():
    valid = VALID.clone()
    valid[1] = False
    batch = (REWARD, valid, *BATCH[2:])
    options = {"flavor": "paper", "mode": "mean_std_norm", "depth": 2, "alpha": 1.0}
    options |= {"base_group": False, "gamma": 0.95, "eps": 1e-6, "penalty": 0.1}
    terms = hgpo_terms(*batch)
    assert terms.advantage.tolist() == hgpo_advantages(*batch, **options).tolist()
    assert terms.advantage.tolist() == hgpo_advantages(*batch).tolist()
    last = 2.0 - 0.1 + 0.95 * 9
    close(terms.step_return[:3], [6 + 0.95 * last, last, 9.0])
    first = [6 + 0.95 * last, 2 + 0.95 * (4 + 0.95)]
    close(terms.advantage[:1], [(first[0] - mean(first)) / (pstdev(first) + 1e-6)])
    code = hgpo_terms(*batch, flavor="code", penalty=0.5).step_return[:3]
    close(code, [6 + 0.95 * (2 + 0.95 * 9), 2 + 0.95 * 9 - 0.5, 9.0])
    assert len(terms.level) == 3


def test_base_group_by_hand():
    # Scores 17, 7, 11 on three rows each: mean 35 / 3.
    x, y, v = 16 / 3, -14 / 3, -2 / 3
    paper = means(base_group=True)
    close(paper.episode, [x, x, x, y, y, y, v, v, v])
    close(paper.advantage[:3], [(2 + x) / 2, (-5 + x) / 4, (27 + x) / 7])
    close(paper.advantage[6:7], [(0 + v) / 2])
    for flavor in ("code", "code_traj"):
        code = means(base_group=True, flavor=flavor).advantage
        close(code[:3], [(4 + x) / (3 + W), (-9 + x) / (6 + W), (41 + x) / (10 + W)])
        close(code[6:7], [v / (1 + W)])


def test_base_group_is_the_grpo_term_of_the_same_options():
    valid = tensor([True, False, True, True, True, False, False, True, True])
    batch = (REWARD, valid, UID, TID, T)
    for flavor in FLAVORS:
        for mode in MODES:
            got = hgpo_terms(
                *batch, ANCHOR, flavor=flavor, mode=mode, base_group=True, eps=0.5, penalty=2.0
            ).episode
            want = grpo_advantages(
                *batch, flavor=flavor, use_std=mode == "mean_std_norm", eps=0.5, penalty=2.0
            )
            assert got.tolist() == want.tolist()
    # "code_traj" reads the first turn by time, so the steps must arrive there.
    p = torch.arange(8, -1, -1)
    got, want = (
        hgpo_terms(*(column[q] for column in (*batch, ANCHOR)), flavor="code_traj", base_group=True)
        for q in (p, torch.arange(9))
    )
    assert_close(got.episode, want.episode[p], rtol=1e-12, atol=1e-12)


def test_base_group_of_zero_is_left_out_by_the_code():
    # Trajectories a and b score 3 each: no episode signal, but different ways to it.
    reward = tensor([1.0, 2.0, 3.0, 0.0])
    tid, anchor = tensor([0, 0, 1, 1]), tensor([0, 1, 0, 1])
    batch = (reward, reward > -1, tid * 0, tid, None, anchor)
    options = {"gamma": 0.0, "mode": "mean_norm", "depth": 0, "base_group": True}
    close(
        hgpo_advantages(*batch, flavor="code", **options),
        [-2 / (2 + W), *[2 / (2 + W)] * 2, -2 / (2 + W)],
    )
    close(hgpo_advantages(*batch, **options), [-0.5, 0.5, 0.5, -0.5])


def test_rounding_of_the_base_mean_does_not_add_a_level():
    # 0.1, 0.2, 0.3: the mean in binary is not 0.2.
    reward = tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    rows = torch.arange(3)
    batch = (reward, reward > 0, rows * 0, rows, None, tensor([0, 1, 1]))
    centred = grpo_advantages(*batch[:5], flavor="code", use_std=False)[1].abs()
    assert 0 < centred < 1e-15
    for mode in MODES:
        terms = hgpo_terms(*batch, flavor="code", mode=mode, base_group=True)
        assert terms.episode[1] == 0.0
        close(terms.advantage[1:2], [2 * terms.level[0, 1].item() / (2 + W)])
    edge = tensor([-1e-8, 1e-8], dtype=torch.float64)
    batch = (edge, edge < 1, rows[:2] * 0, rows[:2], None, rows[:2])
    terms = hgpo_terms(*batch, flavor="code", mode="mean_norm", base_group=True)
    assert terms.episode.tolist() == edge.tolist()


# Pools whose second member is the mean up to rounding, or up to 1e-8 of its scale.
AT_MEAN = [
    [0.1, 0.2, 0.3],
    [0.7, 0.6, 0.5],
    [0.0, 9e-9, 3e-8],  # mean 1.3e-8: 4e-9 away, below 1e-8
    [-1e10, 0.5, 1e10],  # mean 1/6; the pool's deviation is its scale
    [1e10, 1e10 + 60, 1e10 + 200],  # 27 away, below 1e-8 of the mean
    [-1e10, -1e10 - 60, -1e10 - 200],
]
OFF_MEAN = [
    [0.0, 2e-8, 0.0],  # mean 0.67e-8: 1.3e-8 away
    [-1e-8, 1e-8],  # 1e-8 away, the tolerance itself
    [1e10, 1e10 + 330, 1e10 + 200],  # 153 away
]


def middle_level(pool, flavor="code"):
    """Level 0 of the second of the turns that share a state."""
    reward = tensor(pool, dtype=torch.float64)
    rows = torch.arange(len(pool))
    return hgpo_terms(
        reward, rows >= 0, rows * 0, rows, None, rows * 0, flavor=flavor, mode="mean_norm"
    ).level[0, 1]


@pytest.mark.parametrize("flavor", FLAVORS)
@pytest.mark.parametrize("pool", AT_MEAN)
def test_a_return_at_the_mean_is_exactly_zero(pool, flavor):
    assert middle_level(pool, flavor) == 0.0


@pytest.mark.parametrize("pool", OFF_MEAN)
def test_a_return_off_the_mean_is_not(pool):
    assert middle_level(pool) == pytest.approx(pool[1] - mean(pool), rel=1e-6)


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_rounding_never_decides_whether_a_level_is_left_out(order):
    # y follows x twice and w once; at y the returns are 0.1, 0.2, 0.3. For the turn with 0.2
    # level 0 is exactly 0 and left out, level 1 compares 0.1 and 0.2.
    second = [("x", 0.1), ("x", 0.2), ("w", 0.3)]
    pairs = [second[i] for i in order]
    reward = tensor([r for _, last in pairs for r in (0.0, last)], dtype=torch.float64)
    keys = [key for state, _ in pairs for key in (state, "y")]
    tid = tensor([0, 0, 1, 1, 2, 2])
    anchor = anchor_ids(keys, tid * 0)
    got = hgpo_terms(
        reward, tid >= 0, tid * 0, tid, None, anchor, flavor="code", mode="mean_norm", gamma=0.0
    )
    row = 2 * order.index(1) + 1
    assert got.level[0, row] == 0.0
    close(got.advantage[row : row + 1], [3 * 0.05 / (3 + W)])


@pytest.mark.parametrize("flavor", FLAVORS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("base_group", [True, False])
def test_eight_equal_wins_give_exactly_nothing(flavor, mode, dtype, base_group):
    reward = tensor([0.0, 0.0, 10.0] * 8, dtype=dtype)
    tid, anchor = torch.arange(24) // 3, torch.arange(24) % 3
    terms = hgpo_terms(
        *(reward, reward > -1, tid * 0, tid, None, anchor),
        flavor=flavor,
        mode=mode,
        base_group=base_group,
    )
    assert terms.advantage.tolist() == [0.0] * 24
    assert terms.level.tolist() == [[0.0] * 24] * 3
    assert terms.group_size[:, 2].tolist() == [8, 8, 8]


def test_histories_are_ordered_and_stay_within_trajectory_and_group():
    # a b c and b a c share states but no history; another group does not count at all.
    keys = list("abcbacabc")
    uid = tensor([0] * 6 + [1] * 3)
    tid = tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])
    reward = torch.arange(9.0)
    anchor = tensor([ord(key) for key in keys])
    terms = hgpo_terms(reward, reward >= 0, uid, tid, None, anchor, gamma=0.0, mode="mean_norm")
    assert terms.group_size.tolist() == [
        [2, 2, 2, 2, 2, 2, 1, 1, 1],
        [0, 1, 1, 0, 1, 1, 0, 1, 1],
        [0, 0, 1, 0, 0, 1, 0, 0, 1],
    ]
    close(terms.advantage, [-2.0, -1 / 3, -1.5 / 6, 1.0, 2 / 3, 1.5 / 6, 0.0, 0.0, 0.0])


def test_a_trajectory_may_meet_itself():
    # s s s: one pool of three, then the pair (s, s) twice, then once.
    reward = tensor([3.0, 6.0, 0.0])
    rows = torch.zeros(3, dtype=torch.int64)
    terms = hgpo_terms(reward, reward >= 0, rows, rows, None, rows, gamma=0.0, mode="mean_norm")
    assert terms.group_size.tolist() == [[3, 3, 3], [0, 2, 2], [0, 0, 1]]
    close(terms.advantage, [0.0, (3 + 2 * 3) / 3, (-3 + 2 * -3) / 6])


@pytest.mark.parametrize("flavor", FLAVORS)
def test_the_order_of_rows_is_irrelevant(flavor):
    generator = torch.Generator().manual_seed(4)
    rows = [(u, 4 * u + i, t) for u in range(3) for i in range(4) for t in range(2 + i)]
    uid, tid, t = (tensor(column) for column in zip(*rows, strict=True))
    reward = torch.randint(0, 3, (len(rows),), generator=generator)
    valid = torch.rand(len(rows), generator=generator) < 0.7
    anchor = torch.randint(0, 2, (len(rows),), generator=generator)
    options = {"flavor": flavor, "base_group": True, "gamma": 1.0}
    straight = hgpo_terms(reward, valid, uid, tid, t, anchor, **options)
    by_rows = hgpo_terms(reward, valid, uid, tid, None, anchor, **options)
    assert by_rows.advantage.tolist() == straight.advantage.tolist()
    for _ in range(4):
        p = torch.randperm(len(rows), generator=generator)
        got = hgpo_terms(reward[p], valid[p], uid[p], tid[p], t[p], 5 - 3 * anchor[p], **options)
        for name in ("advantage", "level", "episode", "step_return"):
            want = getattr(straight, name)[..., p]
            assert_close(getattr(got, name), want, rtol=1e-12, atol=1e-12)
        assert got.group_size.tolist() == straight.group_size[:, p].tolist()


def test_results_are_detached_and_empty_batches_work():
    terms = hgpo_terms(REWARD.clone().requires_grad_(), *BATCH[1:], base_group=True)
    for name in ("advantage", "level", "episode", "step_return"):
        assert not getattr(terms, name).requires_grad
    empty = torch.zeros(0, dtype=torch.int64)
    none = hgpo_terms(torch.zeros(0), empty.bool(), empty, empty, empty, empty, base_group=True)
    assert none.advantage.shape == (0,)
    assert none.level.shape == none.group_size.shape == (3, 0)


def test_refusals_name_the_problem():
    with pytest.raises(ValueError, match="mode must be one of"):
        hgpo_terms(*BATCH, mode="std")
    with pytest.raises(ValueError, match="flavor must be one of"):
        hgpo_terms(*BATCH, flavor="verl")
    with pytest.raises(ValueError, match="depth must be at least 0, found -1"):
        hgpo_terms(*BATCH, depth=-1)
    with pytest.raises(ValueError, match="gamma must be in"):
        hgpo_terms(*BATCH, gamma=-1.0)
    with pytest.raises(ValueError, match="NaN or infinite"):
        hgpo_terms(REWARD * math.inf, *BATCH[1:])
    with pytest.raises(ValueError, match=r"equal length.*'anchor_M': \(3,\)"):
        hgpo_terms(*BATCH[:5], ANCHOR[:3])
    with pytest.raises(GroupError, match="more than one group"):
        hgpo_terms(REWARD, VALID, torch.arange(9), *BATCH[3:])
    with pytest.raises(ValueError, match="before rows are duplicated"):
        hgpo_terms(*(torch.cat([column, column[:1]]) for column in BATCH))
