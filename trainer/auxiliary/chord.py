"""CHORD: supervised fine-tuning on expert replies, mixed into the policy loss and faded out.

    loss  = (1 - mu) * L_base + mu * L_SFT
    L_SFT = sum m * sg[p * (1 - p)] * (-log p) / sum m,      p = pi_theta(token)

The token weight p * (1 - p) leaves out tokens that the policy already emits for certain and tokens
that it finds absurd, where an NLL would pull hardest.

Source: Zhang et al. 2025 (arXiv:2508.11408).

Axis letters: B rows, T tokens.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from trainer.objectives.aggregate import (
    Aggregation,
    Denominators,
    aggregate,
    as_mask,
    check_matrices,
)

MuShape = Literal["cosine", "linear"]


def chord_token_weights(logp_B_T: Tensor) -> Tensor:
    """p * (1 - p), detached; exactly 0 for certain and for impossible tokens.

    Args:
        logp_B_T: float (any shape), log p of each token, at most 0.

    Returns:
        The shape and dtype of `logp_B_T`, in [0, 1/4]. It may also weight the tokens inside
        another imitation loss.
    """
    logp = logp_B_T.detach()
    # 1 - p as -expm1(log p): for p near 1 the plain difference has lost its digits.
    return logp.exp() * -logp.expm1()


def chord_phi_loss(
    logp_B_T: Tensor,
    mask_B_T: Tensor,
    *,
    aggregation: Aggregation = "token-mean",
    denominators: Denominators | None = None,
) -> Tensor:
    """L_SFT: NLL of expert tokens, each with the constant weight p * (1 - p).

    Args:
        logp_B_T: float (B, T), log-probs of the expert's tokens under the trained policy, with
            gradient. -inf adds 0, the limit of p * (1 - p) * (-log p), with zero gradient.
        mask_B_T: bool or 0/1 (B, T).
        aggregation, denominators: see `trainer.objectives.aggregate`. Weights do not enter the
            denominator.

    Returns:
        Scalar; exactly 0 with exactly zero gradient for an empty mask.
    """
    check_matrices(logp_B_T=logp_B_T, mask_B_T=mask_B_T)
    dropped = ~as_mask(mask_B_T) | (logp_B_T == -math.inf)
    logp = logp_B_T.masked_fill(dropped, 0.0)
    return aggregate(-chord_token_weights(logp) * logp, mask_B_T, aggregation, denominators)


def chord_mu(
    step: int,
    *,
    decay_steps: int,
    warmup_steps: int = 0,
    peak: float = 0.9,
    valley: float = 0.05,
    shape: MuShape = "cosine",
) -> float:
    """Share mu of the supervised loss at an update.

    Linear from 0 to `peak` over the warm-up, then down to `valley` over `decay_steps`, with
    x = (step - warmup_steps) / decay_steps in [0, 1):

    - "cosine": valley + (peak - valley) * (1 + cos(pi * x)) / 2
    - "linear": valley + (peak - valley) * (1 - x)

    then `valley` for good.

    Args:
        step: updates done, from 0.
        decay_steps: 0 jumps to the valley after the warm-up.
        warmup_steps: 0 starts at the peak.
        peak, valley: 0 <= valley <= peak <= 1.
        shape: of the descent.

    Returns:
        mu in [0, 1].

    Raises:
        ValueError: a negative count, values out of order, or an unknown shape.
    """
    if step < 0 or decay_steps < 0 or warmup_steps < 0:
        raise ValueError(
            f"step, decay_steps and warmup_steps must not be negative, found {step}, "
            f"{decay_steps} and {warmup_steps}."
        )
    if not 0.0 <= valley <= peak <= 1.0:
        raise ValueError(f"Need 0 <= valley <= peak <= 1, found valley={valley}, peak={peak}.")
    if shape not in ("cosine", "linear"):
        raise ValueError(f"shape must be 'cosine' or 'linear', found {shape!r}.")
    if step < warmup_steps:
        return peak * step / warmup_steps
    if step >= warmup_steps + decay_steps:
        return valley
    x = (step - warmup_steps) / decay_steps
    fall = 0.5 * (1.0 + math.cos(math.pi * x)) if shape == "cosine" else 1.0 - x
    return valley + (peak - valley) * fall


def chord_mix(base: Tensor, sft: Tensor, mu: float) -> Tensor:
    """(1 - mu) * base + mu * sft; at mu = 0 and 1 exactly the one loss, whatever the other is.

    Args:
        base: scalar, loss of the base objective.
        sft: scalar, `chord_phi_loss` or a plain NLL.
        mu: in [0, 1], from `chord_mu`.

    Raises:
        ValueError: mu is out of range.
    """
    if not 0.0 <= mu <= 1.0:
        raise ValueError(f"mu must lie in [0, 1], found {mu}.")
    if mu == 0.0:
        return base
    if mu == 1.0:
        return sft
    return torch.lerp(base, sft.to(base.dtype), mu)
