"""Skills as privileged context: SEED and what it is compared with."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.config_sections import positive


@dataclass(frozen=True, slots=True)
class SeedConfig:
    """Self-evolving on-policy distillation of hindsight skills."""

    weight: float = 0.01  # published lambda_opd

    def check(self) -> None:
        positive("auxiliary.seed.weight", self.weight, zero=True)


@dataclass(frozen=True, slots=True)
class SdarConfig:
    """Gated distillation of retrieved skills."""

    weight: float = 0.01  # published

    def check(self) -> None:
        positive("auxiliary.sdar.weight", self.weight, zero=True)


@dataclass(frozen=True, slots=True)
class SkillSdConfig:
    """Skill self-distillation by an importance-weighted k3."""

    weight: float = 0.1  # public code

    def check(self) -> None:
        positive("auxiliary.skill_sd.weight", self.weight, zero=True)


@dataclass(frozen=True, slots=True)
class OpidConfig:
    """Skills in the advantage."""

    weight: float = 0.001  # published, of each level

    def check(self) -> None:
        positive("auxiliary.opid.weight", self.weight, zero=True)
