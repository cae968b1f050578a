"""Turns in verl's layout: one row of a batch a turn, tensors padded, ids in `uid`.

verl hands an estimator four things: token rewards (M, T), the response mask (M, T), its config and
`uid`, an object array. Objectives for agents also need to know which trajectory and step a row is,
and in which state it was taken. A `RowKey` is a text that equals the group's id, so verl groups by
it as ever, and carries the rest.

Axis letters: M rows, T response tokens, P prompt tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainer.objectives import dense_ids
from trainer.rollouts.data import Turn

__all__ = ["RowKey", "Rows", "row_key", "rows_of"]


class RowKey(str):
    """A group id that knows its row.

    Attributes:
        tid: the trajectory.
        t: turn number in it.
        anchor: key of the state before the turn.
        format_valid: the reply had the required form.
    """

    tid: str
    t: int
    anchor: str
    format_valid: bool

    def __new__(cls, uid: str, tid: str, t: int, anchor: str, format_valid: bool) -> RowKey:
        key = super().__new__(cls, uid)
        key.tid, key.t, key.anchor, key.format_valid = tid, t, anchor, format_valid
        return key

    def __reduce__(self) -> tuple[Any, ...]:
        return RowKey, (str(self), self.tid, self.t, self.anchor, self.format_valid)


def row_key(turn: Turn) -> RowKey:
    """What goes into `uid` for a turn."""
    return RowKey(turn.uid, turn.tid, turn.t, turn.anchor, turn.format_valid)


@dataclass(frozen=True, slots=True)
class Rows:
    """A batch as our objectives take it, all (M,); `anchors` are texts."""

    rewards: Tensor
    format_valid: Tensor
    uid: Tensor
    tid: Tensor
    t: Tensor
    tokens: Tensor
    anchors: Sequence[str]


def rows_of(token_rewards_M_T: Tensor, mask_M_T: Tensor, index: Sequence[Any]) -> Rows:
    """Rows from what verl hands over.

    Args:
        token_rewards_M_T: a turn's reward lies on any of its tokens.
        mask_M_T: 0/1, response tokens.
        index: `RowKey`s.

    Raises:
        ValueError: shapes differ, or `uid` holds other values.
    """
    keys = list(index)
    if token_rewards_M_T.shape != mask_M_T.shape or len(keys) != len(mask_M_T):
        raise ValueError(
            f"Expected rewards and mask of one shape (M, T) and M ids, found "
            f"{tuple(token_rewards_M_T.shape)}, {tuple(mask_M_T.shape)} and {len(keys)}."
        )
    if not all(isinstance(key, RowKey) for key in keys):
        raise ValueError(
            "uid must hold values of trainer.engines.verl.layout.row_key: a plain group id does "
            "not say which trajectory and step a row is."
        )
    return Rows(
        rewards=(token_rewards_M_T.double() * mask_M_T).sum(dim=-1),
        format_valid=torch.tensor([key.format_valid for key in keys], dtype=torch.bool),
        uid=dense_ids([str(key) for key in keys]),
        tid=dense_ids([(str(key), key.tid) for key in keys]),
        t=torch.tensor([key.t for key in keys], dtype=torch.int64),
        tokens=mask_M_T.sum(dim=-1).to(torch.int64),
        anchors=[key.anchor for key in keys],
    )
