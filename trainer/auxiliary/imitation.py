"""Imitation controls: which rows a simpler method would train, and by how much.

Each control is a selection of rows for the same NLL, so that a comparison with SERO differs in the
rows and their weights only:

- DAgger: the oracle's command at every state of the failed rollouts, collected under a mixture of
  oracle and policy. Ross et al. 2011 (arXiv:1011.0686); for language agents arXiv:2605.12913.
  It is Root-only at all states, without a gate.
- On-policy expert corrections: from a root of the policy the oracle plays to the end; its part of
  the successful episodes is imitated, each row alike. arXiv:2512.14895. It is Full-Flat with a
  gate of 0 or 1, without a base objective.
- Supervised fine-tuning on successful oracle branches: the same rows as a plain data set, every
  row of the same weight whatever branch it comes from.
- Expert iteration: the policy's own successful rollouts. Anthony et al. 2017 (arXiv:1705.08439);
  STaR (arXiv:2203.14465).

    loss = 1 / max(N, 1) * sum over selected rows of the mean NLL over the row's loss tokens

N counts the selected rows with loss tokens (for expert corrections: the roots) of the whole
optimiser step.

Axis letters: M rows, R roots (branches), K rows of one branch, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from trainer.auxiliary.sero import row_coefficients
from trainer.auxiliary.sero_weights import reach_weights
from trainer.objectives.aggregate import as_mask, weighted_nll
from trainer.objectives.groups import check_vectors

BetaSchedule = Literal["exponential", "linear", "indicator"]

BETA_SCHEDULES: tuple[BetaSchedule, ...] = ("exponential", "linear", "indicator")


def dagger_beta(
    iteration: int,
    *,
    schedule: BetaSchedule = "exponential",
    p: float = 0.5,
    n_iterations: int | None = None,
) -> float:
    """beta_i: probability that the oracle, not the policy, acts while states are collected.

    - "exponential": p^i
    - "linear": max(0, 1 - i / n_iterations)
    - "indicator": 1 at i = 0, then 0 (no parameter)

    The average of beta_i over iterations has to go to 0 for DAgger's guarantee; all three do.

    Args:
        iteration: i, from 0.
        schedule: as above.
        p: base of "exponential", in [0, 1); 0 is "indicator".
        n_iterations: iteration at which "linear" reaches 0, at least 1.

    Returns:
        beta_i in [0, 1].

    Raises:
        ValueError: unknown schedule, a negative iteration, p out of range, or "linear" without
            n_iterations.
    """
    if schedule not in BETA_SCHEDULES:
        raise ValueError(f"schedule must be one of {BETA_SCHEDULES}, found {schedule!r}.")
    if iteration < 0:
        raise ValueError(f"Iterations are numbered from 0, found {iteration}.")
    if schedule == "indicator":
        return 1.0 if iteration == 0 else 0.0
    if schedule == "linear":
        if n_iterations is None or n_iterations < 1:
            raise ValueError(f"'linear' needs n_iterations >= 1, found {n_iterations}.")
        return max(0.0, 1.0 - iteration / n_iterations)
    if not 0.0 <= p < 1.0:
        raise ValueError(f"p must lie in [0, 1), found {p}; at 1 the policy would never act.")
    return p**iteration


def oracle_acts(u: float, beta: float) -> bool:
    """Whether the oracle takes the step: u < beta, u a uniform draw of the caller in [0, 1).

    Raises:
        ValueError: u outside [0, 1) or beta outside [0, 1].
    """
    if not (0.0 <= u < 1.0 and 0.0 <= beta <= 1.0):
        raise ValueError(f"Need u in [0, 1) and beta in [0, 1], found {u} and {beta}.")
    return u < beta


def dagger_rows(success_M: Tensor, labelled_M: Tensor) -> Tensor:
    """Rows of failed rollouts at which the oracle named a command.

    Args:
        success_M: bool (M,), whether the row's rollout solved its task.
        labelled_M: bool (M,), whether the oracle gave an admissible command at the row's state.

    Returns:
        bool (M,).
    """
    check_vectors(success_M=success_M, labelled_M=labelled_M)
    return ~success_M.bool() & labelled_M.bool()


def expert_iteration_rows(success_M: Tensor, format_valid_M: Tensor | None = None) -> Tensor:
    """Rows of the policy's own successful rollouts.

    Args:
        success_M: bool (M,), whether the row's rollout solved its task.
        format_valid_M: bool (M,), rows with a well-formed reply; malformed ones are left out.
            None: all rows of a success, as the method is written.

    Returns:
        bool (M,).
    """
    if format_valid_M is None:
        check_vectors(success_M=success_M)
        return success_M.bool()
    check_vectors(success_M=success_M, format_valid_M=format_valid_M)
    return success_M.bool() & format_valid_M.bool()


def successful_branch_rows(branch_M: Tensor, success_R: Tensor, valid_R: Tensor) -> Tensor:
    """Rows of oracle branches that were valid and solved the task, for supervised fine-tuning.

    Args:
        branch_M: int64 (M,), number of the branch that each row belongs to, below R.
        success_R: bool (R,), whether the oracle solved the task.
        valid_R: bool (R,), v_r.

    Returns:
        bool (M,).

    Raises:
        ValueError: shapes differ or a branch number is out of range.
    """
    check_vectors(branch_M=branch_M)
    check_vectors(success_R=success_R, valid_R=valid_R)
    n_branches = success_R.numel()
    if bool(((branch_M < 0) | (branch_M >= n_branches)).any()):
        raise ValueError(f"branch_M must hold numbers from 0 to {n_branches - 1}.")
    return (success_R.bool() & valid_R.bool())[branch_M]


def expert_correction_coefficients(
    success_R: Sequence[bool],
    valid_R: Sequence[bool],
    token_counts_R_K: Sequence[Sequence[int]],
    *,
    n_root: int,
) -> list[list[float]]:
    """On-policy expert corrections: SERO's coefficients with the flat rule and a binary gate.

        coef_{r,k} = 1[v_r and success_r] / (max(N_root, 1) * |C_k|)

    A longer correction weighs more in total, as in Full-Flat.

    Args:
        success_R: whether the episode that the oracle finished was a success.
        valid_R: v_r.
        token_counts_R_K: loss tokens |C_k| of each row; ragged over roots.
        n_root: roots of the whole optimiser step, see `trainer.auxiliary.sero.count_roots`.

    Returns:
        Floats in the layout of `token_counts_R_K`.

    Raises:
        ValueError: layouts differ.
    """
    if not len(success_R) == len(valid_R) == len(token_counts_R_K):
        raise ValueError(
            f"Expected one entry per root, found {len(success_R)} successes, {len(valid_R)} "
            f"validities and {len(token_counts_R_K)} branches."
        )
    gates = [float(bool(s) and bool(v)) for s, v in zip(success_R, valid_R, strict=True)]
    weights = [reach_weights([0.0] * len(counts), "flat") for counts in token_counts_R_K]
    return row_coefficients(gates, weights, token_counts_R_K, n_root=n_root)


def imitation_coefficients(
    selected_M: Tensor, token_count_M: Tensor, *, n_rows: int, mass: float = 1.0
) -> Tensor:
    """Factor of each row's summed token NLL: mass / (max(N, 1) * |C|) where selected.

    Args:
        selected_M: bool (M,), from one of the selections above.
        token_count_M: int64 (M,), loss tokens |C| of each row.
        n_rows: N, selected rows with loss tokens in the whole optimiser step.
        mass: sum of row weights; 1 is the plain mean over rows.

    Returns:
        float64 (M,); exactly 0 for rows outside the selection or without loss tokens.

    Raises:
        ValueError: shapes differ, n_rows is below the rows given, or mass is negative.
    """
    check_vectors(selected_M=selected_M, token_count_M=token_count_M)
    on_M = selected_M.bool() & (token_count_M > 0)
    if n_rows < int(on_M.sum()):
        raise ValueError(
            f"n_rows={n_rows} is below the {int(on_M.sum())} rows selected here; it counts the "
            "whole step."
        )
    if not 0.0 <= mass < float("inf"):
        raise ValueError(f"mass must be finite and >= 0, found {mass}.")
    coef_M = mass / (max(n_rows, 1) * token_count_M.clamp(min=1).double())
    return torch.where(on_M, coef_M, torch.zeros_like(coef_M))


def imitation_loss(
    logp_M_T: Tensor,
    mask_M_T: Tensor,
    selected_M: Tensor,
    *,
    n_rows: int,
    mass: float = 1.0,
) -> Tensor:
    """NLL of the selected rows: the loss of DAgger, fine-tuning and expert iteration.

    Args:
        logp_M_T: float (M, T), log-probs of the target tokens under the trained policy, with
            gradient.
        mask_M_T: bool or 0/1 (M, T), loss tokens.
        selected_M, n_rows, mass: see `imitation_coefficients`.

    Returns:
        Scalar; the parts of one step add up. Exactly 0 with zero gradient without a row.
    """
    token_count_M = as_mask(mask_M_T).sum(dim=-1)
    coef_M = imitation_coefficients(selected_M, token_count_M, n_rows=n_rows, mass=mass)
    return weighted_nll(logp_M_T, mask_M_T, coef_M)
