"""The format-only control."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.config.sections import positive


@dataclass(frozen=True, slots=True)
class FormatOnlyConfig:
    """Trains the format tokens of the policy's own well-formed replies, and never a command.

    With `objective.name: none` it shows what learning the format alone buys.
    """

    weight: float = 0.1  # ours: SERO's, whose control it is

    def check(self) -> None:
        positive("auxiliary.format_only.weight", self.weight, zero=True)
