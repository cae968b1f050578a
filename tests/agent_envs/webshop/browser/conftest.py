"""One browser for many tests, and a way to see that none is left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import agent_envs  # noqa: F401  (registers the environment ids)
from tests.agent_envs.webshop import shops


def make(**options: Any) -> Any:
    """A browser env of the small shop."""
    return gymnasium.make(
        "SeroWebShopBrowser-v0", **{"data": shops.shop(), "goal_source": "human", **options}
    )


@pytest.fixture(scope="module")
def env(browser: None) -> Iterator[Any]:
    """A browser env that the tests of a module share."""
    made = make(split=None, show_attributes=True)
    yield made
    made.close()


def processes_of(guard: int) -> list[int]:
    """A guard and all that is below it, as far as it still runs."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, parent, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if state != "Z":
            parents[int(entry.name)] = int(parent)
    found = [guard] if guard in parents else []
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for_end(pids: list[int], seconds: float = 60.0) -> list[int]:
    """Those of the processes that still run after at most `seconds`."""
    handles = []
    for pid in pids:
        try:
            handles.append(os.pidfd_open(pid))
        except ProcessLookupError:
            continue
    import select

    for handle in handles:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.poll(seconds * 1000)
        os.close(handle)
    return [pid for pid in pids if is_running(pid)]
