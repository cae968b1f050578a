"""SERO's rows in a batch of verl, and the policy loss that trains on both kinds of rows.

A branch row is one more row of the batch: the oracle's reply to a prompt that the student saw. Its
`advantages` hold the row's coefficient at its loss tokens (g * w / (N_root * |C|), times the weight
of the objective), and its `old_log_probs` hold `BRANCH`, which no log-prob of a token can be. The
loss `sero` takes such rows out of the clipped loss and adds

    sum over branch rows of coefficient * NLL

which no count divides again. verl averages gradients over data-parallel ranks; the sum is
multiplied by their number, as its own `token-sum` is.

Axis letters: K branch rows, M rows, T response tokens, P prompt tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trainer.learning.update import AuxiliaryRow

__all__ = ["BRANCH", "branch_tensors", "make_policy_loss", "with_branches"]

BRANCH = 1.0
"""In place of an old log-prob; those are never positive."""

PolicyLoss = Callable[..., tuple[Tensor, dict[str, Any]]]


def branch_tensors(
    rows: Sequence[AuxiliaryRow], weight: float, *, prompt: int, response: int, pad_id: int
) -> dict[str, Tensor]:
    """K rows in verl's layout: prompts padded on the left, responses on the right.

    Args:
        rows: of one optimiser step, coefficients from the counts of the whole step.
        weight: of the auxiliary objective.
        prompt, response: widths of the batch's prompts and responses.

    Raises:
        ValueError: a row does not fit.
    """
    found: dict[str, list[list[float]]] = {
        name: []
        for name in ("prompts", "responses", "attention_mask", "response_mask", "advantages")
    }
    for row in rows:
        segment = row.segment
        start = segment.loss_mask.index(True)
        before, after = segment.ids[:start], segment.ids[start:]
        if len(before) > prompt or len(after) > response:
            raise ValueError(
                f"A branch row has {len(before)} + {len(after)} tokens, the batch room for "
                f"{prompt} + {response}. Raise data.max_prompt_length or max_response_length."
            )
        left, right = prompt - len(before), response - len(after)
        mask = [int(keep) for keep in segment.loss_mask[start:]]
        found["prompts"].append([*([pad_id] * left), *before])
        found["responses"].append([*after, *([pad_id] * right)])
        real = len(before) + len(after)
        found["attention_mask"].append([*([0] * left), *([1] * real), *([0] * right)])
        found["response_mask"].append([*mask, *([0] * right)])
        found["advantages"].append([weight * row.coefficient * m for m in mask] + [0.0] * right)
    widths = {"prompts": prompt, "attention_mask": prompt + response}
    tensors = {
        name: torch.tensor(
            values, dtype=torch.float32 if name == "advantages" else torch.int64
        ).reshape(len(rows), widths.get(name, response))
        for name, values in found.items()
    }
    tensors["input_ids"] = torch.cat([tensors["prompts"], tensors["responses"]], dim=1)
    tensors["position_ids"] = (tensors["attention_mask"].cumsum(dim=1) - 1).clamp(min=0)
    tensors["returns"] = tensors["advantages"].clone()
    tensors["old_log_probs"] = torch.full_like(tensors["advantages"], BRANCH)
    return tensors


def with_branches(batch: Mapping[str, Tensor], branches: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The batch with branch rows behind its own.

    With `token-mean` verl divides by all tokens of the batch, so the batch's own advantages are
    multiplied by all tokens over its own: the base loss stays what it was.

    Raises:
        ValueError: the batch has tensors that branch rows have not.
    """
    missing = set(batch) - set(branches)
    if missing:
        raise ValueError(f"Branch rows have no {sorted(missing)}; drop them from the batch first.")
    own, more = int(batch["response_mask"].sum()), int(branches["response_mask"].sum())
    joined = {
        name: torch.cat([value, branches[name].to(value.dtype)]) for name, value in batch.items()
    }
    if own:
        joined["advantages"][: len(batch["advantages"])] *= (own + more) / own
    return joined


def make_policy_loss(base: PolicyLoss) -> PolicyLoss:
    """The loss `sero`: `base` (verl's clipped loss) on the policy's rows, NLL on branch rows."""

    def loss(
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        branch_M = (old_log_prob == BRANCH).any(dim=-1)
        if bool(branch_M.any()) and loss_agg_mode not in ("token-mean", "token-sum"):
            raise ValueError(
                f"loss_agg_mode={loss_agg_mode} counts branch rows as sequences of the base loss. "
                "Use token-mean."
            )
        info = dict(getattr(config, "global_batch_info", None) or {})
        own = branch_M[:, None]
        # Everything of a branch row is neutral to the base loss; its tokens still count, which
        # `with_branches` has made up for.
        value, metrics = base(
            old_log_prob=torch.where(own, log_prob.detach(), old_log_prob),
            log_prob=torch.where(own, log_prob.detach(), log_prob),
            advantages=advantages.masked_fill(own, 0.0),
            response_mask=response_mask,
            loss_agg_mode=loss_agg_mode,
            config=config,
            rollout_is_weights=rollout_is_weights,
        )
        kept = own & response_mask.bool()
        nll = -(advantages * log_prob).masked_fill(~kept, 0.0).sum()
        scaled = nll * float(info.get("dp_size") or 1)
        return value + scaled, {**metrics, "actor/sero_loss": float(scaled.detach())}

    return loss
