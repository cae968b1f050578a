"""GiGPO and HGPO, which compare turns that start in the same state."""

from __future__ import annotations

from collections.abc import Mapping

from trainer.objectives.anchors import anchor_ids
from trainer.objectives.gigpo import gigpo_terms
from trainer.objectives.groups import Singleton, dense_ids
from trainer.objectives.hgpo import hgpo_terms
from trainer.vectors.params import BaseMethod, Json, Params
from trainer.vectors.scenario import rows


def _gigpo(params: Params, scenario: Mapping[str, Json] | None) -> Json:
    turns = rows(scenario)
    similarity = params.get("similarity")
    anchor = anchor_ids(observations(scenario), turns.uid, similarity=similarity)
    flavor = params.need("flavor")
    # The vectors of the code flavours hold the raw score that public code gives a pool of one.
    singleton: Singleton = "zero" if flavor == "paper" else "raw"
    terms = gigpo_terms(
        *turns,
        anchor,
        flavor=flavor,
        omega=params.get("w", 1.0),
        penalty=params.get("pen", 0.1),
        singleton=singleton,
        **params.subset("mode", "gamma", "eps"),
    )
    return {
        "A": terms.advantage.tolist(),
        "episode": terms.episode.tolist(),
        "step": terms.step.tolist(),
        "step_return": terms.step_return.tolist(),
    }


def _hgpo(params: Params, scenario: Mapping[str, Json] | None) -> Json:
    turns = rows(scenario)
    terms = hgpo_terms(
        *turns,
        anchor_ids(observations(scenario), turns.uid),
        flavor=params.need("flavor"),
        depth=params.get("K", 2),
        penalty=params.get("pen", 0.1),
        **params.subset("mode", "alpha", "base_group", "gamma", "eps"),
    )
    # The file lists the levels at which a turn is not alone.
    levels = [
        {
            str(k): value
            for k, (value, size) in enumerate(zip(values, sizes, strict=True))
            if size > 1
        }
        for values, sizes in zip(terms.level.T.tolist(), terms.group_size.T.tolist(), strict=True)
    ]
    return {
        "A": terms.advantage.tolist(),
        "step_return": terms.step_return.tolist(),
        "levels": levels,
    }


def observations(scenario: Mapping[str, Json] | None) -> list[str]:
    """What each turn saw, in the order of `scenario.rows`."""
    if scenario is None:
        raise ValueError("this method needs a scenario")
    trajectories = scenario["trajectories"]
    groups = dense_ids([trajectory["uid"] for trajectory in trajectories]).tolist()
    order = sorted(range(len(groups)), key=lambda i: groups[i])
    return [step["obs"] for i in order for step in trajectories[i]["steps"]]


METHODS: dict[str, BaseMethod] = {"gigpo": _gigpo, "hgpo": _hgpo}
