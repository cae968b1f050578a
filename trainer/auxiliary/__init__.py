"""Auxiliary objectives: functions of recorded turns and log-probs, added to the loss only.

They never touch rewards, advantages, ratios or the KL term of the base objective.
"""

from trainer.auxiliary.format_control import (
    format_control_loss,
    format_mask,
    format_row_coefficients,
)
from trainer.auxiliary.sero import (
    Branch,
    SeroResult,
    count_roots,
    pruned_mass,
    row_coefficients,
    sero_branch_loss,
    sero_loss,
)
from trainer.auxiliary.sero_report import BranchOutcome, OracleReport, oracle_report
from trainer.auxiliary.sero_weights import (
    Rollout,
    Root,
    choose_root,
    effective_depth,
    effective_sample_size,
    gate,
    log_z,
    match_depth_decay,
    reach_weights,
    success_return,
    suffix_return,
)

__all__ = [
    "Branch",
    "BranchOutcome",
    "OracleReport",
    "Rollout",
    "Root",
    "SeroResult",
    "choose_root",
    "count_roots",
    "effective_depth",
    "effective_sample_size",
    "format_control_loss",
    "format_mask",
    "format_row_coefficients",
    "gate",
    "log_z",
    "match_depth_decay",
    "oracle_report",
    "pruned_mass",
    "reach_weights",
    "row_coefficients",
    "sero_branch_loss",
    "sero_loss",
    "success_return",
    "suffix_return",
]
