"""Runs `sero train`, which signals itself: a program for tests/trainer/runs/test_signals.py.

    python stopped_runs.py FOLDER SIGNAL:POINT...

FOLDER holds `config.yaml`. For each POINT (`NAME@N`: before the N-th call of what `POINTS` says,
counted from 1) a child, leader of a process group of its own, runs the command in
FOLDER/SIGNAL:POINT until it sends itself the signal. A line of JSON says how it ended. Children are
forked, so all of them share one import.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import agent_envs.vector.pool
import oracles.branch_workers
import trainer.branches.branching
import trainer.iteration
import trainer.learning.learner
import trainer.loggers.registry
import trainer.loop
import trainer.metrics
import trainer.report
import trainer.runs.checkpoint
import trainer.runs.status
import trainer.supervised.warmstart
from tests.trainer.loggers.recording import Recording
from trainer.cli.main import main

POINTS: dict[str, tuple[Any, str, tuple[str, ...]]] = {
    "warm": (trainer.supervised.warmstart, "demonstrate", ("--model.path", "null")),
    "open": (trainer.loggers.registry, "_make", ()),  # a tracker is open, the next one is not
    "pool": (agent_envs.vector.pool, "Worker", ("--env.pool", "process", "--env.workers", "2")),
    "collect": (trainer.iteration, "play", ("--env.pool", "process", "--env.workers", "2")),
    "lost": (trainer.iteration, "play", ()),  # where the exception is lost
    "branch": (trainer.branches.branching, "play_on", ()),  # in a thread beside the scoring
    "branch_worker": (
        oracles.branch_workers.Workers, "_give", ("--auxiliary.sero.workers", "2"),
    ),
    "update": (trainer.learning.learner, "optimiser_step", ()),
    "save_file": (trainer.runs.checkpoint, "save_file", ()),
    "eval": (trainer.iteration, "evaluate", ()),
    "status": (trainer.runs.status, "write_json", ()),
    "log": (trainer.metrics.MetricsLog, "write", ()),
    "report": (trainer.report, "write_report", ()),  # the run has its end already
}  # fmt: skip
"""Name -> the module or class whose attribute is called, and options of the command."""

opened: list[Recording] = []
"""The trackers of this process."""


class Lossy:
    """Sends a signal where Python drops the exception of its handler."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.kill(os.getpid(), self.number)
        time.sleep(0)


def signal_before(point: str, number: int) -> None:
    """Makes the N-th call of a point send this process a signal, from whatever thread calls."""
    name, _, count = point.partition("@")
    place, attribute, _ = POINTS[name]
    real: Callable[..., Any] = getattr(place, attribute)
    left = int(count)

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0 and name == "lost":
            Lossy(number)
        elif left == 0:
            os.kill(os.getpid(), number)
        return real(*args, **kwargs)

    setattr(place, attribute, counted)


def record_trackers() -> None:
    def make(kind: str, run: Any) -> Recording:
        opened.append(Recording(kind))
        return opened[-1]

    trainer.loggers.registry._make = make  # type: ignore[assignment]
    trainer.loop.check_loggers = lambda config: None  # type: ignore[attr-defined]


def in_child(work: Callable[[], int], result: Path) -> tuple[int, str, bool]:
    """Exit status of `work`, the end of its standard error, and whether it left processes."""
    with tempfile.TemporaryFile() as said:
        pid = os.fork()
        if pid == 0:
            code = 99
            try:
                os.setpgid(0, 0)
                os.dup2(said.fileno(), 2)
                code = work()
                result.write_text(json.dumps([[t.name, t.closed] for t in opened]))
                atexit._run_exitfuncs()
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        said.seek(0)
        text = said.read().decode(errors="replace")[-2000:]
        return os.waitstatus_to_exitcode(status), text, leaves(pid)


def leaves(group: int) -> bool:
    """Whether processes of a group are left; helpers that see a pipe end have a moment for it."""
    for _ in range(200):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.1)
    os.killpg(group, signal.SIGKILL)
    return True


def run_all(folder: Path, cases: list[str]) -> None:
    torch.set_num_threads(1)
    globals().pop("__file__", None)  # or spawned workers would import this program, torch and all
    record_trackers()
    for case in cases:
        name, _, point = case.partition(":")
        out = folder / case
        options = POINTS[point.partition("@")[0]][2]
        words = ["train", str(folder / "config.yaml"), "--out", str(out), *options]

        def work(point: str = point, name: str = name, words: list[str] = words) -> int:
            # As at a terminal, though a shell's background job or nohup ignores them.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            signal_before(point, getattr(signal, name))
            return main(words)

        trackers = folder / f"{case}.json"
        code, said, left = in_child(work, trackers)
        closed = json.loads(trackers.read_text()) if trackers.exists() else None
        line = {"case": case, "code": code, "said": said, "left": left, "trackers": closed}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    run_all(Path(sys.argv[1]), sys.argv[2:])
