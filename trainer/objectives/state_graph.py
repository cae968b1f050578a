"""Graphs of visited states, one for each task group, held together in one set of index arrays.

A node is a state that the group has met, an edge a turn that led from one state to the next. Equal
states of two groups are two nodes, so that one search over the arrays searches every group at
once and nothing flows between groups.

Axis letters: M turns (rows), N trajectories, G groups, V nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.objectives.anchors import similar_clusters, time_order
from trainer.objectives.groups import check_vectors, trajectory_groups

SUCCESS = -1
"""State id of the node that a winning trajectory's last turn leads to."""


class StateGraphError(ValueError):
    """Raised when states, successors or outcomes do not describe a graph."""


@dataclass(frozen=True, slots=True)
class StateGraph:
    """Directed graphs of G task groups; nodes are ordered by group, then by state id.

    Attributes (int64):
        source_M: node that each turn leaves.
        target_M: node that each turn leads to. Parallel edges and self loops are kept.
        group_V: dense group number of each node, by increasing uid.
        state_V: state id of each node; `SUCCESS` for the sentinels. Of merged states, the first.
        success_G: the SUCCESS node of each group. Groups without a win have one too, isolated.
    """

    source_M: Tensor
    target_M: Tensor
    group_V: Tensor
    state_V: Tensor
    success_G: Tensor


def state_graph(
    uid_M: Tensor,
    tid_M: Tensor,
    t_M: Tensor | None,
    state_M: Tensor,
    next_state_M: Tensor,
    success_M: Tensor,
    *,
    similarity: float | None = None,
    texts: Sequence[str] | None = None,
) -> StateGraph:
    """Graph of each task group, with an edge (s_t, s_{t+1}) for every turn.

    The last turn of a winning trajectory leads to SUCCESS instead of its terminal observation;
    that of a losing one to the state it ended in.

    With `similarity`, states of one group whose texts are alike share a node. They are clustered
    first-fit (`similar_clusters`) in the order in which they are met: turn by turn in the order
    (tid, t), first the state and then its successor. A state that only a win ended in is none.

    Args:
        uid_M: int64 (M,), task-group id.
        tid_M: int64 (M,), trajectory id, unique over the batch.
        t_M: int64 (M,), step within the trajectory. None: each trajectory's rows come in time
            order.
        state_M: int64 (M,), id of the state a turn was taken in, dense over the batch
            (`dense_ids` of the state keys); equal ids in two groups are two nodes.
        next_state_M: int64 (M,), id of the state it led to. Not read on the last turn of a win.
        success_M: bool (M,), whether the turn's trajectory won; equal on all of its turns.
        similarity: in (0, 1]; None merges nothing.
        texts: text of each state id; needed and read with `similarity` only.

    Returns:
        StateGraph.

    Raises:
        StateGraphError: a negative state id where one is read, a trajectory that both won and
            lost, or `similarity` without a text for each state.
        GroupError: a trajectory id occurs in two groups.
        ValueError: shapes differ, a trajectory has two turns of one step, `similarity` is out of
            range.

    Source: section 5 of the specification of base objectives.
    """
    check_vectors(
        uid_M=uid_M,
        tid_M=tid_M,
        state_M=state_M,
        next_state_M=next_state_M,
        success_M=success_M,
    )
    trajectory_M, group_N = trajectory_groups(uid_M, tid_M)
    n_groups = int(group_N.max()) + 1 if group_N.numel() else 0
    group_M = group_N[trajectory_M]
    _check_outcomes(trajectory_M, group_N.numel(), tid_M, success_M)

    order_M = time_order(trajectory_M, t_M)
    won_M = success_M.bool() & _last_turns(trajectory_M, order_M)
    target_M = next_state_M.masked_fill(won_M, SUCCESS)
    _check_states(state_M, torch.where(won_M, state_M, next_state_M))
    if similarity is not None:
        state_M, target_M = _merge(group_M, state_M, target_M, order_M, similarity, texts)

    groups_G = torch.arange(n_groups, device=uid_M.device)
    state = torch.cat([state_M, target_M, torch.full_like(groups_G, SUCCESS)])
    group = torch.cat([group_M, group_M, groups_G])
    # SUCCESS is -1, so a shift by one makes every key of a group fit into `width` numbers.
    width = int(state.max()) + 2 if state.numel() else 1
    keys, node = torch.unique(group * width + state + 1, return_inverse=True)
    turns = state_M.numel()
    return StateGraph(
        source_M=node[:turns],
        target_M=node[turns : 2 * turns],
        group_V=keys // width,
        state_V=keys % width - 1,
        success_G=node[2 * turns :],
    )


def reverse_distances(graph: StateGraph, cost_M: Tensor | None = None) -> Tensor:
    """Least cost of a path from each node to its group's SUCCESS.

        d(SUCCESS) = 0
        d(s) = min over edges (s, s') of c + d(s')
        d(s) = d_max + 1      if no path leads from s to SUCCESS

    with d_max the largest finite distance of the group. Without a win SUCCESS is isolated, d_max
    is 0 and every other node is at distance 1. Of parallel edges the cheapest decides.

    All groups are relaxed together until nothing changes; rounds are as many as the longest of
    the shortest paths has edges, plus one.

    Args:
        graph: from `state_graph`.
        cost_M: float (M,), positive cost of each turn's edge. None: 1 each.

    Returns:
        float64 (V,).

    Raises:
        StateGraphError: a cost is not positive and finite.
    """
    cost = edge_costs(graph, cost_M)
    n_groups = graph.success_G.numel()
    distance = torch.full(graph.group_V.shape, torch.inf, dtype=torch.float64, device=cost.device)
    distance[graph.success_G] = 0.0
    while True:
        through_M = cost + distance[graph.target_M]
        shorter = distance.scatter_reduce(0, graph.source_M, through_M, "amin")
        if torch.equal(shorter, distance):
            break
        distance = shorter
    reached = torch.isfinite(distance)
    furthest_G = distance.new_zeros(n_groups).scatter_reduce(
        0, graph.group_V, distance.masked_fill(~reached, 0.0), "amax"
    )
    return torch.where(reached, distance, furthest_G[graph.group_V] + 1.0)


def edge_costs(graph: StateGraph, cost_M: Tensor | None) -> Tensor:
    """The costs as float64 (M,), 1 each where there are none.

    Raises:
        StateGraphError: a cost is not positive and finite.
    """
    if cost_M is None:
        return torch.ones(graph.source_M.shape, dtype=torch.float64, device=graph.source_M.device)
    check_vectors(source_M=graph.source_M, cost_M=cost_M)
    cost = cost_M.detach().double()
    if not bool((torch.isfinite(cost) & (cost > 0)).all()):
        raise StateGraphError("cost_M has an entry that is not positive and finite.")
    return cost


def _check_outcomes(
    trajectory_M: Tensor, n_trajectories: int, tid_M: Tensor, success_M: Tensor
) -> None:
    won_M = success_M.bool().to(torch.int64)
    count_N = torch.bincount(trajectory_M, minlength=n_trajectories)
    won_N = torch.zeros_like(count_N).index_add(0, trajectory_M, won_M)
    mixed = (won_N % count_N.clamp(min=1))[trajectory_M].nonzero()
    if mixed.numel():
        raise StateGraphError(
            f"success_M differs between turns of trajectory {int(tid_M[mixed[0, 0]])}; give the "
            "outcome of the whole trajectory on each of its turns."
        )


def _check_states(state_M: Tensor, next_state_M: Tensor) -> None:
    for name, ids in (("state_M", state_M), ("next_state_M", next_state_M)):
        if ids.numel() and int(ids.min()) < 0:
            raise StateGraphError(
                f"{name} has the negative id {int(ids.min())}; number the states 0, 1, 2, ... "
                "(`dense_ids`). Only the last turn of a win needs no successor."
            )


def _last_turns(trajectory_M: Tensor, order_M: Tensor) -> Tensor:
    """Whether each row is its trajectory's last turn, bool (M,)."""
    trajectory = trajectory_M[order_M]
    last = torch.ones_like(trajectory, dtype=torch.bool)
    last[:-1] = trajectory[1:] != trajectory[:-1]
    last_M = torch.empty_like(last)
    last_M[order_M] = last
    return last_M


def _merge(
    group_M: Tensor,
    state_M: Tensor,
    target_M: Tensor,
    order_M: Tensor,
    similarity: float,
    texts: Sequence[str] | None,
) -> tuple[Tensor, Tensor]:
    """Both ends of each turn, with every state replaced by the first one of its node."""
    if texts is None:
        raise StateGraphError("similarity compares texts; give the text of each state as texts.")
    highest = int(torch.maximum(state_M, target_M).max()) if state_M.numel() else -1
    if highest >= len(texts):
        raise StateGraphError(f"State id {highest} has no text: there are {len(texts)} texts.")
    groups, states, targets = group_M.tolist(), state_M.tolist(), target_M.tolist()
    met: dict[int, dict[int, int]] = {}
    for row in order_M.tolist():
        for state in (states[row], targets[row]):
            if state != SUCCESS:
                met.setdefault(groups[row], {})[state] = state
    for firsts in met.values():
        clusters = similar_clusters([texts[state] for state in firsts], similarity)
        founder: dict[int, int] = {}
        for state, cluster in zip(firsts, clusters, strict=True):
            firsts[state] = founder.setdefault(cluster, state)
    merged = [met[group][state] for group, state in zip(groups, states, strict=True)]
    merged_targets = [
        met[group].get(target, target) for group, target in zip(groups, targets, strict=True)
    ]
    return state_M.new_tensor(merged), target_M.new_tensor(merged_targets)
