"""A cache of search results that is bounded twice."""

from __future__ import annotations

import sys
from collections import OrderedDict
from threading import Lock

Key = tuple[str, int]
Result = tuple[int, ...]

MAX_ENTRIES = 4096
MAX_BYTES = 8 << 20
_EACH = 400  # of a key, its place in the dictionary and a result, without what is counted
_NUMBER = 40  # an int and the reference to it


class QueryCache:
    """Results by (query, k), the least recently used forgotten first.

    At most 4,096 results and 8 MiB, counted by what queries and results occupy, are kept; a
    result that would take more than a sixteenth of that is not. Safe to use from several threads:
    who finds another one at it does without, for a lock to wait for could be held for ever after
    a fork.
    """

    def __init__(self, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> None:
        self._max_entries, self._max_bytes = max_entries, max_bytes
        self._results: OrderedDict[Key, Result] = OrderedDict()
        self._lock = Lock()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._results)

    def get(self, key: Key) -> Result | None:
        """The result, if it is known."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            result = self._results.get(key)
            if result is not None:
                self._results.move_to_end(key)
            return result
        finally:
            self._lock.release()

    def put(self, key: Key, result: Result) -> None:
        """Remember a result, forgetting as many others as that takes."""
        size = _size(key, result)
        if size * 16 > self._max_bytes or not self._lock.acquire(blocking=False):
            return
        try:
            if key not in self._results:
                self._results[key] = result
                self.bytes += size
            while self.bytes > self._max_bytes or len(self._results) > self._max_entries:
                self.bytes -= _size(*self._results.popitem(last=False))
        finally:
            self._lock.release()

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._results.clear()
            self.bytes = 0


def _size(key: Key, result: Result) -> int:
    return _EACH + sys.getsizeof(key[0]) + _NUMBER * len(result)
