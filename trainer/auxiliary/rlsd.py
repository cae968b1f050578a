"""RLSD: advantages weighted by a privileged copy of the policy, on every response token.

The reweighting of `trainer.auxiliary.serl` with three differences: there is no action mask, the
student is the behaviour policy (S := O, the log-probs of the rollout, so the weights are fixed
for the iteration), and a filter chooses which rollouts are reweighted at all.

The blend decays as in SERL: `lam_schedule(step)`, 0.5 to 0 in 50 iterations (100 in the port to
agents). The teacher's prompt holds the reference answer or retrieved skills.

Sources: RLSD (arXiv:2604.03128) and its public codes (ZJU-REAL/SDAR, coldsakrua/RLSD).

Axis letters: B rows (one reply each), T tokens.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from trainer.auxiliary.serl import Reweighted, reweight_advantages
from trainer.objectives.aggregate import as_mask, check_matrices

RolloutFilter = Literal["all", "positive", "negative", "mixed"]

ROLLOUT_FILTERS: tuple[RolloutFilter, ...] = ("all", "positive", "negative", "mixed")


def rlsd_advantages(
    adv_B_T: Tensor,
    behaviour_B_T: Tensor,
    teacher_B_T: Tensor,
    response_mask_B_T: Tensor,
    row_mask_B: Tensor | None = None,
    *,
    alpha: float,
    clip: float = 0.2,
    rollout_filter: RolloutFilter = "all",
    uid_B: Tensor | None = None,
) -> Reweighted:
    """A~ = A * [ (1 - alpha) + alpha * u ] on all response tokens of the rows that pass.

    Args:
        adv_B_T: float (B, T), advantages.
        behaviour_B_T: float (B, T), O: log-probs at rollout time.
        teacher_B_T: float (B, T), T.
        response_mask_B_T: bool or 0/1 (B, T).
        row_mask_B: bool or 0/1 (B,), 1 where the teacher has a privileged context. None: all.
        alpha, clip: see `reweight_advantages`.
        rollout_filter, uid_B: see `rollout_rows`.

    Returns:
        Reweighted, detached. Rows that do not pass keep A.

    Raises:
        ValueError: see `reweight_advantages` and `rollout_rows`.
    """
    rows_B = rollout_rows(adv_B_T, response_mask_B_T, rollout_filter=rollout_filter, uid_B=uid_B)
    if row_mask_B is not None:
        if row_mask_B.shape != rows_B.shape:
            raise ValueError(
                f"Expected row_mask_B of shape {tuple(rows_B.shape)}, found "
                f"{tuple(row_mask_B.shape)}."
            )
        rows_B = rows_B & as_mask(row_mask_B[None])[0]
    return reweight_advantages(
        adv_B_T,
        behaviour_B_T,
        teacher_B_T,
        response_mask_B_T,
        row_mask_B=rows_B,
        alpha=alpha,
        clip=clip,
    )


def rollout_rows(
    adv_B_T: Tensor,
    response_mask_B_T: Tensor,
    *,
    rollout_filter: RolloutFilter = "all",
    uid_B: Tensor | None = None,
) -> Tensor:
    """Which rows the filter lets through, by the sign of their advantage.

    - "all": every row.
    - "positive", "negative": A > 0, A < 0.
    - "mixed": rows of groups in which both signs occur.

    A row's advantage is read at its first response token; rows without one have advantage 0.

    Args:
        adv_B_T: float (B, T), advantages.
        response_mask_B_T: bool or 0/1 (B, T).
        rollout_filter: as above.
        uid_B: int64 (B,), task-group id; only "mixed" needs it.

    Returns:
        bool (B,).

    Raises:
        ValueError: shapes differ, unknown filter, or "mixed" without `uid_B`.
    """
    check_matrices(adv_B_T=adv_B_T, response_mask_B_T=response_mask_B_T)
    if rollout_filter not in ROLLOUT_FILTERS:
        raise ValueError(
            f"rollout_filter must be one of {ROLLOUT_FILTERS}, found {rollout_filter!r}."
        )
    response = as_mask(response_mask_B_T)
    n_rows, width = response.shape
    if rollout_filter == "all":
        return torch.ones(n_rows, dtype=torch.bool, device=response.device)
    if width == 0:
        return torch.zeros(n_rows, dtype=torch.bool, device=response.device)
    first_B = response.int().argmax(dim=-1, keepdim=True)
    adv_B = adv_B_T.detach().masked_fill(~response, 0.0).gather(-1, first_B).squeeze(-1)
    if rollout_filter == "positive":
        return adv_B > 0
    if rollout_filter == "negative":
        return adv_B < 0
    if uid_B is None or tuple(uid_B.shape) != (n_rows,):
        found = None if uid_B is None else tuple(uid_B.shape)
        raise ValueError(f"rollout_filter='mixed' needs uid_B of shape ({n_rows},), found {found}.")
    group_B = torch.unique(uid_B, return_inverse=True)[1]
    n_groups = int(group_B.max()) + 1 if n_rows else 0
    zeros = torch.zeros(n_groups, dtype=torch.int64, device=group_B.device)
    positive = zeros.index_add(0, group_B, (adv_B > 0).long()) > 0
    negative = zeros.index_add(0, group_B, (adv_B < 0).long()) > 0
    return (positive & negative)[group_B]
