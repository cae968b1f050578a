"""Recorded turns as the batch that verl computes advantages of: one row a turn.

Axis letters: M turns, T response tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.config import RolloutConfig
from trainer.engines.verl.branch_rows import segment_tensors
from trainer.engines.verl.layout import row_key
from trainer.learning.batch import training_rewards
from trainer.rollouts.data import Segment, Turn

__all__ = ["token_values", "turn_rows"]


def turn_rows(
    turns: Sequence[Turn], segments: Sequence[Segment], rollout: RolloutConfig, pad_id: int
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and object arrays of M turns, under verl's names.

    A turn's training reward lies on its last token. `uid` holds `RowKey`s, which equal the id of
    the group and know the rest. `rollout_log_probs` are those recorded at sampling.

    Args:
        segments: one a turn, all of its reply trained.
    """
    tensors = segment_tensors(segments, pad_id)
    mask = tensors["response_mask"]
    last_M = (mask * torch.arange(1, mask.shape[1] + 1)).argmax(dim=-1)
    rewards_M = training_rewards(turns, rollout.success_reward, rollout.reward)
    rewards_M_T = torch.zeros(mask.shape, dtype=torch.float32)
    rewards_M_T[torch.arange(len(turns)), last_M] = rewards_M.float()
    tensors["token_level_scores"] = rewards_M_T
    tensors["token_level_rewards"] = rewards_M_T.clone()
    tensors["rollout_log_probs"] = token_values([turn.logprobs for turn in turns], mask.shape[1])
    uid = np.empty(len(turns), dtype=object)
    uid[:] = [row_key(turn) for turn in turns]
    return tensors, {"uid": uid}


def token_values(rows: Sequence[Sequence[float]], width: int) -> Tensor:
    """Ragged rows as float32 (M, width), padded with 0."""
    values = torch.zeros(len(rows), width, dtype=torch.float32)
    for m, row in enumerate(rows):
        values[m, : len(row)] = torch.tensor(row, dtype=torch.float32)
    return values
