"""Advantages row by row: plain loops over dictionaries, for comparison with the vectorised ones.

Each function takes the arguments of its counterpart in `trainer.objectives` and follows the
formulas in the plainest way, without tensor operations and without anything of that package. Tests
compare both on random batches.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence

import torch
from torch import Tensor


def grpo_loop(
    step_rewards_M: Tensor,
    format_valid_M: Tensor,
    uid_M: Tensor,
    tid_M: Tensor,
    t_M: Tensor | None = None,
    *,
    flavor: str = "paper",
    use_std: bool = True,
    ddof: int = 1,
    eps: float = 1e-6,
    penalty: float = 0.1,
    singleton: str = "zero",
) -> Tensor:
    """`trainer.objectives.grpo_advantages`, row by row."""
    rewards, valid, uids = step_rewards_M.tolist(), format_valid_M.tolist(), uid_M.tolist()
    rows_of = _trajectories(tid_M, t_M)
    scores = [0.0] * len(rewards)
    pools: dict[int, list[float]] = {}
    for rows in rows_of.values():
        total = sum(rewards[row] for row in rows)
        malformed = sum(not valid[row] for row in rows)
        for row in rows:
            own = malformed if flavor == "paper" else int(not valid[row])
            scores[row] = total - penalty * own
        members = rows if flavor == "code" else rows[:1]
        pools.setdefault(uids[rows[0]], []).extend(scores[row] for row in members)
    statistics = {uid: _statistics(pool, ddof) for uid, pool in pools.items()}
    advantages = []
    for score, uid in zip(scores, uids, strict=True):
        if len(pools[uid]) == 1 and singleton == "raw":
            advantages.append(score / (1 + eps) if use_std else score)
        else:
            advantages.append(_normalised(score, statistics[uid], use_std, eps))
    return _tensor(advantages)


def gigpo_loop(
    step_rewards_M: Tensor,
    format_valid_M: Tensor,
    uid_M: Tensor,
    tid_M: Tensor,
    t_M: Tensor | None,
    anchor_M: Tensor,
    *,
    flavor: str = "paper",
    mode: str = "mean_std_norm",
    omega: float = 1.0,
    gamma: float = 0.95,
    eps: float = 1e-6,
    penalty: float = 0.1,
    singleton: str = "zero",
) -> Tensor:
    """`trainer.objectives.gigpo.gigpo_advantages`, row by row."""
    use_std = mode == "mean_std_norm"
    episode = grpo_loop(
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
    ).tolist()
    returns = _returns(step_rewards_M, format_valid_M, tid_M, t_M, flavor, gamma, penalty)
    keys = list(zip(uid_M.tolist(), anchor_M.tolist(), strict=True))
    statistics = _pool_statistics(keys, returns, ddof=1)
    step = [
        _normalised(value, statistics[key], use_std, eps)
        for key, value in zip(keys, returns, strict=True)
    ]
    return _tensor(e + omega * s for e, s in zip(episode, step, strict=True))


def hgpo_loop(
    step_rewards_M: Tensor,
    format_valid_M: Tensor,
    uid_M: Tensor,
    tid_M: Tensor,
    t_M: Tensor | None,
    anchor_M: Tensor,
    *,
    flavor: str = "paper",
    mode: str = "mean_std_norm",
    depth: int = 2,
    alpha: float = 1.0,
    base_group: bool = False,
    gamma: float = 0.95,
    eps: float = 1e-6,
    penalty: float = 0.1,
) -> Tensor:
    """`trainer.objectives.hgpo.hgpo_advantages`, row by row."""
    use_std, paper = mode == "mean_std_norm", flavor == "paper"
    uids, anchors = uid_M.tolist(), anchor_M.tolist()
    returns = _returns(step_rewards_M, format_valid_M, tid_M, t_M, flavor, gamma, penalty)
    base = None
    if base_group:
        base = grpo_loop(
            step_rewards_M,
            format_valid_M,
            uid_M,
            tid_M,
            t_M,
            flavor=flavor,
            use_std=use_std,
            eps=eps,
            penalty=penalty,
        ).tolist()

    history: list[list[Hashable]] = [[] for _ in returns]
    for rows in _trajectories(tid_M, t_M).values():
        for t, row in enumerate(rows):
            for k in range(min(depth, t) + 1):
                states = tuple(anchors[earlier] for earlier in rows[t - k : t + 1])
                history[row].append((k, uids[row], states))
    keys = [key for keys in history for key in keys]
    values = [value for value, keys in zip(returns, history, strict=True) for _ in keys]
    statistics = _pool_statistics(keys, values, ddof=0)

    advantages = []
    for row, value in enumerate(returns):
        terms = []
        for k, key in enumerate(history[row]):
            term = _normalised(value, statistics[key], use_std, eps)
            terms.append(((k + 1 if paper else k + 2) ** alpha, term))
        if base is not None:
            terms.append((1.0, base[row]))
        if not paper:
            terms = [(weight, term) for weight, term in terms if abs(term) > 1e-8]
        total = sum(weight for weight, _ in terms) + (0.0 if paper else 1e-6)
        advantages.append(sum(weight * term for weight, term in terms) / total)
    return _tensor(advantages)


def _trajectories(tid_M: Tensor, t_M: Tensor | None) -> dict[int, list[int]]:
    """Rows of each trajectory in time order."""
    rows_of: dict[int, list[int]] = {}
    for row, tid in enumerate(tid_M.tolist()):
        rows_of.setdefault(tid, []).append(row)
    if t_M is not None:
        steps = t_M.tolist()
        for rows in rows_of.values():
            rows.sort(key=lambda row: steps[row])
    return rows_of


def _returns(
    step_rewards_M: Tensor,
    format_valid_M: Tensor,
    tid_M: Tensor,
    t_M: Tensor | None,
    flavor: str,
    gamma: float,
    penalty: float,
) -> list[float]:
    rewards = step_rewards_M.double().tolist()
    fines = [0.0 if valid else penalty for valid in format_valid_M.tolist()]
    returns = [0.0] * len(rewards)
    for rows in _trajectories(tid_M, t_M).values():
        later = 0.0
        for row in reversed(rows):
            gain = rewards[row] - (fines[row] if flavor == "paper" else 0.0)
            later = gain + gamma * later
            returns[row] = later - (0.0 if flavor == "paper" else fines[row])
    return returns


def _pool_statistics(
    keys: Sequence[Hashable], values: Sequence[float], ddof: int
) -> dict[Hashable, tuple[float, float] | None]:
    """Statistics of the values that share a key."""
    pools: dict[Hashable, list[float]] = {}
    for key, value in zip(keys, values, strict=True):
        pools.setdefault(key, []).append(value)
    return {key: _statistics(pool, ddof) for key, pool in pools.items()}


def _statistics(pool: Sequence[float], ddof: int) -> tuple[float, float] | None:
    """Mean and standard deviation; None for a constant pool."""
    highest, lowest = max(pool), min(pool)
    if highest - lowest < 1e-8 * max(1.0, abs(highest), abs(lowest)):
        return None
    mean = math.fsum(pool) / len(pool)
    squares = math.fsum((member - mean) ** 2 for member in pool)
    return mean, math.sqrt(squares / (len(pool) - ddof))


def _normalised(
    value: float, statistics: tuple[float, float] | None, use_std: bool, eps: float
) -> float:
    """(value - mean) / (std + eps) or value - mean; 0 in a constant pool."""
    if statistics is None:
        return 0.0
    mean, std = statistics
    return (value - mean) / (std + eps) if use_std else value - mean


def _tensor(values: Iterable[float]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float64)
