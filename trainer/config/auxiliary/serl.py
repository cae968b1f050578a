"""Advantages reweighted by a teacher that knows more: SERL and RLSD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainer.config.sections import positive
from trainer.errors import ConfigError


@dataclass(frozen=True, slots=True)
class _ReweightingConfig:
    """What both have: the blend, how far a token's weight may go, and the text of trajectories."""

    weight: float = 1.0  # published; factor of alpha. 0 measures and leaves advantages as they are
    alpha: float = 0.5  # published alpha_0
    decay: int = 50  # published K_d: iterations until alpha is 0; 0: it stays
    clip: float = 0.2  # published eps_w
    sync_every: int = 10  # published; iterations between copies of the policy to the teacher
    max_prompt_tokens: int | None = None  # of the teacher; null (published): as the student's
    rendering: Literal["response", "observation_action"] = "response"  # public code
    context_steps: int | None = None  # of a trajectory shown to the teacher; null: all

    def _check(self, name: str) -> None:
        name = f"auxiliary.{name}"
        for field in ("weight", "alpha", "decay"):
            positive(f"{name}.{field}", getattr(self, field), zero=True)
        if self.alpha > 1.0:
            raise ConfigError(f"{name}.alpha={self.alpha} must lie in [0, 1].")
        if self.weight * self.alpha > 1.0:
            raise ConfigError(
                f"{name}.weight={self.weight} times {name}.alpha={self.alpha} must not exceed 1: "
                "it is the share of the reweighted advantage."
            )
        if not 0.0 <= self.clip < 1.0:
            raise ConfigError(f"{name}.clip={self.clip} must be at least 0 and below 1.")
        positive(f"{name}.sync_every", self.sync_every)
        for field in ("max_prompt_tokens", "context_steps"):
            if getattr(self, field) is not None:
                positive(f"{name}.{field}", getattr(self, field))


@dataclass(frozen=True, slots=True)
class SerlConfig(_ReweightingConfig):
    """Selective environment-reweighted learning: tokens of the executed command only."""

    source: Literal[
        "immediate_feedback",  # published: best of the single sources
        "next_observation",
        "future_trajectory",
        "success_or_feedback",
        "success+feedback",
        "success+next_observation",
        "success+future",
        "success+future+feedback",
        "success+future+next_observation",
        "judge_current",
        "judge_current_success",
    ] = "immediate_feedback"
    placement: Literal["step", "anchor"] = "step"  # anchor: all that was tried in this state
    similarity: float | None = None  # of an anchor's states; null: equal. Public code offers 0.95
    anchor_min_size: int = 1  # public code; 2: a state has to be met twice
    anchor_first_only: bool = False  # ours; true: only a trajectory's first visit has a context
    judge: str | None = None  # `module:factory` of a text model, for the sources `judge_...`
    act_weight: float = 0.0  # public code has no such term; the paper's lambda, ours: 0.01
    act_kind: Literal["pg_rkl", "k3", "rkl", "js"] = "pg_rkl"  # the last two: whole vocabulary
    act_clamp: float | None = 5.0  # ours; limit of the log-ratio in k3
    act_beta: float = 0.5  # ours; the teacher's weight in js

    def check(self) -> None:
        self._check("serl")
        positive("auxiliary.serl.anchor_min_size", self.anchor_min_size)
        positive("auxiliary.serl.act_weight", self.act_weight, zero=True)
        if self.act_clamp is not None:
            positive("auxiliary.serl.act_clamp", self.act_clamp)
        if not 0.0 < self.act_beta < 1.0:
            raise ConfigError(f"auxiliary.serl.act_beta={self.act_beta} must lie inside (0, 1).")
        if self.similarity is not None and not 0.0 < self.similarity <= 1.0:
            raise ConfigError(
                f"auxiliary.serl.similarity={self.similarity} must lie in (0, 1] or be null."
            )
        self._check_judge()

    def _check_judge(self) -> None:
        asks = self.source.startswith("judge_")
        if asks and self.placement == "anchor":
            raise ConfigError(
                f"auxiliary.serl.placement=anchor has no source {self.source!r}: a judge sees "
                "whole trajectories. Use placement=step."
            )
        if not asks and self.judge is not None:
            raise ConfigError(
                f"auxiliary.serl.judge={self.judge!r} is never asked by the source "
                f"{self.source!r}. Leave it out, or use a source that begins with judge_."
            )
        module, _, factory = (self.judge or "").partition(":")
        if asks and not (module and factory):
            raise ConfigError(
                f"auxiliary.serl.judge={self.judge!r} must be 'module:factory' for the source "
                f"{self.source!r}; the factory returns a function from chat messages to text."
            )


@dataclass(frozen=True, slots=True)
class RlsdConfig(_ReweightingConfig):
    """SERL on all tokens of a reply, with a reference solution as context."""

    context: Literal["success", "plan"] = "success"  # ours: a sibling's, or the planner's
    oracle_budget_s: float = 1.0  # ours; of one plan
    teacher: Literal["synced", "current"] = "synced"  # current: the policy of the rollouts (SDAR)
    rollout_filter: Literal["all", "positive", "negative", "mixed"] = "all"  # by the advantage

    def check(self) -> None:
        self._check("rlsd")
        positive("auxiliary.rlsd.oracle_budget_s", self.oracle_budget_s)
