"""The original's planner (Fast Downward, extra ``reference``) in a process of its own.

It can take minutes and gigabytes and cannot be interrupted, so whoever has a limit has to be able
to end it from outside. The process is an interpreter that runs this module.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

from agent_envs.alfworld.original.packages import check_versions
from agent_envs.errors import DataError

_READY = "ready"


class PlannerTimeout(Exception):
    """There was no plan in time."""


def plan_in_process(
    payload: Mapping[str, Any], budget_s: float | None
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The commands of a plan from the start of a game file; () if the planner finds none.

    Args:
        payload: the JSON object of the game file.
        budget_s: seconds (wall clock) that the search may take, loading apart. None: no limit.

    Returns:
        The commands, and for each id the name by which they call it.

    Raises:
        MissingExtra: the packages are not installed, or do not work together.
        PlannerTimeout: the budget ran out; the process has been ended.
        DataError: the process ended without an answer, and what it said last.
    """
    check_versions()
    if budget_s is not None and budget_s <= 0:
        raise PlannerTimeout
    with subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(),
    ) as process:
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        said: list[str] = []
        # Read aside: a planner that says a lot would otherwise wait for a reader.
        listener = threading.Thread(target=lambda: said.extend(process.stderr or ()), daemon=True)
        listener.start()
        timer = threading.Timer(budget_s, end) if budget_s is not None else None
        try:
            try:
                # The pipe stays open: when it closes, this process is gone and so is its planner.
                process.stdin.write(json.dumps(dict(payload)) + "\n")
                process.stdin.flush()
            except OSError:  # it is gone already; its output says why
                pass
            ready = process.stdout.readline().strip() == _READY
            if ready and timer is not None:
                timer.start()
            answer = process.stdout.readline() if ready else ""
        finally:
            if timer is not None:
                timer.cancel()
            process.kill()
        process.wait()
        listener.join()
    if not answer:
        if late.is_set():
            raise PlannerTimeout
        last = "".join(said).strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        raise DataError(f"The original's planner ended without an answer: {last[0]}")
    found = json.loads(answer)
    return tuple(found["plan"]), found["names"]


def _environment() -> dict[str, str]:
    """This process's own, with its module path; an empty folder of games is none."""
    mine = {name: value for name, value in os.environ.items() if name != "ALFWORLD_DATA" or value}
    return {**mine, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _main() -> None:
    from agent_envs.alfworld.original.textworld_engine import TextWorldGame

    payload = json.loads(sys.stdin.readline())
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    # The library writes to the standard output; the answer has to be alone there.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with TextWorldGame(payload) as game:
        game.reset()
        print(_READY, file=answers, flush=True)
        answer = {"plan": game.plan(), "names": game.names()}
        print(json.dumps(answer), file=answers, flush=True)


def _leave_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    _main()
