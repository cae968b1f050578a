"""Optimiser steps of an iteration as one batch that verl cuts into the very same steps.

verl's workers cut a batch twice: into as many equal runs as there are data-parallel ranks, and
each run into mini-batches of equal size. Mini-batch i of all ranks is one optimiser step. So each
of our steps (its turns, the branch rows of its roots) is filled up to the same number of rows, its
rows are dealt out to the ranks by length, and the rows are put in the order in which verl takes
them. Rows that fill up have one token, no mask and no advantage: they weigh nothing.

Axis letters: B rows of the whole batch, T response tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agent_envs.errors import SeroError
from trainer.engines.verl.branch_rows import branch_tensors, segment_tensors
from trainer.learning.update import AuxiliaryRow
from trainer.rollouts.data import Segment, make_segment

__all__ = ["Joined", "StepError", "arrange", "join"]


class StepError(SeroError, ValueError):
    """The rows of an iteration do not make optimiser steps that verl can take."""


@dataclass(frozen=True, slots=True)
class Joined:
    """What verl updates the actor with.

    Attributes:
        tensors: of B rows, in the order of the steps.
        step_rows: rows of one optimiser step, over all ranks; verl's mini-batch size.
        branch_rows, filler_rows: how many of B are branch rows, and how many fill up.
    """

    tensors: dict[str, Tensor]
    step_rows: int
    branch_rows: int
    filler_rows: int


def arrange(parts: Sequence[Sequence[int]], lengths: Sequence[int], ranks: int) -> list[int | None]:
    """The order of rows in which verl's mini-batches are the parts; None is a row that fills up.

    Within a part, rows go to the ranks from the longest to the shortest, back and forth, so that
    ranks have about equal numbers of tokens.

    Args:
        parts: rows of each optimiser step.
        lengths: tokens of each row.
        ranks: data-parallel ranks.
    """
    share = max((-(-len(part) // ranks) for part in parts), default=0)
    runs: list[list[int | None]] = [[] for _ in range(ranks)]
    for part in parts:
        dealt: list[list[int | None]] = [[] for _ in range(ranks)]
        for place, row in enumerate(sorted(part, key=lambda r: (-lengths[r], r))):
            turn, seat = divmod(place, ranks)
            dealt[seat if turn % 2 == 0 else ranks - 1 - seat].append(row)
        for run, own in zip(runs, dealt, strict=True):
            run += own + [None] * (share - len(own))
    return [row for run in runs for row in run]


def join(
    segments: Sequence[Segment],
    values: Mapping[str, Tensor],
    parts: Sequence[Sequence[int]],
    branches: Sequence[Sequence[AuxiliaryRow]],
    weight: float,
    *,
    ranks: int,
    pad_id: int,
) -> Joined:
    """The batch of an iteration's update.

    Args:
        segments: of the policy's own turns.
        values: (M, T') tensors of those, T' at least the longest response: `advantages`,
            `old_log_probs` and, with a KL, `ref_log_prob`.
        parts: own rows of each optimiser step.
        branches: branch rows of each optimiser step.
        weight: of the auxiliary objective.
        ranks: data-parallel ranks.
        pad_id: fills padding.

    Raises:
        StepError: a step without a row of the policy's own: verl divides the step's loss by their
            tokens.
    """
    if any(not part for part in parts):
        raise StepError(
            f"{len(segments)} turns make {sum(map(bool, parts))} optimiser steps, and "
            f"optim.steps={len(parts)}; verl divides each step's loss by the tokens of its turns. "
            "Lower optim.steps or play more rollouts."
        )
    rows = [row for part in branches for row in part]
    filler = make_segment((pad_id,), (pad_id,))
    everything = [*segments, *(row.segment for row in rows), filler]
    tensors = segment_tensors(everything, pad_id)
    P, T, M = tensors["prompts"].shape[1], tensors["responses"].shape[1], len(segments)
    for name, value in values.items():
        width = min(T, value.shape[1])
        if bool(value[:, width:].any()):
            raise StepError(f"{name} is {value.shape[1]} wide, the longest response {T}.")
        tensors[name] = torch.zeros(len(everything), T, dtype=value.dtype)
        tensors[name][:M, :width] = value[:, :width]
    own = slice(M, M + len(rows))
    for name, value in branch_tensors(rows, weight, pad_id, P, T).items():
        tensors[name][own] = value.to(tensors[name].dtype)
    tensors["response_mask"][-1] = 0
    ends, first = [], M
    for part in branches:
        ends.append(range(first, first + len(part)))
        first += len(part)
    lengths = [len(segment.ids) for segment in everything]
    whole = [[*part, *more] for part, more in zip(parts, ends, strict=True)]
    order = arrange(whole, lengths, ranks)
    index = torch.tensor([len(everything) - 1 if row is None else row for row in order])
    return Joined(
        {name: value[index] for name, value in tensors.items()},
        len(order) // len(parts),
        len(rows),
        order.count(None),
    )
