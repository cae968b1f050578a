"""What a run folder says about the run: how it ended, its last and its best checkpoint.

All of it follows from the evaluations in the folder, so a resumed run decides as an unbroken one.
`status.json` holds

    stop         `running`, `finished` (all iterations), `early_stop`, `asked` (train(until=...)),
                 `nonfinite` (gradients, weights or logits are not finite any more), `interrupted`
                 (by Ctrl-C, or by a signal that ends a process in order), `failed` (another
                 error, which the run's output has); a killed run keeps `running`
    iterations   finished
    last         iteration of the last checkpoint; null: none yet
    best         iteration, metric and value of the best checkpoint; null: none was evaluated
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from trainer.config.stopping import best_of, evaluation_due, metric_of, patience_ended
from trainer.runs.checkpoint import CheckpointError, checkpoint_numbers
from trainer.runs.info import write_json

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.runs.folder import RunFolder

__all__ = [
    "Best",
    "Stop",
    "best_checkpoint",
    "best_iteration",
    "read_status",
    "scores",
    "stops_early",
    "write_status",
]

Stop = Literal["running", "finished", "early_stop", "asked", "nonfinite", "interrupted", "failed"]
STATUS = "status.json"


@dataclass(frozen=True, slots=True)
class Best:
    """The best evaluated checkpoint of a run."""

    iteration: int
    metric: str
    value: float


def scores(folder: RunFolder, config: Config, metric: str, done: int) -> list[tuple[int, float]]:
    """(iteration, value) of the evaluations up to `done` iterations that this config asks for.

    Others are left out, or a run that was lengthened would count one more than one that was not
    broken off. So are those without a finite value.

    Raises:
        CheckpointError: a result cannot be read; names the file.
    """
    split, _, figure = metric.rpartition("/")
    found = []
    for iteration in range(done + 1):
        path = folder.evaluation(iteration, split)
        if not evaluation_due(config, iteration) or not path.exists():
            continue
        try:
            value = json.loads(path.read_text(encoding="utf-8"))[figure]
            if value is not None and math.isfinite(value):
                found.append((iteration, float(value)))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{path} is no evaluation result: {error!r}. Restore it, or delete it and resume "
                "the run from a checkpoint before it (--resume-from)."
            ) from error
    return found


def stops_early(folder: RunFolder, config: Config, done: int) -> bool:
    """Whether `run.early_stop` ends the run after `done` finished iterations."""
    stop = config.run.early_stop
    metric = metric_of(config, stop.metric)
    if not stop.patience or metric is None:
        return False
    return patience_ended(scores(folder, config, metric, done), stop.patience, stop.min_delta)


def best_checkpoint(folder: RunFolder, config: Config, done: int | None = None) -> Best | None:
    """The best checkpoint after at most `done` iterations (None: any); None: none was evaluated."""
    metric = metric_of(config)
    numbers = checkpoint_numbers(folder.checkpoints)
    if metric is None or not numbers:
        return None
    last = numbers[0] if done is None else done
    found = best_of(scores(folder, config, metric, last), numbers)
    return None if found is None else Best(found[0], metric, found[1])


def best_iteration(folder: RunFolder) -> int:
    """Iteration of the best checkpoint of a run, by `eval.best_by` of its config.

    Raises:
        CheckpointError: none of the run's checkpoints was evaluated.
        RunFolderError: it is no run.
    """
    config = folder.read_config()
    best = best_checkpoint(folder, config)
    if best is None:
        raise CheckpointError(
            f"{folder.path} has no best checkpoint: none was evaluated in training by "
            f"{metric_of(config) or 'eval.best_by, since eval.splits is empty'}. Name an "
            "iteration, or take the last."
        )
    return best.iteration


def write_status(folder: RunFolder, config: Config, stop: Stop, done: int) -> None:
    """Writes what is known of the run after `done` finished iterations."""
    best = best_checkpoint(folder, config, done)
    numbers = [number for number in checkpoint_numbers(folder.checkpoints) if number <= done]
    write_json(
        folder.path / STATUS,
        {
            "format": 1,
            "stop": stop,
            "iterations": done,
            "last": numbers[0] if numbers else None,
            "best": None if best is None else asdict(best),
        },
    )


def read_status(folder: RunFolder) -> dict[str, Any] | None:
    """What `write_status` wrote; None for a run of before there was such a file.

    Raises:
        CheckpointError: the file cannot be read.
    """
    path = folder.path / STATUS
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is corrupt: {error}. Delete it; it is made anew.") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} is corrupt: no JSON object. Delete it; it is made anew.")
    return found
