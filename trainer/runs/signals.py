"""A run that is ended from outside: by Ctrl-C, by a cluster that wants its machine back, by the
terminal that goes away.

The first signal becomes an exception in the main thread, so everything that was opened is closed as
after Ctrl-C. What is left of the time a cluster gives goes to that: further SIGTERMs are ignored,
for they often come twice, once to the process and once to its group. A second Ctrl-C ends the
process at once.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

__all__ = ["Ended", "Ending", "ended_in_order"]

P = ParamSpec("P")
T = TypeVar("T")

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")  # the last not on every system


class Ended(KeyboardInterrupt):
    """The process was told to end. No `Exception`, so nobody takes it for a failure of their own.

    Attributes:
        number: of the signal.
        code: that the process should exit with, 128 and the number: 130 for SIGINT, 143 for
            SIGTERM.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number
        self.code = 128 + number


class Ending:
    """What is known of signals inside `ended_in_order`."""

    def __init__(self) -> None:
        self.number: int | None = None

    def check(self) -> None:
        """Raises `Ended` where a signal came and its exception was lost.

        Python drops what is raised while an object is being finalised, or in a callback of a
        library that cannot pass it on.
        """
        if self.number is not None:
            raise Ended(self.number)

    def checked(self, call: Callable[P, T]) -> Callable[P, T]:
        """`call`, and a check behind it."""

        def both(*args: P.args, **kwargs: P.kwargs) -> T:
            found = call(*args, **kwargs)
            self.check()
            return found

        return both


@contextmanager
def ended_in_order(*, last: bool = False) -> Iterator[Ending]:
    """Makes the first SIGINT, SIGTERM or SIGHUP an `Ended` in the main thread.

    A signal that is ignored, as SIGHUP under `nohup`, or that has a handler already, stays so.
    Outside the main thread nothing is changed: signals are the main thread's.

    Args:
        last: the process ends behind the block. Where a signal ended that, further ones are met as
            inside it, so a late one does not change the exit code while Python closes down.

    Raises:
        Ended: from whatever the block is doing.
    """
    ending = Ending()
    if threading.current_thread() is not threading.main_thread():
        yield ending
        return
    before: dict[int, Any] = {}

    def told(number: int, _: object) -> None:
        for each in before:
            signal.signal(each, signal.SIG_DFL if each == signal.SIGINT else signal.SIG_IGN)
        ending.number = number
        raise Ended(number)

    for name in _NAMES:
        found = getattr(signal, name, None)
        if found is not None and signal.getsignal(found) in (
            signal.SIG_DFL,
            signal.default_int_handler,
        ):
            before[found] = signal.getsignal(found)
    for number in before:
        signal.signal(number, told)
    try:
        yield ending
    finally:
        if not (last and ending.number is not None):
            for number, handler in before.items():
                signal.signal(number, handler)
