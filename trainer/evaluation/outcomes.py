"""How an episode ended, and the figures of many: shares, means and their intervals. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_envs.statistics import bootstrap_mean, wilson

__all__ = ["Outcome", "figures", "over_seeds", "pooled", "task_rows"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One played task.

    Attributes:
        steps: model calls that were sent to the environment.
        refused: commands that the environment refused.
        malformed: replies of a wrong form, by reason.
        provenance: what the environment says about itself.
        trials: attempts at the task, the one that counts included.
        overflow_tokens: length of the prompt that did not fit and so ended it; 0: all did, or it
            is not known.
    """

    task_id: str
    task_type: str
    success: bool
    score: float
    steps: int
    stop_reason: str
    refused: int
    malformed: Mapping[str, int] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    trials: int = 1
    overflow_tokens: int = 0


def figures(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """What one pass over the tasks shows.

    `success` is the mean over tasks (micro), `macro_success` that of the task types' means;
    likewise `score` and `macro_score`. `interval_95` is Wilson's; `score_interval_95` the
    percentile bootstrap over tasks, or Wilson's too where every score is 0 or 1.
    """
    by_type: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_type.setdefault(outcome.task_type, []).append(outcome)
    groups = {name: _share(group) for name, group in sorted(by_type.items())}
    steps = sum(outcome.steps for outcome in outcomes)
    reasons: dict[str, int] = {}
    for outcome in outcomes:
        for reason, count in outcome.malformed.items():
            reasons[reason] = reasons.get(reason, 0) + count
    return {
        **_share(outcomes),
        "macro_success": _mean(group["success"] for group in groups.values()),
        "macro_score": _mean(group["score"] for group in groups.values()),
        "by_task_type": groups,
        "mean_steps": _mean(outcome.steps for outcome in outcomes),
        "admissible_share": (steps - sum(o.refused for o in outcomes)) / steps if steps else None,
        "invalid_format_share": sum(reasons.values()) / steps if steps else None,
        "invalid_format_reasons": dict(sorted(reasons.items())),
        "stop_reasons": _counts(outcome.stop_reason for outcome in outcomes),
        "context_overflow_longest": max((o.overflow_tokens for o in outcomes), default=0) or None,
    }


def pooled(passes: Mapping[int, Sequence[Outcome]]) -> dict[str, Any]:
    """`figures` of several passes over the same tasks, one a sampling seed.

    Plays of one task are not independent, so intervals are bootstrapped over tasks, from each
    task's mean over the seeds; where all of these are 0, or all 1, a bootstrap would claim to know
    everything, and the interval is Wilson's for so many tasks. `n` stays the number of tasks,
    `plays` is that of episodes.
    """
    runs = list(passes.values())
    together = [outcome for run in runs for outcome in run]
    whole = figures(together)
    types = {outcome.task_type for outcome in together}
    whole |= _clustered(together)
    for name in types:
        group = [outcome for outcome in together if outcome.task_type == name]
        whole["by_task_type"][name] |= _clustered(group)
    return whole


def over_seeds(passes: Mapping[int, Sequence[Outcome]]) -> dict[str, Any]:
    """Mean and sample standard deviation over seeds of each figure, and each seed's own."""
    by_seed = {seed: figures(run) for seed, run in passes.items()}
    names = (
        *("success", "macro_success", "score", "macro_score", "mean_steps"),
        *("admissible_share", "invalid_format_share"),
    )
    types = next(iter(by_seed.values()))["by_task_type"] if by_seed else {}
    return {
        "seeds": list(by_seed),
        **{name: _spread({seed: f[name] for seed, f in by_seed.items()}) for name in names},
        "by_task_type": {
            kind: {
                name: _spread({seed: f["by_task_type"][kind][name] for seed, f in by_seed.items()})
                for name in ("success", "score")
            }
            for kind in types
        },
    }


def task_rows(passes: Mapping[int, Sequence[Outcome]]) -> list[dict[str, Any]]:
    """One row a task: its outcome, or with several seeds its means over them."""
    runs = list(passes.values())
    rows = []
    for plays in zip(*runs, strict=True):
        first = plays[0]
        row = {
            "task_id": first.task_id,
            "task_type": first.task_type,
            "success": first.success,
            "score": first.score,
            "steps": first.steps,
            "stop_reason": first.stop_reason,
        }
        if len(plays) > 1:
            row |= {
                "success": statistics.fmean(play.success for play in plays),
                "score": statistics.fmean(play.score for play in plays),
                "steps": statistics.fmean(play.steps for play in plays),
                "stop_reason": _counts(play.stop_reason for play in plays),
            }
        if any(play.trials != 1 for play in plays):
            row["trials"] = first.trials if len(plays) == 1 else [play.trials for play in plays]
        rows.append(row)
    return rows


def _share(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    wins, n = sum(outcome.success for outcome in outcomes), len(outcomes)
    scores = [float(outcome.score) for outcome in outcomes]
    if set(scores) <= {0.0, 1.0}:
        score_interval = list(wilson(int(sum(scores)), n))
    else:
        score_interval = list(bootstrap_mean(scores, 0, purpose="evaluation-score")[1:])
    return {
        "n": n,
        "wins": wins,
        "success": wins / n if n else None,
        "interval_95": list(wilson(wins, n)),
        "score": _mean(scores),
        "score_interval_95": score_interval,
    }


def _clustered(plays: Sequence[Outcome]) -> dict[str, Any]:
    """`n` and the intervals where a task was played several times."""
    by_task: dict[str, list[Outcome]] = {}
    for play in plays:
        by_task.setdefault(play.task_id, []).append(play)
    success = [statistics.fmean(float(p.success) for p in group) for group in by_task.values()]
    score = [statistics.fmean(float(p.score) for p in group) for group in by_task.values()]
    return {
        "n": len(by_task),
        "plays": len(plays),
        "interval_95": _interval(success, "evaluation-success"),
        "score_interval_95": _interval(score, "evaluation-score"),
    }


def _interval(means: Sequence[float], purpose: str) -> list[float]:
    n = len(means)
    if set(means) in ({0.0}, {1.0}):
        return list(wilson(n if means[0] else 0, n))
    return list(bootstrap_mean(means, 0, purpose=purpose)[1:])


def _spread(by_seed: Mapping[int, float | None]) -> dict[str, Any]:
    values = [value for value in by_seed.values() if value is not None]
    return {
        "mean": _mean(values),
        "sd": statistics.stdev(values) if len(values) > 1 else None,
        "by_seed": {str(seed): value for seed, value in by_seed.items()},
    }


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return sum(found) / len(found) if found else None


def _counts(values: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return dict(sorted(counts.items()))
