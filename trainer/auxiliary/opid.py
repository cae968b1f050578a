"""OPID: the skill teacher's opinion as part of the advantage instead of a loss.

    A[b, t] = A_ep[b] + w_ep * q_ep[b] * (T_ep - O)[b, t] + w_step * q_step[b] * (T_step - O)[b, t]

A_ep: group-normalised advantage of the episode (mean only, no division by the deviation), T_ep
and T_step: log-probs under the prompt with the episode's and with the step's skill, O: at rollout
time, q: whether the row has that skill. Both w are 1e-3.

These terms are multiplied by the clipped ratio, so they do not act on tokens that are clipped; a
loss term (SEED) does. They survive groups without a signal, where A_ep is 0, since they are added
after the normalisation.

Source: OPID's public code (jinyangwu/OPID). Axis letters: B rows (turns), T tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.objectives.aggregate import as_mask, check_matrices

WEIGHT = 1e-3


def opid_advantages(
    adv_B: Tensor,
    old_B_T: Tensor,
    mask_B_T: Tensor,
    *,
    episode_B_T: Tensor | None = None,
    episode_B: Tensor | None = None,
    step_B_T: Tensor | None = None,
    step_B: Tensor | None = None,
    w_episode: float = WEIGHT,
    w_step: float = WEIGHT,
) -> Tensor:
    """Advantages per token with the teacher terms; the module's docstring gives the formula.

    Args:
        adv_B: float (B,), A_ep, e.g. `grpo_advantages(..., use_std=False)`.
        old_B_T: float (B, T), O.
        mask_B_T: bool or 0/1 (B, T), sampled tokens.
        episode_B_T, step_B_T: float (B, T), T_ep and T_step. None: no such term.
        episode_B, step_B: bool or 0/1 (B,), q_ep and q_step; given with their log-probs.
        w_episode, w_step: weights.

    Returns:
        float64 (B, T), detached; exactly 0 outside the mask. Rows without a skill keep A_ep,
        whatever their teacher entries hold.

    Raises:
        ValueError: shapes differ, a teacher without its row mask (or the reverse), or a value
            that takes part is not finite.
    """
    check_matrices(old_B_T=old_B_T, mask_B_T=mask_B_T)
    mask = as_mask(mask_B_T)
    n_rows = mask.shape[0]
    if tuple(adv_B.shape) != (n_rows,):
        raise ValueError(f"Expected adv_B of shape ({n_rows},), found {tuple(adv_B.shape)}.")
    advantage = adv_B.detach().double()[:, None].expand(mask.shape)
    terms = (("episode", episode_B_T, episode_B, w_episode), ("step", step_B_T, step_B, w_step))
    for name, teacher_B_T, row_B, weight in terms:
        if (teacher_B_T is None) != (row_B is None):
            raise ValueError(f"Give {name}_B_T and {name}_B together or neither.")
        if teacher_B_T is None or row_B is None:
            continue
        check_matrices(old_B_T=old_B_T, teacher_B_T=teacher_B_T)
        if tuple(row_B.shape) != (n_rows,):
            raise ValueError(f"Expected {name}_B of shape ({n_rows},), found {tuple(row_B.shape)}.")
        on = mask & as_mask(row_B[:, None])
        gap = teacher_B_T.detach().double() - old_B_T.detach().double()
        advantage = advantage + weight * gap.masked_fill(~on, 0.0)
    advantage = advantage.masked_fill(~mask, 0.0)
    if not bool(torch.isfinite(advantage).all()):
        row = int((~torch.isfinite(advantage)).any(dim=-1).nonzero()[0, 0])
        raise ValueError(
            f"Row {row} has an advantage that is not finite. Check its reward and the log-probs "
            "of its tokens; a teacher of -inf rules the sampled token out."
        )
    return advantage
