"""A limit for code that may never return: somebody's oracle.

By a timer of the process (`signal.setitimer`), so where Python code runs, waits or sleeps in the
main thread. Not interrupted: a call into C that does not come back to Python, other threads, and
systems without that timer. An oracle that uses SIGALRM itself takes the limit off.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["NoAnswer", "within"]


class NoAnswer(BaseException):
    """The time is over. No `Exception`: code that survives any failure of its own must not go on
    for ever. Where it catches this too, it is raised again after the same time."""


@contextmanager
def within(seconds: float | None) -> Iterator[None]:
    """Ends the block after so many seconds; None: never.

    Raises:
        NoAnswer: the block took longer.
    """
    main = threading.current_thread() is threading.main_thread()
    if seconds is None or not main or not hasattr(signal, "setitimer"):
        yield
        return
    running = True

    def over(number: int, frame: object) -> None:
        if running:
            raise NoAnswer(f"no answer within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, over)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
        yield
    finally:
        running = False
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
