"""Work that runs in a thread of its own until its result is wanted.

For Python work beside passes of a model: torch lets go of the interpreter while a kernel runs, and
so does who waits for worker processes. A thread per piece of work: none is left when the work is
over, and an exception of the work is raised where its result is asked for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

__all__ = ["Ahead"]


class Ahead(Generic[T]):
    """Starts `work` at once.

    Args:
        work: gets a function that says whether the result is still wanted. Where it is not, the
            work should return soon, whatever it has.
        name: of the thread.

    Attributes:
        seconds: that the work took; 0 until it is over.
    """

    def __init__(self, work: Callable[[Callable[[], bool]], T], name: str) -> None:
        self.seconds = 0.0
        self._dropped = threading.Event()
        # Waited for in place of the thread: a `join` that a signal interrupts takes a thread that
        # still runs for one that has ended (Python up to 3.12, gh-90882).
        self._over = threading.Event()
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def result(self) -> T:
        """Waits for the work. Raises what the work raised."""
        self._over.wait()
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._results[0]

    def abandon(self) -> None:
        """Says that the result is not wanted any more and waits until the work is over."""
        self._dropped.set()
        self._over.wait()
        self._thread.join()

    def _run(self) -> None:
        start = time.perf_counter()
        try:
            self._results.append(self._work(lambda: not self._dropped.is_set()))
        except BaseException as error:  # raised again by `result`
            self._error = error
        finally:
            self.seconds = time.perf_counter() - start
            self._over.set()
