"""Skills as privileged context: SEED and what it is compared with."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from trainer.config.sections import positive
from trainer.errors import ConfigError

POLICY = "policy"


@dataclass(frozen=True, slots=True)
class AnalyserConfig:
    """Who reads a finished trajectory and writes its skill, and within which limits."""

    # `policy`: the policy itself (SEED); or `module:factory`, called without arguments, for a
    # function from chat messages to text (OPID: an external model).
    model: str = POLICY
    attempts: int = 2  # published: one retry, told what was wrong
    max_new_tokens: int = 1024  # published warm start; its runs allow 4,096
    max_prompt_tokens: int = 16_384  # published; a longer trajectory has no skill
    temperature: float = 1.0  # ours, that of the rollouts; 0: greedy
    text_limit: int | None = None  # characters kept of an observation or reply; null: all

    def check(self, section: str) -> None:
        place = f"auxiliary.{section}.analyser"
        if self.model != POLICY and ":" not in self.model:
            raise ConfigError(
                f"{place}.model={self.model!r} must be {POLICY!r} or 'module:factory'."
            )
        for name in ("attempts", "max_new_tokens", "max_prompt_tokens"):
            positive(f"{place}.{name}", getattr(self, name))
        positive(f"{place}.temperature", self.temperature, zero=True)
        if self.text_limit is not None:
            positive(f"{place}.text_limit", self.text_limit)


@dataclass(frozen=True, slots=True)
class SkillEntry:
    """One skill of a fixed library."""

    name: str
    text: str
    keywords: tuple[str, ...] = ()  # words that call for it; empty: those of its text


@dataclass(frozen=True, slots=True)
class SeedConfig:
    """Self-evolving on-policy distillation of hindsight skills."""

    weight: float = 0.01  # published lambda_opd
    beta: float = 5.0  # published, steepness of the gate
    gate_center: Literal["none", "half", "mean"] = "none"  # published; others: less variance
    teacher: Literal["frozen", "current"] = "frozen"  # public code; `current`: as the paper writes
    tokens: Literal["reply", "command"] = "reply"  # public code: thoughts and tags too
    skill_mode: Literal["episode_only", "episode_step"] = "episode_only"  # published runs
    start_after: int = 0  # published: off; first iteration with this loss
    stop_after: int | None = None  # published: off; first iteration without it again
    failed_only: bool = False  # published: off
    # Control: score another trajectory's skill too (`measure`), or train with it (`train`).
    shuffle: Literal["off", "measure", "train"] = "off"
    analyser: AnalyserConfig = field(default_factory=AnalyserConfig)

    def check(self) -> None:
        positive("auxiliary.seed.weight", self.weight, zero=True)
        positive("auxiliary.seed.beta", self.beta, zero=True)
        positive("auxiliary.seed.start_after", self.start_after, zero=True)
        if self.stop_after is not None and self.stop_after <= self.start_after:
            raise ConfigError(
                f"auxiliary.seed.stop_after={self.stop_after} must exceed "
                f"auxiliary.seed.start_after={self.start_after}, or be null."
            )
        self.analyser.check("seed")


@dataclass(frozen=True, slots=True)
class RetrievalConfig:
    """Skills from a fixed library: the fields that SDAR and Skill-SD share."""

    skills: str | None = None  # JSON file: a list of {name, text, keywords}
    entries: tuple[SkillEntry, ...] = ()  # the same, written here instead of a file
    retrieval: Literal["keyword", "full", "random", "ucb"] = "keyword"  # published: all four
    k: int = 1  # ours, skills a task
    exploration: float = math.sqrt(2.0)  # UCB1's
    allow_missing: bool = False  # ours; true: a type of task may go without any skill

    def check_library(self, section: str) -> None:
        place = f"auxiliary.{section}"
        if (self.skills is None) == (not self.entries):
            raise ConfigError(
                f"{place} needs a library of skills: give either {place}.skills, the path of a "
                f"JSON file, or {place}.entries."
            )
        positive(f"{place}.k", self.k)
        positive(f"{place}.exploration", self.exploration, zero=True)


@dataclass(frozen=True, slots=True)
class SdarConfig(RetrievalConfig):
    """Gated distillation of retrieved skills."""

    weight: float = 0.01  # published
    beta: float = 5.0  # published
    gate: Literal["gap", "entropy", "soft_or"] = "gap"  # published default
    gate_center: Literal["none", "half", "mean"] = "none"  # published
    teacher: Literal["frozen", "current"] = "frozen"  # public code

    def check(self) -> None:
        positive("auxiliary.sdar.weight", self.weight, zero=True)
        positive("auxiliary.sdar.beta", self.beta, zero=True)
        self.check_library("sdar")


@dataclass(frozen=True, slots=True)
class SkillSdConfig(RetrievalConfig):
    """Skill self-distillation by an importance-weighted k3."""

    weight: float = 0.1  # public code
    source: Literal["library", "hindsight"] = "library"  # public code; `hindsight`: as SEED
    teacher: Literal["frozen", "current"] = "frozen"  # public code
    skill_mode: Literal["episode_only", "episode_step"] = "episode_only"  # with `hindsight`
    analyser: AnalyserConfig = field(default_factory=AnalyserConfig)  # with `hindsight`

    def check(self) -> None:
        positive("auxiliary.skill_sd.weight", self.weight, zero=True)
        if self.source == "library":
            self.check_library("skill_sd")
        elif self.skills is not None or self.entries:
            raise ConfigError(
                "auxiliary.skill_sd.source=hindsight uses no library: leave out "
                "auxiliary.skill_sd.skills and auxiliary.skill_sd.entries."
            )
        self.analyser.check("skill_sd")


@dataclass(frozen=True, slots=True)
class OpidConfig:
    """Skills in the advantage."""

    weight: float = 0.001  # published, of the episode's skill; 0 measures and adds neither skill
    step_weight: float | None = None  # of the step's skill; null (published): as weight
    skill_mode: Literal["episode_only", "episode_step"] = "episode_step"  # published
    shuffle: Literal["off", "measure", "train"] = "off"  # control, see SEED
    # Published: an external model; the default is what every run has.
    analyser: AnalyserConfig = field(default_factory=AnalyserConfig)

    def check(self) -> None:
        positive("auxiliary.opid.weight", self.weight, zero=True)
        if self.step_weight is not None:
            positive("auxiliary.opid.step_weight", self.step_weight, zero=True)
        self.analyser.check("opid")

    @property
    def of_steps(self) -> float:
        """The weight of the step's skill."""
        if self.weight == 0 or self.step_weight is None:
            return self.weight
        return self.step_weight
