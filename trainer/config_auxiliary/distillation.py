"""Distillation from a teacher: OPD, GKD, OPSD, SDPO."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.config_sections import positive


@dataclass(frozen=True, slots=True)
class OpdConfig:
    """On-policy distillation of sampled tokens."""

    weight: float = 1.0  # ours

    def check(self) -> None:
        positive("auxiliary.opd.weight", self.weight, zero=True)


@dataclass(frozen=True, slots=True)
class GkdConfig:
    """Generalised knowledge distillation."""

    weight: float = 1.0  # ours

    def check(self) -> None:
        positive("auxiliary.gkd.weight", self.weight, zero=True)


@dataclass(frozen=True, slots=True)
class OpsdConfig:
    """Distillation from the policy itself, which knows more."""

    weight: float = 0.01  # ours

    def check(self) -> None:
        positive("auxiliary.opsd.weight", self.weight, zero=True)


@dataclass(frozen=True, slots=True)
class OpsdLegacyConfig:
    """OPSD as it stands in the published tables: no divergence."""

    weight: float = 0.01  # published

    def check(self) -> None:
        positive("auxiliary.opsd_legacy.weight", self.weight, zero=True)


@dataclass(frozen=True, slots=True)
class SdpoConfig:
    """Self-distillation policy optimisation."""

    weight: float = 1.0  # published: alone

    def check(self) -> None:
        positive("auxiliary.sdpo.weight", self.weight, zero=True)
