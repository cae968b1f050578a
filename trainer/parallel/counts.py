"""Counts and figures of one optimiser step over all ranks.

Losses are divided by the counts of the whole step. A rank computes its part with its own counts and
multiplies it by its share of everybody's, which is the same number: every aggregation divides by
one count, so the share is own count over all ranks' count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from trainer.config import ObjectiveConfig
from trainer.learning.update import BaseStep, LossStats, step_counts
from trainer.metrics import mean_or_none
from trainer.objectives import Aggregation, Denominators, PolicyStats
from trainer.parallel.context import Group
from trainer.planning.accounting import Work

__all__ = [
    "add_stats",
    "aggregation_count",
    "share_of",
    "shared_mean",
    "shared_stats",
    "shared_step",
]


def share_of(own: Denominators, total: Denominators, config: ObjectiveConfig) -> float:
    """What a rank's part of the loss, divided by its `own` counts, is multiplied by."""
    # A sequence's ratio is averaged over sequences, whatever the aggregation.
    how: Aggregation = "seq-mean-token-mean" if config.ratio == "sequence" else config.aggregation
    mine, everybody = aggregation_count(own, how), aggregation_count(total, how)
    if mine is None or not everybody:
        return 1.0
    return mine / everybody


def aggregation_count(counts: Denominators, how: Aggregation) -> int | None:
    """What an aggregation divides by; None for a constant."""
    if how == "seq-mean-token-sum-norm":
        return None
    return counts.tokens if how == "token-mean" else counts.sequences


def shared_step(base: BaseStep, config: ObjectiveConfig, group: Group) -> tuple[BaseStep, float]:
    """The step with its loss as part of all ranks', and the factor that makes it so."""
    if group.alone:
        return base, 1.0
    own = step_counts(base.segments, base.length)
    tokens, sequences = (int(n) for n in group.sum([own.tokens, own.sequences]))
    part = share_of(own, Denominators(tokens, sequences, own.length), config)
    return replace(base, scale=base.scale * part), part


def add_stats(stats: LossStats, own: LossStats, part: float) -> None:
    """Adds one step's figures; `part` is the rank's share of the step's loss."""
    stats.policy_loss += part * own.policy_loss
    stats.kl_loss += part * own.kl_loss
    stats.entropy += part * own.entropy
    stats.steps += own.steps
    stats.work += own.work
    if own.policy is not None:
        stats.add(own.policy)


def shared_stats(stats: LossStats, group: Group) -> LossStats:
    """An iteration's figures of all ranks, but for the work, which is this rank's."""
    if group.alone:
        return stats
    policy = stats.policy
    sums = [0.0] * 4
    if policy is not None:
        sums = [float(x) for x in (policy.tokens, policy.clipped, policy.dual_clipped)]
        sums.append(float(policy.kl_old))
    work = [float(n) for n in (stats.work.tokens, stats.work.pairs, stats.work.trained)]
    losses = group.sum([stats.policy_loss, stats.kl_loss, stats.entropy, *sums, *work])
    steps, seen = group.max([stats.steps, float(policy is not None)])
    numbers = [torch.tensor(x, dtype=torch.float64) for x in losses[3:7]]
    done = Work(*(int(n) for n in losses[7:]))
    loss, kl, entropy = losses[:3]
    found = PolicyStats(*numbers) if seen else None
    return LossStats(loss, kl, entropy, int(steps), found, done)


def shared_mean(values: Sequence[float], group: Group) -> float | None:
    """Mean over the values of all ranks; None without any."""
    if group.alone:
        return mean_or_none(values)
    total, n = group.sum([sum(values), len(values)])
    return total / n if n else None
