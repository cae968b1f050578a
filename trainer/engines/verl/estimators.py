"""Our advantages as verl's estimators: (token rewards, mask, uid, config) -> (advantages, returns).

Options come from `algorithm.sero` in verl's config: `flavor`, `use_std`, `penalty`, `gamma`,
`omega`, and for HGPO `depth`, `alpha`. Left out, they are those of our own config.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from trainer.config import ObjectiveConfig, RolloutConfig
from trainer.engines.verl.layout import Rows, rows_of
from trainer.objectives import grpo_advantages
from trainer.objectives.anchors import anchor_ids
from trainer.objectives.gigpo import gigpo_advantages
from trainer.objectives.hgpo import hgpo_advantages
from trainer.objectives.reinforce_pp import reinforce_pp_baseline_advantages
from trainer.objectives.rloo import rloo_advantages

__all__ = ["ESTIMATORS", "estimator"]

Objective = Callable[[Rows, Mapping[str, Any]], Tensor]
_OWN = ObjectiveConfig()
_PENALTY = RolloutConfig().format_penalty


Facts = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def _shared(rows: Rows, given: Mapping[str, Any]) -> tuple[Facts, dict[str, Any]]:
    """Arguments that every objective takes."""
    facts = rows.rewards, rows.format_valid, rows.uid, rows.tid, rows.t
    return facts, {
        "flavor": given.get("flavor", _OWN.flavor),
        "penalty": given.get("penalty", _PENALTY),
    }


def _grpo(rows: Rows, given: Mapping[str, Any], use_std: bool = True) -> Tensor:
    facts, shared = _shared(rows, given)
    return grpo_advantages(*facts, use_std=given.get("use_std", use_std), **shared)


def _dr_grpo(rows: Rows, given: Mapping[str, Any]) -> Tensor:
    return _grpo(rows, given, use_std=False)


def _rloo(rows: Rows, given: Mapping[str, Any]) -> Tensor:
    facts, shared = _shared(rows, given)
    return rloo_advantages(*facts, **shared)


def _reinforce_pp_baseline(rows: Rows, given: Mapping[str, Any]) -> Tensor:
    facts, shared = _shared(rows, given)
    return reinforce_pp_baseline_advantages(*facts[:4], rows.tokens, rows.t, **shared)


def _mode(given: Mapping[str, Any]) -> str:
    return "mean_std_norm" if given.get("use_std", True) else "mean_norm"


def _gigpo(rows: Rows, given: Mapping[str, Any]) -> Tensor:
    facts, shared = _shared(rows, given)
    a = _OWN.anchors
    options: dict[str, Any] = {
        "mode": _mode(given),
        "omega": given.get("omega", a.weight),
        "gamma": given.get("gamma", a.gamma),
    }
    options |= shared
    return gigpo_advantages(*facts, anchor_ids(rows.anchors, rows.uid), **options)


def _hgpo(rows: Rows, given: Mapping[str, Any]) -> Tensor:
    facts, shared = _shared(rows, given)
    a = _OWN.anchors
    options: dict[str, Any] = {
        "mode": _mode(given),
        "depth": given.get("depth", a.depth),
        "alpha": given.get("alpha", a.alpha),
        "base_group": given.get("base_group", a.base_group),
        "gamma": given.get("gamma", a.gamma),
    }
    options |= shared
    return hgpo_advantages(*facts, anchor_ids(rows.anchors, rows.uid), **options)


_OBJECTIVES: dict[str, Objective] = {
    "grpo": _grpo,
    "dr_grpo": _dr_grpo,
    "rloo": _rloo,
    "reinforce_pp_baseline": _reinforce_pp_baseline,
    "gigpo": _gigpo,
    "hgpo": _hgpo,
}


def estimator(objective: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """The objective with verl's signature."""
    compute = _OBJECTIVES[objective]

    def estimate(
        token_level_rewards: Tensor,
        response_mask: Tensor,
        index: Any = None,
        config: Any = None,
        **_: Any,
    ) -> tuple[Tensor, Tensor]:
        rows = rows_of(token_level_rewards, response_mask, () if index is None else index)
        adv_M = compute(rows, _options(config))
        adv_M_T = (adv_M[:, None] * response_mask).to(token_level_rewards.dtype)
        return adv_M_T, adv_M_T

    estimate.__name__ = f"sero_{objective}"
    return estimate


ESTIMATORS = {f"sero_{name}": estimator(name) for name in _OBJECTIVES}
"""By the name for `algorithm.adv_estimator`."""


def _options(config: Any) -> Mapping[str, Any]:
    """`algorithm.sero`, of a mapping, a dataclass or OmegaConf; empty where there is none."""
    if config is None:
        return {}
    found = config.get("sero", None) if hasattr(config, "get") else getattr(config, "sero", None)
    return {} if found is None else found
