"""GKD in a run: a divergence to a teacher, on the policy's own samples in a fraction of the steps.

In the other steps the sequences are data: won episodes of the oracle, of the teacher, or of the
rollouts themselves. The teacher reads the student's own prompts. Which steps are which is a
function of the step's number, see `trainer.auxiliary.distill.gkd_on_student`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from trainer import rng
from trainer.auxiliary.distill import gkd_loss, gkd_on_student
from trainer.generation.hf import HFSampler
from trainer.learning.batch import partition
from trainer.methods.distillation.base import Distiller
from trainer.methods.distillation.distributions import Distributions, Pair
from trainer.methods.distillation.outside_teacher import teacher_of
from trainer.methods.imitation.oracle_rows import OracleDesk, first_of_groups
from trainer.methods.protocol import Rollouts, Setup, Step
from trainer.objectives import Denominators
from trainer.rollouts.data import Segment, segments_from_turns
from trainer.rollouts.rollout import Episode, PlaySettings, TextEnvironment, play

__all__ = ["Gkd"]

SHUFFLE = "gkd-shuffle"
TEACHER = "gkd-teacher"


class Gkd(Distiller):
    """See the top of this module."""

    name = "gkd"

    def __init__(self, setup: Setup, section: Any) -> None:
        teacher = teacher_of(setup, section.teacher, "auxiliary.gkd.teacher")
        super().__init__(setup, section, teacher)
        needs = section.source == "oracle" and section.fraction < 1 and setup.make_env is not None
        self.desk = OracleDesk(setup, section) if needs else None
        self.data: list[Pair] = []
        self._envs: list[TextEnvironment] = []
        self._student_share: float | None = None

    def prepare(self, rollouts: Rollouts, model: nn.Module) -> None:
        self.begin({i: Pair(s, s) for i, s in enumerate(rollouts.segments)})
        own = [self.on_student(step) for step in self._steps(rollouts.iteration)]
        self._student_share = sum(own) / len(own)
        self.data = []
        if not all(own):
            segments = self._sequences(rollouts, model)
            self.data = [Pair(segment, segment) for segment in segments if segment.trained]
        if self.weight == 0:
            self.score(model)

    def on_student(self, step: Step) -> bool:
        """Whether a step is on the policy's own samples."""
        epochs = self.setup.config.optim.epochs
        number = (step.iteration * epochs + step.epoch) * step.count + step.index
        return gkd_on_student(number, self.section.fraction)

    def step_pairs(self, step: Step) -> list[Pair]:
        if self.on_student(step):
            return super().step_pairs(step)
        seed = self.setup.config.run.seed
        stream = rng.stream(seed, step.iteration, step.epoch, purpose=SHUFFLE)
        part = partition(len(self.data), step.count, stream)[step.index]
        return [self.data[i] for i in part]

    def loss(self, found: Distributions, counts: Denominators) -> Tensor:
        return gkd_loss(
            found.student_1_N_V,
            found.teacher_1_N_V,
            found.mask_1_N,
            beta=self.section.beta,
            top_k=self.section.top_k,
            denominators=counts,
        )

    def metrics(self) -> Mapping[str, Any]:
        """Share of steps on the policy's own samples, and sequences of the others."""
        return {
            "gkd/student_share": self._student_share,
            "gkd/data_rows": len(self.data),
            "gkd/gap_mean": self.gap_mean(),
        }

    def _steps(self, iteration: int) -> list[Step]:
        o = self.setup.config.optim
        return [
            Step(iteration, epoch, index, o.steps, ())
            for epoch in range(o.epochs)
            for index in range(o.steps)
        ]

    def _sequences(self, rollouts: Rollouts, model: nn.Module) -> Sequence[Segment]:
        """Data for the steps that are not on the policy's samples."""
        source = self.section.source
        if source == "success":
            won = {(t.uid, t.tid) for t in rollouts.turns if t.done and t.success}
            pairs = zip(rollouts.turns, rollouts.segments, strict=True)
            return [segment for turn, segment in pairs if (turn.uid, turn.tid) in won]
        if source == "teacher":
            return self._played(rollouts, self.teacher.of(model))
        if self.desk is None:
            return ()
        self.desk.start()
        episodes = [self.desk.episode(t) for _, t in first_of_groups(rollouts.trajectories)]
        return [row.segment() for e in episodes if e.solved for row in e.rows]

    def _played(self, rollouts: Rollouts, teacher: nn.Module) -> list[Segment]:
        """Turns of the episodes that the teacher won, one tried for each task."""
        setup, c = self.setup, self.setup.config
        tasks = [t.episode.task_id for _, t in first_of_groups(rollouts.trajectories)]
        if setup.make_env is None or not tasks:
            return []
        while len(self._envs) < len(tasks):
            self._envs.append(setup.make_env())
        sampler = HFSampler(teacher, setup.student.stop_ids, pad_id=setup.student.pad_id)
        episodes = [
            Episode(task, f"gkd.{i}", f"gkd.{i}", c.run.seed, rollouts.iteration, i, 0, TEACHER)
            for i, task in enumerate(tasks)
        ]
        settings = PlaySettings(c.rollout.max_new_tokens, c.rollout.temperature)
        played = play(episodes, self._envs, setup.student, sampler, settings)
        return segments_from_turns([t for p in played if p.success for t in p.turns])
