"""RLOO, REINFORCE++, DAPO and GSPO."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from trainer.objectives.dapo import informative_groups, overlong_penalty
from trainer.objectives.groups import Singleton, dense_ids
from trainer.objectives.gspo import gspo_loss, sequence_log_ratio
from trainer.objectives.reinforce_pp import (
    reinforce_pp_advantages,
    reinforce_pp_baseline_advantages,
)
from trainer.objectives.rloo import rloo_advantages
from trainer.vectors.params import BaseMethod, Json, Params
from trainer.vectors.scenario import rows


def _trajectories(scenario: Mapping[str, Json]) -> list[Mapping[str, Json]]:
    """Trajectories in the order of `rows`: by group, first seen first."""
    groups = dense_ids([trajectory["uid"] for trajectory in scenario["trajectories"]]).tolist()
    order = sorted(range(len(groups)), key=lambda i: groups[i])
    return [scenario["trajectories"][i] for i in order]


def _tokens(scenario: Mapping[str, Json]) -> Tensor:
    """Tokens of each row's reply, int64 (M,)."""
    counts = [step["ntok"] for one in _trajectories(scenario) for step in one["steps"]]
    return torch.tensor(counts, dtype=torch.int64)


def _singleton(flavor: str) -> Singleton:
    # The vectors of the code flavours hold the raw score that public code gives a pool of one.
    return "zero" if flavor == "paper" else "raw"


def _rloo(params: Params, scenario: Mapping[str, Json] | None) -> Json:
    flavor = params.need("flavor")
    return rloo_advantages(
        *rows(scenario),
        flavor=flavor,
        penalty=params.get("pen", 0.1),
        singleton=_singleton(flavor),
    ).tolist()


def _rfpp_baseline(params: Params, scenario: Mapping[str, Json] | None) -> Json:
    turns = rows(scenario)
    assert scenario is not None
    flavor = params.need("flavor")
    return reinforce_pp_baseline_advantages(
        turns.rewards,
        turns.format_valid,
        turns.uid,
        turns.tid,
        _tokens(scenario),
        turns.t,
        flavor=flavor,
        penalty=params.get("pen", 0.1),
        singleton=_singleton(flavor),
        zero_constant=flavor == "paper",
    ).tolist()


def _reinforce_pp(params: Params, scenario: Mapping[str, Json] | None) -> Json:
    turns = rows(scenario)
    assert scenario is not None
    tokens = _tokens(scenario)
    mask = torch.arange(int(tokens.max())) < tokens.unsqueeze(-1)
    adv, returns = reinforce_pp_advantages(
        turns.rewards,
        turns.format_valid,
        turns.tid,
        mask,
        penalty=params.get("pen", 0.1),
        gamma=params.get("gamma", 1.0),
    )
    ragged = [
        [row[:n].tolist() for row, n in zip(matrix, tokens.tolist(), strict=True)]
        for matrix in (adv, returns)
    ]
    return {"adv": ragged[0], "returns": ragged[1]}


def _dapo_filter(params: Params, scenario: Mapping[str, Json] | None) -> Json:
    turns = rows(scenario)
    assert scenario is not None
    uids, keep = informative_groups(turns.rewards, turns.uid, turns.tid)
    # `rows` numbers the groups in the order of first appearance.
    names = list(dict.fromkeys(trajectory["uid"] for trajectory in scenario["trajectories"]))
    return {names[uid]: kept for uid, kept in zip(uids.tolist(), keep.tolist(), strict=True)}


def _dapo_overlong(params: Params, scenario: Mapping[str, Json] | None) -> Json:
    # The reference's ramp has no floor.
    return overlong_penalty(
        torch.tensor([params.need("n")]),
        max_len=params.need("max_len"),
        buffer=params.need("buf"),
        factor=params.get("factor", 1.0),
        flavor="code",
    ).item()


def _gspo_loss(params: Params, scenario: Mapping[str, Json] | None) -> Json:
    params.ignore("ref")
    new, old, adv, mask = (params.matrix(key) for key in ("new", "old", "adv", "mask"))
    clip = {"clip_low": params.get("lo", 3e-4), "clip_high": params.get("hi", 4e-4)}
    loss, stats = gspo_loss(new, old, adv, mask, **clip)
    return {
        "loss": loss.item(),
        "s": sequence_log_ratio(new, old, mask).exp().tolist(),
        "clipfrac": stats.metrics()["clipfrac"],
    }


METHODS: dict[str, BaseMethod] = {
    "rloo": _rloo,
    "rfpp_baseline": _rfpp_baseline,
    "reinforce_pp": _reinforce_pp,
    "dapo_filter": _dapo_filter,
    "dapo_overlong": _dapo_overlong,
    "gspo_loss": _gspo_loss,
}
