"""Step-DPO in a run: where the oracle disagrees, its reply is preferred to the policy's own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trainer.auxiliary.step_dpo import ScoredReplies, step_dpo_loss
from trainer.branches.branching import select_roots
from trainer.config import SeroConfig
from trainer.learning.update import pad_like, precision, score_segments
from trainer.methods.imitation.base import OracleMethod, turn_numbers
from trainer.methods.imitation.oracle_rows import OracleDesk
from trainer.methods.protocol import PassLimits, Rollouts, Setup, Step
from trainer.methods.teacher import Teacher
from trainer.metrics import mean_or_none
from trainer.models.policy import collate, micro_batches, token_logprobs
from trainer.rollouts.data import Segment, Turn, make_segment
from trainer.rollouts.tokens import ReplyTarget

__all__ = ["Pair", "StepDpo"]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two replies to one prompt, with the reference's log-probs of their compared tokens."""

    chosen: Segment
    rejected: Segment
    chosen_ref: Tensor
    rejected_ref: Tensor


class StepDpo(OracleMethod):
    """See `trainer.auxiliary.step_dpo`. A pair belongs to the optimiser step of its turn."""

    name = "step_dpo"

    def __init__(self, setup: Setup, section: Any) -> None:
        super().__init__(setup, section)
        kept = section.reference == "initial"
        self.teacher = Teacher(setup.model, "initial" if kept else "current")

    def forget(self) -> None:
        self.pairs: dict[int, Pair] = {}
        self._agrees: list[bool] = []
        self._shifts: list[tuple[float, float]] = []

    def ask(self, desk: OracleDesk, rollouts: Rollouts, model: nn.Module) -> None:
        replies: dict[int, tuple[Segment, Segment]] = {}
        first = turn_numbers(rollouts.trajectories)
        for index, t in self.states(rollouts):
            trajectory, number = rollouts.trajectories[index], first[index] + t
            turn = trajectory.turns[t]
            # What is left out of the base loss is not trained as a negative either.
            if not rollouts.segments[number].trained:
                continue
            command = desk.label(trajectory, t)
            if command is None:
                continue
            self._agrees.append(command == turn.command)
            if command == turn.command:
                continue
            target = desk.target(command)
            if target is not None:
                pair = self.replies(turn, target)
                if all(reply.trained for reply in pair):
                    replies[number] = pair
        limits = PassLimits.of(self.setup.config, self.setup.student)
        chosen, rejected = ([pair[side] for pair in replies.values()] for side in (0, 1))
        refs = score_segments(self.teacher.of(model), [*chosen, *rejected], limits)
        for place, (number, pair) in enumerate(replies.items()):
            ref = refs[place], refs[len(replies) + place]
            # A reply that the reference can never give has no margin.
            if all(bool(torch.isfinite(side).all()) for side in ref):
                self.pairs[number] = Pair(*pair, *ref)

    def states(self, rollouts: Rollouts) -> list[tuple[int, int]]:
        """(trajectory, turn) of the states that the oracle is asked at."""
        trajectories = rollouts.trajectories
        if self.section.states == "root":
            seed = self.setup.config.run.seed
            choices = select_roots(trajectories, SeroConfig(), seed, rollouts.iteration)
            return [(choice.index, choice.t) for choice in choices]
        return [
            (index, t)
            for index, trajectory in enumerate(trajectories)
            if not trajectory.success
            for t in range(len(trajectory.turns))
        ]

    def replies(self, turn: Turn, target: ReplyTarget) -> tuple[Segment, Segment]:
        """(chosen, rejected), with the compared tokens as trained ones.

        Whole replies share the tokens before their commands where both have the same form, and
        what they share takes no part in the margin. Of a thought that only one of them has, every
        token counts; `tokens: command` compares commands alone.
        """
        masks: tuple[Any, Any] = (None, None)
        if self.section.tokens == "command":
            masks = target.z_mask, self.setup.student.command_mask(turn.response_ids)
        ids = target.ids, turn.response_ids
        chosen, rejected = (
            make_segment(turn.prompt_ids, reply, mask=mask, temperature=turn.temperature)
            for reply, mask in zip(ids, masks, strict=True)
        )
        return chosen, rejected

    def step_pairs(self, step: Step) -> list[Pair]:
        return [self.pairs[i] for i in step.turns if i in self.pairs]

    def has_pass(self, step: Step) -> bool:
        return bool(self.step_pairs(step))

    def backward(self, model: nn.Module, step: Step, limits: PassLimits) -> float:
        pairs = self.step_pairs(step)
        device = next(model.parameters()).device
        lengths = [max(len(pair.chosen.ids), len(pair.rejected.ids)) for pair in pairs]
        total = 0.0
        # Both replies of a pair meet in one loss, so they go through the model together.
        for micro in micro_batches(lengths, max(limits.micro_batch_tokens // 2, 1)):
            some = [pairs[i] for i in micro]
            segments = [*(pair.chosen for pair in some), *(pair.rejected for pair in some)]
            batch = collate(segments, pad_id=limits.pad_id, device=device)
            with precision(device, limits.bf16):
                logp = token_logprobs(model, batch).logprobs
            refs = [*(pair.chosen_ref for pair in some), *(pair.rejected_ref for pair in some)]
            ref, mask, n = pad_like(refs, logp), batch.mask_B_T, len(some)
            chosen = ScoredReplies(logp[:n], ref[:n], mask[:n])
            rejected = ScoredReplies(logp[n:], ref[n:], mask[n:])
            loss = step_dpo_loss(chosen, rejected, beta=self.section.beta, n_pairs=len(pairs))
            moved = (logp.detach() - ref).masked_fill(~mask, 0.0).double().sum(dim=-1)
            self._shifts += zip(moved[:n].tolist(), moved[n:].tolist(), strict=True)
            total += float(loss.detach())
            (self.weight * loss).backward()  # type: ignore[no-untyped-call]
        return total

    def figures(self) -> Mapping[str, Any]:
        """agree_share: labelled states where the policy did as the oracle says, which make no pair.

        chosen_shift, rejected_shift: mean log pi - log pi_ref of the replies at the optimiser
        steps. Both may fall together; margin is beta times their difference, accuracy the share
        of pairs in which it is positive.
        """
        shifts = [pair for pair in self._shifts if all(map(math.isfinite, pair))]
        margins = [self.section.beta * (better - worse) for better, worse in shifts]
        return {
            "step_dpo/pairs": len(self.pairs),
            "step_dpo/agree_share": mean_or_none(map(float, self._agrees)),
            "step_dpo/chosen_shift": mean_or_none(better for better, _ in shifts),
            "step_dpo/rejected_shift": mean_or_none(worse for _, worse in shifts),
            "step_dpo/margin": mean_or_none(margins),
            "step_dpo/accuracy": mean_or_none(float(margin > 0.0) for margin in margins),
        }

    def state(self) -> Mapping[str, Tensor]:
        return self.teacher.state()

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        self.teacher.load_state(tensors)
