"""Format-only control: what does teaching the reply format alone buy?

An oracle objective trains the closing tag along with the command, so a policy that often breaks
the format gains from it without deciding better. This control trains the format tokens of the
policy's *own* well-formed replies and never a command token. It uses no oracle; whatever it gains
over the base objective is format, and an oracle objective has to beat it.

    L_format = mass / N * sum_b (1 / |F_b|) * sum over i in F_b of -log pi_theta(y_{b,i} | x_b)

F_b: tokens of reply b outside the executed command, N: well-formed replies of the step. The loss
has the row-coefficient form of SERO and is summed by `weighted_nll`.

Axis letters: B rows (one reply each), T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from trainer.objectives.aggregate import as_mask, check_matrices, weighted_nll


def format_mask(
    response_mask_B_T: Tensor, command_mask_B_T: Tensor, format_valid_B: Tensor
) -> Tensor:
    """Format tokens: sampled tokens of well-formed replies outside the executed command.

    Args:
        response_mask_B_T: bool or 0/1 (B, T), 1 on every sampled token.
        command_mask_B_T: bool or 0/1 (B, T), 1 on every token that overlaps the command.
        format_valid_B: bool (B,), False where the reply broke the format; those rows are empty.

    Returns:
        bool (B, T).

    Raises:
        ValueError: shapes differ, or a command token is not a response token.
    """
    check_matrices(response_mask_B_T=response_mask_B_T, command_mask_B_T=command_mask_B_T)
    if tuple(format_valid_B.shape) != (response_mask_B_T.shape[0],):
        raise ValueError(
            f"Expected format_valid_B of shape ({response_mask_B_T.shape[0]},), found "
            f"{tuple(format_valid_B.shape)}."
        )
    response, command = as_mask(response_mask_B_T), as_mask(command_mask_B_T)
    if bool((command & ~response).any()):
        raise ValueError(
            "A command token lies outside the response. The two masks are misaligned: build both "
            "from the same sampled ids."
        )
    return response & ~command & format_valid_B.bool().unsqueeze(-1)


def format_row_coefficients(
    token_counts_B: Sequence[int], *, n_rows: int, mass: float = 1.0
) -> list[float]:
    """Factor of each reply's summed token NLL: mass / (max(n_rows, 1) * |F_b|).

    Args:
        token_counts_B: |F_b|; 0 for replies that take no part.
        n_rows: N, replies with format tokens in the whole optimiser step.
        mass: sum of row weights. 1 is the plain mean; the sum of g_r * w_{r,k} / N_root over a
            step's branch rows gives the control the force of SERO in that step.

    Returns:
        Floats (B,); exactly 0.0 where |F_b| = 0.
    """
    if n_rows < sum(count > 0 for count in token_counts_B):
        raise ValueError(
            f"n_rows={n_rows} is below the number of replies given; it counts the whole step."
        )
    if not (math.isfinite(mass) and mass >= 0.0):
        raise ValueError(f"mass must be finite and >= 0, found {mass}.")
    scale = max(n_rows, 1)
    return [mass / (scale * count) if count > 0 else 0.0 for count in token_counts_B]


def format_control_loss(
    logp_B_T: Tensor, mask_B_T: Tensor, *, n_rows: int, mass: float = 1.0
) -> Tensor:
    """The control's loss on one (micro-)batch.

    Args:
        logp_B_T: float (B, T), log-probs under the trained policy, with gradient.
        mask_B_T: bool or 0/1 (B, T), from `format_mask`.
        n_rows, mass: see `format_row_coefficients`.

    Returns:
        Scalar; the parts of one step add up. Exactly 0 with zero gradient for an empty mask.
    """
    counts = as_mask(mask_B_T).sum(dim=-1).tolist()
    coefficients = format_row_coefficients(counts, n_rows=n_rows, mass=mass)
    coef_B = torch.tensor(coefficients, dtype=torch.float64, device=logp_B_T.device)
    return weighted_nll(logp_B_T, mask_B_T, coef_B)
