"""Step-DPO with an oracle: prefer the oracle's command to the policy's at the same state.

    loss = -log sigmoid(beta * [(log pi - log pi_ref)(a*) - (log pi - log pi_ref)(a)])

a* is the oracle's reply at a root, a the reply the policy gave there; log-probs are summed over
the tokens. Unlike an NLL it uses the policy's own wrong command as a negative. Only the difference
counts, so both replies may become less likely together (likelihood displacement): log both.

Sources: DPO, Rafailov et al. 2023 (arXiv:2305.18290); Step-DPO, Lai et al. 2024
(arXiv:2406.18629).

Axis letters: B pairs, T tokens of the chosen reply, U tokens of the rejected reply.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from trainer.objectives.aggregate import as_mask, check_matrices, weighted_row_sum


class ScoredReplies(NamedTuple):
    """One side of the pairs.

    Attributes:
        logp: float (B, T), log-probs under the trained policy, with gradient.
        ref: float (B, T), under the reference; a constant.
        mask: bool or 0/1 (B, T), the tokens compared.
    """

    logp: Tensor
    ref: Tensor
    mask: Tensor


def step_dpo_loss(
    chosen: ScoredReplies,
    rejected: ScoredReplies,
    *,
    beta: float = 0.1,
    n_pairs: int | None = None,
) -> Tensor:
    """Mean over the pairs of one optimiser step.

    A pair without tokens on either side, or with a policy log-prob of -inf on a compared token
    (the loss is then constant or infinite), is left out before anything is multiplied.

    Args:
        chosen: the oracle's replies (B, T).
        rejected: the policy's replies (B, U), same order.
        beta: positive; how far the policy may move from the reference.
        n_pairs: pairs with tokens on both sides in the whole step; the losses of its micro-batches
            then add up. None: this batch is the whole step.

    Returns:
        Scalar of the policy's dtype; exactly 0 with exactly zero gradient without a pair.

    Raises:
        ValueError: shapes differ, beta is out of range, a reference log-prob is not finite, or
            n_pairs is below the number of pairs here.
    """
    if not (math.isfinite(beta) and beta > 0.0):
        raise ValueError(f"beta must be positive and finite, found {beta}.")
    if chosen.logp.shape[0] != rejected.logp.shape[0]:
        raise ValueError(
            f"Expected as many chosen as rejected replies, found {chosen.logp.shape[0]} and "
            f"{rejected.logp.shape[0]}."
        )
    better_B, has_better_B, sound_better_B = _log_ratio("chosen", chosen)
    worse_B, has_worse_B, sound_worse_B = _log_ratio("rejected", rejected)
    pair_B = has_better_B & has_worse_B
    found = int(pair_B.sum())
    total = found if n_pairs is None else n_pairs
    if total < found:
        raise ValueError(
            f"n_pairs={total} is below the {found} pairs given; it counts the whole step."
        )
    margin_B = beta * (better_B - worse_B)
    loss_B = -torch.nn.functional.logsigmoid(margin_B)
    keep_B_1 = (pair_B & sound_better_B & sound_worse_B).unsqueeze(-1)
    coef_B = torch.full_like(loss_B, 1.0 / max(total, 1), dtype=torch.float64)
    return weighted_row_sum(loss_B.unsqueeze(-1), keep_B_1, coef_B)


def _log_ratio(side: str, replies: ScoredReplies) -> tuple[Tensor, Tensor, Tensor]:
    """Summed log pi - log pi_ref (B,), whether there are tokens, whether none is impossible."""
    check_matrices(logp=replies.logp, ref=replies.ref, mask=replies.mask)
    mask = as_mask(replies.mask)
    ref = replies.ref.detach().to(replies.logp.dtype).masked_fill(~mask, 0.0)
    if not bool(torch.isfinite(ref).all()):
        raise ValueError(
            f"A reference log-prob of a {side} reply is not finite, so the pair has no margin. "
            "Score the replies with the model they start from, sampling filters off."
        )
    sound_B = ~(mask & (replies.logp == -math.inf)).any(dim=-1)
    keep = mask & sound_B.unsqueeze(-1)
    ratio_B = (replies.logp.masked_fill(~keep, 0.0) - ref).sum(dim=-1)
    return ratio_B, mask.any(dim=-1), sound_B
