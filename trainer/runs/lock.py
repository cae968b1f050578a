"""One process at a time in a run folder, and a plain word where a folder cannot be written.

Two runs in one folder would each clear what the other is still writing, and mix their lines in
`metrics.jsonl`. So whoever trains there locks `.lock` in it, and removes it in the end. The lock
belongs to the process: it is gone with it, however it ended, whether or not the file is, and
children of the process do not have it. Where the file system knows no locks there is none.
"""

from __future__ import annotations

import errno
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from safetensors import SafetensorError

from trainer.runs.checkpoint import checkpoint_numbers
from trainer.runs.folder import RunFolder, RunFolderError

__all__ = ["held", "writable"]

LOCK = ".lock"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_IN_THE_WAY = (errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY)
_REFUSED = (errno.EACCES, errno.EPERM, errno.ENOENT, errno.EIO, *_IN_THE_WAY)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """The folder is this process's inside the block.

    Raises:
        RunFolderError: another process trains there; says which, as far as it is known.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    path = folder / LOCK
    file = path.open("a+", encoding="utf-8")
    try:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            while not _is(path, file):  # its holder has just removed it
                file.close()
                file = path.open("a+", encoding="utf-8")
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                file.seek(0)
                raise RunFolderError(
                    f"{folder} is in use by {file.read().strip() or 'another process'}: two runs "
                    "in one folder would destroy each other's files. Wait for it, end it, or "
                    "choose another folder."
                ) from None
            yield  # the file system has no locks
            return
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}\n")
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
    finally:
        file.close()


def _is(path: Path, file: IO[str]) -> bool:
    """Whether the open file is still the one of this name."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


@contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Says what keeps the block from writing to the folder: no room, no rights, a file in the way.

    Raises:
        RunFolderError: instead of the system's own error.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL or (error.errno in _REFUSED and _concerns(error, folder)):
            place = "" if error.filename is None else f" ({error.filename})"
            raise _told(folder, error.errno, place) from error
        raise
    except SafetensorError as error:  # which writes weights, and has no number of its own
        found = re.search(r"os error (\d+)", str(error))
        if found is None or int(found[1]) not in (*_FULL, *_REFUSED):
            raise
        raise _told(folder, int(found[1])) from error


def _told(folder: Path, number: int, place: str = "") -> RunFolderError:
    """What keeps a folder from being written, what it holds, and how to go on from there."""
    in_the_way = number in _IN_THE_WAY
    way_out = "Move what is in the way" if in_the_way else "Make room or get the right to write"
    kept = _last_checkpoint(folder)
    if kept is not None:
        held_back = f"Its checkpoints are whole, the last is of iteration {kept}."
        way_out += " and go on (--resume)"
    elif os.path.exists(RunFolder(folder).info):
        held_back = "It holds no checkpoint yet."
        way_out += " and begin again there (--resume)"
    else:
        held_back = "Nothing was trained there."
    return RunFolderError(
        f"{folder} cannot be written: {os.strerror(number)}{place}. {held_back} {way_out}, or "
        "choose another folder."
    )


def _last_checkpoint(folder: Path) -> int | None:
    try:
        numbers = checkpoint_numbers(RunFolder(folder).checkpoints)
    except OSError:  # it cannot be read either
        return None
    return numbers[0] if numbers else None


def _concerns(error: OSError, folder: Path) -> bool:
    """Whether the file is in the folder, or is the folder or one that it lies in."""
    named = [Path(name).absolute() for name in (error.filename, error.filename2) if name]
    place = folder.absolute()
    return any(place.is_relative_to(path) or path.is_relative_to(place) for path in named)
