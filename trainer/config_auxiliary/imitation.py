"""Imitation of an oracle or of success: the controls and comparators."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.config_sections import positive


@dataclass(frozen=True, slots=True)
class DaggerConfig:
    """The oracle's command at every state of failed rollouts."""

    weight: float = 0.1  # ours: SERO's, whose control it is

    def check(self) -> None:
        positive("auxiliary.dagger.weight", self.weight, zero=True)


@dataclass(frozen=True, slots=True)
class CorrectionsConfig:
    """On-policy expert corrections."""

    weight: float = 0.1  # ours

    def check(self) -> None:
        positive("auxiliary.corrections.weight", self.weight, zero=True)


@dataclass(frozen=True, slots=True)
class SftConfig:
    """Fine-tuning on successful oracle episodes."""

    weight: float = 0.1  # ours

    def check(self) -> None:
        positive("auxiliary.sft.weight", self.weight, zero=True)


@dataclass(frozen=True, slots=True)
class ExpertIterationConfig:
    """Fine-tuning on the policy's own successes."""

    weight: float = 0.1  # ours

    def check(self) -> None:
        positive("auxiliary.expert_iteration.weight", self.weight, zero=True)


@dataclass(frozen=True, slots=True)
class StepDpoConfig:
    """The oracle's action preferred to the policy's, at a root."""

    weight: float = 0.1  # ours

    def check(self) -> None:
        positive("auxiliary.step_dpo.weight", self.weight, zero=True)


@dataclass(frozen=True, slots=True)
class ChordConfig:
    """Supervised and reinforcement learning in a changing mix."""

    weight: float = 1.0  # of the whole mix

    def check(self) -> None:
        positive("auxiliary.chord.weight", self.weight, zero=True)


@dataclass(frozen=True, slots=True)
class LuffyConfig:
    """Oracle episodes that join the group."""

    weight: float = 1.0  # of the joined rows

    def check(self) -> None:
        positive("auxiliary.luffy.weight", self.weight, zero=True)
