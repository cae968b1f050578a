"""Estimators with a critic, and the value loss."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from trainer.objectives.aggregate import Denominators
from trainer.objectives.ppo import CriticAdvantages, ppo_trajectory, ppo_turnwise, turn_gae
from trainer.objectives.value import value_loss
from trainer.vectors.params import BaseMethod, Json, Params
from trainer.vectors.scenario import rows


def _ragged(values: list[list[float]]) -> tuple[Tensor, Tensor]:
    """Rows of token values as padded (M, T) float64, and their mask."""
    width = max(len(row) for row in values)
    mask = torch.tensor([[t < len(row) for t in range(width)] for row in values])
    flat = torch.tensor([value for row in values for value in row], dtype=torch.float64)
    return torch.zeros(mask.shape, dtype=torch.float64).masked_scatter(mask, flat), mask


def _layout(result: CriticAdvantages, mask_M_T: Tensor) -> Json:
    """Ragged lists again."""

    def ragged(value_M_T: Tensor) -> list[list[float]]:
        return [row[keep].tolist() for row, keep in zip(value_M_T, mask_M_T, strict=True)]

    return {
        "adv": ragged(result.advantages),
        "returns": ragged(result.returns),
        "raw": ragged(result.raw),
    }


def _options(params: Params) -> dict[str, Json]:
    names = {"pen": "penalty"}
    options = params.subset("gamma", "lam", "token_gamma", "token_lam", "pen")
    return {names.get(key, key): value for key, value in options.items()}


def _ppo_turnwise(params: Params, scenario: Mapping[str, Json] | None) -> Json:
    turns = rows(scenario)
    value, mask = _ragged(params.need("values"))
    result = ppo_turnwise(
        turns.rewards, turns.format_valid, turns.tid, value, mask, **_options(params)
    )
    return _layout(result, mask)


def _ppo_trajectory(params: Params, scenario: Mapping[str, Json] | None) -> Json:
    turns = rows(scenario)
    value, mask = _ragged(params.need("values"))
    result = ppo_trajectory(
        turns.rewards, turns.format_valid, turns.tid, value, mask, turns.t, **_options(params)
    )
    return _layout(result, mask)


def _turn_gae(params: Params, scenario: Mapping[str, Json] | None) -> Json:
    turns = rows(scenario)
    value = torch.tensor(params.need("values"), dtype=torch.float64)
    result = turn_gae(
        turns.rewards, turns.format_valid, turns.tid, value, turns.t, **_options(params)
    )
    return {"adv": result.advantages.tolist(), "returns": result.returns.tolist()}


def _value_loss(params: Params, scenario: Mapping[str, Json] | None) -> Json:
    value, old, target, mask = (params.matrix(key) for key in ("v", "vold", "ret", "mask"))
    loss, _ = value_loss(
        value,
        old,
        target,
        mask,
        aggregation=params.get("how", "token-mean"),
        # The reference takes the padded width as the constant length.
        denominators=Denominators.of(mask, length=mask.shape[1]),
        **params.subset("clip"),
    )
    return loss.item()


METHODS: dict[str, BaseMethod] = {
    "ppo_turnwise": _ppo_turnwise,
    "ppo_trajectory": _ppo_trajectory,
    "turn_gae": _turn_gae,
    "value_loss": _value_loss,
}
