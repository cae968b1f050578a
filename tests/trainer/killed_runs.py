"""Trains, kills itself at a point, resumes: run as a program by tests/trainer/runs/test_killed.py.

    python killed_runs.py FOLDER POINT...

FOLDER holds `policy/`, and `config.json` of the run. For each POINT (`NAME@N`: before the N-th call
of what `POINTS` says, counted from 1) a child trains in FOLDER/POINT until it kills itself with
SIGKILL, and another one resumes there. Children are forked, so all of them share one import.
"""

from __future__ import annotations

import json
import os
import signal
import sys
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
    "save_sync": (trainer.runs.checkpoint, "_sync"),
    "save_rename": (trainer.runs.checkpoint.os, "replace"),
    "remove": (trainer.runs.checkpoint.shutil, "rmtree"),
    "eval": (trainer.iteration, "evaluate"),
    "eval_write": (trainer.iteration, "write_json"),
    "status": (trainer.runs.status, "write_json"),
    "log": (trainer.metrics.MetricsLog, "write"),
}
"""Name -> the module or class whose attribute is called."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_before(point: str) -> None:
    """Makes the N-th call of a point the last thing that this process does."""
    name, _, number = point.partition("@")
    torn = name == "torn_log"
    place, attribute = POINTS["log" if torn else name]
    real: Callable[..., Any] = getattr(place, attribute)
    left = int(number)

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            if torn:
                log, metrics = args
                with log.path.open("a") as file:
                    file.write(json.dumps(dict(metrics))[:-9])
            die()
        return real(*args, **kwargs)

    setattr(place, attribute, counted)


def child(work: Callable[[], None]) -> int:
    """Exit status of `work` in a process of its own; negative: the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def main(folder: Path, points: list[str]) -> None:
    torch.set_num_threads(1)
    config: Config = from_dict(json.loads((folder / "config.json").read_text()))
    for point in points:
        out = folder / point

        def until_killed(point: str = point, out: Path = out) -> None:
            kill_before(point)
            trainer.loop.train(config, out)

        def resumed(out: Path = out) -> None:
            trainer.loop.train(config, out, resume=(out / "run.json").exists())

        killed = child(until_killed)
        left = sorted(p.name for p in (out / "checkpoints").glob("*"))
        print(
            json.dumps({"point": point, "killed": killed, "left": left, "resumed": child(resumed)})
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
