"""Betweenness centrality of states, by hand on small graphs."""

from __future__ import annotations

import pytest
import torch
from torch import tensor
from torch.testing import assert_close

from trainer.objectives.gepo import state_centrality
from trainer.objectives.state_graph import SUCCESS, state_graph


def centrality(uid, tid, state, successor, won, **options):
    """By (group, state id); rows in time order."""
    columns = (tensor(column) for column in (state, successor, won))
    graph = state_graph(tensor(uid), tensor(tid), None, *columns)
    values = state_centrality(graph, **options)
    assert values.dtype == torch.float64
    keys = zip(graph.group_V.tolist(), graph.state_V.tolist(), strict=True)
    return dict(zip(keys, values.tolist(), strict=True))


def test_a_path():
    # 0 -> 1 -> 2 -> SUCCESS: 1 lies between (0, 2) and (0, S), 2 between (0, S) and (1, S)
    rows = ([0] * 3, [0] * 3, [0, 1, 2], [1, 2, 3], [True] * 3)
    counted = {(0, SUCCESS): 0.0, (0, 0): 0.0, (0, 1): 2.0, (0, 2): 2.0}
    assert centrality(*rows, normalized=False) == counted
    normal = {key: value / 6 for key, value in counted.items()}  # 3 * 2 ordered pairs
    assert_close(centrality(*rows), normal, rtol=1e-12, atol=0)
    assert_close(centrality(*rows, normalized=True), normal, rtol=1e-12, atol=0)


def test_equal_ways_share_and_repeats_and_loops_count_once():
    # 0 -> 1 -> 3 (twice) and 0 -> 2 -> 2 -> 3: of the two shortest ways from 0 to 3, half each
    state, successor = [0, 1, 0, 1, 0, 2, 2], [1, 3, 1, 3, 2, 2, 3]
    found = centrality([0] * 7, [0, 0, 1, 1, 2, 2, 2], state, successor, [0] * 7, normalized=False)
    expected = {(0, SUCCESS): 0, (0, 0): 0, (0, 1): 0.5, (0, 2): 0.5, (0, 3): 0}
    assert found == expected


def test_direction_matters_and_groups_are_apart():
    # Group 0: 0 -> 1 and 2 -> 1, so nothing passes 1. Group 1: 0 -> 1 -> 2.
    uid, tid = [4, 4, 9, 9], [0, 1, 2, 2]
    found = centrality(uid, tid, [0, 2, 0, 1], [1, 1, 1, 2], [False] * 4)
    assert all(found[0, state] == 0.0 for state in (SUCCESS, 0, 1, 2))
    # n = 4 with the isolated SUCCESS, 3 * 2 pairs
    assert found[1, 1] == pytest.approx(1 / 6, rel=1e-12)
    assert found[1, 0] == found[1, 2] == found[1, SUCCESS] == 0.0


def test_empty():
    none = torch.zeros(0, dtype=torch.int64)
    graph = state_graph(none, none, None, none, none, none.bool())
    assert state_centrality(graph).tolist() == []
