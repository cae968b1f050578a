"""Files that a command writes at its end: possible, as is known before, and whole or not there."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from agent_envs.errors import SeroError

__all__ = ["OutputError", "ready_folder", "write_text"]


class OutputError(SeroError, OSError):
    """A file or folder cannot be written; names it and the cause."""


def ready_folder(folder: Path, option: str) -> None:
    """Make `folder` and try whether files can be made in it, so that no hour is spent in vain.

    Args:
        option: that named it, for the message, such as `--out`.

    Raises:
        OutputError: it cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _cannot(folder, error, f"{option}: ") from error


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text; readers see the former file or the whole new one.

    Raises:
        OutputError: it cannot be written; nothing is left behind.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(name, 0o644)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _cannot(path, error) from error


def _cannot(path: Path, error: OSError, before: str = "") -> OutputError:
    why = error.strerror or str(error)
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    way_out = "Make room, or name another folder." if full else "Name a folder of your own."
    return OutputError(f"{before}{path} cannot be written: {why}. {way_out}")
