"""Reads the entries of one huge JSON list or object, one after the other.

The original's catalogue is a single JSON list of several gigabytes. `json.load` would need many
times that; here memory holds one chunk of text and one entry.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from agent_envs.errors import CorruptData, MissingData

CHUNK = 1 << 20
"""Characters that are read at once."""
MAX_ENTRY = 64 << 20
"""Characters of one entry; the largest published product has some ten thousand."""

_TOKEN = 16  # characters by which a cut token can look wrong before its end
_CUT_NUMBER = 2
_BLANKS = " \t\r\n"

OnBytes = Callable[[int, int], None]
"""Called now and then with the bytes read and the bytes of the file."""


def entries_of_list(path: Path, on_bytes: OnBytes | None = None) -> Iterator[Any]:
    """The entries of the JSON list in `path`, in order.

    Raises:
        MissingData: the file cannot be opened.
        CorruptData: not UTF-8, not JSON, no list, or cut off.
    """
    with _open(path) as file:
        reader = _Reader(path, file, on_bytes)
        reader.expect("[", "a JSON list")
        if reader.peek() == "]":
            reader.expect("]", "']'")
        else:
            while True:
                yield reader.value()
                if reader.separator("]"):
                    break
        reader.end()


def entries_of_object(path: Path, on_bytes: OnBytes | None = None) -> Iterator[tuple[str, Any]]:
    """The (key, value) pairs of the JSON object in `path`, in order, repeated keys included.

    Raises:
        MissingData: the file cannot be opened.
        CorruptData: not UTF-8, not JSON, no object, or cut off.
    """
    with _open(path) as file:
        reader = _Reader(path, file, on_bytes)
        reader.expect("{", "a JSON object")
        if reader.peek() == "}":
            reader.expect("}", "'}'")
        else:
            while True:
                key = reader.value()
                if not isinstance(key, str):
                    raise reader.problem(f"a key is {type(key).__name__}, expected a string")
                reader.expect(":", "':' after a key")
                yield key, reader.value()
                if reader.separator("}"):
                    break
        reader.end()


def _open(path: Path) -> TextIO:
    try:
        file = open(path, encoding="utf-8-sig", newline="", opener=_at_once)  # noqa: SIM115
    except OSError as error:
        raise MissingData(
            f"Cannot open {path}: {error.strerror or error}. Check the path and its permissions."
        ) from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise MissingData(f"Cannot read {path}: it is no regular file. Give a file of WebShop.")
    return file


def _at_once(path: str, flags: int) -> int:
    """Opens a pipe without waiting for somebody to write into it."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


class _Reader:
    """A window on the text of one file."""

    def __init__(self, path: Path, file: TextIO, on_bytes: OnBytes | None) -> None:
        self._path, self._file, self._on_bytes = path, file, on_bytes
        self._size = os.fstat(file.fileno()).st_size
        self._decode = json.JSONDecoder().raw_decode
        self._text, self._at, self._gone = "", 0, 0
        self._ended = False

    def peek(self) -> str:
        """The next character that is no blank; "" at the end of the file."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _BLANKS:
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def expect(self, character: str, what: str) -> None:
        """Step over `character`."""
        found = self.peek()
        if found != character:
            raise self.problem(
                f"expected {what}, found {found!r}" if found else f"it ends before {what}"
            )
        self._at += 1

    def separator(self, closing: str) -> bool:
        """Step over a comma (False) or over `closing` (True)."""
        found = self.peek()
        if found not in (",", closing) or not found:
            raise self.problem(
                f"expected ',' or {closing!r}, found {found!r}" if found else "it is cut off"
            )
        self._at += 1
        return found == closing

    def value(self) -> Any:
        """The next JSON value."""
        if not self.peek():
            raise self.problem("it is cut off")
        while True:
            try:
                value, end = self._decode(self._text, self._at)
            except json.JSONDecodeError as error:
                cut = error.msg.startswith("Unterminated") or (
                    error.pos + _TOKEN >= len(self._text)
                )
                if not cut or not self._more():
                    why = f"it is cut off ({error.msg})" if self._ended and cut else error.msg
                    self._at = max(self._at, error.pos)
                    raise self.problem(why) from error
            except ValueError as error:  # not JSONDecodeError
                raise self.problem("an entry has a number of too many digits") from error
            except RecursionError as error:
                raise self.problem("an entry is nested too deeply") from error
            else:
                # A number near the end of the window may go on behind it: of "1e+" 1 is read.
                if end + _CUT_NUMBER < len(self._text) or not self._more():
                    self._at = end
                    return value
            if len(self._text) - self._at > MAX_ENTRY:
                raise self.problem(f"an entry has more than {MAX_ENTRY:,} characters")

    def end(self) -> None:
        """Nothing but blanks may follow."""
        found = self.peek()
        if found:
            raise self.problem(f"more text follows its end, from {found!r} on")

    def problem(self, why: str) -> CorruptData:
        """The error for what is wrong at this place."""
        return CorruptData(
            f"{self._path} cannot be read as JSON: {why}, near character "
            f"{self._gone + self._at:,}. Get the file anew; a download may be incomplete."
        )

    def _more(self) -> bool:
        """Read on, at least as much as is waiting; whether there was anything."""
        if self._ended:
            return False
        waiting = len(self._text) - self._at
        try:
            read = self._file.read(max(CHUNK, waiting))
        except UnicodeDecodeError as error:
            raise self.problem(f"it is not UTF-8 ({error.reason})") from error
        except OSError as error:
            raise self.problem(f"reading failed ({error.strerror or error})") from error
        if self._on_bytes is not None:
            self._on_bytes(min(self._file.buffer.tell(), self._size), self._size)
        if not read:
            self._ended = True
            return False
        self._text, self._gone, self._at = self._text[self._at :] + read, self._gone + self._at, 0
        return True
