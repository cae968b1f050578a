"""Takes what a method's signal says away and leaves its size: the controls of the matrix.

- "advantages": every turn is trained with the advantage of another;
- "oracle": where the oracle's command becomes a target, it is the best one of another state;
- "context": a teacher is told what belongs to another turn;
- "outcome": as many replies are imitated, but not those of successful rollouts.

Two are no controls. "coached": what teachers hear of the environment's answer is advice, as from an
environment that says what would have been right. "silent": the base's advantages of the policy's
own turns are 0, so that what a method adds to them, or the episodes that it brings, are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from trainer import rng
from trainer.auxiliary.feedback_context import ContextTurn
from trainer.branches import targets as branch_targets
from trainer.learning.base_advantages import BaseAdvantages
from trainer.learning.learner import Learner
from trainer.methods.distillation import sdpo, told
from trainer.methods.imitation import expert_iteration
from trainer.methods.reweighting import base as reweighting
from trainer.methods.reweighting import feedback, rlsd, serl
from trainer.methods.skills import contexts as skill_contexts
from trainer.rollouts import tokens
from trainer.rollouts.data import Turn
from trainer.rollouts.rollout import Student

KINDS = ("advantages", "oracle", "context", "outcome", "coached", "silent")


Advice = Callable[[str, str], str]


@contextmanager
def changed(
    kinds: Sequence[str], seed: int, commands: Sequence[str], advice: Advice
) -> Iterator[None]:
    """Runs a block under some of `KINDS`.

    Args:
        commands: best ones, each as often as it is best.
        advice: on what to do, from the goal and what was shown.
    """
    stream = rng.stream(seed, purpose="shuffled")
    with pytest.MonkeyPatch.context() as patch:
        for kind in kinds:
            if kind == "advantages":
                _advantages(patch, stream)
            elif kind == "oracle":
                _targets(patch, stream, commands)
            elif kind == "context":
                _contexts(patch, stream)
            elif kind == "outcome":
                _outcomes(patch, stream)
            elif kind == "coached":
                _coached(patch, advice)
            elif kind == "silent":
                _silent(patch)
            else:
                raise ValueError(f"Unknown kind {kind!r}; known: {KINDS}.")
        yield


def _advantages(patch: pytest.MonkeyPatch, stream: np.random.Generator) -> None:
    original = Learner.advantages

    def advantages(self: Learner, *args: Any, **kwargs: Any) -> BaseAdvantages:
        found = original(self, *args, **kwargs)
        others = [found.tokens[int(i)] for i in stream.permutation(len(found.tokens))]
        # Replies differ in length; the last token's number serves for what is beyond it.
        rows = [
            other[torch.arange(len(row)).clamp(max=len(other) - 1)]
            for row, other in zip(found.tokens, others, strict=True)
        ]
        return replace(found, tokens=rows)

    patch.setattr(Learner, "advantages", advantages)


def _silent(patch: pytest.MonkeyPatch) -> None:
    original = Learner.advantages

    def advantages(self: Learner, turns: Sequence[Turn], *args: Any, **kwargs: Any) -> Any:
        found = original(self, turns, *args, **kwargs)
        rows = [
            row if turn.tid.endswith(".oracle") else torch.zeros_like(row)
            for turn, row in zip(turns, found.tokens, strict=True)
        ]
        return replace(found, tokens=rows)

    patch.setattr(Learner, "advantages", advantages)


def _targets(
    patch: pytest.MonkeyPatch, stream: np.random.Generator, commands: Sequence[str]
) -> None:
    original = tokens.encode_reply

    def encode_reply(template: Any, command: str, *args: Any, **kwargs: Any) -> Any:
        other = commands[int(stream.integers(len(commands)))]
        return original(template, other, *args, **kwargs)

    for module in (tokens, branch_targets):
        patch.setattr(module, "encode_reply", encode_reply)
    patch.setattr(Student, "sends", lambda *_: True)  # else another command is no target


def _coached(patch: pytest.MonkeyPatch, advice: Advice) -> None:
    original = feedback.context_turns

    def context_turns(student: Student, turns: Sequence[Turn]) -> list[ContextTurn]:
        found = original(student, turns)
        return [
            replace(told, feedback=advice(turn.goal, turn.observation))
            for told, turn in zip(found, turns, strict=True)
        ]

    for module in (feedback, told, sdpo, serl, rlsd):
        patch.setattr(module, "context_turns", context_turns)


def _contexts(patch: pytest.MonkeyPatch, stream: np.random.Generator) -> None:
    for module in (told, reweighting):
        patch.setattr(module, "with_sections", _of_another(module.with_sections, 2, stream))
    patch.setattr(skill_contexts, "_with_skill", _of_another(skill_contexts._with_skill, 4, stream))


def _of_another(
    original: Callable[..., Any], place: int, stream: np.random.Generator
) -> Callable[..., Any]:
    """`original` with one of all values that its argument `place` has had, this one included."""
    seen: list[Any] = []

    def changed(*args: Any, **kwargs: Any) -> Any:
        if not args[place]:
            return original(*args, **kwargs)
        seen.append(args[place])
        other = seen[int(stream.integers(len(seen)))]
        return original(*args[:place], other, *args[place + 1 :], **kwargs)

    return changed


def _outcomes(patch: pytest.MonkeyPatch, stream: np.random.Generator) -> None:
    original = expert_iteration.expert_iteration_rows

    def rows(*args: Any) -> torch.Tensor:
        found = original(*args)
        return found[torch.from_numpy(stream.permutation(len(found)))]

    patch.setattr(expert_iteration, "expert_iteration_rows", rows)
