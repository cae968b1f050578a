"""Where caches lie on disk, and files in them that are whole or count as absent.

A cache saves time and nothing else: whatever is wrong with it (a folder that cannot be written, a
damaged file, another process at the same time), the answer is to do without it, silently.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import stat
import time
from pathlib import Path

CACHE_VARIABLE = "SERO_CACHE"
"""Names the folder of all caches; ``off`` turns them off. Without it ``$XDG_CACHE_HOME/sero``,
which is ``~/.cache/sero`` unless set."""

OFF = "off"
_TEMPORARY = ".part"
# Digests, as both caches name their files. The folder may hold other things, which are not ours.
_OWN = re.compile(r"[0-9a-f]{32}(-[0-9a-f]{16})?\.(json|pack)(\.\d+\.\d+\.\d+\.part)?")
_ABANDONED_S = 3600.0
_READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
# A named pipe would be waited for.
_READ_ANY = _READ | getattr(os, "O_NONBLOCK", 0)
_numbers = itertools.count()


def cache_folder() -> Path | None:
    """The folder of all caches, which need not exist; None if they are turned off."""
    value = os.environ.get(CACHE_VARIABLE, "")
    if value.strip().lower() == OFF:
        return None
    try:
        if value:
            return Path(value).expanduser().absolute()
        base = os.environ.get("XDG_CACHE_HOME", "")
        if os.path.isabs(base):  # a relative one is to be ignored, says the XDG specification
            return Path(base) / "sero"
        return Path("~/.cache/sero").expanduser().absolute()
    except (OSError, RuntimeError, ValueError):  # nobody's home
        return None


def read_bytes(path: str | os.PathLike[str], limit: int) -> bytes:
    """The content of a regular file.

    Raises:
        OSError: it cannot be read.
        ValueError: no regular file, or more than `limit` bytes.
    """
    handle = os.open(path, _READ_ANY)
    try:
        seen = os.fstat(handle)
        if not stat.S_ISREG(seen.st_mode):
            raise ValueError(f"{os.fspath(path)} is not a regular file")
        data = os.read(handle, min(seen.st_size, limit) + 1)
        if len(data) != seen.st_size:  # it grew, or the system reads in smaller pieces
            pieces = [data]
            while data and sum(map(len, pieces)) <= limit:
                data = os.read(handle, 1 << 20)
                pieces.append(data)
            data = b"".join(pieces)
    finally:
        os.close(handle)
    if len(data) > limit:
        raise ValueError(f"{os.fspath(path)} is larger than {limit:,} bytes")
    return data


def read_sealed(path: str, head: str, limit: int) -> bytes | None:
    """The body of a file that `write_sealed` wrote under the same `head`, else None."""
    try:
        data = read_bytes(path, limit)
    except (OSError, ValueError):
        return None
    start = len(head) + 66  # a blank, 64 digits, a line feed
    expected = f"{head} {hashlib.sha256(memoryview(data)[start:]).hexdigest()}\n".encode()
    return data[start:] if data[:start] == expected else None


def write_sealed(path: str, head: str, body: bytes) -> bool:
    """Write `body` with its digest in one step, so that others see all of it or nothing.

    `head` is one line that says what the file is and what for.

    Returns:
        Whether it was written.
    """
    folder, name = os.path.split(path)
    unique = f"{name}.{os.getpid()}.{next(_numbers)}.{time.time_ns()}{_TEMPORARY}"
    temporary = os.path.join(folder, unique)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with open(temporary, "xb") as file:
            file.write(f"{head} {hashlib.sha256(body).hexdigest()}\n".encode())
            file.write(body)
        os.replace(temporary, path)
    except OSError:
        remove(temporary)
        return False
    return True


def remove(path: str) -> None:
    """Delete a file of the cache, if it is there and can be deleted."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def files_in(folder: str) -> list[tuple[float, int, str]]:
    """(time of last use, size, path) of the files of a cache, the least recently used first.

    Files of other names than a cache gives are not its own, and left alone. Deletes what a writer
    left behind that was killed.
    """
    found: list[tuple[float, int, str]] = []
    now = time.time()
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    seen = entry.stat(follow_symlinks=False)
                    if not stat.S_ISREG(seen.st_mode) or not _OWN.fullmatch(entry.name):
                        continue
                    if not entry.name.endswith(_TEMPORARY):
                        found.append((seen.st_mtime, seen.st_size, entry.path))
                    elif now - seen.st_mtime > _ABANDONED_S:
                        remove(entry.path)
    except OSError:
        return []
    return sorted(found)


def shrink(folder: str, limit: int) -> int:
    """Delete the least recently used files until `limit` bytes are left at most; what is left."""
    files = files_in(folder)
    total = sum(size for _, size, _ in files)
    for _, size, path in files:
        if total <= limit:
            break
        remove(path)
        total -= size
    return total
