"""Figures of one iteration's rollouts and optimiser steps, as they go into `metrics.jsonl`.

`None` where there is nothing to measure. Shares are over turns unless said otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from trainer.learning.optim import StepResult
from trainer.metrics import mean_or_none
from trainer.rollouts.data import CONTEXT_OVERFLOW, Turn
from trainer.rollouts.rollout import Trajectory

__all__ = ["rollout_metrics", "step_metrics"]


def rollout_metrics(trajectories: Sequence[Trajectory], turns: Sequence[Turn]) -> dict[str, Any]:
    """What the rollouts were like.

    - success_rate, score_mean, episode_steps: over trajectories; the score is the task's own.
    - command_valid_share: the env accepted the command; invalid_action_rate is the rest.
    - format_valid_share: the reply had the required form; invalid_format_rate is the rest.
    - frac_degenerate_groups: groups of equal outcomes, success or not; mixed_group_share is the
      rest.
    - context_overflows: trajectories that a prompt beyond the limit ended; context_overflow_share
      of all of them, and context_overflow_longest, the longest such prompt in tokens.
    - entropy: mean of -log pi over sampled tokens, an unbiased estimate in nats per token.
    """
    outcomes: dict[str, set[bool]] = {}
    for trajectory in trajectories:  # not from turns: an episode may end before its first one
        outcomes.setdefault(trajectory.episode.uid, set()).add(trajectory.success)
    degenerate = mean_or_none(float(len(group) == 1) for group in outcomes.values())
    overflowed = [t.stop_reason == CONTEXT_OVERFLOW for t in trajectories]
    valid = mean_or_none(float(t.command_valid) for t in turns)
    well_formed = mean_or_none(float(t.format_valid) for t in turns)
    logprobs = [value for turn in turns for value in turn.logprobs]
    return {
        "success_rate": mean_or_none(float(t.success) for t in trajectories),
        "score_mean": mean_or_none(t.score for t in trajectories),
        "episode_steps": mean_or_none(len(t.turns) for t in trajectories),
        "command_valid_share": valid,
        "invalid_action_rate": None if valid is None else 1 - valid,
        "format_valid_share": well_formed,
        "invalid_format_rate": None if well_formed is None else 1 - well_formed,
        "frac_degenerate_groups": degenerate,
        "mixed_group_share": None if degenerate is None else 1 - degenerate,
        "context_overflows": sum(overflowed),
        "context_overflow_share": mean_or_none(map(float, overflowed)),
        "context_overflow_longest": max((t.overflow_tokens for t in trajectories), default=0)
        or None,
        "entropy": -math.fsum(logprobs) / len(logprobs) if logprobs else None,
        "turns": len(turns),
        "response_tokens": len(logprobs),
        "prompt_tokens": sum(len(turn.prompt_ids) for turn in turns),
    }


def step_metrics(results: Sequence[StepResult]) -> dict[str, Any]:
    """Means over the optimiser steps that were taken. Norms are before clipping.

    grad/aux_over_base is the mean of the steps' own ratios |auxiliary| / |base|.
    """
    taken = [result for result in results if result.stepped]
    return {
        "lr": taken[-1].lr if taken else None,
        "grad/norm": _mean(r.total_norm for r in taken),
        "grad/base_norm": _mean(r.base_norm for r in taken),
        "grad/aux_norm": _mean(r.auxiliary_norm for r in taken),
        "grad/aux_over_base": _mean(r.ratio for r in taken),
        "grad/clipped_share": mean_or_none(float(r.clipped) for r in taken),
    }


def _mean(values: Any) -> float | None:
    return mean_or_none(value for value in values if value is not None)
