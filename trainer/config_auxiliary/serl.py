"""Advantages reweighted by a teacher that knows more: SERL and RLSD."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.config_sections import positive


@dataclass(frozen=True, slots=True)
class SerlConfig:
    """Selective environment-reweighted learning."""

    weight: float = 1.0  # of the reweighting: 0 leaves the advantages as they are

    def check(self) -> None:
        positive("auxiliary.serl.weight", self.weight, zero=True)


@dataclass(frozen=True, slots=True)
class RlsdConfig:
    """SERL on all tokens, with a reference answer as context."""

    weight: float = 1.0  # of the reweighting

    def check(self) -> None:
        positive("auxiliary.rlsd.weight", self.weight, zero=True)
