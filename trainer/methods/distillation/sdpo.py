"""SDPO in a run: a slow copy of the policy that saw a solution, or the feedback, is the teacher.

Alone (`objective.name: none`) it is the published method; beside a base objective a hybrid. See
`trainer.auxiliary.sdpo` for the loss and for which turns get which context.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trainer.auxiliary.feedback_context import TITLES, Section, Trajectories, render_trajectory
from trainer.auxiliary.sdpo import SDPOContexts, sdpo_contexts, sdpo_loss
from trainer.learning.batch import group_ids, training_rewards
from trainer.methods.distillation.base import Distiller
from trainer.methods.distillation.distributions import Distributions
from trainer.methods.distillation.told import Told, told_pairs
from trainer.methods.protocol import Rollouts, Setup
from trainer.methods.reweighting.feedback import Sections, context_turns
from trainer.methods.teacher import Teacher
from trainer.objectives import Denominators

__all__ = ["Sdpo"]


class Sdpo(Distiller):
    """See the top of this module."""

    name = "sdpo"

    def __init__(self, setup: Setup, section: Any) -> None:
        super().__init__(setup, section, Teacher(setup.model, section.teacher, rate=section.rate))
        self.told = Told({}, 0, 0, 0)
        self._siblings = self._feedback = 0

    def prepare(self, rollouts: Rollouts, model: nn.Module) -> None:
        sections = self.sections(rollouts)
        limit = self.section.max_prompt_tokens
        self.told = told_pairs(self.setup, rollouts, sections, limit, _of_sibling)
        self.begin(self.told.pairs)
        shown = [sections[turn][0].title for turn in self.pairs]
        self._siblings = shown.count(TITLES["success"])
        self._feedback = shown.count(TITLES["feedback"])
        if self.weight == 0:
            self.score(model)

    def sections(self, rollouts: Rollouts) -> list[Sections]:
        """What the teacher of each turn sees: a won sibling, else the feedback, else nothing."""
        section = self.section
        turns = context_turns(self.setup.student, rollouts.turns)
        if not turns:
            return []
        chosen = self._choice(rollouts)
        steps = Trajectories(turns).steps
        keys = list(steps)  # trajectories are numbered in the order of their first turns
        texts: dict[int, str] = {}
        found: list[Sections] = []
        for turn, sibling, told in zip(
            turns, chosen.sibling.tolist(), chosen.feedback.tolist(), strict=True
        ):
            if sibling >= 0 and sibling not in texts:
                shown = steps[keys[sibling]]
                texts[sibling] = render_trajectory(shown, section.rendering, section.context_steps)
            if sibling >= 0:
                found.append((Section(TITLES["success"], texts[sibling]),))
            else:
                text = (turn.feedback or "").strip()
                found.append((Section(TITLES["feedback"], text),) if told else ())
        return found

    def loss(self, found: Distributions, counts: Denominators) -> Tensor:
        return sdpo_loss(
            found.student_1_N_V,
            found.teacher_1_N_V,
            found.token_1_N,
            found.old_1_N,
            found.mask_1_N,
            torch.ones(1, dtype=torch.bool, device=found.mask_1_N.device),
            alpha=self.section.alpha,
            top_k=self.section.top_k,
            is_clip=self.section.is_clip,
            denominators=counts,
        )

    def metrics(self) -> Mapping[str, Any]:
        """Share of turns with a context, and how much of them was a sibling or feedback."""
        count = self.told.turns
        return {
            **self.told.metrics("sdpo"),
            "sdpo/sibling_share": self._siblings / count if count else None,
            "sdpo/feedback_share": self._feedback / count if count else None,
            "sdpo/gap_mean": self.gap_mean(),
        }

    def _choice(self, rollouts: Rollouts) -> SDPOContexts:
        turns = rollouts.turns
        uid_M, tid_M = group_ids(turns)
        rewards_M = training_rewards(turns, 1.0, self.setup.config.rollout.reward)
        score_N = rewards_M.new_zeros(int(tid_M.max()) + 1).index_add(0, tid_M, rewards_M)
        has_M = [self.section.feedback and bool(turn.next_observation.strip()) for turn in turns]
        return sdpo_contexts(
            uid_M,
            tid_M,
            score_N[tid_M],
            torch.tensor(has_M, dtype=torch.bool),
            success_threshold=self.section.success_threshold,
        )


def _of_sibling(sections: Sections) -> bool:
    """Whether a whole won rollout is shown, the same at every turn, and not a turn's feedback."""
    return bool(sections) and sections[0].title == TITLES["success"]
