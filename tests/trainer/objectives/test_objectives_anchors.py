"""Anchors: which states are one, which texts are close, and what a turn returns."""

from __future__ import annotations

import math
import random
from array import array
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np
import pytest
import torch
from torch import tensor

from trainer.objectives import anchors
from trainer.objectives.anchors import (
    AnchorError,
    anchor_ids,
    canonical_key,
    pair_ids,
    similar_clusters,
    step_returns,
    time_order,
)


def same(a, b):
    return anchor_ids([a, b], tensor([3, 3])).tolist() == [0, 0]


def test_anchors_are_numbered_by_first_appearance_and_per_group():
    keys = ["b", "a", "b", "b", "a"]
    assert anchor_ids(keys, tensor([7, 7, 7, 2, 7])).tolist() == [0, 1, 0, 2, 1]
    got = anchor_ids(keys, tensor([7, 7, 7, 2, 7]))
    assert got.dtype == torch.int64
    assert anchor_ids([], torch.zeros(0, dtype=torch.int64)).shape == (0,)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (np.array([[1, 2], [3, 4]]), np.array([[1, 2], [3, 4]])),
        (np.array([1.0, math.nan]), np.array([1.0, math.nan])),
        (np.array([1, 2]), np.array([1.0, 2.0])),
        (np.array([1, 2]), torch.tensor([1, 2])),
        (np.float32(0.5), 0.5),
        (float("nan"), float("nan")),
        ([1, "x", [2]], (1, "x", (2,))),
        ({"a": 1, "b": [np.zeros(2)]}, {"b": [np.zeros(2)], "a": 1}),
        ({1, 2}, {2, 1}),
        ([{"a": {"b"}}], [{"a": {"b"}}]),
        (np.array([{"a": 1}, None], dtype=object), np.array([{"a": 1}, None], dtype=object)),
        ("", ""),
        (None, None),
    ],
)
def test_equal_states_share_an_anchor(a, b):
    assert same(a, b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (np.array([1, 2]), np.array([[1, 2]])),
        (np.array([1, 2, 3, 4]).reshape(2, 2), np.array([1, 3, 2, 4]).reshape(2, 2)),
        (np.array([1, 2]), [1, 2]),
        (np.zeros(0), []),
        ([], {}),
        (set(), {}),
        (set(), []),
        ({"a": 1}, [("a", 1)]),
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, {"b": 1}),
        ([1, 2], [2, 1]),
        ([1, [2]], [[1], 2]),
        ({1}, {2}),
        (float("nan"), "nan"),
        (float("nan"), ("nan",)),
        (np.array([0.0, math.nan]), np.array([0.0, 1.0])),
        ("1", 1),
        ("a", "a "),
    ],
)
def test_different_states_do_not(a, b):
    assert not same(a, b)


def test_states_that_cannot_be_compared_are_refused():
    @dataclass
    class Open:
        x: int

    with pytest.raises(AnchorError, match="holds a Open, which cannot be compared"):
        canonical_key({"a": [Open(1)]})
    with pytest.raises(AnchorError, match=r"holds a array"):
        canonical_key(array("i", [1]))
    assert canonical_key(("x", 1.5)) == canonical_key(["x", 1.5])
    assert canonical_key("x") == "x"
    assert canonical_key(1.5) == 1.5


def test_keys_and_groups_must_match_in_length():
    with pytest.raises(ValueError, match="one key for each of 3 turns, found 2"):
        anchor_ids(["a", "b"], tensor([0, 0, 0]))
    with pytest.raises(ValueError, match="one-dimensional"):
        anchor_ids(["a"], tensor([[0]]))


# 19 of 20 letters agree: ratio 2 * 19 / 40 = 0.95 exactly.
A = "abcdefghijklmnopqrst"
B = "abcdefghijklmnopqrsX"
C = "abcdefghijklmnopqrYX"  # 18 of 20 with A, 19 of 20 with B


def test_a_text_joins_the_first_cluster_whose_first_member_is_close():
    assert similar_clusters([A, B, C]) == [0, 0, 1]
    assert similar_clusters([B, A, C]) == [0, 0, 0]  # the order decides
    assert similar_clusters([A, C, B]) == [0, 1, 0]  # close to both firsts: the earlier one
    assert similar_clusters([C, A, B]) == [0, 1, 0]
    assert similar_clusters([A, B, C], 0.9) == [0, 0, 0]
    assert similar_clusters([A, B, A, B], 1) == [0, 1, 0, 1]
    assert similar_clusters([A, B], 0.950001) == [0, 1]
    assert similar_clusters(["", "a", ""]) == [0, 1, 0]
    assert similar_clusters([]) == []


def test_letters_in_common_are_not_enough():
    # The same letters in reverse: the bound is 1, the ratio 2 * 1 / 40.
    assert similar_clusters([A, A[::-1]], 0.5) == [0, 1]


def test_the_new_text_comes_first_in_the_ratio():
    # SequenceMatcher is not symmetric; the founder is its second sequence.
    first, text = "tide", "diet"
    assert SequenceMatcher(None, text, first).ratio() == 0.5
    assert SequenceMatcher(None, first, text).ratio() == 0.25
    assert similar_clusters([first, text], 0.5) == [0, 0]
    assert similar_clusters([text, first], 0.5) == [0, 1]


def naive_clusters(texts, threshold):
    firsts, out = [], []
    for text in texts:
        for number, first in enumerate(firsts):
            if SequenceMatcher(None, text, first).ratio() >= threshold:
                out.append(number)
                break
        else:
            out.append(len(firsts))
            firsts.append(text)
    return out


@pytest.mark.parametrize("threshold", [0.3, 0.6, 0.8, 0.95])
def test_pruning_changes_nothing(threshold):
    rng = random.Random(5)
    texts = []
    for _ in range(60):
        words = [rng.choice(["desk 1", "mug", "a pen", "", "lamp", "é"]) for _ in range(6)]
        texts.append(" ".join(words))
    got = similar_clusters(texts, threshold)
    assert got == naive_clusters(texts, threshold)
    assert len(set(got)) > 1


def test_long_texts_take_the_automatic_junk_of_difflib():
    # From 200 letters on difflib ignores frequent ones, which changes ratios.
    rng = random.Random(1)
    texts = ["".join(rng.choice("ab c") for _ in range(rng.randint(200, 260))) for _ in range(5)]
    texts += [texts[0], texts[1] + "b"]
    for threshold in (0.2, 0.9):
        assert similar_clusters(texts, threshold) == naive_clusters(texts, threshold)


def test_repeats_and_hopeless_pairs_cost_no_ratio(monkeypatch):
    calls = []

    class Counting(SequenceMatcher):
        def ratio(self):
            calls.append((self.a, self.b))
            return super().ratio()

    monkeypatch.setattr(anchors, "SequenceMatcher", Counting)
    assert similar_clusters([A, "zzz", A, B, B, "zzz", A + A]) == [0, 1, 0, 0, 0, 1, 2]
    assert calls == [(B, A)]


def test_similar_anchors_stay_within_their_group():
    keys, uid = [A, B, A, C, C, B], tensor([1, 1, 0, 0, 1, 0])
    # group 1: A, B | C; group 0: A, B | C
    assert anchor_ids(keys, uid, similarity=0.95).tolist() == [0, 0, 1, 2, 3, 1]
    assert anchor_ids(keys, uid).tolist() == [0, 1, 2, 3, 4, 5]


def test_refusals_of_the_similarity():
    for wrong in (0.0, -1.0, 1.01):
        with pytest.raises(ValueError, match=r"must be in \(0, 1\]"):
            similar_clusters([A], wrong)
    with pytest.raises(AnchorError, match=r"Similarity compares texts, found a int"):
        anchor_ids(["a", 1], tensor([0, 0]), similarity=0.5)


def test_time_order_is_by_trajectory_then_time():
    trajectory = tensor([5, 2, 5, 2, 5])
    assert time_order(trajectory, tensor([9, 1, 0, 0, 3])).tolist() == [3, 1, 2, 4, 0]
    assert time_order(trajectory, None).tolist() == [1, 3, 0, 2, 4]


def test_two_turns_of_one_step_are_refused():
    with pytest.raises(ValueError, match=r"Trajectory 5 has two turns with t=2.*duplicated"):
        time_order(tensor([4, 5, 4, 5]), tensor([2, 2, 1, 2]))
    with pytest.raises(ValueError, match="equal length"):
        time_order(tensor([4, 5]), tensor([0]))


REWARD = tensor([0.0, 8.0, 1.0, 0.0, 4.0])
VALID = tensor([True, False, True, False, True])
TID = tensor([1, 1, 0, 0, 0])


def returns(**options):
    return step_returns(REWARD, VALID, TID, **options).tolist()


def test_returns_by_hand():
    # trajectory 1: rewards 0, 8 (malformed); trajectory 0: rewards 1, 0 (malformed), 4
    assert returns(gamma=0.5, penalty=1.0) == [3.5, 7.0, 1 - 0.5 + 1.0, -1 + 2.0, 4.0]
    for flavor in ("code", "code_traj"):
        got = returns(flavor=flavor, gamma=0.5, penalty=1.0)
        assert got == [4.0, 7.0, 2.0, 1.0, 4.0]
    assert returns(gamma=0, penalty=0) == REWARD.tolist()
    assert returns(gamma=1, penalty=0) == [8.0, 8.0, 5.0, 4.0, 4.0]


def test_default_discount_and_penalty():
    want = [0.95 * 7.9, 7.9, 1 + 0.95 * (-0.1 + 0.95 * 4), -0.1 + 0.95 * 4, 4.0]
    assert returns() == pytest.approx(want, rel=1e-14)
    want = [0.95 * 8, 7.9, 1 + 0.95**2 * 4, 0.95 * 4 - 0.1, 4.0]
    assert returns(flavor="code") == pytest.approx(want, rel=1e-14)


def test_returns_follow_the_steps_and_not_the_rows():
    t = tensor([0, 1, 0, 1, 2])
    straight = step_returns(REWARD, VALID, TID, t)
    p = tensor([4, 1, 3, 0, 2])
    assert step_returns(REWARD[p], VALID[p], TID[p], t[p]).tolist() == straight[p].tolist()
    # Only the order of the steps counts.
    assert step_returns(REWARD, VALID, TID, 10 * t - 3).tolist() == straight.tolist()
    assert step_returns(REWARD, VALID, TID).tolist() == straight.tolist()


def test_returns_are_double_detached_and_may_be_empty():
    got = step_returns(REWARD.clone().requires_grad_(), VALID.int(), TID)
    assert got.dtype == torch.float64
    assert not got.requires_grad
    assert got.tolist() == returns()
    none = torch.zeros(0, dtype=torch.int64)
    assert step_returns(torch.zeros(0), none.bool(), none).shape == (0,)


def test_refusals_of_the_returns():
    with pytest.raises(ValueError, match="flavor must be one of"):
        returns(flavor="verl")
    for wrong in (-0.01, 1.01):
        with pytest.raises(ValueError, match=r"gamma must be in \[0, 1\]"):
            returns(gamma=wrong)
    with pytest.raises(ValueError, match="NaN or infinite"):
        step_returns(tensor([1.0, math.inf]), VALID[:2], TID[:2])
    with pytest.raises(ValueError, match="equal length"):
        step_returns(REWARD, VALID[:2], TID)
    with pytest.raises(ValueError, match="equal length"):
        step_returns(REWARD[:2], VALID, TID)
    with pytest.raises(ValueError, match="equal length"):
        step_returns(REWARD, VALID, TID[:2])


def test_pairs_are_numbered_densely():
    got = pair_ids(tensor([10**12, -4, 10**12, -4, 3]), tensor([0, 7, 0, 8, 7]))
    assert got[0] == got[2]
    assert sorted(set(got.tolist())) == [0, 1, 2, 3]
    # (0, 1) and (1, 0) differ, whatever the number of second members
    assert len(set(pair_ids(tensor([0, 1, 0, 1]), tensor([1, 0, 0, 1])).tolist())) == 4
    grid = [(first, second) for first in range(5) for second in range(2)]
    firsts, seconds = (tensor(column) for column in zip(*grid, strict=True))
    assert pair_ids(firsts, seconds).tolist() == list(range(10))
    assert len(set(pair_ids(seconds, firsts).tolist())) == 10
