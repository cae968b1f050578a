"""Per-token KL estimators against a reference policy.

Source: J. Schulman, "Approximating KL divergence" (2020); the k3 loss as in GRPO
(arXiv:2402.03300). The tokens are sampled from the policy, so these estimate
KL(policy || reference).

Which estimator and where it is put are two settings. Placement "reward" subtracts the estimate
from the rewards, without gradient; placement "loss" adds it to the loss, and its gradient flows.

Axis letters: B rows (segments), T tokens.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from trainer.objectives.aggregate import (
    Aggregation,
    Denominators,
    aggregate,
    as_mask,
    check_matrices,
)

KLKind = Literal["k1", "k2", "k3"]
KLPlacement = Literal["reward", "loss"]

KL_KINDS = ("k1", "k2", "k3")

_EXPONENT_LIMIT = 20.0


def check_kl_placement(kind: KLKind, placement: KLPlacement) -> None:
    """Refuse combinations that do not do what they say.

    Raises:
        ValueError: unknown setting, or k1 in the loss. The gradient of log p - log p_ref is that
            of log p alone: the reference drops out, and over samples of the policy its mean is 0,
            so such a term adds noise and pulls towards nothing.
    """
    if kind not in KL_KINDS:
        raise ValueError(f"Unknown KL estimator {kind!r}; choose one of {KL_KINDS}.")
    if placement not in ("reward", "loss"):
        raise ValueError(f"KL placement must be 'reward' or 'loss', found {placement!r}.")
    if kind == "k1" and placement == "loss":
        raise ValueError(
            "k1 in the loss is refused: its gradient does not contain the reference (the gradient "
            "of log p - log p_ref is that of log p) and is 0 on average. Use k2 or k3 in the "
            "loss, or put k1 into the reward."
        )


def kl_per_token(
    new_B_T: Tensor,
    ref_B_T: Tensor,
    mask_B_T: Tensor | None = None,
    *,
    kind: KLKind = "k3",
    clamp: float | None = 10.0,
) -> Tensor:
    """Estimate of KL(policy || reference) at each token.

    With d = ref - new:

    - "k1": -d. Unbiased, may be negative.
    - "k2": d^2 / 2. Biased, never negative; its gradient is unbiased for the KL's.
    - "k3": exp(d) - d - 1, never negative. The exponent is limited to +-20 and the value to
      `clamp`, with zero gradient beyond, as verl does.

    Args:
        new_B_T: float (B, T), log-probs of the policy, with gradient.
        ref_B_T: float (B, T), log-probs of the reference; a constant.
        mask_B_T: bool or 0/1 (B, T); entries outside are exactly 0. None: all tokens.
        kind: the estimator.
        clamp: upper limit of k3 (other kinds ignore it), or None.

    Returns:
        (B, T), dtype of `new_B_T`.
    """
    check_matrices(new_B_T=new_B_T, ref_B_T=ref_B_T)
    if kind not in KL_KINDS:
        raise ValueError(f"Unknown KL estimator {kind!r}; choose one of {KL_KINDS}.")
    new, ref = new_B_T, ref_B_T.detach().to(new_B_T.dtype)
    if mask_B_T is not None:
        check_matrices(new_B_T=new_B_T, mask_B_T=mask_B_T)
        outside = ~as_mask(mask_B_T)
        new, ref = new.masked_fill(outside, 0.0), ref.masked_fill(outside, 0.0)
    if kind == "k1":
        return new - ref
    if kind == "k2":
        return 0.5 * (new - ref).square()
    d = (ref - new).clamp(-_EXPONENT_LIMIT, _EXPONENT_LIMIT)
    # expm1 keeps k3 >= 0 down to rounding of d itself; exp(d) - 1 cancels for small d.
    k3 = (d.expm1() - d).clamp(min=0.0)
    return k3 if clamp is None else k3.clamp(max=clamp)


def kl_loss(
    new_B_T: Tensor,
    ref_B_T: Tensor,
    mask_B_T: Tensor,
    *,
    kind: KLKind = "k3",
    clamp: float | None = 10.0,
    aggregation: Aggregation = "token-mean",
    denominators: Denominators | None = None,
) -> Tensor:
    """KL term of the loss of one (micro-)batch, before its coefficient.

    Log this very number: a KL computed apart need not be the trained one.

    Args:
        new_B_T, ref_B_T, mask_B_T, kind, clamp: see `kl_per_token`; k1 is refused.
        aggregation, denominators: see `trainer.objectives.aggregate`.

    Returns:
        Scalar; exactly 0 with exactly zero gradient for an empty mask.
    """
    check_kl_placement(kind, "loss")
    per_token = kl_per_token(new_B_T, ref_B_T, mask_B_T, kind=kind, clamp=clamp)
    return aggregate(per_token, mask_B_T, aggregation, denominators)
