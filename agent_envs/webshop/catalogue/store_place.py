"""The place of a store: it is written beside it, and renamed when it is whole.

What a writer that was killed leaves is removed by the next one; locks tell it from what somebody
is still writing.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from agent_envs.errors import DataError, InvalidOption
from agent_envs.webshop.catalogue.store import INDEX, is_store

PART = ".part"
"""How the names of unfinished stores end."""


class StoreNotWritten(DataError):
    """The file system refuses to take a store."""


class PlaceTaken(InvalidOption):
    """Something is where a store is to be written."""


@contextlib.contextmanager
def new_folder(out: Path, *, replace: bool = False) -> Iterator[Path]:
    """A temporary folder beside `out` that takes its place when the block ends well.

    Args:
        replace: whether a store at `out` may be replaced.

    Raises:
        PlaceTaken: something else than a store (or a store, without `replace`) is at `out`.
        StoreNotWritten: the file system refuses.
    """
    check_place(out, replace=replace)
    out = Path(os.path.realpath(out))  # a link stays, what it leads to is replaced
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        part, lock = _part(out)
    except OSError as error:
        raise StoreNotWritten(f"Cannot write beside {out}: {error}.") from error
    try:
        remove_abandoned(out, even_whole=False)
        yield part
        os.chmod(part, 0o777 & ~_umask())  # as any new folder, not closed like a temporary one
        _move(part, out, replace)
        remove_abandoned(out, even_whole=True)
    except OSError as error:
        if isinstance(error, DataError):
            raise
        raise StoreNotWritten(f"Cannot write the store {out}: {error}.") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
        _unlock(lock)


def _part(out: Path) -> tuple[Path, int | None]:
    """A new folder beside `out`, and a handle whose lock says that somebody writes into it."""
    while True:
        part = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=PART, dir=out.parent))
        lock = _locked(part, wait=True)
        if part.is_dir():
            return part, lock
        _unlock(lock)  # it was taken for abandoned before it was locked


def _locked(folder: Path, *, wait: bool) -> int | None:
    """A handle that holds the lock of a folder; None if another one does, or there are no locks.

    The system opens the lock when the process ends, however it ends.
    """
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except (ImportError, AttributeError, OSError):  # Windows: it has no locks of this kind
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BaseException as error:
        os.close(handle)
        if isinstance(error, OSError):
            return None
        raise
    return handle


def _unlock(handle: int | None) -> None:
    if handle is not None:
        os.close(handle)


def remove_abandoned(out: Path, *, even_whole: bool) -> None:
    """Delete what writers of the store `out` left beside it that were killed.

    Args:
        even_whole: also what may be a whole store, which a writer killed at its last step moved
            there from `out`.
    """
    own = re.compile(rf"\.{re.escape(out.name)}\.[a-z0-9_]{{8}}{re.escape(PART)}")
    with contextlib.suppress(OSError):
        for name in os.listdir(out.parent):
            place = out.parent / name
            if own.fullmatch(name) and (even_whole or not (place / INDEX).exists()):
                lock = _locked(place, wait=False)
                if lock is not None:
                    shutil.rmtree(place, ignore_errors=True)
                    _unlock(lock)


def check_place(out: Path, *, replace: bool) -> None:
    """Whether a store may be written to `out`.

    Raises:
        PlaceTaken: something is there.
    """
    if not os.path.lexists(out) or (out.is_dir() and not os.listdir(out)):
        return
    if not is_store(out):
        raise PlaceTaken(
            f"{out} exists and is no WebShop store; nothing was written. Choose another place."
        )
    if not replace:
        raise PlaceTaken(
            f"There is a WebShop store at {out}; nothing was written. Give --force to replace it, "
            "or choose another place."
        )


def _move(part: Path, out: Path, replace: bool) -> None:
    try:
        os.rename(part, out)  # takes the place of an empty folder, but of no other
    except OSError:
        if not replace or not is_store(out):
            check_place(out, replace=replace)
            raise
        old, lock = _part(out)
        try:
            os.rename(out, old)
            try:
                os.rename(part, out)
            except BaseException:
                if not os.path.lexists(out):
                    os.rename(old, out)
                raise
        finally:
            shutil.rmtree(old, ignore_errors=True)
            _unlock(lock)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
