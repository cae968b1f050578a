"""What SERL and RLSD share: a teacher that knows more scores the policy's own replies.

Once an iteration, under the frozen behaviour weights, contexts become prompts and the teacher
scores the sampled tokens of the turns that have one. Turns without a context, without a token to
weigh, or left out of the base loss cost no forward pass; once alpha has decayed to 0 nothing does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from trainer.auxiliary.serl import ReweightStats, lam_schedule
from trainer.learning.update import score_segments
from trainer.methods.privileged import Conversations, TeacherPrompt, rescored, with_sections
from trainer.methods.protocol import Method, PassLimits, Rollouts, Setup
from trainer.methods.reweighting.feedback import Sections
from trainer.methods.teacher import Teacher, TeacherKind
from trainer.rollouts.data import Turn

__all__ = ["Reweighting", "ScoredTurn"]


@dataclass(frozen=True, slots=True)
class ScoredTurn:
    """A turn that the teacher has an opinion on; R sampled tokens.

    Attributes:
        turn: as recorded.
        prompt: the teacher's.
        tokens: which of the reply's tokens are weighed, (R,).
        logprobs: the teacher's, float32 (R,).
    """

    turn: Turn
    prompt: TeacherPrompt
    tokens: tuple[bool, ...]
    logprobs: Tensor


@dataclass(frozen=True, slots=True)
class _Counts:
    """Of an iteration's trained turns."""

    turns: int
    covered: int
    told: int
    truncated: int
    without_tokens: int
    tokens: int
    weighed: int

    def metrics(self) -> dict[str, float | None]:
        return {
            "row_coverage": _share(self.covered, self.turns),
            "truncated_fraction": _share(self.truncated, self.told),
            "parse_failure": _share(self.without_tokens, self.turns),
            "action_token_fraction": _share(self.weighed, self.tokens),
        }


class Reweighting(Method, ABC):
    """A method that weighs tokens by what `self.teacher` thinks of them.

    Subclasses say what the teacher is told and which tokens count.
    """

    kind: TeacherKind = "synced"
    figures: ClassVar[tuple[str, ...]] = (
        "row_coverage",
        "truncated_fraction",
        "delta_abs_mean",
        "clipped_fraction",
        "u_mean",
    )
    """What `metrics` gives besides alpha."""

    def __init__(self, setup: Setup, section: Any) -> None:
        super().__init__(setup, section)
        self.teacher = Teacher(setup.model, self.kind, sync_every=section.sync_every)
        self.scored: dict[int, ScoredTurn] = {}
        """By the turn's index in the iteration."""
        self.alpha = 0.0
        self.stats: ReweightStats | None = None
        self._counts: _Counts | None = None

    @abstractmethod
    def contexts(self, rollouts: Rollouts) -> Sequence[Sections]:
        """What the teacher is told about each turn; empty: nothing, and the turn stays as it is."""

    @property
    def of_episode(self) -> bool:
        """Whether what is told is one text for a whole episode: in chat it stands at its
        beginning, not before the reply that is scored."""
        return False

    @abstractmethod
    def weighed(self, turn: Turn) -> tuple[bool, ...]:
        """Which tokens of the reply count, (R,)."""

    def decay(self, iteration: int) -> float:
        """alpha_k / alpha_0, of iteration number k counted from 0."""
        return lam_schedule(iteration, lambda0=1.0, decay_steps=self.section.decay)

    def active(self, iteration: int) -> bool:
        """Whether the teacher is asked at all. With weight 0 it is: that measures."""
        return self.section.alpha > 0.0 and self.decay(iteration) > 0.0

    def prepare(self, rollouts: Rollouts, model: nn.Module) -> None:
        self.scored, self.stats, self._counts = {}, None, None
        self.alpha = self.weight * self.section.alpha * self.decay(rollouts.iteration)
        if self.active(rollouts.iteration):
            self._score(rollouts, self.contexts(rollouts), self.teacher.of(model))

    def measure(self, stats: ReweightStats) -> None:
        """Adds what was weighed to the iteration's figures."""
        self.stats = stats if self.stats is None else self.stats + stats

    def finished_step(self, model: nn.Module) -> None:
        self.teacher.finished_step(model)

    def finished_iteration(self, iteration: int, model: nn.Module) -> None:
        self.teacher.finished_iteration(iteration, model)

    def state(self) -> Mapping[str, Tensor]:
        return self.teacher.state()

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        self.teacher.load_state(tensors)

    def metrics(self) -> Mapping[str, Any]:
        """Coverage is over trained turns; |Delta|, u and the share clipped over weighed tokens."""
        counts = _Counts(0, 0, 0, 0, 0, 0, 0) if self._counts is None else self._counts
        found = {} if self.stats is None or not self.stats.reweighted else self.stats.metrics()
        known = {**dict.fromkeys(self.figures), **found, **counts.metrics(), "alpha": self.alpha}
        return {f"{self.name}/{name}": known[name] for name in ("alpha", *self.figures)}

    @property
    def limits(self) -> PassLimits:
        """Of passes in `prepare`."""
        return PassLimits.of(self.setup.config, self.setup.student)

    def _score(self, rollouts: Rollouts, contexts: Sequence[Sections], teacher: nn.Module) -> None:
        student = self.setup.student
        limit = self.section.max_prompt_tokens or student.max_prompt_tokens
        trained = [i for i, segment in enumerate(rollouts.segments) if segment.trained]
        tokens = {i: self.weighed(rollouts.turns[i]) for i in trained}
        talks = Conversations(student, rollouts.turns)
        prompts = {
            i: with_sections(
                student,
                rollouts.turns[i],
                contexts[i],
                max_tokens=limit,
                said=talks.before(i),
                first=self.of_episode,
            )
            for i in trained
        }
        rows = [i for i in trained if prompts[i].on and any(tokens[i])]
        segments = [rescored(rollouts.turns[i], prompts[i], i) for i in rows]
        values = score_segments(teacher, segments, self.limits)
        self.scored = {
            i: ScoredTurn(rollouts.turns[i], prompts[i], tokens[i], value)
            for i, value in zip(rows, values, strict=True)
        }
        self._counts = _Counts(
            turns=len(trained),
            covered=sum(prompts[i].on for i in trained),
            told=sum(bool(contexts[i]) for i in trained),
            truncated=sum(prompts[i].truncated for i in trained),
            without_tokens=sum(not any(tokens[i]) for i in trained),
            tokens=sum(len(tokens[i]) for i in trained),
            weighed=sum(sum(tokens[i]) for i in trained),
        )

    def rows(self, turns: Sequence[int]) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Teacher's log-probs and tokens of some turns, and which have any: (R,), (R,), (B,)."""
        nothing = torch.empty(0)
        chosen = [self.scored.get(i) for i in turns]
        return (
            [nothing if row is None else row.logprobs for row in chosen],
            [nothing if row is None else torch.tensor(row.tokens) for row in chosen],
            torch.tensor([row is not None for row in chosen], dtype=torch.bool),
        )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
