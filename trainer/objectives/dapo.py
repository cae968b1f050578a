"""DAPO's dynamic sampling and soft overlong penalty.

Source: DAPO, Yu et al. 2025 (arXiv:2503.14476). Its other parts are options of the policy loss:
`clip_high=0.28`, aggregation "token-mean" and no KL term.

Where the paper and public code (verl-agent's variant) differ there is a `flavor`.

Axis letters: M turns (rows), N trajectories, G groups.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import torch
from torch import Tensor

from trainer.objectives.groups import GroupError, check_vectors, group_stats, trajectory_groups

DapoFlavor = Literal["paper", "code"]

DAPO_FLAVORS = ("paper", "code")

Group = TypeVar("Group", bound=Hashable)


def informative_groups(
    step_rewards_M: Tensor, uid_M: Tensor, tid_M: Tensor
) -> tuple[Tensor, Tensor]:
    """Groups whose trajectories differ in outcome.

    The outcome of a trajectory is the sum of its environment rewards, *before* any penalty:
    a group in which everybody fails teaches nothing about the task, even if some replies were
    malformed or too long (verl-recipe issue 125). A group of one is never informative.

    Args:
        step_rewards_M: float (M,), environment reward of each turn, without penalties.
        uid_M: int64 (M,), task-group id.
        tid_M: int64 (M,), trajectory id, unique over the batch.

    Returns:
        `(uid_G, keep_G)`: int64 (G,), the group ids in increasing order, and bool (G,), False
        where max - min of the outcomes is below 1e-8 * max(1, max |outcome|).

    Raises:
        ValueError: shapes differ, or a reward is not finite.
        GroupError: a trajectory id occurs in two groups.
    """
    check_vectors(step_rewards_M=step_rewards_M, uid_M=uid_M, tid_M=tid_M)
    rewards = step_rewards_M.detach().double()
    if not bool(torch.isfinite(rewards).all()):
        raise ValueError("step_rewards_M has a NaN or infinite entry; drop that trajectory first.")
    trajectory_M, group_N = trajectory_groups(uid_M, tid_M)
    outcome_N = rewards.new_zeros(group_N.numel()).index_add(0, trajectory_M, rewards)
    uid_G = torch.unique(uid_M)
    stats = group_stats(outcome_N, group_N, uid_G.numel())
    return uid_G, ~stats.constant


@dataclass(frozen=True, slots=True)
class SamplingPlan(Generic[Group]):
    """What to do after some rounds of dynamic sampling.

    Attributes:
        status: "again": sample another round. "full": train on `groups`. "exhausted": the last
            round is over and informative groups are missing; train on the fewer in `groups`
            (there may be none), or stop.
        groups: the groups to train on, in the order of sampling; so far, if "again".
        missing: informative groups still wanted, 0 if "full".
        informative, sampled: counts over all rounds. Success measured on `groups` alone is
            biased; log informative / sampled and the success over all sampled groups.
    """

    status: Literal["again", "full", "exhausted"]
    groups: tuple[Group, ...]
    missing: int
    informative: int
    sampled: int


def plan_sampling(
    rounds: Sequence[Mapping[Group, bool]],
    wanted: int,
    *,
    max_rounds: int = 10,
    flavor: DapoFlavor = "paper",
) -> SamplingPlan[Group]:
    """Decide whether to sample again, and which groups to keep.

    Sampling goes on until `wanted` informative groups were found or `max_rounds` are over:

        status = "full"       if informative >= wanted
                 "exhausted"  else if len(rounds) = max_rounds
                 "again"      otherwise

    - "paper": exactly the first `wanted` informative groups are kept. A constant group never is,
      so an exhausted plan has fewer groups than wanted.
    - "code": every informative group is kept, also beyond `wanted`, and round `max_rounds` is
      kept whole, constant groups included, so batches differ in size.

    Args:
        rounds: of each round so far, oldest first, group id -> whether it is informative (see
            `informative_groups`), in the order of sampling. A task sampled in two rounds makes
            two groups with ids of their own.
        wanted: informative groups that fill a batch.
        max_rounds: most rounds of one batch.
        flavor: as above.

    Returns:
        SamplingPlan. Pure: the same rounds give the same plan.

    Raises:
        ValueError: `wanted` or `max_rounds` below 1, more rounds than `max_rounds`, or unknown
            flavor.
        GroupError: a group id occurs in two rounds.
    """
    _check_flavor(flavor)
    if wanted < 1 or max_rounds < 1:
        raise ValueError(f"wanted and max_rounds must be >= 1, found {wanted} and {max_rounds}.")
    if len(rounds) > max_rounds:
        raise ValueError(
            f"Found {len(rounds)} rounds, but max_rounds={max_rounds}; stop at the first plan that "
            "does not say 'again'."
        )
    found: dict[Group, bool] = {}
    for number, groups in enumerate(rounds, start=1):
        for group, informative in groups.items():
            if group in found:
                raise GroupError(
                    f"Group {group!r} of round {number} occurs in an earlier round. Give the "
                    "groups of each round ids of their own."
                )
            found[group] = bool(informative)
    last = len(rounds) == max_rounds
    kept = [group for group, informative in found.items() if informative]
    missing = max(wanted - len(kept), 0)
    if flavor == "paper":
        chosen = kept[:wanted]
    elif last:
        chosen = [
            group for group, informative in found.items() if informative or group in rounds[-1]
        ]
    else:
        chosen = kept
    return SamplingPlan(
        status="full" if missing == 0 else "exhausted" if last else "again",
        groups=tuple(chosen),
        missing=missing,
        informative=len(kept),
        sampled=len(found),
    )


def overlong_penalty(
    tokens_M: Tensor,
    *,
    max_len: int,
    buffer: int,
    factor: float = 1.0,
    flavor: DapoFlavor = "paper",
) -> Tensor:
    """Soft punishment of replies that come close to the length limit; added to their reward.

        p = min(0, (L - buffer - n) / buffer * factor)

    so 0 up to L - buffer tokens and -factor at L tokens. Beyond L, which only replies with a
    limit above `max_len` reach, "paper" stays at -factor, and "code" goes on falling.

    It shapes the reward. Filter groups by `informative_groups` on rewards without it.

    Args:
        tokens_M: int (M,), tokens n of each reply.
        max_len: L.
        buffer: width of the ramp, in 1..L.
        factor: punishment at L, >= 0.
        flavor: as above.

    Returns:
        float64 (M,), at most 0.

    Raises:
        ValueError: wrong shape, a negative count, an option out of range or unknown.
    """
    _check_flavor(flavor)
    check_vectors(tokens_M=tokens_M)
    if not 1 <= buffer <= max_len:
        raise ValueError(f"Need 1 <= buffer <= max_len, found {buffer} and {max_len}.")
    if not 0.0 <= factor < float("inf"):
        raise ValueError(f"factor must be finite and >= 0, found {factor}.")
    if bool((tokens_M < 0).any()):
        raise ValueError(f"Token counts must be >= 0, found {int(tokens_M.min())}.")
    excess_M = (tokens_M.double() - (max_len - buffer)).clamp(min=0.0) / buffer
    if flavor == "paper":
        excess_M = excess_M.clamp(max=1.0)
    return 0.0 - factor * excess_M  # not -factor: that would make -0.0 of a reply in bounds


def _check_flavor(flavor: str) -> None:
    if flavor not in DAPO_FLAVORS:
        raise ValueError(f"flavor must be one of {DAPO_FLAVORS}, found {flavor!r}.")
