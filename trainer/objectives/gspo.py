"""GSPO: the policy loss with one importance ratio per sequence.

Source: GSPO, Zheng et al. 2025 (arXiv:2507.18071). A sequence is one row; in a multi-turn run
whose rows are single replies that is a reply and not a trajectory. The authors advise against a
KL term beside it (verl issue 2775).

Axis letters: B rows (segments), T tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.objectives.aggregate import Denominators, aggregate, as_mask, check_matrices
from trainer.objectives.losses import LOG_RATIO_LIMIT, PolicyStats

LOG_SEQUENCE_RATIO_LIMIT = 10.0


def sequence_log_ratio(new_B_T: Tensor, old_B_T: Tensor, mask_B_T: Tensor) -> Tensor:
    """log s_b = mean over the row's trained tokens of new - old.

    Args:
        new_B_T, old_B_T: float (B, T), log-probs of the current and the behaviour policy.
        mask_B_T: bool or 0/1 (B, T), 1 on trained tokens.

    Returns:
        float64 (B,), detached, at most 10; exactly 0 for rows without trained tokens. Float64,
        because the clip compares s with 1 to a few parts in 10,000.

    Raises:
        ValueError: shapes differ, or the mask holds other values than 0 and 1.
    """
    check_matrices(new_B_T=new_B_T, old_B_T=old_B_T, mask_B_T=mask_B_T)
    mask = as_mask(mask_B_T)
    log_ratio = (new_B_T.detach().double() - old_B_T.detach()).masked_fill(~mask, 0.0)
    mean_B = log_ratio.sum(dim=-1) / mask.sum(dim=-1).clamp(min=1)
    return mean_B.clamp(max=LOG_SEQUENCE_RATIO_LIMIT)


def gspo_loss(
    new_B_T: Tensor,
    old_B_T: Tensor,
    adv_B_T: Tensor,
    mask_B_T: Tensor,
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
    denominators: Denominators | None = None,
) -> tuple[Tensor, PolicyStats]:
    """Clipped loss with sequence ratios of one (micro-)batch.

        s_b     = exp(min(10, mean over t of (new - old)))
        s_{b,t} = s_b * exp(new_{b,t} - sg(new_{b,t}))       value s_b, gradient s_b * d new_{b,t}
        L_{b,t} = max(-A * s_{b,t}, -A * clip(s_{b,t}, 1 - clip_low, 1 + clip_high))
        loss    = mean over sequences of the mean over their tokens of L_{b,t}

    sg stops the gradient. If A is constant within each row, this is the gradient of
    -min(A s_b, A clip(s_b)) averaged over sequences; advantages that differ within a row are the
    paper's token variant. There is no dual clip. Where s_b reaches the limit e^10 it has no
    gradient.

    Args:
        new_B_T: float (B, T), log-probs of the current policy, with gradient.
        old_B_T: float (B, T), log-probs of the behaviour policy; a constant.
        adv_B_T: float (B, T), advantages; a constant.
        mask_B_T: bool or 0/1 (B, T), 1 on trained tokens. A row may not be cut in two.
        clip_low, clip_high: distances of the clip from 1; clip_low below 1.
        denominators: counts of the whole optimiser step; the losses of its micro-batches then add
            up (do not divide by their number). None: this batch is the whole step.

    Returns:
        Scalar loss in the dtype of `new_B_T`, and statistics. `clipped` counts the tokens of
        clipped sequences, `dual_clipped` is 0, and `kl_old` is that of the tokens as in
        `clipped_surrogate`. With nothing to train the loss is exactly 0.0, `backward()` works,
        and the gradient is exactly 0.

    Raises:
        ValueError: shapes differ, the mask holds other values than 0 and 1, a clip is out of
            range, or the denominators are smaller than this batch's counts.
    """
    check_matrices(new_B_T=new_B_T, adv_B_T=adv_B_T)
    if not 0.0 <= clip_low < 1.0 or not clip_high >= 0.0:
        raise ValueError(
            f"Need 0 <= clip_low < 1 and clip_high >= 0, found {clip_low} and {clip_high}."
        )
    mask = as_mask(mask_B_T)
    log_s_B = sequence_log_ratio(new_B_T, old_B_T, mask)
    limited_B = log_s_B >= LOG_SEQUENCE_RATIO_LIMIT
    # With A = 0 nothing outside the mask gets a gradient; `aggregate` removes its value.
    adv = adv_B_T.detach().to(new_B_T.dtype).masked_fill(~mask, 0.0)

    # exp(new - sg(new)) and 1 + (new - sg(new)) have the same value, 1, and the same gradient. An
    # infinite log-prob is left out, since inf - inf is NaN; s_b is 0 there, or at its limit.
    source = new_B_T.masked_fill(torch.isinf(new_B_T) | limited_B.unsqueeze(-1), 0.0)
    s_B = log_s_B.exp()
    ratio = s_B.to(new_B_T.dtype).unsqueeze(-1) * (1.0 + (source - source.detach()))
    plain = -adv * ratio
    clipped = -adv * ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss_B_T = torch.maximum(plain, clipped)

    with torch.no_grad():
        log_ratio = (new_B_T.double() - old_B_T).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        stats = PolicyStats(
            tokens=mask.sum().double(),
            clipped=(mask & (clipped > plain)).sum().double(),
            dual_clipped=mask.new_zeros((), dtype=torch.float64),
            kl_old=(log_ratio.exp() - 1.0 - log_ratio).masked_fill(~mask, 0.0).sum(),
        )
    return aggregate(loss_B_T, mask, "seq-mean-token-mean", denominators), stats
