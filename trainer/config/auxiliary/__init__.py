"""The auxiliary objectives of a run: one section each, and a section that is there is switched on.

auxiliary:
  sero: {weight: 0.1}
  format_only: {weight: 0.02}
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from trainer.config.auxiliary.distillation import (
    GkdConfig,
    OpdConfig,
    OpsdConfig,
    OpsdLegacyConfig,
    SdpoConfig,
)
from trainer.config.auxiliary.format_only import FormatOnlyConfig
from trainer.config.auxiliary.imitation import (
    ChordConfig,
    CorrectionsConfig,
    DaggerConfig,
    ExpertIterationConfig,
    LuffyConfig,
    SftConfig,
    StepDpoConfig,
)
from trainer.config.auxiliary.serl import (
    RlsdConfig,
    SerlConfig,
)
from trainer.config.auxiliary.sero import SeroConfig
from trainer.config.auxiliary.skills import (
    OpidConfig,
    SdarConfig,
    SeedConfig,
    SkillSdConfig,
)

__all__ = [
    "AuxiliaryConfig",
    "ChordConfig",
    "CorrectionsConfig",
    "DaggerConfig",
    "ExpertIterationConfig",
    "FormatOnlyConfig",
    "GkdConfig",
    "LuffyConfig",
    "OpdConfig",
    "OpidConfig",
    "OpsdConfig",
    "OpsdLegacyConfig",
    "RlsdConfig",
    "SdarConfig",
    "SdpoConfig",
    "SeedConfig",
    "SerlConfig",
    "SeroConfig",
    "SftConfig",
    "SkillSdConfig",
    "StepDpoConfig",
]


@dataclass(frozen=True, slots=True)
class AuxiliaryConfig:
    """Which auxiliary objectives are added to the base, each with its settings."""

    sero: SeroConfig | None = None
    serl: SerlConfig | None = None
    rlsd: RlsdConfig | None = None
    seed: SeedConfig | None = None
    sdar: SdarConfig | None = None
    skill_sd: SkillSdConfig | None = None
    opid: OpidConfig | None = None
    opd: OpdConfig | None = None
    gkd: GkdConfig | None = None
    opsd: OpsdConfig | None = None
    opsd_legacy: OpsdLegacyConfig | None = None
    sdpo: SdpoConfig | None = None
    dagger: DaggerConfig | None = None
    corrections: CorrectionsConfig | None = None
    sft: SftConfig | None = None
    expert_iteration: ExpertIterationConfig | None = None
    step_dpo: StepDpoConfig | None = None
    chord: ChordConfig | None = None
    luffy: LuffyConfig | None = None
    format_only: FormatOnlyConfig | None = None
    measure_gradients: bool = True  # separate norms of both gradients; a second gradient buffer

    def active(self) -> Iterator[tuple[str, Any]]:
        """(name, section) of those that are switched on, in the order of the fields."""
        for field in fields(self):
            section = getattr(self, field.name)
            if section is not None and not isinstance(section, bool):
                yield field.name, section

    def check(self) -> None:
        for _, section in self.active():
            section.check()
