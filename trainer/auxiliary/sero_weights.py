"""SERO: which state becomes a root, how far its branch counts, and how strongly.

SERO (state-rooted executable oracle rollouts) restores one recorded pre-action state s_t of a
failed rollout, lets an oracle finish the episode from there, and trains the policy on the
oracle's commands. This module holds the scalars of that objective. They are plain Python floats
(float64) and carry no gradient; `trainer.auxiliary.sero` turns them into a loss.

No public code of the method exists. The readings where its description leaves a choice are ours
and are named in each docstring.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from torch import Tensor

WeightRule = Literal["sero", "flat", "root", "depth"]
DepthDecay = Literal["exponential", "harmonic", "linear"]
RootPool = Literal["failed", "any"]
RootScheme = Literal["rollout_then_step", "uniform_state", "first", "last"]

WEIGHT_RULES = ("sero", "flat", "root", "depth")
DEPTH_DECAYS = ("exponential", "harmonic", "linear")
ROOT_POOLS = ("failed", "any")
ROOT_SCHEMES = ("rollout_then_step", "uniform_state", "first", "last")


class Rollout(NamedTuple):
    """What root selection needs to know of one rollout of a group.

    Attributes:
        success: whether the task was solved.
        n_steps: actions taken, i.e. number of pre-action states s_0 .. s_{n-1}.
    """

    success: bool
    n_steps: int


class Root(NamedTuple):
    """A chosen pre-action state: index of the rollout within its group, and step t."""

    rollout: int
    step: int


def gate(G_pi: float, G_O: float, c_R: float = 1.0, valid: bool | int = True) -> float:
    """Branch gate g_r = v_r * clip((G_O - G_pi) / c_R, 0, 1).

    Args:
        G_pi: the policy's own return from the root, over the horizon shared with the oracle.
        G_O: the oracle's return from the same root.
        c_R: return gap that opens the gate fully; 1 for success or graded task score, 10 for a
            reward of 10 per win.
        valid: v_r, yes or no.

    Returns:
        A number in [0, 1]; 0.0 if the oracle is not better, the branch is invalid, or a return is
        not finite.

    Raises:
        ValueError: c_R is not positive and finite, or `valid` is neither true nor false.
    """
    if not (math.isfinite(c_R) and c_R > 0):
        raise ValueError(f"c_R must be positive and finite, found {c_R}.")
    if valid not in (0, 1):
        raise ValueError(f"valid must be true or false (there is no soft v_r), found {valid!r}.")
    if not valid or not math.isfinite(G_pi) or not math.isfinite(G_O):
        return 0.0
    return min(max((G_O - G_pi) / c_R, 0.0), 1.0)


def suffix_return(rewards: Sequence[float], t: int, horizon: int, gamma: float = 1.0) -> float:
    """Return from step t: sum of gamma^(i - t) * r_i for t <= i < min(len(rewards), horizon).

    Use environment rewards only. A format penalty would give the oracle, whose replies are always
    well-formed, an advantage that has nothing to do with the task.

    Args:
        rewards: one per step of the rollout, from step 0.
        t: step of the root; the discount restarts there.
        horizon: total number of steps allowed from step 0.
        gamma: discount factor.

    Returns:
        0.0 if the root is at or past the end.
    """
    if t < 0 or horizon < 0:
        raise ValueError(f"t and horizon must not be negative, found {t} and {horizon}.")
    kept = rewards[t : min(len(rewards), horizon)]
    return float(sum(reward * gamma**i for i, reward in enumerate(kept)))


def success_return(won: bool, finish_step: int, horizon: int) -> float:
    """1.0 if the task was won within the shared horizon, else 0.0.

    Args:
        won: whether the episode was won at all.
        finish_step: steps taken, counted from the start of the episode, when it ended.
        horizon: steps allowed from the start; a win on the last of them counts.
    """
    return 1.0 if won and finish_step <= horizon else 0.0


def log_z(token_logps: Sequence[float] | Tensor) -> float:
    """Length-normalised log-likelihood of one oracle command under the behaviour policy.

        log z = mean over command tokens of log pi_b(token)    (geometric mean probability)

    The tokens are those of the command alone: tags have probability near 1 and would inflate z.

    Args:
        token_logps: log-probs of the command tokens (1-D), at temperature 1.

    Returns:
        float64; -inf if any token is impossible; 0.0 without tokens (such a branch is invalid).
    """
    values = (
        token_logps.detach().double().tolist()
        if isinstance(token_logps, Tensor)
        else list(token_logps)
    )
    if not values:
        return 0.0
    return math.fsum(values) / len(values) if -math.inf not in values else -math.inf


def reach_weights(
    logz: Sequence[float],
    rule: WeightRule = "sero",
    delta: float = 0.9,
    decay: DepthDecay = "exponential",
) -> list[float]:
    """Row weights w_0 .. w_{K-1} of one branch.

    - "sero":  w_0 = 1, w_k = prod over j < k of z_j: the probability, per token, that the policy
      would have followed the oracle so far. Accumulated as a float64 sum of logs; a z of 0 makes
      every later weight exactly 0. The last z is never used.
    - "flat":  w_k = 1 (Full-Flat ablation).
    - "root":  w_0 = 1, others 0 (Root-only ablation).
    - "depth": w_k = delta^k, with 0^0 = 1 (depth-decay ablation); or, by `decay`, "harmonic"
      1 / (1 + k), or "linear" 1 - k / K.

    Args:
        logz: log z_k of each oracle step (K,); values are used only by "sero".
        rule: the weighting rule.
        delta: decay of "depth", in [0, 1]; used only by "exponential".
        decay: form of "depth".

    Returns:
        K floats, w_0 = 1; an empty list for an empty branch.

    Raises:
        ValueError: unknown rule or decay, delta out of range, or a log z that is NaN or +inf.
    """
    if rule not in WEIGHT_RULES:
        raise ValueError(f"Unknown weight rule {rule!r}; choose one of {WEIGHT_RULES}.")
    if decay not in DEPTH_DECAYS:
        raise ValueError(f"Unknown decay {decay!r}; choose one of {DEPTH_DECAYS}.")
    if not 0.0 <= delta <= 1.0:
        raise ValueError(f"delta must be in [0, 1], found {delta}.")
    depth = len(logz)
    if rule == "flat":
        return [1.0] * depth
    if rule == "root":
        return [1.0 if k == 0 else 0.0 for k in range(depth)]
    if rule == "depth":
        if decay == "harmonic":
            return [1.0 / (1 + k) for k in range(depth)]
        if decay == "linear":
            return [1.0 - k / depth for k in range(depth)]
        return [delta**k for k in range(depth)]
    weights: list[float] = []
    log_w = 0.0
    for k, value in enumerate(logz):
        if math.isnan(value) or value == math.inf:
            raise ValueError(f"log z of step {k} is {value}; a log-likelihood is finite or -inf.")
        weights.append(math.exp(log_w))
        log_w += value
    return weights


def effective_depth(weights: Sequence[float]) -> float:
    """D = sum of w_k: the mass of a branch, in rows. 0.0 for an empty branch."""
    return math.fsum(weights)


def effective_sample_size(weights: Sequence[float]) -> float:
    """(sum w)^2 / sum w^2. 0.0 for an empty branch."""
    squares = math.fsum(w * w for w in weights)
    return effective_depth(weights) ** 2 / squares if squares > 0 else 0.0


def match_depth_decay(logz_bank: Sequence[Sequence[float]]) -> float:
    """Decay delta at which "depth" has the mean effective depth that "sero" has on a bank.

    Solves mean over branches of sum_k delta^k = mean over branches of sum_k w_k by bisection; the
    left side grows with delta, from Root-only at 0 to Full-Flat at 1.

    Args:
        logz_bank: log z of every step of every branch; empty branches are allowed.

    Returns:
        delta in [0, 1], to float64 resolution. 0.0 if no branch is longer than one step, where
        every delta gives the same weights.

    Raises:
        ValueError: the bank is empty.
    """
    if not logz_bank:
        raise ValueError("Cannot match a decay on an empty bank; collect at least one branch.")
    depths = [len(branch) for branch in logz_bank]
    target = math.fsum(effective_depth(reach_weights(branch)) for branch in logz_bank)

    def mass(delta: float) -> float:
        powers = [delta**k for k in range(max(depths))]
        return math.fsum(math.fsum(powers[:depth]) for depth in depths)

    if target <= mass(0.0):
        return 0.0
    if target >= mass(1.0):
        return 1.0
    low, high = 0.0, 1.0
    while True:
        middle = 0.5 * (low + high)
        if middle in (low, high):
            return middle
        if mass(middle) < target:
            low = middle
        else:
            high = middle


def choose_root(
    group: Sequence[Rollout],
    u1: float,
    u2: float,
    pool: RootPool = "failed",
    scheme: RootScheme = "rollout_then_step",
) -> Root | None:
    """Choose one pre-action state of an eligible group from two uniform draws.

    A group is eligible if at least one rollout failed. Candidates are the failed rollouts
    (`pool="failed"`) or all of them ("any", which spends roots on rollouts that cannot be
    improved). Rollouts without any step have no pre-action state and are never candidates.

    - "rollout_then_step": rollout by u1, then step by u2.
    - "uniform_state": one state by u1, uniform over all states of the candidates.
    - "first", "last": rollout by u1, then its first or last pre-action state.

    A draw u picks index floor(u * n) of n, at most n - 1.

    Args:
        group: the rollouts of one task instance, in order.
        u1, u2: in [0, 1], drawn by the caller from its own stream.
        pool: which rollouts.
        scheme: which state.

    Returns:
        The root, or None if the group is not eligible or has no candidate.

    Raises:
        ValueError: unknown option or a draw outside [0, 1].
    """
    if pool not in ROOT_POOLS:
        raise ValueError(f"Unknown root pool {pool!r}; choose one of {ROOT_POOLS}.")
    if scheme not in ROOT_SCHEMES:
        raise ValueError(f"Unknown root scheme {scheme!r}; choose one of {ROOT_SCHEMES}.")
    if not (0.0 <= u1 <= 1.0 and 0.0 <= u2 <= 1.0):
        raise ValueError(f"Draws must lie in [0, 1], found {u1} and {u2}.")
    if all(rollout.success for rollout in group):
        return None
    candidates = [
        i
        for i, rollout in enumerate(group)
        if rollout.n_steps > 0 and (pool == "any" or not rollout.success)
    ]
    if not candidates:
        return None
    if scheme == "uniform_state":
        states = [Root(i, t) for i in candidates for t in range(group[i].n_steps)]
        return states[_pick(u1, len(states))]
    chosen = candidates[_pick(u1, len(candidates))]
    n_steps = group[chosen].n_steps
    if scheme == "first":
        return Root(chosen, 0)
    if scheme == "last":
        return Root(chosen, n_steps - 1)
    return Root(chosen, _pick(u2, n_steps))


def _pick(u: float, n: int) -> int:
    return min(int(u * n), n - 1)
