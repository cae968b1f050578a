"""Where the lines of `sero play` come from: a person at a terminal, a pipe, or a file.

At a terminal, `input` gets completion (TAB) and history (arrow keys) from the standard library's
`readline`; where Python was built without it, lines are read all the same. History stays in memory
unless a file is named.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from agent_envs.errors import SeroError

PROMPT = "> "
HISTORY_LINES = 1000

Candidates = Callable[[], Sequence[str]]
Show = Callable[[str, str], None]
"""Prints a text and what ends it."""


def matches(text: str, candidates: Sequence[str]) -> list[str]:
    """The candidates that complete `text`, in their order, each once.

    A candidate with control characters cannot be typed, and must not reach the terminal.

    >>> matches(" go t", ["go to desk 1", "look", "go to bed 1"])
    ['go to desk 1', 'go to bed 1']
    """
    wanted = text.lstrip()
    return [c for c in dict.fromkeys(candidates) if c.startswith(wanted) and c.isprintable()]


class Completer:
    """What `readline` asks: the match number `state` of the line so far, then None."""

    def __init__(self, candidates: Candidates) -> None:
        self.candidates = candidates
        self._found: list[str] = []

    def __call__(self, text: str, state: int) -> str | None:
        if state == 0:
            self._found = matches(text, self.candidates())
        return self._found[state] if state < len(self._found) else None


def at_a_terminal() -> bool:
    """Whether a person types."""
    return sys.stdin is not None and sys.stdin.isatty()


@contextmanager
def typed_lines(candidates: Candidates, history: Path | None) -> Iterator[Iterator[str]]:
    """Lines that a person types, until end of input (Ctrl-D) or Ctrl-C.

    Args:
        candidates: gives what TAB completes to, asked at every TAB.
        history: file to continue the history from and to write it to; None: neither.

    Raises:
        SeroError: `history` cannot be read or written, or there is no `readline` to keep it.
    """
    readline = _readline()
    if readline is None:
        if history is not None:
            raise SeroError(
                "--history needs Python's module `readline`, which this Python was built without."
            )
        yield _typed()
        return
    _bind(readline, Completer(candidates))
    if history is not None:
        _file(history, "read", readline.read_history_file if history.exists() else None)
    try:
        yield _typed()
    finally:
        readline.set_completer(None)
        if history is not None:
            readline.set_history_length(HISTORY_LINES)
            _file(history, "written", readline.write_history_file)


def piped_lines(show: Show) -> Iterator[str]:
    """The lines of standard input until it ends; prompt and line are shown, as at a terminal."""
    if sys.stdin is None:
        return
    while True:
        show(PROMPT, "")
        try:
            line = sys.stdin.readline()
        except KeyboardInterrupt:
            line = ""
        show(line.strip(), "\n")
        if not line:
            return
        yield line


def file_lines(path: Path, show: Show) -> Iterator[str]:
    """The lines of a file, shown like those of a pipe.

    Raises:
        SeroError: it cannot be read as text.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:  # as editors on Windows mark it
            lines = list(file)  # split where standard input is, not at form feeds and the like
    except (OSError, UnicodeDecodeError) as error:
        raise SeroError(f"--commands {path} cannot be read as text: {error}.") from error

    def shown() -> Iterator[str]:
        for line in lines:
            show(f"{PROMPT}{line.strip()}", "\n")
            yield line

    return shown()


def _typed() -> Iterator[str]:
    while True:
        try:
            yield input(PROMPT)
        except (EOFError, KeyboardInterrupt):
            print()
            return


def _readline() -> ModuleType | None:
    try:
        import readline
    except ImportError:
        return None
    return readline


def _bind(readline: ModuleType, completer: Completer) -> None:
    readline.set_completer(completer)
    readline.set_completer_delims("")  # a command is completed whole, blanks included
    if "libedit" in (readline.__doc__ or ""):
        readline.parse_and_bind("bind ^I rl_complete")
        return
    readline.parse_and_bind("tab: complete")
    readline.parse_and_bind("set show-all-if-ambiguous on")
    readline.parse_and_bind("set completion-query-items 500")


def _file(path: Path, verb: str, action: Callable[[str], None] | None) -> None:
    if action is None:
        return
    try:
        action(str(path))
    except OSError as error:
        raise SeroError(
            f"--history {path} cannot be {verb}: {error.strerror or error}. Name another file."
        ) from error
