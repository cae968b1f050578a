"""Imitation of an oracle or of success: the controls and comparators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from trainer.config.sections import positive
from trainer.errors import ConfigError


@dataclass(frozen=True, slots=True)
class OracleFields:
    """Which oracle is asked."""

    oracle: str = "planner"  # the environment's own; or another of its by name, or module:factory
    oracle_budget_s: float = 1.0  # ours; seconds that one answer may take


@dataclass(frozen=True, slots=True)
class DaggerConfig(OracleFields):
    """The oracle's command at the states of failed rollouts."""

    weight: float = 0.1  # ours: SERO's, whose control it is
    states: Literal["failed", "all"] = "failed"  # of which rollouts; published DAgger: all
    max_states: int | None = None  # ours; of one rollout, drawn at random; null: every state
    # TCOD's schedule: only a part of each rollout is labelled at first.
    depth_iterations: int = 0  # until the part is the whole; 0: the whole from the start
    depth_start: int = 1  # turns of a rollout that the first iteration labels
    depth_direction: Literal["forward", "backward"] = "forward"  # from which end

    def check(self) -> None:
        _check("dagger", self)
        positive("auxiliary.dagger.depth_iterations", self.depth_iterations, zero=True)
        positive("auxiliary.dagger.depth_start", self.depth_start)
        if self.max_states is not None:
            positive("auxiliary.dagger.max_states", self.max_states)


@dataclass(frozen=True, slots=True)
class CorrectionsConfig(OracleFields):
    """On-policy expert corrections: from a state of the policy the oracle plays to the end."""

    weight: float = 0.1  # ours: SERO's, whose control it is
    # Which rollouts of a group with a failure give its root: SERO's default; published: any.
    pool: Literal["failed", "any"] = "failed"
    max_depth: int | None = None  # cap on a correction's length; null: the remaining steps

    def check(self) -> None:
        _check("corrections", self)
        if self.max_depth is not None:
            positive("auxiliary.corrections.max_depth", self.max_depth)


@dataclass(frozen=True, slots=True)
class SftConfig(OracleFields):
    """Fine-tuning on the oracle's successful episodes of the iteration's tasks."""

    weight: float = 0.1  # ours

    def check(self) -> None:
        _check("sft", self)


@dataclass(frozen=True, slots=True)
class ExpertIterationConfig:
    """Fine-tuning on the policy's own successes."""

    weight: float = 0.1  # ours; published: alone, with objective.name none
    well_formed: bool = False  # published: every reply of a success; true: well-formed ones only

    def check(self) -> None:
        positive("auxiliary.expert_iteration.weight", self.weight, zero=True)


@dataclass(frozen=True, slots=True)
class StepDpoConfig(OracleFields):
    """The oracle's reply preferred to the policy's at the same state."""

    weight: float = 0.1  # ours
    beta: float = 0.1  # published: DPO
    # SERO's roots, one state a group with a failed rollout; or every state of failed rollouts.
    states: Literal["root", "failed"] = "root"
    tokens: Literal["reply", "command"] = "reply"  # compared on both sides; published: the reply
    reference: Literal["initial", "behaviour"] = "initial"  # published: as training began

    def check(self) -> None:
        _check("step_dpo", self)
        positive("auxiliary.step_dpo.beta", self.beta)


@dataclass(frozen=True, slots=True)
class ChordConfig(OracleFields):
    """Supervised and reinforcement learning in a changing mix."""

    weight: float = 1.0  # of the mix: the supervised share is weight * mu
    mu_peak: float = 0.9  # public code, CHORD-mu
    mu_valley: float = 0.05  # public code, CHORD-mu
    mu_warmup: int = 0  # public code, CHORD-mu; iterations from 0 to the peak
    mu_decay: int = 200  # public code, CHORD-mu; iterations from the peak to the valley
    mu_shape: Literal["cosine", "linear"] = "cosine"  # public code
    token_weights: Literal["phi", "none"] = "phi"  # p * (1 - p), CHORD-phi; none: plain NLL

    def check(self) -> None:
        _check("chord", self)
        if self.weight > 1.0:
            raise ConfigError(
                f"auxiliary.chord.weight={self.weight} must lie in [0, 1]: the base keeps the "
                "share 1 - weight * mu."
            )
        if not 0.0 <= self.mu_valley <= self.mu_peak <= 1.0:
            raise ConfigError(
                f"auxiliary.chord.mu_valley={self.mu_valley} and auxiliary.chord.mu_peak="
                f"{self.mu_peak} must satisfy 0 <= mu_valley <= mu_peak <= 1."
            )
        positive("auxiliary.chord.mu_warmup", self.mu_warmup, zero=True)
        positive("auxiliary.chord.mu_decay", self.mu_decay, zero=True)


@dataclass(frozen=True, slots=True)
class LuffyConfig(OracleFields):
    """Oracle episodes that join the group."""

    weight: float = 1.0  # published; of the joined rows' loss; with 0 nothing joins
    gamma: float = 0.1  # published; of f(p) = p / (p + gamma)

    def check(self) -> None:
        _check("luffy", self)
        positive("auxiliary.luffy.gamma", self.gamma)


def _check(name: str, section: Any) -> None:
    positive(f"auxiliary.{name}.weight", section.weight, zero=True)
    positive(f"auxiliary.{name}.oracle_budget_s", section.oracle_budget_s)
