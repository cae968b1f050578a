"""What `trainer.loop.train` needs to know of many processes: which trainer a rank makes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from trainer.iteration import Trainer
from trainer.parallel.context import Group
from trainer.parallel.iteration import ParallelTrainer

__all__ = ["trainer_of"]


def trainer_of(group: Group) -> Callable[..., Trainer]:
    """The trainer of a rank; `Trainer` itself for a run in one process."""
    made: Callable[..., Any] = functools.partial(ParallelTrainer, group=group)
    return Trainer if group.alone else made
