"""Runs test files in a fork of a process that has torch and pytest loaded already.

Started by `mutants.py` in a copy of the tree; not for use by hand. Each line of standard input is a
JSON object {"tests": [...], "limit": seconds or null, "keep": bool}; each answer, a line too, is
{"code": exit code or null where the limit was reached, "output": text, "seconds": number}.
Nothing of the tree is imported here, so every fork imports it as it is then.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import tempfile
import time
from typing import Any

import hypothesis  # noqa: F401
import networkx  # noqa: F401
import numpy  # noqa: F401
import pytest
import torch

OPTIONS = ("-x", "-q", "--tb=no", "-p", "no:cacheprovider")
MEMORY = 16 * 2**30
"""Bytes of address space of a test process: a bug may ask for any amount."""


def run(tests: list[str], limit: float | None, keep: bool) -> dict[str, Any]:
    """One fork of this process. `keep`: whether it may write bytecode."""
    with tempfile.TemporaryFile() as output:
        begin = time.monotonic()
        child = os.fork()
        if child == 0:
            _test(tests, keep, output.fileno())
        code = _wait(child, begin, limit)
        seconds = time.monotonic() - begin
        output.seek(0)
        return {"code": code, "output": output.read().decode(errors="replace"), "seconds": seconds}


def _test(tests: list[str], keep: bool, output: int) -> None:
    """In the fork; never returns."""
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    # Bytecode is told apart by size and second: a mutant's must not be kept.
    sys.dont_write_bytecode = not keep
    code = 3
    try:
        code = int(pytest.main([*OPTIONS, *tests]))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(child: int, begin: float, limit: float | None) -> int | None:
    """Its exit code, negative for a signal; None where it was stopped at the limit."""
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if limit is not None and time.monotonic() - begin > limit:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.05)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.path.insert(0, os.getcwd())
    for line in sys.stdin:
        request = json.loads(line)
        answer = run(request["tests"], request["limit"], request["keep"])
        print(json.dumps(answer), flush=True)
