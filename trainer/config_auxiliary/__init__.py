"""The auxiliary objectives of a run: one section each, and a section that is there is switched on.

auxiliary:
  sero: {weight: 0.1}
  format_only: {weight: 0.02}
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from trainer.config_auxiliary.format_only import FormatOnlyConfig
from trainer.config_auxiliary.sero import SeroConfig

__all__ = ["AuxiliaryConfig", "FormatOnlyConfig", "SeroConfig"]


@dataclass(frozen=True, slots=True)
class AuxiliaryConfig:
    """Which auxiliary objectives are added to the base, each with its settings."""

    sero: SeroConfig | None = None
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
