"""SERO's rows in a batch of verl, and the policy loss that trains on both kinds of rows.

A branch row is one more row of the batch: the oracle's reply to a prompt that the student saw.

- Its `response_mask` is 0 everywhere. So it is in no mean, no count, no ratio, no entropy and no
  KL of the base method, whatever verl computes of a batch.
- Its `advantages` hold the row's coefficient at its loss tokens: g * w / (N_root * |C|), times the
  weight of the objective.
- Its `old_log_probs` hold `BRANCH`, which no log-prob of a token can be. The loss `sero` knows the
  row by it, and adds to the base loss

      sum over branch rows of coefficient * NLL

  which no count divides again. verl averages gradients over data-parallel ranks; the sum is
  multiplied by their number, as its own `token-sum` is.

Public API of verl 0.9 that this relies on: a policy loss registered with
`verl.trainer.ppo.core_algos.register_policy_loss` is called by `verl.workers.utils.losses.ppo_loss`
with `old_log_prob, log_prob, advantages, response_mask`, all (B, T), `loss_agg_mode`, the actor's
`config` (whose `global_batch_info` holds `dp_size`) and `rollout_is_weights`.

Axis letters: B rows, K branch rows, T response tokens, P prompt tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from trainer.learning.update import AuxiliaryRow
from trainer.rollouts.data import Segment

__all__ = ["BRANCH", "branch_tensors", "make_policy_loss", "segment_tensors"]

BRANCH = 1.0
"""In place of an old log-prob; those are never positive."""

PolicyLoss = Callable[..., tuple[Tensor, dict[str, Any]]]


def segment_tensors(
    segments: Sequence[Segment],
    pad_id: int,
    prompt: int | None = None,
    response: int | None = None,
) -> dict[str, Tensor]:
    """B segments in verl's layout: prompts padded on the left, responses on the right.

    What stands before the first trained token of a segment is its prompt.

    Args:
        prompt, response: widths P and T; None: as wide as the segments need.

    Returns:
        int64 `prompts` (B, P), `responses` and `response_mask` (B, T), `input_ids`,
        `attention_mask` and `position_ids` (B, P + T). The mask is that of the trained tokens.

    Raises:
        ValueError: a segment does not fit, or has no trained token.
    """
    starts = [_start(segment) for segment in segments]
    ends = [len(s.ids) - start for s, start in zip(segments, starts, strict=True)]
    P = max(starts, default=0) if prompt is None else prompt
    T = max(ends, default=0) if response is None else response
    prompts = torch.full((len(segments), P), pad_id, dtype=torch.int64)
    responses = torch.full((len(segments), T), pad_id, dtype=torch.int64)
    attention = torch.zeros(len(segments), P + T, dtype=torch.int64)
    mask = torch.zeros(len(segments), T, dtype=torch.int64)
    for b, (segment, start, end) in enumerate(zip(segments, starts, ends, strict=True)):
        if start > P or end > T:
            raise ValueError(
                f"A row has {start} + {end} tokens, the batch room for {P} + {T}. Make it wider."
            )
        prompts[b, P - start :] = torch.tensor(segment.ids[:start])
        responses[b, :end] = torch.tensor(segment.ids[start:])
        attention[b, P - start : P + end] = 1
        mask[b, :end] = torch.tensor(segment.loss_mask[start:])
    return {
        "prompts": prompts,
        "responses": responses,
        "input_ids": torch.cat([prompts, responses], dim=1),
        "attention_mask": attention,
        "position_ids": (attention.cumsum(dim=1) - 1).clamp(min=0),
        "response_mask": mask,
    }


def _start(segment: Segment) -> int:
    if not segment.trained:
        raise ValueError("A row without a trained token has no response; leave it out.")
    return segment.loss_mask.index(True)


def branch_tensors(
    rows: Sequence[AuxiliaryRow],
    weight: float,
    pad_id: int,
    prompt: int | None = None,
    response: int | None = None,
) -> dict[str, Tensor]:
    """K branch rows: `segment_tensors` with an empty mask, and `advantages` and `old_log_probs`.

    Args:
        rows: of one optimiser step, coefficients from the counts of the whole step.
        weight: of the auxiliary objective.
        prompt, response: widths, see `segment_tensors`.
    """
    tensors = segment_tensors([row.segment for row in rows], pad_id, prompt, response)
    coefficients = torch.tensor([weight * row.coefficient for row in rows], dtype=torch.float64)
    tensors["advantages"] = (coefficients[:, None] * tensors["response_mask"]).float()
    tensors["old_log_probs"] = torch.full_like(tensors["advantages"], BRANCH)
    tensors["response_mask"] = torch.zeros_like(tensors["response_mask"])
    return tensors


def make_policy_loss(base: PolicyLoss) -> PolicyLoss:
    """The loss `sero`: `base` (verl's clipped loss) on the policy's rows, NLL on branch rows.

    Its metric `actor/sero_loss` is the weighted sum over the rows of one pass.
    """

    def loss(
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        branch_B_T = (old_log_prob == BRANCH).any(dim=-1)[:, None].expand_as(log_prob)
        if bool(branch_B_T.any()) and loss_agg_mode not in ("token-mean", "token-sum"):
            raise ValueError(
                f"loss_agg_mode={loss_agg_mode} divides by the rows of a step, branch rows among "
                "them. Use token-mean."
            )
        if bool((branch_B_T & response_mask.bool()).any()):
            raise ValueError(
                "A branch row has tokens in response_mask, so it would enter the base loss. Make "
                "branch rows with trainer.engines.verl.branch_rows.branch_tensors."
            )
        # To the base loss a branch row is padding: ratio 1, advantage 0, and no token in the mask.
        value, metrics = base(
            old_log_prob=torch.where(branch_B_T, log_prob.detach(), old_log_prob),
            log_prob=torch.where(branch_B_T, log_prob.detach(), log_prob),
            advantages=advantages.masked_fill(branch_B_T, 0.0),
            response_mask=response_mask,
            loss_agg_mode=loss_agg_mode,
            config=config,
            rollout_is_weights=rollout_is_weights,
        )
        taught_B_T = branch_B_T & (advantages != 0.0)
        # A row with an impossible token is left out, as `trainer.objectives.weighted_nll` does.
        taught_B_T &= ~(taught_B_T & log_prob.isinf()).any(dim=-1, keepdim=True)
        nll = -(advantages * log_prob).masked_fill(~taught_B_T, 0.0).sum()
        info = getattr(config, "global_batch_info", None) or {}
        scaled = nll * float(info.get("dp_size") or 1)
        return value + scaled, {**metrics, "actor/sero_loss": float(nll.detach())}

    return loss
