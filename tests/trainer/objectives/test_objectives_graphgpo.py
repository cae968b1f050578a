"""GraphGPO: hand-worked values and advantages, and equality with a plain loop."""

from __future__ import annotations

import math

import pytest
import torch
from torch import tensor
from torch.testing import assert_close

from benchmarks.reference_graph import Turn, graphgpo_loop, random_turns
from trainer.objectives.graphgpo import graph_values, graphgpo_advantages, graphgpo_terms
from trainer.objectives.groups import GroupError
from trainer.objectives.grpo import grpo_advantages
from trainer.objectives.state_graph import SUCCESS, StateGraphError, state_graph

# Wins 0 -> 1 -> SUCCESS and 0 -> SUCCESS, and a loss 0 -> 2 whose reply is malformed.
# Distances: 1 and 1 from states 0 and 1; state 2 is unreachable, so 2.
REWARD = tensor([0.0, 10.0, 10.0, 0.0])
VALID = tensor([True, True, True, False])
UID = tensor([3, 3, 3, 3])
TID = tensor([0, 0, 1, 2])
T = tensor([0, 1, 0, 0])
STATE = tensor([0, 1, 0, 0])
NEXT = tensor([1, 9, 9, 2])
WON = tensor([True, True, True, False])
ROWS = (REWARD, VALID, UID, TID, T, STATE, NEXT, WON)


def columns(turns, dtype=torch.float64):
    """The vectors of `graphgpo_terms` from turns."""
    names = ("reward", "valid", "uid", "tid", "t", "state", "next_state", "success")
    reward, *others = (tensor([getattr(turn, name) for turn in turns]) for name in names)
    return [reward.to(dtype), *others]


def standardised(pool):
    """(x - mean) / (std + 1e-6) of a pool, std over n - 1."""
    mean = sum(pool) / len(pool)
    std = math.sqrt(sum((x - mean) ** 2 for x in pool) / (len(pool) - 1))
    return [(x - mean) / (std + 1e-6) for x in pool]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.1, 1.0, 1.0, 0.01]),
        ({"flavor": "code"}, [1.0, 10.0, 10.0, 0.1]),
        ({"flavor": "code_traj"}, [1.0, 10.0, 10.0, 0.1]),
        ({"flavor": "code", "omega": 0.2}, [2.0, 10.0, 10.0, 0.4]),
        ({"omega": 0.5, "success_reward": 1.0}, [0.25, 0.5, 0.5, 0.125]),
        ({"omega": 1.0}, [10.0] * 4),
        # d(s') - d(s) + 1 = 1, 0, 0, 2
        ({"normalize_distance": True}, [1.0, 10.0, 10.0, 0.1]),
        ({"normalize_distance": True, "flavor": "code", "omega": 0.5}, [5.0, 10.0, 10.0, 2.5]),
        # costs 2, 0.5, 3, 0.5: d(1) = 0.5, d(0) = 2.5, d(2) = 3.5; omega^d(s') * omega^c
        (
            {"cost_M": tensor([2.0, 0.5, 3.0, 0.5]), "omega": 0.25},
            [10 * 0.25**2.5, 10 * 0.25**0.5, 10 * 0.25**3, 10 * 0.25**4],
        ),
        (
            {"cost_M": tensor([2.0, 0.5, 3.0, 0.5]), "omega": 0.25, "flavor": "code"},
            [10 * 0.25**1.5, 10 * 0.25**-0.5, 10 * 0.25**2, 10 * 0.25**3],
        ),
        (
            {"cost_M": tensor([2.0, 0.5, 3.0, 0.5]), "omega": 0.25, "normalize_distance": True},
            [10.0, 10.0, 10 * 0.25**0.5, 10 * 0.25**1.5],
        ),
    ],
)
def test_values_by_hand(options, expected):
    graph = state_graph(UID, TID, T, STATE, NEXT, WON)
    assert_close(graph_values(graph, **options).tolist(), expected, rtol=1e-12, atol=0)
    terms = graphgpo_terms(*ROWS, **options)
    assert_close(terms.value.tolist(), expected, rtol=1e-12, atol=0)


def test_paper_flavour_by_hand():
    # State 0 is left by rows 0, 2 and 3; the malformed reply costs row 3 the penalty.
    a, b, c = standardised([0.1, 1.0, 0.01 - 0.1])
    # Trajectory scores 10, 10, -0.1
    win, same, loss = standardised([10.0, 10.0, -0.1])
    assert win == same
    terms = graphgpo_terms(*ROWS)
    assert_close(terms.step.tolist(), [a, 0.0, b, c], rtol=1e-12, atol=0)
    assert_close(terms.episode.tolist(), [win, win, win, loss], rtol=1e-12, atol=0)
    assert_close(terms.advantage.tolist(), [a + win, win, b + win, c + loss], rtol=1e-12, atol=0)
    assert graphgpo_advantages(*ROWS).tolist() == terms.advantage.tolist()
    assert terms.graph.state_V.tolist() == [SUCCESS, 0, 1, 2]


def test_code_flavour_by_hand():
    a, b, c = standardised([1.0, 10.0, 0.1 - 0.1])
    win, _, _, loss = standardised([10.0, 10.0, 10.0, -0.1])  # a pool of rows
    got = graphgpo_advantages(*ROWS, flavor="code").tolist()
    assert_close(got, [a + win, win, b + win, c + loss], rtol=1e-12, atol=0)


def test_mean_only_holds_for_both_terms_and_weights_scale_them():
    # mean of 0.1, 1, -0.09 is 1.01 / 3; of 10, 10, -0.1 it is 19.9 / 3
    step = [0.1 - 1.01 / 3, 0.0, 1.0 - 1.01 / 3, -0.09 - 1.01 / 3]
    episode = 3 * [10 - 19.9 / 3] + [-0.1 - 19.9 / 3]
    terms = graphgpo_terms(*ROWS, mode="mean_norm", w_step=3.0, w_ep=0.5)
    assert_close(terms.step.tolist(), step, rtol=1e-12, atol=1e-15)
    assert_close(terms.episode.tolist(), episode, rtol=1e-12, atol=0)
    both = [3 * s + 0.5 * e for s, e in zip(step, episode, strict=True)]
    assert_close(terms.advantage.tolist(), both, rtol=1e-12, atol=0)


def test_penalty_and_eps_reach_both_terms():
    terms = graphgpo_terms(*ROWS, penalty=2.0, eps=0.5)
    pool = [0.1, 1.0, 0.01 - 2.0]
    mean = sum(pool) / 3
    std = math.sqrt(sum((x - mean) ** 2 for x in pool) / 2)
    a, b, c = [(x - mean) / (std + 0.5) for x in pool]
    assert_close(terms.step.tolist(), [a, 0.0, b, c], rtol=1e-12, atol=0)
    episode = grpo_advantages(REWARD, VALID, UID, TID, T, penalty=2.0, eps=0.5)
    assert terms.episode.tolist() == episode.tolist()
    assert terms.value.tolist() == graphgpo_terms(*ROWS).value.tolist()


def test_defaults():
    turns = columns(random_turns(5))
    explicit = {
        "flavor": "paper",
        "mode": "mean_std_norm",
        "omega": 0.1,
        "success_reward": 10.0,
        "w_step": 1.0,
        "w_ep": 1.0,
        "normalize_distance": False,
        "similarity": None,
        "texts": None,
        "cost_M": None,
        "eps": 1e-6,
        "penalty": 0.1,
        "singleton": "zero",
    }
    default = graphgpo_terms(*turns)
    assert default.advantage.tolist() == graphgpo_terms(*turns, **explicit).advantage.tolist()
    # ... and each of them matters here.
    changes = {
        "flavor": "code",
        "mode": "mean_norm",
        "omega": 0.2,
        "success_reward": 1.0,
        "w_step": 0.5,
        "w_ep": 0.5,
        "normalize_distance": True,
        "eps": 1e-3,
        "penalty": 0.2,
    }
    for name, value in changes.items():
        changed = graphgpo_advantages(*turns, **{name: value})
        assert (changed - default.advantage).abs().max() > 1e-6, name


@pytest.mark.parametrize("flavor", ["paper", "code", "code_traj"])
@pytest.mark.parametrize("normalize_distance", [False, True])
@pytest.mark.parametrize("mode", ["mean_std_norm", "mean_norm"])
def test_equals_the_plain_loop(flavor, normalize_distance, mode):
    wins = losses = loops = one_step = 0
    for seed in range(12):
        # Groups that win sometimes, never and always.
        turns = random_turns(seed, groups=5, win_rate=(0.5, 0.0, 1.0, 0.3))
        wins += sum(turn.success for turn in turns)
        losses += sum(not turn.success for turn in turns)
        loops += sum(turn.state == turn.next_state for turn in turns)
        one_step += sum(turn.reward > 0 and turn.t == 0 for turn in turns)
        options = {
            "flavor": flavor,
            "normalize_distance": normalize_distance,
            "omega": (0.1, 0.2, 0.7)[seed % 3],
            "w_step": (1.0, 0.6)[seed % 2],
            "w_ep": (1.0, 0.3, 0.0)[seed % 3],
        }
        got = graphgpo_advantages(*columns(turns), mode=mode, **options)
        expected = graphgpo_loop(turns, use_std=mode == "mean_std_norm", **options)
        assert_close(got.tolist(), expected, rtol=0, atol=1e-12)
        assert got.abs().max() > 0.1
    assert min(wins, losses, loops, one_step) > 10


def test_equals_the_plain_loop_with_costs():
    generator = torch.Generator().manual_seed(3)
    for seed in range(12):
        turns = random_turns(seed, longest=12, states=9, win_rate=(0.5, 0.2))
        cost = torch.rand(len(turns), generator=generator, dtype=torch.float64) + 0.1
        priced = [
            Turn(**{name: getattr(turn, name) for name in Turn.__slots__ if name != "cost"}, cost=c)
            for turn, c in zip(turns, cost.tolist(), strict=True)
        ]
        got = graphgpo_advantages(*columns(turns), cost_M=cost, omega=0.5)
        assert_close(got.tolist(), graphgpo_loop(priced, omega=0.5), rtol=0, atol=1e-12)
        assert (got - graphgpo_advantages(*columns(turns), omega=0.5)).abs().max() > 1e-3


@pytest.mark.parametrize("flavor", ["paper", "code", "code_traj"])
def test_order_of_rows_and_other_groups_change_nothing(flavor):
    turns = columns(random_turns(1, groups=3))
    straight = graphgpo_advantages(*turns, flavor=flavor)
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        p = torch.randperm(straight.numel(), generator=generator)
        shuffled = graphgpo_advantages(*(column[p] for column in turns), flavor=flavor)
        assert_close(shuffled, straight[p], rtol=1e-12, atol=1e-12)
    first = turns[2] == 0
    alone = graphgpo_advantages(*(column[first] for column in turns), flavor=flavor)
    assert_close(alone, straight[first], rtol=1e-12, atol=1e-12)
    turns[4] = None
    assert graphgpo_advantages(*turns, flavor=flavor).tolist() == straight.tolist()


def test_a_group_that_never_wins_is_told_apart_by_malformed_replies_only():
    # Both leave state 0, one of them with a malformed reply; state 1 is left once.
    rows = (
        tensor([0.0, 0.0, 0.0]),
        tensor([True, True, False]),
        tensor([0, 0, 0]),
        tensor([0, 0, 1]),
        tensor([0, 1, 0]),
        tensor([0, 1, 0]),
        tensor([1, 2, 2]),
        torch.zeros(3).bool(),
    )
    terms = graphgpo_terms(*rows)
    assert_close(terms.value.tolist(), [0.1] * 3, rtol=1e-12, atol=0)
    a, b = standardised([0.1, 0.0])
    assert_close(terms.step.tolist(), [a, 0.0, b], rtol=1e-12, atol=0)
    well_formed = graphgpo_advantages(rows[0], torch.ones(3).bool(), *rows[2:])
    assert well_formed.tolist() == [0.0] * 3


@pytest.mark.parametrize("flavor", ["paper", "code", "code_traj"])
def test_equal_wins_give_exactly_zero_in_every_precision(flavor):
    for reward in (10.0, 9.025, 0.1):
        turns = [
            Turn(reward * (t == 2), True, 0, tid, t, t, t + 1, True)
            for tid in range(8)
            for t in range(3)
        ]
        got = graphgpo_advantages(*columns(turns, torch.float32), flavor=flavor)
        assert got.tolist() == [0.0] * 24
        assert got.dtype == torch.float64


def test_all_wins_prefer_the_shorter_way():
    # 0 -> SUCCESS beats 0 -> 1 -> SUCCESS although both episodes score 10.
    turns = [Turn(10.0, True, 0, 0, 0, 0, 5, True), Turn(0.0, True, 0, 1, 0, 0, 1, True)]
    turns.append(Turn(10.0, True, 0, 1, 1, 1, 5, True))
    terms = graphgpo_terms(*columns(turns))
    assert terms.episode.tolist() == [0.0] * 3
    assert_close(terms.step.tolist(), [*standardised([1.0, 0.1]), 0.0], rtol=1e-12, atol=0)


def test_merged_nodes_change_distances_but_not_pools():
    # The loser walks 0 -> 1, then leaves 2; text 2 is like text 0, where the winner left.
    turns = [
        Turn(10.0, True, 0, 0, 0, 0, 9, True),
        Turn(0.0, True, 0, 1, 0, 1, 2, False),
        Turn(0.0, True, 0, 1, 1, 2, 1, False),
        Turn(0.0, True, 0, 2, 0, 1, 1, False),
    ]
    texts = ["abcd", "zzzz", "abce"]
    exact = graphgpo_terms(*columns(turns), flavor="code", texts=texts)
    merged = graphgpo_terms(*columns(turns), flavor="code", similarity=0.7, texts=texts)
    # exact: 1 and 2 are unreachable at distance 2; merged: 2 is 0 at distance 1, 1 at distance 2
    assert_close(exact.value.tolist(), [10.0, 0.1, 0.1, 0.1], rtol=1e-12, atol=0)
    assert_close(merged.value.tolist(), [10.0, 1.0, 0.1, 0.1], rtol=1e-12, atol=0)
    # Rows 0 and 2 leave one node but two states, so each is a pool of its own.
    a, b = standardised([1.0, 0.1])
    assert_close(merged.step.tolist(), [0.0, a, 0.0, b], rtol=1e-12, atol=0)


def test_raw_singleton_concerns_the_episode_term_only():
    turns = columns([Turn(10.0, True, 0, 0, 0, 0, 9, True)])
    raw = graphgpo_terms(*turns, flavor="code", singleton="raw")
    assert raw.step.tolist() == [0.0]
    assert_close(raw.advantage.item(), 10 / (1 + 1e-6), rtol=1e-12, atol=0)
    assert graphgpo_advantages(*turns, flavor="code").tolist() == [0.0]
    with pytest.raises(ValueError, match="'paper' a lone trajectory has advantage 0"):
        graphgpo_terms(*turns, singleton="raw")


def test_result_is_detached_and_an_empty_batch_works():
    reward = REWARD.clone().requires_grad_()
    assert not graphgpo_advantages(reward, *ROWS[1:]).requires_grad
    none = torch.zeros(0, dtype=torch.int64)
    empty = (torch.zeros(0), none.bool(), none, none, none, none, none, none.bool())
    assert graphgpo_advantages(*empty).tolist() == []


def test_refusals_name_the_problem():
    for mode in ("std", "mean"):
        with pytest.raises(ValueError, match="mode must be one of"):
            graphgpo_terms(*ROWS, mode=mode)
    graph = state_graph(UID, TID, T, STATE, NEXT, WON)
    with pytest.raises(ValueError, match=r"flavor must be one of .* found 'verl'"):
        graph_values(graph, flavor="verl")
    for omega in (0.0, -0.1, 1.1):
        with pytest.raises(ValueError, match="omega must be above 0 and at most 1"):
            graph_values(graph, omega=omega)
    with pytest.raises(ValueError, match="NaN or infinite"):
        graphgpo_terms(REWARD * math.nan, *ROWS[1:])
    with pytest.raises(ValueError, match="equal length"):
        graphgpo_terms(*ROWS[:5], STATE[:3], NEXT[:3], WON[:3])
    with pytest.raises(StateGraphError, match="not positive and finite"):
        graphgpo_terms(*ROWS, cost_M=torch.zeros(4))
    with pytest.raises(GroupError, match="more than one group"):
        graphgpo_terms(REWARD, VALID, tensor([0, 1, 0, 0]), *ROWS[3:])
