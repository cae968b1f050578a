"""Advantages of tokens as plain loops: RLOO, REINFORCE++ and what needs a critic.

As in `reference_advantages.py`: the arguments of the counterpart in `trainer.objectives`, the
formulas in the plainest way, nothing of that package. Values and masks are lists of lists here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from benchmarks.reference_advantages import _trajectories, grpo_loop

Rows = list[list[float]]


def rloo_loop(
    step_rewards_M: Tensor,
    format_valid_M: Tensor,
    uid_M: Tensor,
    tid_M: Tensor,
    t_M: Tensor | None = None,
    *,
    penalty: float = 0.1,
) -> list[float]:
    """`trainer.objectives.rloo.rloo_advantages`, flavour "paper": each against the others' mean."""
    rewards, valid, uids = step_rewards_M.tolist(), format_valid_M.tolist(), uid_M.tolist()
    scores: dict[int, dict[int, float]] = {}
    rows_of = _trajectories(tid_M, t_M)
    for tid, rows in rows_of.items():
        score = sum(rewards[row] - penalty * (not valid[row]) for row in rows)
        scores.setdefault(uids[rows[0]], {})[tid] = score
    advantages = [0.0] * len(rewards)
    for tid, rows in rows_of.items():
        group = scores[uids[rows[0]]]
        others = [score for other, score in group.items() if other != tid]
        for row in rows:
            advantages[row] = group[tid] - math.fsum(others) / len(others) if others else 0.0
    return advantages


def reinforce_pp_loop(
    step_rewards_M: Tensor,
    format_valid_M: Tensor,
    tid_M: Tensor,
    mask_M_T: Sequence[Sequence[bool]],
    *,
    penalty: float = 0.1,
    gamma: float = 1.0,
) -> Rows:
    """`trainer.objectives.reinforce_pp.reinforce_pp_advantages`, without a KL; advantages only."""
    scores = _turn_scores(step_rewards_M, format_valid_M, tid_M, penalty)
    returns: Rows = []
    for score, mask in zip(scores, mask_M_T, strict=True):
        row, ahead = [0.0] * len(mask), None
        for t in reversed(range(len(mask))):
            if mask[t]:
                ahead = score if ahead is None else gamma * ahead
                row[t] = ahead
        returns.append(row)
    return _whitened(returns, mask_M_T)


def reinforce_pp_baseline_loop(
    step_rewards_M: Tensor,
    format_valid_M: Tensor,
    uid_M: Tensor,
    tid_M: Tensor,
    tokens_M: Tensor,
    t_M: Tensor | None = None,
    *,
    penalty: float = 0.1,
) -> list[float]:
    """`trainer.objectives.reinforce_pp.reinforce_pp_baseline_advantages`, flavour "paper"."""
    centred = grpo_loop(
        step_rewards_M, format_valid_M, uid_M, tid_M, t_M, use_std=False, penalty=penalty
    ).tolist()
    counts, uids = tokens_M.tolist(), uid_M.tolist()
    tokens = [[value] * count for value, count in zip(centred, counts, strict=True)]
    whitened = _whitened(tokens, [[True] * count for count in counts])
    taught = {uid for uid, value in zip(uids, centred, strict=True) if value != 0.0}
    return [
        row[0] if row and uid in taught else 0.0 for row, uid in zip(whitened, uids, strict=True)
    ]


def ppo_turnwise_loop(
    step_rewards_M: Tensor,
    format_valid_M: Tensor,
    tid_M: Tensor,
    value_M_T: Sequence[Sequence[float]],
    mask_M_T: Sequence[Sequence[bool]],
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
    penalty: float = 0.1,
) -> Rows:
    """`trainer.objectives.ppo.ppo_turnwise`; whitened advantages only."""
    scores = _turn_scores(step_rewards_M, format_valid_M, tid_M, penalty)
    raw: Rows = []
    for score, values, mask in zip(scores, value_M_T, mask_M_T, strict=True):
        row = [0.0] * len(mask)
        reward, next_value, ahead = score, 0.0, 0.0
        for t in reversed(range(len(mask))):
            if mask[t]:
                ahead = reward + gamma * next_value - values[t] + gamma * lam * ahead
                row[t], reward, next_value = ahead, 0.0, values[t]
        raw.append(row)
    return _whitened(raw, mask_M_T)


def ppo_trajectory_loop(
    step_rewards_M: Tensor,
    format_valid_M: Tensor,
    tid_M: Tensor,
    value_M_T: Sequence[Sequence[float]],
    mask_M_T: Sequence[Sequence[bool]],
    t_M: Tensor | None = None,
    *,
    gamma: float = 0.95,
    lam: float = 0.95,
    token_gamma: float = 1.0,
    token_lam: float = 1.0,
    penalty: float = 0.1,
) -> Rows:
    """`trainer.objectives.ppo.ppo_trajectory`; every turn must have a trained token."""
    rewards, valid = step_rewards_M.tolist(), format_valid_M.tolist()
    advantages: Rows = [[0.0] * len(mask) for mask in mask_M_T]
    for rows in _trajectories(tid_M, t_M).values():
        next_value, ahead = 0.0, 0.0
        for row in reversed(rows):
            reward, g, decay = rewards[row] - penalty * (not valid[row]), gamma, lam
            for t in reversed(range(len(mask_M_T[row]))):
                if mask_M_T[row][t]:
                    value = value_M_T[row][t]
                    ahead = reward + g * next_value - value + g * decay * ahead
                    advantages[row][t] = ahead
                    reward, next_value, g, decay = 0.0, value, token_gamma, token_lam
    return advantages


def turn_gae_loop(
    step_rewards_M: Tensor,
    format_valid_M: Tensor,
    tid_M: Tensor,
    value_M: Sequence[float],
    t_M: Tensor | None = None,
    *,
    gamma: float = 0.95,
    lam: float = 0.95,
    penalty: float = 0.1,
) -> list[float]:
    """`trainer.objectives.ppo.turn_gae`; advantages only."""
    rewards, valid = step_rewards_M.tolist(), format_valid_M.tolist()
    advantages = [0.0] * len(rewards)
    for rows in _trajectories(tid_M, t_M).values():
        next_value, ahead = 0.0, 0.0
        for row in reversed(rows):
            reward = rewards[row] - penalty * (not valid[row])
            ahead = reward + gamma * next_value - value_M[row] + gamma * lam * ahead
            advantages[row], next_value = ahead, value_M[row]
    return advantages


def _turn_scores(
    step_rewards_M: Tensor, format_valid_M: Tensor, tid_M: Tensor, penalty: float
) -> list[float]:
    """The trajectory's whole return on each of its turns, less the turn's own penalty."""
    rewards, valid, tids = step_rewards_M.tolist(), format_valid_M.tolist(), tid_M.tolist()
    total: dict[int, float] = {}
    for tid, reward in zip(tids, rewards, strict=True):
        total[tid] = total.get(tid, 0.0) + reward
    return [total[tid] - penalty * (not ok) for tid, ok in zip(tids, valid, strict=True)]


def _whitened(rows: Rows, mask: Sequence[Sequence[bool]]) -> Rows:
    """Zero mean and unit variance over the valid tokens of the batch."""
    valid = [
        x
        for row, keep in zip(rows, mask, strict=True)
        for x, here in zip(row, keep, strict=True)
        if here
    ]
    mean = math.fsum(valid) / len(valid)
    variance = math.fsum((x - mean) ** 2 for x in valid) / (len(valid) - 1)
    scale = 1.0 / math.sqrt(variance + 1e-8)
    return [
        [(x - mean) * scale if here else 0.0 for x, here in zip(row, keep, strict=True)]
        for row, keep in zip(rows, mask, strict=True)
    ]
