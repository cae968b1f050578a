"""Graphs of visited states: nodes and edges by hand, distances, and merged states."""

from __future__ import annotations

import math

import pytest
import torch
from torch import tensor

from trainer.objectives.groups import GroupError
from trainer.objectives.state_graph import (
    SUCCESS,
    StateGraphError,
    edge_costs,
    reverse_distances,
    state_graph,
)

# One win 0 -> 1 -> 2 -> SUCCESS (its terminal state 9 is no node) and one loss 0 -> 3 -> 3 -> 4.
UID = tensor([7, 7, 7, 7, 7, 7])
TID = tensor([0, 0, 0, 1, 1, 1])
T = tensor([0, 1, 2, 0, 1, 2])
STATE = tensor([0, 1, 2, 0, 3, 3])
NEXT = tensor([1, 2, 9, 3, 3, 4])
WON = tensor([True, True, True, False, False, False])


def turns(*walks, uid=0):
    """Columns (uid, tid, t, state, next, success) of walks `(states, won)`; all of one group."""
    rows = [
        (uid, tid, t, walk[t], walk[t + 1], won)
        for tid, (walk, won) in enumerate(walks)
        for t in range(len(walk) - 1)
    ]
    return [tensor(column) for column in zip(*rows, strict=True)]


def distances(graph, cost=None):
    """Distance by (group, state id)."""
    columns = (graph.group_V.tolist(), graph.state_V.tolist())
    found = reverse_distances(graph, cost).tolist()
    return {key: d for *key, d in zip(*columns, found, strict=True) for key in [tuple(key)]}


def edges(graph):
    """The edges by state ids."""
    return list(
        zip(
            graph.state_V[graph.source_M].tolist(),
            graph.state_V[graph.target_M].tolist(),
            strict=True,
        )
    )


def test_nodes_and_edges_by_hand():
    graph = state_graph(UID, TID, T, STATE, NEXT, WON)
    assert graph.state_V.tolist() == [SUCCESS, 0, 1, 2, 3, 4]
    assert SUCCESS == -1
    assert graph.group_V.tolist() == [0] * 6
    assert graph.success_G.tolist() == [0]
    assert graph.source_M.tolist() == [1, 2, 3, 1, 4, 4]
    assert graph.target_M.tolist() == [2, 3, 0, 4, 4, 5]


def test_distances_by_hand_and_unreachable_states_one_beyond_the_furthest():
    found = distances(state_graph(UID, TID, T, STATE, NEXT, WON))
    by_hand = {SUCCESS: 0.0, 2: 1.0, 1: 2.0, 0: 3.0, 3: 4.0, 4: 4.0}
    assert found == {(0, state): d for state, d in by_hand.items()}
    assert reverse_distances(state_graph(UID, TID, T, STATE, NEXT, WON)).dtype == torch.float64


def test_groups_share_nothing_though_their_state_ids_are_equal():
    # Group 5 loses through the states of group -3, and is the later one by uid.
    uid = torch.cat([torch.full_like(UID, 5), torch.full_like(UID, -3)])
    tid, t = torch.cat([TID + 2, TID]), torch.cat([T, T])
    state, successor = torch.cat([STATE, STATE]), torch.cat([NEXT, NEXT])
    won = torch.cat([torch.zeros_like(WON), WON])
    graph = state_graph(uid, tid, t, state, successor, won)
    found = distances(graph)
    assert [found[0, s] for s in (SUCCESS, 0, 1, 2, 3, 4)] == [0, 3, 2, 1, 4, 4]
    # Without a win every state is at distance 1; the state after the last turn is a node here.
    assert {found[1, s] for s in (0, 1, 2, 3, 4, 9)} == {1.0}
    assert found[1, SUCCESS] == 0.0
    assert len(found) == 13
    assert graph.success_G.tolist() == [0, 6]
    assert graph.group_V.tolist() == [0] * 6 + [1] * 7


def test_the_last_turn_is_found_by_time_else_by_row():
    order = tensor([2, 5, 0, 3, 1, 4])
    columns = [column[order] for column in (UID, TID, T, STATE, NEXT, WON)]
    straight = state_graph(UID, TID, T, STATE, NEXT, WON)
    shuffled = state_graph(*columns)
    assert edges(shuffled) == [edges(straight)[row] for row in order.tolist()]
    assert edges(state_graph(UID, TID, None, STATE, NEXT, WON)) == edges(straight)
    columns[2] = None  # now the row 1 -> 2 comes last for the winner
    assert edges(state_graph(*columns)) == [(2, 9), (3, 4), (0, 1), (0, 3), (1, SUCCESS), (3, 3)]


def test_a_win_in_one_step_needs_no_successor():
    graph = state_graph(*turns(([4, -8], True)))
    assert edges(graph) == [(4, SUCCESS)]
    assert distances(graph) == {(0, SUCCESS): 0.0, (0, 4): 1.0}


def test_cycles_and_self_loops_do_no_harm():
    # 0 <-> 1 and 0 -> 0 before the way out over 2.
    graph = state_graph(*turns(([0, 1, 0, 0, 2, 5], True), ([1, 1], False)))
    assert distances(graph) == {(0, SUCCESS): 0, (0, 0): 2, (0, 1): 3, (0, 2): 1}


def test_losses_walk_on_the_paths_of_wins():
    # The loser reaches 2, which a winner left for SUCCESS two turns later.
    graph = state_graph(*turns(([2, 3, 9], True), ([5, 6, 2], False)))
    assert distances(graph) == {(0, SUCCESS): 0, (0, 2): 2, (0, 3): 1, (0, 6): 3, (0, 5): 4}


def test_long_chains_are_searched_to_their_end():
    n = 100
    found = distances(state_graph(*turns((list(range(n + 1)), True))))
    assert [found[0, s] for s in range(n)] == [n - s for s in range(n)]


def test_the_cheapest_of_parallel_edges_and_of_paths_decides():
    columns = turns(([0, 9], True), ([0, 9], True), ([1, 2, 0], False), ([1, 0], False))
    # edges: 0 -> S at 5 and at 2; 1 -> 2 at 0.5, 2 -> 0 at 0.25; 1 -> 0 at 1
    graph = state_graph(*columns)
    found = distances(graph, tensor([5.0, 2.0, 0.5, 0.25, 1.0]))
    assert found == {(0, SUCCESS): 0, (0, 0): 2.0, (0, 2): 2.25, (0, 1): 2.75}


def test_unreachable_is_one_more_than_the_furthest_also_with_costs():
    graph = state_graph(*turns(([0, 9], True), ([3, 4], False)))
    found = distances(graph, tensor([2.5, 0.125]))
    assert found == {(0, SUCCESS): 0, (0, 0): 2.5, (0, 3): 3.5, (0, 4): 3.5}


def test_costs_default_to_one_and_are_read_in_double_precision():
    graph = state_graph(UID, TID, T, STATE, NEXT, WON)
    assert edge_costs(graph, None).tolist() == [1.0] * 6
    given = torch.full((6,), 0.5, dtype=torch.float32, requires_grad=True)
    assert edge_costs(graph, given).tolist() == [0.5] * 6
    assert edge_costs(graph, given).dtype == torch.float64
    assert not edge_costs(graph, given).requires_grad


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_costs_must_be_positive_and_finite(bad):
    graph = state_graph(UID, TID, T, STATE, NEXT, WON)
    cost = torch.ones(6)
    cost[3] = bad
    with pytest.raises(StateGraphError, match="not positive and finite"):
        reverse_distances(graph, cost)
    with pytest.raises(ValueError, match="equal length"):
        reverse_distances(graph, torch.ones(5))


TEXTS = ["abcd", "abce", "xbce", "zzzz", "zzzy"]
"""Ratios: 0-1 and 1-2 are 0.75, 0-2 is 0.5, 3-4 is 0.75, the others 0."""


def test_similar_states_share_a_node_from_the_threshold_on():
    columns = turns(([0, 1, 3], False))
    assert state_graph(*columns, similarity=0.75, texts=TEXTS).state_V.tolist() == [SUCCESS, 0, 3]
    alone = state_graph(*columns, similarity=0.76, texts=TEXTS)
    assert alone.state_V.tolist() == [SUCCESS, 0, 1, 3]
    assert state_graph(*columns, texts=TEXTS).state_V.tolist() == [SUCCESS, 0, 1, 3]


def test_clusters_compare_with_their_first_member_in_the_order_of_turns():
    # 1 joins 0, so 2 is compared with 0 and opens a node; met as 2, 1, 0 it is the other way round.
    forth = state_graph(*turns(([0, 1, 2], False)), similarity=0.75, texts=TEXTS)
    assert edges(forth) == [(0, 0), (0, 2)]
    back = state_graph(*turns(([2, 1, 0], False)), similarity=0.75, texts=TEXTS)
    assert edges(back) == [(2, 2), (2, 0)]
    # A turn's state comes before its successor.
    first = state_graph(*turns(([1, 0], False)), similarity=0.75, texts=TEXTS)
    assert edges(first) == [(1, 1)]


def test_merging_does_not_depend_on_the_order_of_rows():
    columns = turns(([1, 2, 3, 4], False), ([0, 4, 3], True))
    straight = edges(state_graph(*columns, similarity=0.75, texts=TEXTS))
    assert straight == [(1, 1), (1, 3), (3, 3), (1, 3), (3, SUCCESS)]
    for order in ([4, 3, 2, 1, 0], [2, 0, 4, 1, 3]):
        shuffled = state_graph(*(c[order] for c in columns), similarity=0.75, texts=TEXTS)
        assert edges(shuffled) == [straight[row] for row in order]


def test_merging_shortens_distances():
    columns = turns(([0, 3, 9], True), ([2, 1], False))
    exact = distances(state_graph(*columns))
    assert exact[0, 2] == 3.0  # unreachable: d_max 2, plus 1
    # 1 joins the winner's 0, from where SUCCESS is two steps away.
    merged = distances(state_graph(*columns, similarity=0.75, texts=TEXTS))
    assert merged == {(0, SUCCESS): 0, (0, 0): 2, (0, 3): 1, (0, 2): 3}
    graph = state_graph(*turns(([0, 3, 4, 9], True), ([4, 1], False)), similarity=0.7, texts=TEXTS)
    assert distances(graph) == {(0, SUCCESS): 0, (0, 0): 2, (0, 3): 1}


def test_groups_merge_on_their_own_and_a_wins_terminal_state_is_no_node():
    # Met in group 0 state 0 would take state 1 in; in group 1 there is 1 alone. The win ends in
    # state 2, which would take 1 in if it were met, and in one that has no text at all.
    uid, tid, t = tensor([0, 1, 1]), tensor([0, 1, 2]), tensor([0, 0, 0])
    state, successor = tensor([0, 3, 1]), tensor([0, 2, 77])
    won = tensor([False, True, True])
    graph = state_graph(uid, tid, t, state, successor, won, similarity=0.75, texts=TEXTS)
    assert graph.state_V.tolist() == [SUCCESS, 0, SUCCESS, 1, 3]
    assert edges(graph) == [(0, 0), (3, SUCCESS), (1, SUCCESS)]


def test_refusals_of_similarity():
    columns = turns(([0, 1, 4], False))
    for bad in (0.0, -0.5, 1.01):
        with pytest.raises(ValueError, match=r"threshold must be in \(0, 1\]"):
            state_graph(*columns, similarity=bad, texts=TEXTS)
    with pytest.raises(StateGraphError, match="give the text of each state as texts"):
        state_graph(*columns, similarity=0.9)
    with pytest.raises(StateGraphError, match="State id 4 has no text: there are 4 texts"):
        state_graph(*columns, similarity=0.9, texts=TEXTS[:4])
    assert state_graph(*columns, similarity=1.0, texts=TEXTS).state_V.tolist() == [-1, 0, 1, 4]


def test_refusals_name_the_problem():
    uid, tid, t, state, successor, won = turns(([0, 1, 2], True), ([0, 1], False))
    mixed = tensor([True, False, False])
    with pytest.raises(StateGraphError, match="differs between turns of trajectory 0"):
        state_graph(uid, tid, t, state, successor, mixed)
    with pytest.raises(StateGraphError, match="state_M has the negative id -2"):
        state_graph(uid, tid, t, state - 2, successor, won)
    for row in (0, 2):  # a turn in the middle of the win, and the loser's last
        missing = successor.clone()
        missing[row] = -1
        with pytest.raises(StateGraphError, match="next_state_M has the negative id -1"):
            state_graph(uid, tid, t, state, missing, won)
    with pytest.raises(ValueError, match="equal length"):
        state_graph(uid, tid, t, state, successor[:2], won)
    with pytest.raises(ValueError, match="equal length"):
        state_graph(uid, tid, t, state, successor, won[:2])
    with pytest.raises(ValueError, match="two turns with t=0"):
        state_graph(uid, tid, torch.zeros_like(t), state, successor, won)
    with pytest.raises(GroupError, match="more than one group"):
        state_graph(tensor([0, 1, 0]), tid, t, state, successor, won)


@pytest.mark.parametrize("options", [{}, {"similarity": 0.5, "texts": []}])
def test_an_empty_batch_has_an_empty_graph(options):
    none = torch.zeros(0, dtype=torch.int64)
    graph = state_graph(none, none, none, none, none, none.bool(), **options)
    assert graph.state_V.tolist() == graph.source_M.tolist() == graph.success_G.tolist() == []
    assert reverse_distances(graph).tolist() == []
