"""What the server remembers of each visitor: the goal, which products were opened, the purchase.

Everything else is in the addresses of pages. Visits are bounded in number, in size and in time.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

from agent_envs.webshop.model import Goal, Purchase

VISIT_LIMIT = 10_000
"""Visits kept; the one unused for longest makes room for a new one."""
LIFETIME_S = 12 * 3600.0
"""Seconds after its last use at which a visit is forgotten."""
OPENED_LIMIT = 1_000
"""Opened products remembered per visit, the most recent ones."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FIXED = re.compile(r".*_([0-9]{1,12})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Visit:
    """One visitor's errand. A value: the store replaces it."""

    sid: str
    goal: Goal
    task: str
    """Which goal, for the log."""
    visited: tuple[int, ...] = ()
    """Products opened since the last visit of the first page."""
    opened: tuple[int, ...] = ()
    """Products opened at all: only these can be bought."""
    purchase: Purchase | None = None


def fixed_goal(sid: str) -> int | None:
    """The goal that a session id of the original's form asks for, such as 12 for ``fixed_12``.

    None for ids of another form.
    """
    if not is_name(sid) or "fixed" not in sid:
        return None
    found = _FIXED.fullmatch(sid)
    return None if found is None else int(found[1])


def is_name(sid: str) -> bool:
    """Whether `sid` can be the id of a session at all."""
    return _NAME.fullmatch(sid) is not None


class Visits:
    """The visits of one site. All methods may be called from any thread.

    Args:
        limit: visits kept at most.
        lifetime_s: seconds without use after which a visit is forgotten.
        clock: seconds, never going back.
    """

    def __init__(
        self,
        limit: int = VISIT_LIMIT,
        lifetime_s: float = LIFETIME_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit, self._lifetime, self._clock = limit, lifetime_s, clock
        self._lock = threading.Lock()
        # Least recently used first, so that what is too old or too much is at the front.
        self._visits: OrderedDict[str, tuple[float, Visit]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._visits)

    def begin(self, goal: Goal, task: str, sid: str | None = None) -> Visit:
        """A new visit; without `sid` under an id that nobody can guess (128 bits)."""
        visit = Visit(secrets.token_urlsafe(16) if sid is None else sid, goal, task)
        with self._lock:
            self._keep(visit)
        return visit

    def begin_if_new(self, goal: Goal, task: str, sid: str) -> Visit:
        """The visit `sid`, which is begun with `goal` if there is none."""
        with self._lock:
            found = self._find(sid)
            if found is None:
                found = Visit(sid, goal, task)
            self._keep(found)
        return found

    def find(self, sid: str) -> Visit | None:
        """The visit of this id, None if there is none (any more)."""
        with self._lock:
            found = self._find(sid)
            if found is not None:
                self._keep(found)
        return found

    def put(self, visit: Visit) -> None:
        """Set a visit to what it was at another time."""
        with self._lock:
            self._keep(visit)

    def forget(self, sid: str) -> None:
        """Drop a visit."""
        with self._lock:
            self._visits.pop(sid, None)

    def at_first_page(self, sid: str) -> None:
        """The visitor sees the first page: an errand that is done begins anew."""
        with self._lock:
            found = self._find(sid)
            if found is not None:
                opened = () if found.purchase is not None else found.opened
                self._keep(replace(found, visited=(), opened=opened, purchase=None))

    def at_product(self, sid: str, number: int) -> None:
        """The visitor sees the page of a product."""
        with self._lock:
            found = self._find(sid)
            if found is not None:
                visited, opened = found.visited, found.opened
                if number not in visited:
                    visited = (*visited, number)[-OPENED_LIMIT:]
                if number not in opened:
                    opened = (*opened, number)[-OPENED_LIMIT:]
                self._keep(replace(found, visited=visited, opened=opened))

    def buy(self, sid: str, purchase: Purchase) -> Purchase | None:
        """Record a purchase; the one that counts: an errand ends with its first.

        None if the visit is gone.
        """
        with self._lock:
            found = self._find(sid)
            if found is None:
                return None
            if found.purchase is None:
                found = replace(found, purchase=purchase)
            self._keep(found)
            return found.purchase

    # ------------------------------------------------------------------ under the lock

    def _find(self, sid: str) -> Visit | None:
        oldest = self._clock() - self._lifetime
        while self._visits:
            first = next(iter(self._visits))
            if self._visits[first][0] > oldest:
                break
            del self._visits[first]
        found = self._visits.get(sid)
        return None if found is None else found[1]

    def _keep(self, visit: Visit) -> None:
        self._visits[visit.sid] = self._clock(), visit
        self._visits.move_to_end(visit.sid)
        while len(self._visits) > self._limit:
            self._visits.popitem(last=False)
