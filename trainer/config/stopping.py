"""Which evaluation is the best, and when a run stops early: rules alone, no files.

`trainer.runs.status` applies them to the evaluations in a run folder.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from trainer.config.sections import EVALUATED
from trainer.errors import ConfigError

if TYPE_CHECKING:
    from trainer.config import Config

__all__ = [
    "best_of",
    "check_stopping",
    "evaluation_due",
    "evaluation_saves",
    "metric_of",
    "patience_ended",
]


def metric_of(config: Config, chosen: str | None = None) -> str | None:
    """`SPLIT/FIGURE` that checkpoints are compared by.

    `chosen` None: `eval.best_by`; else success on the first of `eval.splits`; None without any.
    """
    name = chosen or config.eval.best_by
    if name is None and config.eval.splits:
        name = f"{config.eval.splits[0]}/success"
    return name


def check_stopping(config: Config) -> None:
    """Raises `ConfigError` where something is compared that a run does not evaluate."""
    stop = config.run.early_stop
    for key, name in (
        ("eval.best_by", config.eval.best_by),
        ("run.early_stop.metric", stop.metric),
    ):
        if name is None:
            continue
        split, _, figure = name.rpartition("/")
        if split not in config.eval.splits or figure not in EVALUATED:
            raise ConfigError(
                f"{key}={name!r} must be SPLIT/FIGURE with a split of eval.splits "
                f"({', '.join(config.eval.splits) or 'none'}) and {' or '.join(EVALUATED)}."
            )
    if stop.patience and not (config.eval.every and config.eval.splits):
        raise ConfigError(
            f"run.early_stop.patience={stop.patience} counts evaluations, and there are none "
            "during the run. Set eval.every and eval.splits, or run.early_stop.patience=0."
        )
    if config.run.keep == "best+last" and not config.eval.splits:
        raise ConfigError(
            "run.keep=best+last keeps the checkpoint with the best evaluation, and eval.splits is "
            "empty. Name a split, or use run.keep=last."
        )


def evaluation_due(config: Config, done: int) -> bool:
    """Whether a run evaluates after `done` finished iterations; the start counts as 0."""
    if done == 0:
        return config.eval.initial
    every = config.eval.every
    return done == config.run.iterations or (every > 0 and done % every == 0)


def evaluation_saves(config: Config) -> bool:
    """Whether an evaluated iteration gets a checkpoint: it may be the best one, or the last."""
    return config.run.keep == "best+last" or config.run.early_stop.patience > 0


def best_of(
    values: Iterable[tuple[int, float]], iterations: Sequence[int]
) -> tuple[int, float] | None:
    """The highest value among `iterations`; of equal ones the earliest.

    >>> best_of([(0, 0.9), (2, 0.5), (4, 0.6), (6, 0.6)], [2, 4, 6])
    (4, 0.6)
    """
    known = [(i, value) for i, value in values if i in iterations]
    return max(known, key=lambda pair: (pair[1], -pair[0]), default=None)


def patience_ended(values: Iterable[tuple[int, float]], patience: int, min_delta: float) -> bool:
    """Whether the last `patience` values brought no progress; never with `patience` 0.

    Progress is a value that exceeds the best one before it by more than `min_delta`.

    >>> patience_ended([(0, 0.1), (2, 0.3), (4, 0.3), (6, 0.2)], 2, 0.0)
    True
    >>> patience_ended([(0, 0.1), (2, 0.3), (4, 0.31)], 1, 0.05)
    True
    """
    best, waited = -math.inf, 0
    for _, value in values:
        progress = value > best + min_delta
        best, waited = max(best, value) if progress else best, 0 if progress else waited + 1
    return 0 < patience <= waited
