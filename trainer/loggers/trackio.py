"""Trackio: one local database for a project ($TRACKIO_DIR), shown by `trackio show`.

A resumed run goes on under its name. Trackio cannot drop rows, so the steps beyond the resume
point are there twice, the later ones last.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import redirect_stdout

from trainer.loggers.base import Identity, LoggerError, tracker_package

__all__ = ["TrackioLogger"]


class TrackioLogger:
    """One run of the client. Its name ends in the run's id: Trackio resumes by name.

    Raises:
        LoggerError: the package is not installed, or the client does not start.
    """

    name = "trackio"

    def __init__(self, run: Identity) -> None:
        trackio = tracker_package("trackio")
        self._client = trackio
        try:
            with redirect_stdout(io.StringIO()):  # standard output is the command's own
                self._run = trackio.init(
                    project=run.project,
                    name=f"{run.name}-{run.id}",
                    config=dict(run.config),
                    resume="allow" if run.first else "never",
                    embed=False,
                    auto_log_gpu=False,
                    auto_log_cpu=False,
                )
        except Exception as error:  # the client has no one family of errors
            raise LoggerError(
                f"log.to names trackio, and its client does not start: {error} Set $TRACKIO_DIR to "
                "a folder that can be written, or take trackio out of log.to."
            ) from error

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=step)

    def close(self, *, failed: bool) -> None:
        with redirect_stdout(io.StringIO()):
            self._client.finish()  # the run's own leaves it current, to be finished again at exit
