"""Runs ChromeDriver, and ends it with everything that it started when its user is gone.

Started as a script, in a session of its own, with the standard library alone:

    python -I -S guard.py PARENT_PID PROFILE_FOLDER CHROMEDRIVER [ARGUMENT ...]

Prints ``port N`` once ChromeDriver listens, or ``failed ...``. Ends when its standard input is
closed, when the process PARENT_PID ends in whatever way (SIGKILL included), when ChromeDriver ends,
or on a signal; then no process is left that ChromeDriver started, and PROFILE_FOLDER is deleted.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
from pathlib import Path

SET_CHILD_SUBREAPER, SET_PDEATHSIG = 36, 1  # of prctl(2)
_PORT = re.compile(rb"started successfully on port (\d+)")


def main(parent: int, profile: str, command: list[str]) -> None:
    """Run `command` until one of the ends."""
    # What ChromeDriver leaves behind becomes our child, so that none can hide.
    _prctl(SET_CHILD_SUBREAPER, 1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        _watch(parent, profile, command)
    except OSError as error:
        _say(f"failed {error}")
    finally:
        _end_children()
        shutil.rmtree(profile, ignore_errors=True)


def _watch(parent: int, profile: str, command: list[str]) -> None:
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "TMPDIR": profile},  # its own folders go with the profile
        preexec_fn=lambda: _prctl(SET_PDEATHSIG, signal.SIGKILL),
    ) as driver:
        assert driver.stdout is not None
        output, told = driver.stdout.fileno(), False
        os.set_blocking(output, False)
        said = b""
        with selectors.DefaultSelector() as selector:
            selector.register(0, selectors.EVENT_READ, "stdin")
            selector.register(output, selectors.EVENT_READ, "output")
            for pid in (parent, driver.pid):
                handle = _pidfd(pid)
                if handle is not None:
                    selector.register(handle, selectors.EVENT_READ, "ended")
            while os.getppid() == parent and driver.poll() is None:
                # The time-out is for systems that cannot wait for a process.
                for key, _ in selector.select(1.0):
                    if key.data == "ended" or (key.data == "stdin" and not os.read(0, 4096)):
                        driver.kill()
                        return
                    if key.data == "output":
                        piece = os.read(output, 65536)
                        if not piece:
                            selector.unregister(output)
                        said = (said + piece)[-4096:]  # read on, or it would block
                        found = None if told else _PORT.search(said)
                        if found:
                            _say(f"port {int(found[1])}")
                            told = True
        if not told:
            _say("failed " + ascii(said.decode("utf-8", "replace"))[-1500:])


def _end_children() -> None:
    """Kill all descendants, until there are none."""
    while True:
        for pid in _descendants():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _descendants() -> list[int]:
    """Process ids below this one, from the process table."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # "pid (name) state parent ...": the name may hold anything.
            parent = int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found, wanted = [], [os.getpid()]
    while wanted:
        below = children.get(wanted.pop(), [])
        found += below
        wanted += below
    return found


def _prctl(option: int, value: int) -> None:
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _say(line: str) -> None:
    with contextlib.suppress(OSError):
        print(line, flush=True)


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
