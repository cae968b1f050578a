"""Worker processes: starting them where no signal can lose one, and ending them."""

from __future__ import annotations

import inspect
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any

_ENDING = ("SIGINT", "SIGTERM", "SIGHUP")  # the last not on every system


@contextmanager
def starting() -> Iterator[None]:
    """Around the start of a worker and the note of who has to end it.

    A signal whose handler raises in between would leave the worker to nobody. In the main thread
    the handlers of SIGINT, SIGTERM and SIGHUP therefore run behind the block. The worker is born
    with SIGINT held back, so that a Ctrl-C, which the terminal sends to it too, does not break it
    off half made: it has to call `leave_interrupts` first.
    """
    came: list[int] = []
    before: dict[int, Any] = {}
    masked = None
    try:
        if threading.current_thread() is threading.main_thread():
            for number in (getattr(signal, name) for name in _ENDING if hasattr(signal, name)):
                if callable(handler := signal.getsignal(number)):
                    before[number] = handler
                    signal.signal(number, lambda number, _: came.append(number))
        if hasattr(signal, "pthread_sigmask"):
            resource_tracker.ensure_running()  # its start would end the masking
            masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        yield
    finally:
        if masked is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        for number, handler in before.items():
            signal.signal(number, handler)
        # Called, not raised once more: an event loop has heard of the signal at the first time. And
        # each of them, though one before it may raise.
        with ExitStack() as handlers:
            for number in reversed(dict.fromkeys(came)):
                handlers.callback(before[number], number, inspect.currentframe())


def leave_interrupts() -> None:
    """For a worker: from now on a Ctrl-C is its parent's alone, who gets it too and ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


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
