"""Skills that an analyser writes after the rollouts: what SEED, Skill-SD and OPID share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import nn

from trainer import rng
from trainer.auxiliary.skills import SkillMode, SkillReply, skill_report
from trainer.config.auxiliary.skills import POLICY, AnalyserConfig
from trainer.methods.privileged import TeacherPrompt
from trainer.methods.protocol import Rollouts, Setup
from trainer.methods.skills.contexts import (
    Analyses,
    Attempt,
    Level,
    analyse_all,
    attempts_of,
    shuffled,
    skill_prompts,
)
from trainer.models.text_model import PolicyTextModel, TextModel, load_text_model

__all__ = ["Hindsight"]


class Hindsight:
    """Analyses an iteration's trajectories, under the weights that made them.

    Args:
        name: of the method; it keys the random streams.
    """

    def __init__(self, setup: Setup, name: str, analyser: AnalyserConfig, mode: SkillMode) -> None:
        self.setup = setup
        self.name = name
        self.analyser = analyser
        self.mode = mode
        self._external: TextModel | None = None
        if analyser.model != POLICY:
            self._external = load_text_model(analyser.model, f"auxiliary.{name}.analyser.model")
        self.forget()

    def forget(self) -> None:
        """No trajectory has been analysed."""
        self._rollouts = Rollouts(0, (), ())
        self.attempts: Sequence[Attempt] = ()
        self.analyses = Analyses((), (), ())

    def read(self, rollouts: Rollouts, model: nn.Module, *, failed_only: bool = False) -> None:
        """Asks for the skill of every trajectory, or of every failed one."""
        c, seed = self.analyser, self.setup.config.run.seed
        found = attempts_of(rollouts.turns)
        self._rollouts = rollouts
        self.attempts = [a for a in found if not (failed_only and a.episode.success)]

        def stream(attempt: Attempt, call: int) -> np.random.Generator:
            key = f"{attempt.uid}/{attempt.tid}"
            return rng.stream(
                seed, rollouts.iteration, key, turn=call, purpose=f"{self.name}-analyse"
            )

        self.analyses = analyse_all(
            self._model(model),
            self.attempts,
            stream,
            mode=self.mode,
            calls=c.attempts,
            text_limit=c.text_limit,
        )

    def prompts(
        self, level: Level = "priority", *, of_others: bool = False
    ) -> Sequence[TeacherPrompt]:
        """The teacher's prompt of every turn; `of_others`: with another trajectory's skill."""
        replies: Sequence[SkillReply | None] = self.analyses.replies
        if of_others:
            seed = self.setup.config.run.seed
            stream = rng.stream(seed, self._rollouts.iteration, purpose=f"{self.name}-shuffle")
            replies = shuffled(self.analyses, stream)
        return skill_prompts(
            self.setup.student, self._rollouts.turns, self.attempts, replies, level
        )

    def figures(self) -> Mapping[str, float | None]:
        """Valid skills by outcome, their length, calls a trajectory, and who was too long."""
        success = [attempt.episode.success for attempt in self.attempts]
        report = skill_report(self.analyses.replies, success)
        count = len(success)
        measured = {
            "skill_valid": count > 0,
            "skill_valid_success": any(success),
            "skill_valid_failure": not all(success),
            "skill_words": any(self.analyses.valid),
        }
        return {
            **{key: report[key] if there else None for key, there in measured.items()},
            "skill_calls": sum(self.analyses.calls) / count if count else None,
            "skill_too_long": (
                sum(text is None for text in self.analyses.texts) / count if count else None
            ),
        }

    def _model(self, model: nn.Module) -> TextModel:
        if self._external is not None:
            return self._external
        student, sampler = self.setup.student, self.setup.sampler
        if sampler is None:
            # Turns from a file come without one; the weights are the same.
            from trainer.generation.hf import HFSampler

            sampler = HFSampler(model, student.stop_ids, pad_id=student.pad_id)
        return PolicyTextModel(
            sampler,
            student,
            max_new_tokens=self.analyser.max_new_tokens,
            max_prompt_tokens=self.analyser.max_prompt_tokens,
            temperature=self.analyser.temperature,
        )
