"""The objectives that imitate, over the rows of all ranks. Each rank asks about its own groups."""

from __future__ import annotations

from torch import nn

from trainer.learning.update import AuxiliaryRow
from trainer.methods.imitation.chord import Chord
from trainer.methods.imitation.corrections import Corrections
from trainer.methods.imitation.dagger import Dagger
from trainer.methods.imitation.expert_iteration import ExpertIteration
from trainer.methods.imitation.luffy import Luffy
from trainer.methods.imitation.sft import Sft
from trainer.methods.imitation.step_dpo import StepDpo
from trainer.methods.protocol import Rollouts, Step
from trainer.objectives import Denominators
from trainer.parallel.counts import aggregation_count
from trainer.parallel.shared import Shared, whole_step
from trainer.rollouts.data import Segment

__all__ = [
    "SharedChord",
    "SharedCorrections",
    "SharedDagger",
    "SharedExpertIteration",
    "SharedLuffy",
    "SharedSft",
    "SharedStepDpo",
]


class SharedDagger(Shared, Dagger):
    """The mean over the labelled states of all ranks."""

    def count(self, step: Step) -> float:
        return len(self.rows(step))


class SharedSft(Shared, Sft):
    """The mean over the oracle's rows of all ranks."""

    def listed(self) -> int:
        return len(self.segments)

    def step_rows(self, step: Step) -> list[AuxiliaryRow]:
        kept = self.segments
        self.segments = self.own_of(kept, step, "sft-shuffle")
        try:
            return super().step_rows(whole_step(step))
        finally:
            self.segments = kept

    def count(self, step: Step) -> float:
        return len(self.rows(step))


class SharedCorrections(Shared, Corrections):
    """N_root counts the roots of all ranks."""

    def listed(self) -> int:
        return len(self.episodes)

    def step_rows(self, step: Step) -> list[AuxiliaryRow]:
        kept = self.episodes
        self.episodes = self.own_of(kept, step, "corrections-shuffle")
        try:
            return super().step_rows(whole_step(step))
        finally:
            self.episodes = kept

    def count(self, step: Step) -> float:
        return len(self.own_of(self.episodes, step, "corrections-shuffle"))


class SharedExpertIteration(Shared, ExpertIteration):
    """The mean over the imitated replies of all ranks."""

    def count(self, step: Step) -> float:
        chosen = [i for i in step.turns if i < len(self._selected) and self._selected[i]]
        return sum(self._trained[i] > 0 for i in chosen)


class SharedStepDpo(Shared, StepDpo):
    """The mean over the pairs of all ranks."""

    def count(self, step: Step) -> float:
        return len(self.step_pairs(step))


class SharedChord(Shared, Chord):
    """Expert rows of all ranks are one data set; one of them, and every base loss gives way."""

    _anywhere = False

    def prepare(self, rollouts: Rollouts, model: nn.Module) -> None:
        super().prepare(rollouts, model)
        self._anywhere = sum(self._of_ranks) > 0

    def listed(self) -> int:
        return len(self.segments)

    def base_scale(self, iteration: int) -> float:
        return 1.0 - self.weight * self.mu(iteration) if self._anywhere else 1.0

    def part(self, step: Step) -> list[Segment]:
        return self.own_of(self.segments, step, "chord-shuffle")

    def count(self, step: Step) -> float:
        return sum(segment.trained for segment in self.part(step))


class SharedLuffy(Shared, Luffy):
    """Joined rows count in the denominators of all ranks."""

    def count(self, step: Step) -> float | None:
        counts = [self._trained[i] for i in step.turns if i < len(self._trained)]
        own = Denominators(sum(counts), sum(n > 0 for n in counts), None)
        return aggregation_count(own, self.setup.config.objective.aggregation)
