"""SERO, and what every objective that asks an oracle shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agent_envs.prompting import project
from trainer.config.sections import positive
from trainer.errors import ConfigError

TokenSet = Literal["command", "command_closing", "after_think", "all"]


@dataclass(frozen=True, slots=True)
class SeroConfig:
    """State-rooted executable oracle rollouts. With weight 0 it is measured and not trained.

    Where a switch has no published default, the first value is that of the description of SERO as
    it is read here (docs/objectives/sero.md).
    """

    weight: float = 0.1  # published lambda_O; stable 0.1 to 0.5
    rule: Literal["sero", "flat", "root", "depth"] = "sero"
    delta: float | Literal["matched"] = 0.9  # ours; of rule `depth`. matched: the mass of `sero`
    decay: Literal["exponential", "harmonic", "linear"] = "exponential"  # of rule `depth`
    normaliser: Literal["selected", "valid", "active"] = "selected"
    branch_norm: Literal["none", "mass"] = "none"
    w_min: float = 1e-4  # ours; rows lighter than this are left out, their mass is logged
    z_every: Literal["iteration", "epoch"] = "iteration"  # when z is measured
    pool: Literal["failed", "any"] = "failed"
    scheme: Literal["rollout_then_step", "uniform_state", "first", "last"] = "rollout_then_step"
    # What the gate compares. `reward`: what the environment paid since the root.
    target: Literal["success", "score", "reward"] = "success"
    gamma: float = 1.0  # published: no discount; of target `reward`, restarts at the root
    return_scale: float = 1.0  # c_R: the gate is clip(gain / c_R, 0, 1)
    # empty: the target is <think></think><action>CMD</action>
    think_mode: Literal["none", "empty", "template", "sampled", "full"] = "empty"
    think_text: str = "I choose the next command."  # ours; of think_mode `template`
    loss_tokens: TokenSet | None = None  # null: command_closing; think_mode `full`: all
    z_tokens: TokenSet = "command"
    token_weights: Literal["none", "chord"] = "none"  # chord: p * (1 - p), arXiv:2508.11408
    oracle: str = "planner"  # the environment's own; or another of its by name, or module:factory
    oracle_budget_s: float = 1.0
    # Branches run in a thread of their own while the rollouts are scored. Changes no result.
    overlap: bool = True
    workers: int = 0  # processes that run branches, with an environment each; 0: this one does
    max_depth: int | None = None  # cap on branch length; null: the remaining horizon
    # TCOD's schedule: only a part of each branch is trained at first.
    depth_iterations: int = 0  # until the part is the whole; 0: the whole from the start
    depth_start: int = 1  # steps of a branch that the first iteration trains
    depth_direction: Literal["forward", "backward"] = "forward"  # from which end

    def check(self) -> None:
        positive("auxiliary.sero.weight", self.weight, zero=True)
        positive("auxiliary.sero.return_scale", self.return_scale)
        positive("auxiliary.sero.oracle_budget_s", self.oracle_budget_s)
        positive("auxiliary.sero.w_min", self.w_min, zero=True)
        positive("auxiliary.sero.depth_start", self.depth_start)
        positive("auxiliary.sero.workers", self.workers, zero=True)
        positive("auxiliary.sero.depth_iterations", self.depth_iterations, zero=True)
        for name in ("delta", "gamma"):
            value = getattr(self, name)
            if value != "matched" and not 0.0 <= value <= 1.0:
                raise ConfigError(f"auxiliary.sero.{name}={value} must lie in [0, 1].")
        if self.max_depth is not None:
            positive("auxiliary.sero.max_depth", self.max_depth)
        self._check_pairs()

    def _check_pairs(self) -> None:
        if self.delta == "matched" and self.decay != "exponential":
            raise ConfigError(
                f"auxiliary.sero.delta=matched is a base of powers, and decay={self.decay} has "
                "none. Use decay=exponential."
            )
        if self.gamma != 1.0 and self.target != "reward":
            raise ConfigError(
                f"auxiliary.sero.gamma={self.gamma} discounts rewards, and target={self.target} "
                "has none. Use target=reward or gamma=1."
            )
        # A thought that ends itself or acts would send another command than the oracle's.
        sent = project(f"<think>{self.think_text}</think><action>look</action>")
        if sent != ("look", True) or "think>" in self.think_text or not self.think_text.strip():
            raise ConfigError(
                f"auxiliary.sero.think_text={self.think_text!r} must be plain text without tags "
                "and without Chinese characters."
            )
        if self.think_mode == "full" and ":" not in self.oracle:
            raise ConfigError(
                f"auxiliary.sero.think_mode=full trains the oracle's thoughts, and "
                f"oracle={self.oracle} has none. Give the 'module:factory' of an oracle whose "
                "decisions carry a thought, or use another think_mode."
            )

    @property
    def trained_tokens(self) -> TokenSet:
        """Which tokens of a target are in the loss."""
        if self.loss_tokens is not None:
            return self.loss_tokens
        return "all" if self.think_mode == "full" else "command_closing"
