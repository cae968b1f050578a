"""Betweenness centrality of a group's states.

GEPO (arXiv:2510.26270) drives an intrinsic reward, a rescaled advantage and a state-dependent
discount by this number. The equations of those three could not be read, so they are not here, and
nothing in this module reproduces GEPO or claims to. Its graph also accumulates over training and
merges observations by sentence embeddings, which this one does not.

Axis letters: V nodes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.objectives.state_graph import StateGraph


def state_centrality(graph: StateGraph, *, normalized: bool = True) -> Tensor:
    """Betweenness centrality of each node within its group's directed graph.

        b(v) = sum over ordered pairs (s, t) of nodes other than v of sigma(s, t | v) / sigma(s, t)

    with sigma(s, t) the number of shortest paths from s to t and sigma(s, t | v) those through v;
    pairs without a path count 0. Edges have length 1 and parallel ones count once. SUCCESS is a
    node like the others, also where it is isolated.

    Takes about a second for a group with 400 states, so use it for analysis or on small groups.

    Args:
        graph: from `state_graph`.
        normalized: divide by (n - 1)(n - 2), the number of pairs, for a group of n nodes.

    Returns:
        float64 (V,).

    Source: Freeman 1977, computed by networkx (algorithm of Brandes 2001).
    """
    # Imported here because it is slow to load and no training step needs it.
    import networkx  # type: ignore[import-untyped]

    centrality_V = torch.zeros(graph.group_V.shape, dtype=torch.float64)
    edge_group_M = graph.group_V[graph.source_M]
    for group in range(graph.success_G.numel()):
        in_group_M = edge_group_M == group
        nodes = (graph.group_V == group).nonzero().flatten().tolist()
        sources, targets = graph.source_M[in_group_M], graph.target_M[in_group_M]
        directed = networkx.DiGraph()
        directed.add_nodes_from(nodes)
        directed.add_edges_from(zip(sources.tolist(), targets.tolist(), strict=True))
        values = networkx.betweenness_centrality(directed, normalized=normalized)
        centrality_V[nodes] = torch.tensor([values[node] for node in nodes], dtype=torch.float64)
    return centrality_V.to(graph.group_V.device)
