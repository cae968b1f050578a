"""TensorBoard: event files that `tensorboard --logdir runs` shows.

A part of a run that was resumed marks the events beyond its first step as void (`purge_step`), and
TensorBoard leaves them out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trainer.loggers.base import Identity, tracker_package

__all__ = ["TensorBoardLogger"]


class TensorBoardLogger:
    """Scalars by their names, and the config as a text of the first step.

    Raises:
        LoggerError: the package is not installed.
    """

    name = "tensorboard"

    def __init__(self, run: Identity) -> None:
        torchs = tracker_package("tensorboard", "torch.utils.tensorboard")
        resumed = {"purge_step": run.first + 1} if run.first else {}
        self._writer: Any = torchs.SummaryWriter(str(run.folder / self.name), **resumed)
        if not run.first:
            # Indented text is code for TensorBoard: nothing in it acts as markup.
            text = json.dumps(run.config, indent=2).replace("\n", "\n    ")
            self._writer.add_text("config", f"    {text}", 0)

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, *, failed: bool) -> None:
        self._writer.close()
