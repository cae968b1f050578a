"""Objective functions: tensors in, tensors out. Imports torch and nothing else of this project."""

from trainer.objectives.aggregate import (
    AGGREGATIONS,
    Aggregation,
    Denominators,
    aggregate,
    aggregation_coefficients,
    weighted_nll,
    weighted_row_sum,
)
from trainer.objectives.groups import (
    GroupError,
    GroupStats,
    check_groups,
    dense_ids,
    group_stats,
    normalise,
)
from trainer.objectives.grpo import FLAVORS, Flavor, grpo_advantages
from trainer.objectives.kl import KL_KINDS, KLKind, check_kl_placement, kl_loss, kl_per_token
from trainer.objectives.losses import PolicyStats, clipped_surrogate, policy_loss

__all__ = [
    "AGGREGATIONS",
    "FLAVORS",
    "KL_KINDS",
    "Aggregation",
    "Denominators",
    "Flavor",
    "GroupError",
    "GroupStats",
    "KLKind",
    "PolicyStats",
    "aggregate",
    "aggregation_coefficients",
    "check_groups",
    "check_kl_placement",
    "clipped_surrogate",
    "dense_ids",
    "group_stats",
    "grpo_advantages",
    "kl_loss",
    "kl_per_token",
    "normalise",
    "policy_loss",
    "weighted_nll",
    "weighted_row_sum",
]
