"""What visitors did, as JSON lines: one file a session, one line a page.

The fields are those of the original's logs: page, url, goal, content, and after a purchase reward
and reward_info; besides them the time, in seconds since 1970.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from agent_envs.errors import MissingData
from agent_envs.webshop.site.visits import is_name

FILE_LIMIT = 16 << 20
"""Bytes in the file of one session; later pages are left out, and a last line says so."""


class SessionLog:
    """Writer of the files under `folder`, which is made if it is not there.

    Raises:
        MissingData: the folder cannot be made or written to.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder, self._clock = folder, clock
        self._lock = threading.Lock()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = folder / ".probe"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise MissingData(
                f"Session logs cannot be written to {str(folder)!r} ({error.strerror}). "
                "Name a folder that you may write to."
            ) from error

    def write(self, sid: str, page: str, **fields: Any) -> None:
        """Append one line to the file of session `sid`."""
        assert is_name(sid), "an id with no path in it"
        # ASCII, so that nothing a visitor sends ends the line or changes a terminal.
        entry: Mapping[str, Any] = {"page": page, "time": self._clock(), **fields}
        line = json.dumps(entry, ensure_ascii=True, allow_nan=False)
        path = self._folder / f"{sid}.jsonl"
        with self._lock:
            size = path.stat().st_size if path.exists() else 0
            if size > FILE_LIMIT:
                return
            if size + len(line) > FILE_LIMIT:
                line = json.dumps({"page": "log_full", "limit_bytes": FILE_LIMIT})
                line += " " * (FILE_LIMIT - size)  # so that it is the last
            with path.open("a", encoding="ascii") as file:
                file.write(line + "\n")
