"""Trains, kills itself at a point, resumes: run as a program by tests/trainer/runs/test_killed.py.

    python killed_runs.py FOLDER POINT...

FOLDER holds `policy/`, and `config.json` of the run. For each POINT (`NAME@N`: before the N-th call
of what `POINTS` says, counted from 1) a child trains in FOLDER/POINT until it kills itself with
SIGKILL, and another one resumes there. Children are forked, so all of them share one import. Each
point's exit codes are printed as a line of JSON, with the end of what the child said on standard
error.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import trainer.iteration
import trainer.learning.learner
import trainer.loop
import trainer.metrics
import trainer.runs.checkpoint
import trainer.runs.info
import trainer.runs.manifest
import trainer.runs.status
from trainer.config import Config, from_dict

POINTS: dict[str, tuple[Any, str]] = {
    "start": (trainer.loop, "save_policy"),  # the policy that training begins with
    "info": (trainer.loop, "run_info"),  # before run.json
    "collect": (trainer.iteration, "play"),
    "update": (trainer.learning.learner, "optimiser_step"),
    "turns": (trainer.iteration, "write_turns"),
    "save_file": (trainer.runs.checkpoint, "save_file"),
    "save_json": (trainer.runs.checkpoint, "write_json"),
    "manifest": (trainer.runs.manifest, "write_json"),  # the first is of initial/
    "save_sync": (trainer.runs.manifest.os, "fsync"),  # files, folders, those of initial/ first
    "save_rename": (trainer.runs.checkpoint.os, "replace"),  # any file of the run
    "remove": (trainer.runs.checkpoint.shutil, "rmtree"),
    "eval": (trainer.iteration, "evaluate"),
    "eval_write": (trainer.iteration, "write_json"),
    "status": (trainer.runs.status, "write_json"),
    "log": (trainer.metrics.MetricsLog, "write"),
}
"""Name -> the module or class whose attribute is called."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_before(point: str, run: Path) -> None:
    """Makes the N-th call of a point the last thing that this process does."""
    name, _, number = point.partition("@")
    torn = name == "torn_log"
    place, attribute = POINTS["log" if torn else name]
    real: Callable[..., Any] = getattr(place, attribute)
    left = int(number)

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        if name == "save_rename" and not Path(args[1]).is_relative_to(run):
            return real(*args, **kwargs)  # a cache that more than this run has
        left -= 1
        if left == 0:
            if torn:
                log, metrics = args
                with log.path.open("a") as file:
                    file.write(json.dumps(dict(metrics))[:-9])
            die()
        return real(*args, **kwargs)

    setattr(place, attribute, counted)


def child(work: Callable[[], None]) -> tuple[int, str]:
    """Exit status of `work` in a process of its own, and the end of its standard error.

    A negative status is the signal that ended it.
    """
    with tempfile.TemporaryFile() as said:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.dup2(said.fileno(), 2)
                work()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        said.seek(0)
        return os.waitstatus_to_exitcode(status), said.read().decode(errors="replace")[-2000:]


def main(folder: Path, points: list[str]) -> None:
    torch.set_num_threads(1)
    config: Config = from_dict(json.loads((folder / "config.json").read_text()))
    for point in points:
        out = folder / point

        def until_killed(point: str = point, out: Path = out) -> None:
            kill_before(point, out)
            trainer.loop.train(config, out)

        def resumed(out: Path = out) -> None:
            trainer.loop.train(config, out, resume=(out / "run.json").exists())

        line: dict[str, Any] = {"point": point}
        line["killed"], line["killed_said"] = child(until_killed)
        line["left"] = sorted(p.name for p in (out / "checkpoints").glob("*"))
        line["resumed"], line["resumed_said"] = child(resumed)
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
