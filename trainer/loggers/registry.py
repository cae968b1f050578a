"""The loggers of a run, opened together, fed together and closed together.

Promises (tests/trainer/loggers/test_registry.py):

1. Every tracker gets the same numbers at the same steps.
2. A tracker that fails is reported once and dropped; the run goes on, and its record
   (`metrics.jsonl`) is complete.
3. All of them are closed, also when the run ends by an error.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import util
from pathlib import Path
from types import TracebackType
from typing import Any

from trainer.cli.common import printable
from trainer.config import Config, resolve
from trainer.config.sections import LogConfig
from trainer.loggers.base import (
    Identity,
    Logger,
    LoggerError,
    evaluation_numbers,
    flat,
    without_secrets,
)
from trainer.loggers.jsonl import JsonlLogger

__all__ = ["RunLog", "check_loggers", "open_run_log"]

Warn = Callable[[str], None]


class RunLog:
    """`metrics.jsonl` and the trackers of one run.

    Args:
        record: the run's own file.
        trackers: in the order of `log.to`.
        every: trackers get each `every`-th iteration, counted from the run's start, and the last.
        last: iterations of the whole run.
        warn: called once for each tracker that fails; None: a line on standard error.
    """

    def __init__(
        self,
        record: JsonlLogger,
        trackers: Sequence[Logger] = (),
        *,
        every: int = 1,
        last: int | None = None,
        warn: Warn | None = None,
    ) -> None:
        self.trackers = list(trackers)
        self._record = record
        self._every = every
        self._last = last
        self._warn: Warn = warn or _to_stderr

    def iteration(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Logs one iteration's metrics; returns them as recorded (see `trainer.loggers.jsonl`)."""
        written = self._record.write(metrics)
        done = int(written["iteration"]) + 1
        if done % self._every == 0 or done == self._last:
            numbers = flat(written)
            self._each(f"at iteration {done}", lambda tracker: tracker.log(done, numbers))
        return written

    def evaluation(self, done: int, results: Mapping[str, Mapping[str, Any]]) -> None:
        """Gives trackers the results of the evaluation after `done` iterations, by split."""
        numbers = evaluation_numbers(results)
        self._each(f"at the evaluation {done}", lambda tracker: tracker.log(done, numbers))

    def close(self, *, failed: bool = False) -> None:
        """Closes what is still open; calling it again does nothing."""
        self._each("while closing", lambda tracker: tracker.close(failed=failed))
        self.trackers.clear()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(failed=kind is not None)

    def _each(self, when: str, call: Callable[[Logger], None]) -> None:
        for tracker in list(self.trackers):
            try:
                call(tracker)
            except Exception as error:
                self.trackers.remove(tracker)
                self._warn(
                    f"the logger {tracker.name} failed {when} and is off for the rest of the run "
                    f"({type(error).__name__}: {error}). metrics.jsonl goes on."
                )
                with suppress(Exception):
                    tracker.close(failed=True)


def check_loggers(config: LogConfig) -> None:
    """Raises `LoggerError` where a package of `log.to` is missing; before anything is made."""
    for name in config.to:
        if util.find_spec(name) is None:
            raise LoggerError(
                f"log.to names {name}, whose package is not installed. Install it with "
                f"pip install 'sero-rl[{name}]', or take it out of log.to."
            )


def open_run_log(
    config: Config, folder: Path, metrics: Path, *, first: int = 0, warn: Warn | None = None
) -> RunLog:
    """The loggers of the run in `folder`.

    Args:
        folder: of the run; its name is the run's, unless `log.run_name` says otherwise.
        metrics: the file of the record.
        first: finished iterations; more than 0 goes on with what the trackers have of this run.
        warn: as of `RunLog`.

    Raises:
        LoggerError: a package is missing, or a tracker does not start. None stays open.
    """
    log = config.log
    record = JsonlLogger(metrics)
    trackers: list[Logger] = []
    if log.to:
        name = log.run_name or folder.resolve().name
        base = folder / "logs" if log.dir is None else Path(log.dir) / name
        shown = without_secrets(resolve(config))
        number = _id(folder / "logs" / "id", new=first == 0)
        try:
            for kind in log.to:
                run = Identity(number, log.project, name, base, first, shown)
                trackers.append(_make(kind, run))
        except BaseException:
            RunLog(record, trackers, warn=warn).close(failed=True)
            raise
    return RunLog(record, trackers, every=log.every, last=config.run.iterations, warn=warn)


def _make(kind: str, run: Identity) -> Logger:
    # Each module is read only where it is asked for, as is the package behind it.
    if kind == "tensorboard":
        from trainer.loggers.tensorboard import TensorBoardLogger

        return TensorBoardLogger(run)
    if kind == "wandb":
        from trainer.loggers.wandb import WandbLogger

        return WandbLogger(run)
    from trainer.loggers.trackio import TrackioLogger

    return TrackioLogger(run)


def _id(path: Path, *, new: bool) -> str:
    """The run's id in its folder, made where there is none, and for a `new` run."""
    if not new and path.exists():
        return path.read_text(encoding="utf-8").strip()
    path.parent.mkdir(parents=True, exist_ok=True)
    number = uuid.uuid4().hex[:8]
    path.write_text(number + "\n", encoding="utf-8")
    return number


def _to_stderr(text: str) -> None:
    print(f"sero: {printable(text)}", file=sys.stderr, flush=True)
