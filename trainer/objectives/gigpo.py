"""GiGPO advantages: an episode term for the trajectory and a step term for the turn.

Source: GiGPO, Feng et al. 2025 (arXiv:2505.10978). The flavours "code" and "code_traj" follow the
public behaviour of verl-agent.

Axis letters: M turns (rows), N trajectories, G groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypedDict, Unpack

from torch import Tensor

from trainer.objectives.anchors import pair_ids, step_returns
from trainer.objectives.groups import (
    Singleton,
    check_vectors,
    group_stats,
    normalise,
)
from trainer.objectives.grpo import Flavor, grpo_advantages

NormMode = Literal["mean_std_norm", "mean_norm"]

NORM_MODES = ("mean_std_norm", "mean_norm")


@dataclass(frozen=True, slots=True)
class GiGPOTerms:
    """What `gigpo_terms` returns; all of shape (M,), detached, in the order of the input rows.

    Attributes:
        advantage: episode + omega * step.
        episode: float64, A^E.
        step: float64, A^S, before the factor omega.
        step_return: float64, R_t.
        group_size: int64, turns with the same anchor, this one included.
    """

    advantage: Tensor
    episode: Tensor
    step: Tensor
    step_return: Tensor
    group_size: Tensor


class GiGPOOptions(TypedDict, total=False):
    """Options of `gigpo_terms`, which names their meaning and defaults."""

    flavor: Flavor
    mode: NormMode
    omega: float
    gamma: float
    eps: float
    penalty: float
    singleton: Singleton


def gigpo_advantages(
    step_rewards_M: Tensor,
    format_valid_M: Tensor,
    uid_M: Tensor,
    tid_M: Tensor,
    t_M: Tensor | None,
    anchor_M: Tensor,
    **options: Unpack[GiGPOOptions],
) -> Tensor:
    """The advantage of `gigpo_terms` alone, float64 (M,); same arguments, options and errors.

    Source: GiGPO (arXiv:2505.10978).
    """
    return gigpo_terms(
        step_rewards_M, format_valid_M, uid_M, tid_M, t_M, anchor_M, **options
    ).advantage


def gigpo_terms(
    step_rewards_M: Tensor,
    format_valid_M: Tensor,
    uid_M: Tensor,
    tid_M: Tensor,
    t_M: Tensor | None,
    anchor_M: Tensor,
    *,
    flavor: Flavor = "paper",
    mode: NormMode = "mean_std_norm",
    omega: float = 1.0,
    gamma: float = 0.95,
    eps: float = 1e-6,
    penalty: float = 0.1,
    singleton: Singleton = "zero",
) -> GiGPOTerms:
    """Group-in-group advantage, one number per turn, with its terms.

        A   = A^E + omega * A^S
        A^E = grpo_advantages(...)                              over the task group
        A^S = (R_t - mean_S) / (std_S + eps)                    mode "mean_std_norm"
        A^S = R_t - mean_S                                      mode "mean_norm"

    R_t is the discounted return from the turn on (`step_returns`): rewards are discounted first,
    returns normalised after, as in the paper. The pool S of a turn is every
    turn of its task group with the same anchor, of any trajectory and step, repeats within one
    trajectory included; std_S divides by n - 1. `mode` applies to both terms. Published runs use
    "mean_std_norm" on ALFWorld and "mean_norm" on WebShop.

    The flavours "paper", "code" and "code_traj" are those of `grpo_advantages` for A^E and of
    `step_returns` for R_t, where the last two agree.

    Edge cases: an anchor that occurs once, or whose returns are all equal, gives A^S exactly 0.
    If all trajectories succeed, A^E is 0 but A^S still prefers the shorter way.

    Args:
        step_rewards_M: float (M,), undiscounted environment reward of each turn.
        format_valid_M: bool (M,), False where the reply broke the format.
        uid_M: int64 (M,), task-group id.
        tid_M: int64 (M,), trajectory id, unique over the batch.
        t_M: int64 (M,), step within the trajectory; None means that the rows of each trajectory
            come in time order. Row order is irrelevant otherwise.
        anchor_M: int64 (M,), state before the turn (`anchor_ids`); compared within a uid only.
        flavor, mode, omega, eps: as above.
        gamma: discount of R_t, in [0, 1].
        penalty: of a malformed reply, in both terms.
        singleton: of the episode term, see `grpo_advantages`; an anchor of its own is always 0.

    Returns:
        GiGPOTerms.

    Raises:
        ValueError: shapes differ, an option is unknown or out of range, a reward is not finite,
            a trajectory has two turns of one step, or `singleton="raw"` comes with "paper".
        GroupError: a trajectory id occurs in two groups.

    Source: GiGPO, Feng et al. 2025 (arXiv:2505.10978).
    """
    check_mode(mode)
    check_vectors(uid_M=uid_M, anchor_M=anchor_M)
    use_std = mode == "mean_std_norm"
    episode_M = grpo_advantages(
        step_rewards_M,
        format_valid_M,
        uid_M,
        tid_M,
        t_M,
        flavor=flavor,
        use_std=use_std,
        eps=eps,
        penalty=penalty,
        singleton=singleton,
    )
    return_M = step_returns(
        step_rewards_M, format_valid_M, tid_M, t_M, flavor=flavor, gamma=gamma, penalty=penalty
    )
    pool_M = pair_ids(uid_M, anchor_M)
    n_pools = int(pool_M.max()) + 1 if pool_M.numel() else 0
    stats = group_stats(return_M, pool_M, n_pools)
    step_M = normalise(return_M, pool_M, stats, use_std=use_std, eps=eps)
    return GiGPOTerms(
        advantage=episode_M + omega * step_M,
        episode=episode_M,
        step=step_M,
        step_return=return_M,
        group_size=stats.count[pool_M],
    )


def check_mode(mode: str) -> None:
    """Raise ValueError unless the normalisation is a known one."""
    if mode not in NORM_MODES:
        raise ValueError(f"mode must be one of {NORM_MODES}, found {mode!r}.")
