"""GRPO and Dr. GRPO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer.objectives import grpo_advantages
from trainer.objectives.groups import Singleton
from trainer.vectors.params import BaseMethod, Json, Params
from trainer.vectors.scenario import rows


def _grpo(params: Params, scenario: Mapping[str, Json] | None) -> Json:
    flavor = params.need("flavor")
    options = params.subset("ddof", "eps", "use_std")
    return _advantages(params, scenario, flavor, options)


def _dr_grpo(params: Params, scenario: Mapping[str, Json] | None) -> Json:
    return _advantages(params, scenario, params.need("flavor"), {"use_std": False})


def _advantages(
    params: Params, scenario: Mapping[str, Json] | None, flavor: Any, options: dict[str, Json]
) -> Json:
    # The vectors of the code flavours hold the raw score that public code gives a pool of one.
    singleton: Singleton = "zero" if flavor == "paper" else "raw"
    penalty = params.get("pen", 0.1)
    return grpo_advantages(
        *rows(scenario), flavor=flavor, penalty=penalty, singleton=singleton, **options
    ).tolist()


METHODS: dict[str, BaseMethod] = {"grpo": _grpo, "dr_grpo": _dr_grpo}
