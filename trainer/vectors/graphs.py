"""Methods on the graph of visited states: GraphGPO, 3SPO and GEPO's centrality."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from trainer.objectives.gepo import state_centrality
from trainer.objectives.graphgpo import graphgpo_terms
from trainer.objectives.groups import Singleton, dense_ids
from trainer.objectives.spo3 import spo3_reward, spo3_rollouts, spo3_score
from trainer.objectives.state_graph import SUCCESS, StateGraph, reverse_distances, state_graph
from trainer.vectors.params import BaseMethod, Json, Params
from trainer.vectors.scenario import Rows, rows


class _Turns(NamedTuple):
    """A scenario's turns with their states; `texts` by state id, `uids` by group number."""

    rows: Rows
    state: Tensor
    next_state: Tensor
    success: Tensor
    texts: list[str]
    uids: list[str]

    def graph(self) -> StateGraph:
        """The graph of each group."""
        _, _, uid, tid, t = self.rows
        return state_graph(uid, tid, t, self.state, self.next_state, self.success)

    def named(self, graph: StateGraph, value_V: Tensor) -> dict[str, dict[str, float]]:
        """A value of each node by uid and state; the sentinel is called "success"."""
        named: dict[str, dict[str, float]] = {uid: {} for uid in self.uids}
        columns = (graph.group_V.tolist(), graph.state_V.tolist(), value_V.tolist())
        for group, state, value in zip(*columns, strict=True):
            name = "success" if state == SUCCESS else self.texts[state]
            named[self.uids[group]][name] = value
        return named


def _turns(scenario: Mapping[str, Json] | None) -> _Turns:
    table = rows(scenario)
    assert scenario is not None  # `rows` refuses None
    uids = list(dict.fromkeys(trajectory["uid"] for trajectory in scenario["trajectories"]))
    states: list[str] = []
    successors: list[str] = []
    success: list[bool] = []
    for trajectory in sorted(scenario["trajectories"], key=lambda item: uids.index(item["uid"])):
        met = [step["obs"] for step in trajectory["steps"]] + [trajectory["final_obs"]]
        states += met[:-1]
        successors += met[1:]
        success += [bool(trajectory["success"])] * len(trajectory["steps"])
    ids = dense_ids(states + successors)
    texts = list(dict.fromkeys(states + successors))
    state, successor = ids[: len(states)], ids[len(states) :]
    return _Turns(table, state, successor, torch.tensor(success), texts, uids)


def _graphgpo(params: Params, scenario: Mapping[str, Json] | None) -> Json:
    turns = _turns(scenario)
    flavor = params.need("flavor")
    w_ep = params.get("w_ep", 1.0)
    # The vectors of the code flavours hold the raw score that public code gives a pool of one.
    singleton: Singleton = "zero" if flavor == "paper" else "raw"
    terms = graphgpo_terms(
        *turns.rows,
        turns.state,
        turns.next_state,
        turns.success,
        flavor=flavor,
        w_ep=w_ep,
        texts=turns.texts,
        penalty=params.get("pen", 0.1),
        singleton=singleton,
        **params.subset("mode", "omega", "w_step", "normalize_distance", "similarity"),
    )
    return {
        "A": terms.advantage.tolist(),
        "graph": terms.step.tolist(),
        "episode": (w_ep * terms.episode).tolist(),  # the file lists it with its weight
        "raw": terms.value.tolist(),
        "dist": turns.named(terms.graph, reverse_distances(terms.graph)),
    }


def _spo3_score(params: Params, scenario: Mapping[str, Json] | None) -> Json:
    total, success = torch.tensor([[params.need("n_total")], [params.need("n_success")]])
    options = params.subset("alpha", "xi", "zeta", "eps")
    score = spo3_score(total, success, params.need("t"), **options)
    return {"score": score.item(), "n_rollouts": int(spo3_rollouts(score))}


def _spo3_reward(params: Params, scenario: Mapping[str, Json] | None) -> Json:
    score, next_score, success_reward = (
        torch.tensor([params.need(key)], dtype=torch.float64)
        for key in ("s_now", "s_next", "r_success")
    )
    total, changed = torch.tensor([params.need("n_total")]), torch.tensor([params.need("changed")])
    reward = spo3_reward(
        score, next_score, total, changed, success_reward, **params.subset("omega_k")
    )
    return reward.item()


def _gepo_centrality(params: Params, scenario: Mapping[str, Json] | None) -> Json:
    turns = _turns(scenario)
    graph = turns.graph()
    named = turns.named(graph, state_centrality(graph, **params.subset("normalized")))
    return {name: value for values in named.values() for name, value in values.items()}


METHODS: dict[str, BaseMethod] = {
    "graphgpo": _graphgpo,
    "spo3_score": _spo3_score,
    "spo3_reward": _spo3_reward,
    "gepo_centrality": _gepo_centrality,
}
