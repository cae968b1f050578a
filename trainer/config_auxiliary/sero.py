"""SERO, and what every objective that asks an oracle shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainer.config_sections import ConfigError, positive


@dataclass(frozen=True, slots=True)
class SeroConfig:
    """State-rooted executable oracle rollouts. With weight 0 it is measured and not trained."""

    weight: float = 0.1  # published lambda_O; stable 0.1 to 0.5
    rule: Literal["sero", "flat", "root", "depth"] = "sero"
    delta: float = 0.9  # ours; decay of rule `depth`
    normaliser: Literal["selected", "valid", "active"] = "selected"
    branch_norm: Literal["none", "mass"] = "none"
    w_min: float = 1e-4  # ours; rows lighter than this are left out, their mass is logged
    pool: Literal["failed", "any"] = "failed"
    target: Literal["success", "score"] = "success"  # what the gate compares
    return_scale: float = 1.0  # c_R: the gate is clip(gain / c_R, 0, 1)
    think_mode: Literal["empty"] = "empty"  # the target is <think></think><action>CMD</action>
    oracle: str = "planner"  # the environment's own; or another of its by name, or module:factory
    oracle_budget_s: float = 1.0
    max_depth: int | None = None  # cap on branch length; null: the remaining horizon

    def check(self) -> None:
        positive("auxiliary.sero.weight", self.weight, zero=True)
        positive("auxiliary.sero.return_scale", self.return_scale)
        positive("auxiliary.sero.oracle_budget_s", self.oracle_budget_s)
        positive("auxiliary.sero.w_min", self.w_min, zero=True)
        if not 0.0 <= self.delta <= 1.0:
            raise ConfigError(f"auxiliary.sero.delta={self.delta} must lie in [0, 1].")
        if self.max_depth is not None:
            positive("auxiliary.sero.max_depth", self.max_depth)
