"""Distillation from a teacher: OPD, GKD, OPSD, SDPO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainer.config.sections import positive
from trainer.errors import ConfigError

Context = Literal["success", "plan", "feedback"]


@dataclass(frozen=True, slots=True)
class DepthConfig:
    """TCOD: only a part of each trajectory is distilled, a part that grows."""

    growth: int = 100  # ours; iterations until the part has `final` turns, 0: at once
    final: int | None = None  # turns at the end; null: env.max_steps
    start: int = 1  # ours; turns at the beginning
    direction: Literal["forward", "backward"] = "forward"  # from which end of a trajectory

    def check(self) -> None:
        positive("auxiliary.opd.depth.growth", self.growth, zero=True)
        positive("auxiliary.opd.depth.start", self.start)
        if self.final is not None and self.final < self.start:
            raise ConfigError(
                f"auxiliary.opd.depth.final={self.final} must be at least start={self.start}."
            )


@dataclass(frozen=True, slots=True)
class OpdConfig:
    """On-policy distillation: a teacher scores what the policy sampled."""

    weight: float = 1.0  # ours
    teacher: str | None = None  # a model folder; null: the policy as it was at the start
    # `loss`: sampled reverse KL as a loss; `advantage`: as advantages of the base's policy loss
    # (published by Thinking Machines); `exact`: a divergence over the whole vocabulary.
    form: Literal["loss", "advantage", "exact"] = "loss"
    combine: Literal["replace", "add"] = "replace"  # of `advantage`; published: other rewards off
    baseline: bool = False  # vOPD: less variance, one more pass over the vocabulary
    divergence: Literal["rkl", "fkl", "gjs"] = "rkl"  # of `exact`; published: rkl
    beta: float = 0.5  # of `gjs`: weight of the teacher in the mixture
    top_k: int | None = None  # of `exact`: likeliest tokens kept apart; null: all
    depth: DepthConfig | None = None  # null: whole trajectories

    def check(self) -> None:
        positive("auxiliary.opd.weight", self.weight, zero=True)
        _mixture("auxiliary.opd.beta", self.beta)
        _top_k("auxiliary.opd.top_k", self.top_k)
        if self.depth is not None:
            self.depth.check()
        if self.baseline and self.form == "exact":
            raise ConfigError(
                "auxiliary.opd.baseline=true is for sampled tokens, and form=exact samples none. "
                "Set it to false, or use form=loss or form=advantage."
            )


@dataclass(frozen=True, slots=True)
class GkdConfig:
    """Generalised knowledge distillation: some batches are the policy's own, others are data."""

    weight: float = 1.0  # ours
    teacher: str | None = None  # a model folder; null: the policy as it was at the start
    fraction: float = 0.5  # published lambda, of its mixed runs; 1: on policy
    beta: float = 0.5  # published: 0.1, 0.5 or 0.9; weight of the teacher in the mixture
    top_k: int | None = None  # likeliest tokens kept apart; null: all (published)
    # `oracle`: won episodes of the oracle; `teacher`: won episodes of the teacher (published:
    # its samples); `success`: won rollouts of this iteration, which need no environment.
    source: Literal["oracle", "teacher", "success"] = "oracle"
    oracle: str = "planner"  # see auxiliary.sero.oracle
    oracle_budget_s: float = 1.0

    def check(self) -> None:
        positive("auxiliary.gkd.weight", self.weight, zero=True)
        positive("auxiliary.gkd.oracle_budget_s", self.oracle_budget_s)
        _mixture("auxiliary.gkd.beta", self.beta)
        _top_k("auxiliary.gkd.top_k", self.top_k)
        _share("auxiliary.gkd.fraction", self.fraction)


@dataclass(frozen=True, slots=True)
class _ToldConfig:
    """How a teacher is told what it knows."""

    max_prompt_tokens: int | None = None  # of the teacher; null: as the student's
    rendering: Literal["response", "observation_action"] = "response"  # SERL's public code
    context_steps: int | None = None  # of a trajectory or a plan that is shown; null: all

    def _check(self, name: str) -> None:
        for field in ("max_prompt_tokens", "context_steps"):
            if getattr(self, field) is not None:
                positive(f"auxiliary.{name}.{field}", getattr(self, field))


@dataclass(frozen=True, slots=True)
class OpsdConfig(_ToldConfig):
    """Distillation from the policy itself, which knows more."""

    weight: float = 0.01  # ours
    # What the teacher knows: a won rollout of the task, the oracle's plan from here, or what the
    # environment answered to this turn.
    context: Context = "success"
    teacher: Literal["initial", "synced", "current"] = "initial"  # published: initial or synced
    sync_every: int = 10  # iterations, of `synced`; SERL's
    divergence: Literal["rkl", "fkl", "gjs"] = "rkl"
    beta: float = 0.5  # of `gjs`: weight of the teacher in the mixture
    top_k: int | None = None  # likeliest tokens kept apart; null: all
    oracle_budget_s: float = 1.0  # of `plan`, one plan

    def check(self) -> None:
        positive("auxiliary.opsd.weight", self.weight, zero=True)
        positive("auxiliary.opsd.sync_every", self.sync_every)
        positive("auxiliary.opsd.oracle_budget_s", self.oracle_budget_s)
        _mixture("auxiliary.opsd.beta", self.beta)
        _top_k("auxiliary.opsd.top_k", self.top_k)
        self._check("opsd")


@dataclass(frozen=True, slots=True)
class OpsdLegacyConfig(_ToldConfig):
    """OPSD as it stands in the published tables: no divergence."""

    weight: float = 0.01  # published
    beta: float = 0.0  # published of "GRPO+OPSD"; "OPSD" alone: 5
    context: Context = "success"  # ours; published: retrieved skills
    oracle_budget_s: float = 1.0  # of `plan`, one plan

    def check(self) -> None:
        positive("auxiliary.opsd_legacy.weight", self.weight, zero=True)
        positive("auxiliary.opsd_legacy.beta", self.beta, zero=True)
        positive("auxiliary.opsd_legacy.oracle_budget_s", self.oracle_budget_s)
        self._check("opsd_legacy")


@dataclass(frozen=True, slots=True)
class SdpoConfig(_ToldConfig):
    """Self-distillation policy optimisation: a slow teacher that saw a solution or the feedback."""

    weight: float = 1.0  # published: alone, with objective.name none
    alpha: float = 0.5  # public code; 0: KL(T || S), 1: KL(S || T)
    top_k: int | None = 100  # public code; null: the whole vocabulary
    is_clip: float | None = 2.0  # public code, limit of the importance weight; null: no weight
    teacher: Literal["ema", "initial", "current"] = "ema"  # public code
    rate: float = 0.05  # public code, of `ema` after each optimiser step
    success_threshold: float = 0.5  # public code, of a trajectory's reward in units of a success
    feedback: bool = True  # public code: the environment's answer where no sibling won

    def check(self) -> None:
        positive("auxiliary.sdpo.weight", self.weight, zero=True)
        _share("auxiliary.sdpo.alpha", self.alpha)
        _top_k("auxiliary.sdpo.top_k", self.top_k)
        if self.is_clip is not None:
            positive("auxiliary.sdpo.is_clip", self.is_clip)
        positive("auxiliary.sdpo.rate", self.rate)
        _share("auxiliary.sdpo.rate", self.rate)
        positive("auxiliary.sdpo.success_threshold", self.success_threshold)
        self._check("sdpo")


def _share(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"{name}={value} must lie in [0, 1].")


def _mixture(name: str, value: float) -> None:
    if not 0.0 < value < 1.0:
        raise ConfigError(
            f"{name}={value} must lie between 0 and 1, ends excluded: there the mixture is one of "
            "both models and the divergence 0."
        )


def _top_k(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise ConfigError(f"{name}={value} must be at least 1, or null for the whole vocabulary.")
