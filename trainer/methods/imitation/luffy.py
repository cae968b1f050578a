"""LUFFY in a run: the oracle's episodes join the groups and are trained by a shaped weight.

A joined episode is one more trajectory of its group. So, by design of the method, its outcome
enters the group's mean and standard deviation, its states enter the anchors and graphs of the base
objectives that have them, and its rows are shuffled into the optimiser steps among the others.

In a step the joined rows count with all tokens of their replies in the denominators, for the base
as for the term. They differ in the loss only: the clipped surrogate gets advantage 0 at them, and
the term adds -f(p) * A at the tokens that every oracle target here trains: command, closing tag
and end token.

The log-probs that a joined turn carries are those of the policy before the iteration's first step,
not of the oracle: the loss does not use them, and the figures of ratios and of the KL stay what
they say they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from agent_envs.hooks import SUCCESS
from trainer.auxiliary.luffy import luffy_loss
from trainer.learning.update import score_segments
from trainer.methods.imitation.base import OracleMethod
from trainer.methods.imitation.oracle_rows import OracleDesk, OracleEpisode, first_of_groups
from trainer.methods.protocol import PassLimits, Rollouts, Step, TokenTerm
from trainer.metrics import mean_or_none
from trainer.models.policy import SegmentBatch, pad_rows
from trainer.objectives import Aggregation, Denominators
from trainer.rollouts.data import Turn, make_segment
from trainer.rollouts.rollout import Student, Trajectory

__all__ = ["Luffy", "joined_turns"]

Mask = tuple[bool, ...]


class Luffy(OracleMethod):
    """See `trainer.auxiliary.luffy`. An episode that does not solve its task does not join."""

    name = "luffy"

    def forget(self) -> None:
        self._turns: list[Turn] = []
        self._masks: list[Mask] = []
        self._trained: list[int] = []
        self._solved: list[bool] = []
        self._probabilities: list[float] = []

    def ask(self, desk: OracleDesk, rollouts: Rollouts, model: nn.Module) -> None:
        self._trained = [segment.trained for segment in rollouts.segments]
        for _, trajectory in first_of_groups(rollouts.trajectories):
            episode = desk.episode(trajectory)
            self._solved.append(episode.solved)
            # Nothing joins at weight 0: it would move the statistics of the group.
            if episode.solved and self.weight > 0.0:
                self._turns += joined_turns(episode, trajectory, desk.student)
                self._masks += [row.target.loss_mask for row in episode.rows]
        segments = [
            make_segment(turn.prompt_ids, turn.response_ids, temperature=turn.temperature)
            for turn in self._turns
        ]
        scored = score_segments(
            model, segments, PassLimits.of(self.setup.config, self.setup.student)
        )
        self._turns = [
            replace(turn, logprobs=tuple(row.tolist()))
            for turn, row in zip(self._turns, scored, strict=True)
        ]
        self._trained += [len(turn.response_ids) for turn in self._turns]
        self._probabilities = [
            float(row[torch.tensor(mask)].exp().mean())
            for row, mask in zip(scored, self._masks, strict=True)
        ]

    def joined(self) -> Sequence[Turn]:
        return self._turns

    def token_term(self, step: Step) -> TokenTerm | None:
        first = len(self._trained) - len(self._turns)
        masks = {i: self._masks[i - first] for i in step.turns if first <= i < len(self._trained)}
        if not masks:
            return None
        counts = [self._trained[i] for i in step.turns if i < len(self._trained)]
        config = self.setup.config
        return _JoinedRows(
            masks,
            self.section.gamma,
            self.weight,
            config.objective.aggregation,
            Denominators(sum(counts), sum(n > 0 for n in counts), config.rollout.max_new_tokens),
        )

    def figures(self) -> Mapping[str, Any]:
        """solved_share: oracle episodes that could join; p: mean probability of a trained token."""
        return {
            "luffy/rows": len(self._turns),
            "luffy/solved_share": mean_or_none(map(float, self._solved)),
            "luffy/p": mean_or_none(self._probabilities),
        }


def joined_turns(episode: OracleEpisode, trajectory: Trajectory, student: Student) -> list[Turn]:
    """A solved oracle episode as turns of one more trajectory in the group of `trajectory`.

    Both begin at the same state. Log-probs are 0.
    """
    like = trajectory.turns[0]
    shown = student.template.history_length
    turns: list[Turn] = []
    past: list[tuple[str, str, bool]] = []
    for t, row in enumerate(episode.rows):
        step, last = row.step, t + 1 == len(episode.rows)
        turns.append(
            replace(
                like,
                tid=f"{like.uid}.oracle",
                t=t,
                observation=step.observation,
                next_observation=step.next_observation,
                next_admissible=episode.branch.next_admissible if last else (),
                anchor=step.observation,
                admissible=step.admissible,
                action_templates=step.action_templates,
                command=step.action,
                reply=student.reply_text(row.target.ids),
                format_valid=True,
                command_valid=step.command_valid,
                parse_reason=None,
                reward=step.reward,
                task_score=episode.branch.score if last else 0.0,
                success=last,
                done=last,
                stop_reason=SUCCESS if last else None,
                prompt_ids=row.prompt_ids,
                response_ids=row.target.ids,
                logprobs=(0.0,) * len(row.target.ids),
                steps_left=None if like.steps_left is None else like.steps_left - t,
                snapshot=None,
                history=tuple(past[len(past) - min(shown, len(past)) :]),
                finish_reason="stop",
            )
        )
        past.append((step.observation, step.action, step.command_valid))
    return turns


class _JoinedRows(TokenTerm):
    """weight * luffy_loss at the joined rows, whose clipped surrogate it switches off."""

    def __init__(
        self,
        masks: Mapping[int, Mask],
        gamma: float,
        weight: float,
        aggregation: Aggregation,
        denominators: Denominators,
    ) -> None:
        self._masks = masks
        self._gamma = gamma
        self._weight = weight
        self._how: Aggregation = aggregation
        self._counts = denominators
        self._adv_B_T: Tensor | None = None

    def advantages(
        self, adv_B_T: Tensor, new_B_T: Tensor, batch: SegmentBatch, turns_B: Sequence[int]
    ) -> Tensor:
        self._adv_B_T = adv_B_T
        joined_B = torch.tensor([turn in self._masks for turn in turns_B], device=adv_B_T.device)
        return adv_B_T.masked_fill(joined_B[:, None], 0.0)

    def loss(self, new_B_T: Tensor, batch: SegmentBatch, turns_B: Sequence[int]) -> Tensor | None:
        masks = [self._masks.get(turn, ()) for turn in turns_B]
        if self._adv_B_T is None or not any(masks):
            return None
        # Of a joined turn every token of the reply is a trained one, so the mask fits as it is.
        target_B_T = pad_rows(masks, torch.bool, width=new_B_T.shape[1], device=new_B_T.device)
        joined_B = torch.tensor([bool(mask) for mask in masks], device=new_B_T.device)
        # The whole reply counts: a mean over a row's tokens is one over all of them.
        return self._weight * luffy_loss(
            new_B_T,
            self._adv_B_T.masked_fill(~target_B_T, 0.0),
            batch.mask_B_T & joined_B[:, None],
            gamma=self._gamma,
            aggregation=self._how,
            denominators=self._counts,
        )
