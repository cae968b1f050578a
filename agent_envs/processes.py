"""Ending worker processes: patiently, then not."""

from __future__ import annotations

import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess


def end_processes(processes: Sequence[BaseProcess], grace: float) -> None:
    """Wait for processes that were asked to leave; end those that do not.

    Args:
        grace: seconds for all of them together. Then they are terminated, and killed 3 s later.
    """
    for patience, insist in ((grace, None), (3.0, "terminate"), (3.0, "kill")):
        for process in processes:
            if insist is not None and process.is_alive():
                getattr(process, insist)()
        limit = time.monotonic() + patience
        for process in processes:
            process.join(max(limit - time.monotonic(), 0.0))
        if not any(process.is_alive() for process in processes):
            break
