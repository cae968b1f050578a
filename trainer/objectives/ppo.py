"""PPO advantages from a critic, over multi-turn trajectories.

Sources: PPO, Schulman et al. 2017 (arXiv:1707.06347); GAE, Schulman et al. 2015
(arXiv:1506.02438). `ppo_turnwise` follows the public behaviour of verl-agent (specification of
the base objectives, section 6); the other two pass credit from turn to turn.

A row is a turn: (M, T) holds the trained tokens of each turn's reply. Observations are in no row,
so they are no transitions.

Axis letters: M turns (rows), T tokens, N trajectories, K trained tokens in a line.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trainer.objectives.aggregate import as_mask, check_matrices
from trainer.objectives.gae import check_finite, check_unit_interval, episode_gae, gae
from trainer.objectives.groups import check_vectors
from trainer.objectives.whitening import whiten


class CriticAdvantages(NamedTuple):
    """What a critic's estimator gives: float64, detached, 0 outside the mask, all of one shape.

    Attributes:
        advantages: for the policy loss, whitened where that was asked for.
        returns: targets of the value loss, never whitened.
        raw: advantages before whitening.
    """

    advantages: Tensor
    returns: Tensor
    raw: Tensor


def ppo_turnwise(
    step_rewards_M: Tensor,
    format_valid_M: Tensor,
    tid_M: Tensor,
    value_M_T: Tensor,
    mask_M_T: Tensor,
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
    penalty: float = 0.1,
    whitened: bool = True,
    token_rewards_M_T: Tensor | None = None,
) -> CriticAdvantages:
    """Each turn its own episode, which ends with the whole trajectory's return.

        r_k = [k is the turn's last token] * (R(tau) - penalty * [this reply is malformed])
        A   = GAE over the turn's tokens, V = 0 after the last

    R(tau), the sum of the trajectory's rewards, is written on the last token of *every* turn, and
    nothing is bootstrapped across turns; with gamma = lam = 1, A = R(tau) - penalty * [...] - V.
    This is what public multi-turn code calls PPO.

    Args:
        step_rewards_M: float (M,), environment reward of each turn.
        format_valid_M: bool (M,), False where the reply broke the format.
        tid_M: int64 (M,), trajectory id, unique over the batch.
        value_M_T: float (M, T), the critic's value before each token.
        mask_M_T: bool or 0/1 (M, T), trained tokens of each turn; holes are allowed.
        gamma, lam: per token, see `trainer.objectives.gae`.
        penalty: subtracted from a malformed reply's own turn.
        whitened: whiten the advantages over all trained tokens.
        token_rewards_M_T: float (M, T), added to the token rewards, e.g. a KL penalty (see
            `trainer.objectives.kl_reward`).

    Returns:
        CriticAdvantages of shape (M, T). A turn without trained tokens has zeros only.

    Raises:
        ValueError: shapes differ, gamma or lam lie outside [0, 1], or a reward or a value of a
            trained token is not finite.
    """
    rewards_M, malformed_M = _checked(step_rewards_M, format_valid_M, tid_M)
    mask = _row_mask(mask_M_T, value_M_T, rewards_M)
    tids, trajectory_M = torch.unique(tid_M, return_inverse=True)
    return_N = rewards_M.new_zeros(tids.numel()).index_add(0, trajectory_M, rewards_M)
    score_M = return_N[trajectory_M] - penalty * malformed_M
    reward_M_T = _on_last_tokens(score_M, mask, token_rewards_M_T)
    raw, returns = gae(reward_M_T, value_M_T, mask, gamma=gamma, lam=lam)
    return CriticAdvantages(whiten(raw, mask) if whitened else raw, returns, raw)


def ppo_trajectory(
    step_rewards_M: Tensor,
    format_valid_M: Tensor,
    tid_M: Tensor,
    value_M_T: Tensor,
    mask_M_T: Tensor,
    t_M: Tensor | None = None,
    *,
    gamma: float = 0.95,
    lam: float = 0.95,
    token_gamma: float = 1.0,
    token_lam: float = 1.0,
    penalty: float = 0.1,
    whitened: bool = False,
    token_rewards_M_T: Tensor | None = None,
    bootstrap_M: Tensor | None = None,
) -> CriticAdvantages:
    """GAE along all trained tokens of a trajectory, through its turns.

        r_k     = [k is the turn's last token] * (r_turn - penalty * [this reply is malformed])
        delta_k = r_k + g_k * V_{k+1} - V_k
        A_k     = delta_k + g_k * l_k * A_{k+1}

    k + 1 is the trajectory's next trained token: from a turn's last token the next turn's first,
    whatever the environment wrote in between. (g, l) is (gamma, lam) on that step and
    (token_gamma, token_lam) within a turn, so by default the discount counts turns and not the
    length of replies.

    A turn without trained tokens holds no decision: its reward goes, undiscounted, to the turn
    before it that has any, and to nobody if there is none.

    Args:
        step_rewards_M, format_valid_M, tid_M, value_M_T, mask_M_T, penalty, token_rewards_M_T:
            see `ppo_turnwise`.
        t_M: int64 (M,), step within the trajectory. None: the rows of each trajectory come in
            time order. Row order is irrelevant otherwise.
        gamma, lam: from one turn to the next.
        token_gamma, token_lam: from one token to the next within a turn.
        whitened: whiten the advantages over all trained tokens.
        bootstrap_M: float (M,), value of the state after each turn; only the last turn of each
            trajectory is read: the critic's value where it was cut off, 0 where it ended. None:
            all have ended.

    Returns:
        CriticAdvantages of shape (M, T).

    Raises:
        ValueError: shapes differ, a discount lies outside [0, 1], a reward, bootstrap value or
            value of a trained token is not finite, or a trajectory has two turns of one t.
    """
    check_unit_interval(gamma=gamma, lam=lam, token_gamma=token_gamma, token_lam=token_lam)
    rewards_M, malformed_M = _checked(step_rewards_M, format_valid_M, tid_M)
    mask = _row_mask(mask_M_T, value_M_T, rewards_M)
    order_M, trajectory_M = _time_order(tid_M, t_M)
    final_M = _final_values(bootstrap_M, order_M, trajectory_M, rewards_M)

    # From here on, until the result, rows stand in time order within each trajectory.
    kept = mask[order_M]
    score_M = (rewards_M - penalty * malformed_M)[order_M]
    score_M = _hand_back(score_M, kept.any(dim=-1), trajectory_M)
    extra = None if token_rewards_M_T is None else token_rewards_M_T[order_M]
    reward_K = _on_last_tokens(score_M, kept, extra)[kept]
    value_K = value_M_T.detach().double()[order_M][kept]
    check_finite(value_M_T=value_K)
    row_K = kept.nonzero()[:, 0]
    leaves_K = last_tokens(kept)[kept]
    advantage_K = episode_gae(
        reward_K,
        value_K,
        episode_K=trajectory_M[row_K],
        final_K=final_M[row_K],
        gamma_K=torch.full_like(value_K, token_gamma).masked_fill(leaves_K, gamma),
        lam_K=torch.full_like(value_K, token_lam).masked_fill(leaves_K, lam),
    )

    def restored(value_K: Tensor) -> Tensor:
        ordered = value_K.new_zeros(kept.shape).masked_scatter(kept, value_K)
        return torch.zeros_like(ordered).index_copy(0, order_M, ordered)

    raw, returns = restored(advantage_K), restored(advantage_K + value_K)
    return CriticAdvantages(whiten(raw, mask) if whitened else raw, returns, raw)


def turn_gae(
    step_rewards_M: Tensor,
    format_valid_M: Tensor,
    tid_M: Tensor,
    value_M: Tensor,
    t_M: Tensor | None = None,
    *,
    gamma: float = 0.95,
    lam: float = 0.95,
    penalty: float = 0.1,
    whitened: bool = False,
    bootstrap_M: Tensor | None = None,
) -> CriticAdvantages:
    """GAE over turns, with one value a turn.

        delta_t = r_t - penalty * [reply t is malformed] + gamma * V_{t+1} - V_t
        A_t     = delta_t + gamma * lam * A_{t+1}

    Args:
        value_M: float (M,), the critic's value of the state before each turn.
        whitened: whiten the advantages over all turns.
        step_rewards_M, format_valid_M, tid_M, t_M, gamma, lam, penalty, bootstrap_M: see
            `ppo_trajectory`.

    Returns:
        CriticAdvantages of shape (M,).

    Raises:
        ValueError: as in `ppo_trajectory`.
    """
    check_unit_interval(gamma=gamma, lam=lam)
    rewards_M, malformed_M = _checked(step_rewards_M, format_valid_M, tid_M)
    check_vectors(step_rewards_M=step_rewards_M, value_M=value_M)
    order_M, trajectory_M = _time_order(tid_M, t_M)
    value_M = value_M.detach().double()
    check_finite(value_M=value_M)
    advantage_M = episode_gae(
        (rewards_M - penalty * malformed_M)[order_M],
        value_M[order_M],
        episode_K=trajectory_M,
        final_K=_final_values(bootstrap_M, order_M, trajectory_M, rewards_M),
        gamma_K=torch.full_like(value_M, gamma),
        lam_K=torch.full_like(value_M, lam),
    )
    raw = torch.zeros_like(value_M).index_copy(0, order_M, advantage_M)
    advantages = raw
    if whitened:
        column = raw[:, None]
        advantages = whiten(column, torch.ones_like(column))[:, 0]
    return CriticAdvantages(advantages, raw + value_M, raw)


def last_tokens(mask_B_T: Tensor) -> Tensor:
    """bool (B, T), true at the last trained token of each row that has one.

    Args:
        mask_B_T: bool or 0/1 (B, T); holes are allowed.
    """
    mask = as_mask(mask_B_T)
    count_B_T = mask.cumsum(dim=-1)
    return mask & (count_B_T == mask.sum(dim=-1, keepdim=True))


def _checked(
    step_rewards_M: Tensor, format_valid_M: Tensor, tid_M: Tensor
) -> tuple[Tensor, Tensor]:
    """Rewards and malformed flags, float64 (M,)."""
    check_vectors(step_rewards_M=step_rewards_M, format_valid_M=format_valid_M, tid_M=tid_M)
    rewards_M = step_rewards_M.detach().double()
    check_finite(step_rewards_M=rewards_M)
    return rewards_M, (~format_valid_M.bool()).double()


def _row_mask(mask_M_T: Tensor, value_M_T: Tensor, rewards_M: Tensor) -> Tensor:
    """The mask as bool (M, T), of the values' shape and with one row a turn."""
    check_matrices(value_M_T=value_M_T, mask_M_T=mask_M_T)
    if mask_M_T.shape[0] != rewards_M.numel():
        raise ValueError(
            f"Expected one row of tokens per turn, {rewards_M.numel()}, found {mask_M_T.shape[0]}."
        )
    return as_mask(mask_M_T)


def _on_last_tokens(score_M: Tensor, mask: Tensor, token_rewards_M_T: Tensor | None) -> Tensor:
    """Token rewards, float64 (M, T): the score on each row's last token plus what is added."""
    reward_M_T = torch.where(last_tokens(mask), score_M[:, None], 0.0)
    if token_rewards_M_T is None:
        return reward_M_T
    check_matrices(token_rewards_M_T=token_rewards_M_T, mask_M_T=mask)
    added = token_rewards_M_T.detach().double().masked_fill(~mask, 0.0)
    check_finite(token_rewards_M_T=added)
    return reward_M_T + added


def _time_order(tid_M: Tensor, t_M: Tensor | None) -> tuple[Tensor, Tensor]:
    """Rows sorted by trajectory, then time, and the dense trajectory number of each sorted row."""
    trajectory_M = torch.unique(tid_M, return_inverse=True)[1]
    if t_M is None:
        order_M = torch.argsort(trajectory_M, stable=True)
        return order_M, trajectory_M[order_M]
    check_vectors(tid_M=tid_M, t_M=t_M)
    by_time_M = torch.argsort(t_M, stable=True)
    order_M = by_time_M[torch.argsort(trajectory_M[by_time_M], stable=True)]
    trajectory_M, time_M = trajectory_M[order_M], t_M[order_M]
    twice = (trajectory_M[1:] == trajectory_M[:-1]) & (time_M[1:] == time_M[:-1])
    if bool(twice.any()):
        row = int(order_M[1:][twice][0])
        raise ValueError(
            f"Trajectory {int(tid_M[row])} has two turns of t = {int(t_M[row])}, which have no "
            "order. Compute advantages before rows are duplicated."
        )
    return order_M, trajectory_M


def _final_values(
    bootstrap_M: Tensor | None, order_M: Tensor, trajectory_M: Tensor, rewards_M: Tensor
) -> Tensor:
    """Value after the trajectory of each sorted row, float64 (M,)."""
    if bootstrap_M is None:
        return torch.zeros_like(rewards_M)
    check_vectors(step_rewards_M=rewards_M, bootstrap_M=bootstrap_M)
    length_N = torch.bincount(trajectory_M)
    final_N = bootstrap_M.detach().double()[order_M][length_N.cumsum(0) - 1]
    check_finite(bootstrap_M=final_N)
    return final_N[trajectory_M]


def _hand_back(score_M: Tensor, acting_M: Tensor, trajectory_M: Tensor) -> Tensor:
    """Scores of sorted rows, those of rows without tokens given to the acting row before them."""
    if bool(acting_M.all()):
        return score_M
    row_M = torch.arange(score_M.numel(), device=score_M.device)
    taker_M = row_M.masked_fill(~acting_M, -1).cummax(0).values
    earned_M = (taker_M >= 0) & (trajectory_M[taker_M] == trajectory_M)
    return torch.zeros_like(score_M).index_add(0, taker_M[earned_M], score_M[earned_M])
