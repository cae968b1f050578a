"""GraphGPO advantages: progress towards success on the graph of a group's states.

Source: GraphGPO (arXiv:2605.26684), as read in section 5 of the specification of base objectives.
The paper's own equations were not read; "paper" follows notes on it and an independent
implementation, "code" the public recipe.

Axis letters: M turns (rows).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack

from torch import Tensor

from trainer.objectives.anchors import pair_ids
from trainer.objectives.gigpo import NormMode, check_mode
from trainer.objectives.groups import Singleton, group_stats, normalise
from trainer.objectives.grpo import FLAVORS, Flavor, grpo_advantages
from trainer.objectives.state_graph import (
    StateGraph,
    edge_costs,
    reverse_distances,
    state_graph,
)


@dataclass(frozen=True, slots=True)
class GraphGPOTerms:
    """What `graphgpo_terms` returns; tensors of shape (M,), detached, in the order of the rows.

    Attributes:
        advantage: w_step * step + w_ep * episode.
        episode: float64, A^E, before the factor w_ep.
        step: float64, A^G, before the factor w_step.
        value: float64, R^G, before the penalty.
        graph: the graph of each group.
    """

    advantage: Tensor
    episode: Tensor
    step: Tensor
    value: Tensor
    graph: StateGraph


class GraphGPOOptions(TypedDict, total=False):
    """Options of `graphgpo_terms`, which names their meaning and defaults."""

    flavor: Flavor
    mode: NormMode
    omega: float
    success_reward: float
    w_step: float
    w_ep: float
    normalize_distance: bool
    similarity: float | None
    texts: Sequence[str] | None
    cost_M: Tensor | None
    eps: float
    penalty: float
    singleton: Singleton


def graphgpo_advantages(
    step_rewards_M: Tensor,
    format_valid_M: Tensor,
    uid_M: Tensor,
    tid_M: Tensor,
    t_M: Tensor | None,
    state_M: Tensor,
    next_state_M: Tensor,
    success_M: Tensor,
    **options: Unpack[GraphGPOOptions],
) -> Tensor:
    """The advantage of `graphgpo_terms` alone, float64 (M,); same arguments, options and errors.

    Source: GraphGPO (arXiv:2605.26684).
    """
    return graphgpo_terms(
        step_rewards_M,
        format_valid_M,
        uid_M,
        tid_M,
        t_M,
        state_M,
        next_state_M,
        success_M,
        **options,
    ).advantage


def graphgpo_terms(
    step_rewards_M: Tensor,
    format_valid_M: Tensor,
    uid_M: Tensor,
    tid_M: Tensor,
    t_M: Tensor | None,
    state_M: Tensor,
    next_state_M: Tensor,
    success_M: Tensor,
    *,
    flavor: Flavor = "paper",
    mode: NormMode = "mean_std_norm",
    omega: float = 0.1,
    success_reward: float = 10.0,
    w_step: float = 1.0,
    w_ep: float = 1.0,
    normalize_distance: bool = False,
    similarity: float | None = None,
    texts: Sequence[str] | None = None,
    cost_M: Tensor | None = None,
    eps: float = 1e-6,
    penalty: float = 0.1,
    singleton: Singleton = "zero",
) -> GraphGPOTerms:
    """Graph and episode advantage, one number per turn, with its terms.

        A   = w_step * A^G + w_ep * A^E
        A^G = (x - mean) / (std + eps)                      mode "mean_std_norm"
        A^G = x - mean                                      mode "mean_norm"
        x   = R^G - penalty * [this reply is malformed]
        A^E = grpo_advantages(...)                          over the task group

    R^G is `graph_values`. The pool behind A^G is every turn of the task group that leaves the same
    state; its std divides by n - 1. A^E has the same flavour, so its pool is the trajectories
    under "paper" and the turns under "code". `mode` applies to both terms; published runs use
    "mean_std_norm" on ALFWorld and WebShop.

    The flavours' R^G differ by the factor omega. With "mean_std_norm" that cancels up to eps and
    up to the penalty, which weighs 1 / omega times more under "paper". With omega 0.1 the penalty
    exceeds R^G from d(s') = 3 on under either flavour: one malformed reply then rules the pool.

    Turns are compared at exactly equal state ids, also where `similarity` merges nodes of the
    graph. A state left once, and one where all x are equal, gives A^G = 0. A group that never
    wins has equal R^G everywhere: there only malformed replies tell turns apart.

    Args:
        step_rewards_M: float (M,), undiscounted environment reward of each turn.
        format_valid_M: bool (M,), False where the reply broke the format.
        uid_M: int64 (M,), task-group id.
        tid_M: int64 (M,), trajectory id, unique over the batch.
        t_M: int64 (M,), step within the trajectory. None: each trajectory's rows come in time
            order. Row order is irrelevant otherwise.
        state_M: int64 (M,), id of the state a turn was taken in, dense over the batch.
        next_state_M: int64 (M,), id of the state it led to; not read on the last turn of a win.
        success_M: bool (M,), whether the turn's trajectory won; equal on all of its turns.
        flavor, mode, eps, w_step, w_ep: as above.
        omega, success_reward, normalize_distance, cost_M: see `graph_values`. Published omega:
            0.1 on ALFWorld, 0.2 on WebShop.
        similarity, texts: merge alike nodes, see `state_graph`.
        penalty: of a malformed reply, in both terms.
        singleton: of the episode term, see `grpo_advantages`; a state left once is always 0.

    Returns:
        GraphGPOTerms.

    Raises:
        ValueError: shapes differ, an option is unknown or out of range, a reward is not finite,
            a trajectory has two turns of one step, or `singleton="raw"` comes with "paper".
        StateGraphError: as `state_graph` and `reverse_distances`.
        GroupError: a trajectory id occurs in two groups.

    Source: GraphGPO (arXiv:2605.26684); flavours and similarity as the public code has them.
    """
    check_mode(mode)
    use_std = mode == "mean_std_norm"
    episode_M = grpo_advantages(
        step_rewards_M,
        format_valid_M,
        uid_M,
        tid_M,
        t_M,
        flavor=flavor,
        use_std=use_std,
        eps=eps,
        penalty=penalty,
        singleton=singleton,
    )
    graph = state_graph(
        uid_M,
        tid_M,
        t_M,
        state_M,
        next_state_M,
        success_M,
        similarity=similarity,
        texts=texts,
    )
    value_M = graph_values(
        graph,
        flavor=flavor,
        omega=omega,
        success_reward=success_reward,
        normalize_distance=normalize_distance,
        cost_M=cost_M,
    )
    score_M = value_M - penalty * (~format_valid_M.bool()).double()
    # Nodes may be merged, so the pools come from the ids.
    anchor_M = pair_ids(uid_M, state_M)
    n_anchors = int(anchor_M.max()) + 1 if anchor_M.numel() else 0
    stats = group_stats(score_M, anchor_M, n_anchors)
    step_M = normalise(score_M, anchor_M, stats, use_std=use_std, eps=eps)
    return GraphGPOTerms(
        advantage=w_step * step_M + w_ep * episode_M,
        episode=episode_M,
        step=step_M,
        value=value_M,
        graph=graph,
    )


def graph_values(
    graph: StateGraph,
    *,
    flavor: Flavor = "paper",
    omega: float = 0.1,
    success_reward: float = 10.0,
    normalize_distance: bool = False,
    cost_M: Tensor | None = None,
) -> Tensor:
    """Raw value of each turn s -> s', from the distances d of `reverse_distances`.

        R^G = r_succ * omega^(d(s') + c)                  "paper"
        R^G = r_succ * omega^(d(s') + c - 1)              "code", "code_traj"
        R^G = r_succ * omega^(d(s') - d(s) + c)           normalize_distance, any flavour

    c is the cost of the turn's own edge, 1 unless given; the code form is then
    r_succ * omega^d(s'). The normalised exponent is 0 on a shortest path and counts how far a
    turn strays from it.

    Args:
        graph: from `state_graph`.
        flavor: as above.
        omega: decay per unit of distance, in (0, 1].
        success_reward: r_succ.
        normalize_distance: as above.
        cost_M: float (M,), positive cost of each turn's edge. None: 1 each.

    Returns:
        float64 (M,).

    Raises:
        ValueError: the flavour is unknown or omega is out of range.
        StateGraphError: a cost is not positive and finite.
    """
    if flavor not in FLAVORS:
        raise ValueError(f"flavor must be one of {FLAVORS}, found {flavor!r}.")
    if not 0 < omega <= 1:
        raise ValueError(f"omega must be above 0 and at most 1, found {omega}.")
    distance_V = reverse_distances(graph, cost_M)
    exponent_M = distance_V[graph.target_M] + edge_costs(graph, cost_M)
    if normalize_distance:
        exponent_M = exponent_M - distance_V[graph.source_M]
    elif flavor != "paper":
        exponent_M = exponent_M - 1.0
    return success_reward * omega**exponent_M
