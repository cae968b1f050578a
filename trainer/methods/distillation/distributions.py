"""Passes over the whole vocabulary: student and teacher at the same tokens, behind two prompts.

`trainer.models.policy.token_logprobs` never makes a tensor of the size of the vocabulary;
divergences need two. Segments are therefore cut by their length, as everywhere, and by the number
of logits as well. A loss is given the counts of the whole optimiser step, so that the parts add up.

Axis letters: N trained tokens of a micro-batch, V vocabulary, R trained tokens of one segment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trainer.learning.update import precision, step_counts
from trainer.methods.protocol import PassLimits
from trainer.models.policy import collate, evaluation_mode, micro_batches, token_distributions
from trainer.objectives import Denominators
from trainer.rollouts.data import Segment

__all__ = ["Distributions", "Pair", "distribution_backward", "distribution_values", "pair_counts"]

# Logits of one model in one piece: a few tensors of this size are alive at a time.
MAX_LOGITS = 1 << 25


@dataclass(frozen=True, slots=True)
class Pair:
    """The same reply for student and teacher; only what stands before it may differ."""

    student: Segment
    teacher: Segment

    def __post_init__(self) -> None:
        if _trained(self.student) != _trained(self.teacher):
            raise ValueError(
                f"Student and teacher must train the same tokens, found {self.student.trained} and "
                f"{self.teacher.trained} or other ids. Put one reply behind both prompts."
            )

    @property
    def length(self) -> int:
        """Tokens of the longer side."""
        return max(len(self.student.ids), len(self.teacher.ids))


class Distributions(NamedTuple):
    """A micro-batch's trained tokens in one row, as the functions of `trainer.auxiliary` want it.

    Attributes:
        student_1_N_V: log-probs at each row's temperature, with gradient.
        teacher_1_N_V: those of the teacher; a constant.
        token_1_N: the tokens themselves.
        old_1_N: their behaviour log-probs.
        mask_1_N: all true.
    """

    student_1_N_V: Tensor
    teacher_1_N_V: Tensor
    token_1_N: Tensor
    old_1_N: Tensor
    mask_1_N: Tensor

    def gap(self) -> float:
        """Sum over the tokens of log S - log T."""
        place = self.token_1_N[..., None]
        sides = self.student_1_N_V.detach(), self.teacher_1_N_V
        own, other = (x.gather(-1, place).double().sum() for x in sides)
        return float(own - other)


Loss = Callable[[Distributions, Denominators], Tensor]


def pair_counts(pairs: Sequence[Pair]) -> Denominators:
    """True counts of one optimiser step."""
    return step_counts([pair.student for pair in pairs], None)


def distribution_backward(
    model: nn.Module,
    teacher: nn.Module,
    pairs: Sequence[Pair],
    loss: Loss,
    weight: float,
    limits: PassLimits,
) -> float:
    """Accumulates the gradient of weight * loss over all pairs; returns the loss without weight.

    The teacher gets no gradient, also where it is the model itself.
    """
    counts = pair_counts(pairs)
    total = 0.0
    for _, found in _passes(model, teacher, pairs, limits):
        part = loss(found, counts)
        total += float(part.detach())
        (weight * part).backward()  # type: ignore[no-untyped-call]
    return total


def distribution_values(
    model: nn.Module,
    teacher: nn.Module,
    pairs: Sequence[Pair],
    value: Callable[[Distributions], Tensor],
    limits: PassLimits,
) -> list[Tensor]:
    """(R,) for each pair, on the CPU, of a function (1, N) of both distributions; no gradient."""
    result: list[Tensor] = [torch.empty(0)] * len(pairs)
    with evaluation_mode(model), torch.no_grad():
        for chosen, found in _passes(model, teacher, pairs, limits):
            sizes = [pairs[i].student.trained for i in chosen]
            for index, part in zip(chosen, torch.split(value(found)[0].cpu(), sizes), strict=True):
                result[index] = part.clone()
    return result


def _passes(
    model: nn.Module, teacher: nn.Module, pairs: Sequence[Pair], limits: PassLimits
) -> Iterator[tuple[list[int], Distributions]]:
    device = next(model.parameters()).device
    logits = _vocabulary(model)
    for micro in micro_batches([pair.length for pair in pairs], limits.micro_batch_tokens):
        for chosen in _pieces(micro, [pairs[i].student.trained * logits for i in micro]):
            mine = collate([pairs[i].student for i in chosen], pad_id=limits.pad_id, device=device)
            other = collate([pairs[i].teacher for i in chosen], pad_id=limits.pad_id, device=device)
            with precision(device, limits.bf16):
                with evaluation_mode(teacher), torch.no_grad():
                    teacher_N_V = token_distributions(teacher, other)
                student_N_V = token_distributions(model, mine)
            # Models of one tokenizer may pad their vocabularies to different sizes.
            size = min(student_N_V.shape[-1], teacher_N_V.shape[-1])
            keep = mine.mask_B_T
            yield (
                chosen,
                Distributions(
                    student_N_V[None, :, :size],
                    teacher_N_V[None, :, :size],
                    mine.labels_B_T[keep][None],
                    mine.old_B_T[keep][None],
                    torch.ones(1, len(student_N_V), dtype=torch.bool, device=device),
                ),
            )


def _pieces(micro: Sequence[int], logits: Sequence[int]) -> list[list[int]]:
    """Cuts a micro-batch so that each piece has at most MAX_LOGITS logits, or one row."""
    pieces: list[list[int]] = []
    held = 0
    for index, size in zip(micro, logits, strict=True):
        if not pieces or held + size > MAX_LOGITS:
            pieces.append([])
            held = 0
        pieces[-1].append(index)
        held += size
    return pieces


def _vocabulary(model: Any) -> int:
    return int(getattr(getattr(model, "config", None), "vocab_size", 1))


def _trained(segment: Segment) -> tuple[int, ...]:
    return tuple(i for i, keep in zip(segment.ids, segment.loss_mask, strict=True) if keep)
