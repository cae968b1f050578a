"""`sero play` as a process: at a pipe, and at a pseudo-terminal with completion and history."""

from __future__ import annotations

import importlib.util
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent_envs.alfworld.games import GameSet
from tests.support import ROOT
from trainer.cli.play_input import Completer, matches

GUARD_S = 120.0
_Result = subprocess.CompletedProcess[str]


def _environment(**more: str) -> dict[str, str]:
    plain = {k: v for k, v in os.environ.items() if k not in ("INPUTRC", "COLUMNS", "LINES")}
    return plain | {"PYTHONPATH": str(ROOT), "INPUTRC": "/dev/null", "TERM": "dumb"} | more


def _words(houses: Path, *more: object) -> list[str]:
    task_id = GameSet.from_path(houses).task_ids("train")[0]
    words = ["play", "--data", houses, "--task-id", task_id, *more]
    return [sys.executable, "-m", "trainer.cli.main", *map(str, words)]


def _plan(houses: Path) -> list[str]:
    games = GameSet.from_path(houses)
    return list(games.walkthrough(games.task_ids("train")[0]) or ())


# --------------------------------------------------------------------------- a pipe


def _piped(houses: Path, text: bytes, *more: object, **env: str) -> _Result:
    result = subprocess.run(
        _words(houses, "--json", *more),
        input=text,
        cwd=ROOT,
        env=_environment(**env),
        capture_output=True,
        timeout=GUARD_S,
        check=False,
    )
    output, errors = result.stdout.decode(), result.stderr.decode()
    return subprocess.CompletedProcess(result.args, result.returncode, output, errors)


def _lines(*commands: str) -> bytes:
    return "".join(f"{command}\n" for command in commands).encode()


def test_a_pipe_plays_and_its_end_ends_the_session(houses: Path) -> None:
    plan = _plan(houses)
    result = _piped(houses, _lines(*plan, ":undo", ":undo", *plan[-2:]))
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert [line for line in lines if line.startswith("> ")][: len(plan)] == [
        f"> {command}" for command in plan
    ]
    assert sum(line.startswith("You won after") for line in lines) == 2
    assert json.loads(lines[-1])["steps"] == len(plan)
    assert "\x1b" not in result.stdout


def test_a_pipe_without_a_last_newline_is_read_to_its_end(houses: Path) -> None:
    result = _piped(houses, b"look\n\n  \nlook")
    assert json.loads(result.stdout.splitlines()[-1])["steps"] == 2


def test_nothing_on_the_pipe_is_no_failure(houses: Path) -> None:
    result = _piped(houses, b"")
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout.splitlines()[-1])["steps"] == 0


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_o7_any_bytes_can_be_piped(houses: Path, encoding: str) -> None:
    text = b"caf\xe9 \xff\x00\x1b[2J\n" + "é😀[bold]x[/]\n".encode() + b"look\n"
    result = _piped(houses, text, PYTHONIOENCODING=encoding)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.splitlines()[-1])["steps"] == 3
    assert "\x1b" not in result.stdout
    assert "[bold]x[/]" in result.stdout


def test_without_readline_everything_but_completion_works(houses: Path) -> None:
    code = (
        "import sys; sys.modules['readline'] = None\n"
        "from trainer.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    words = _words(houses)[3:]
    with _terminal([sys.executable, "-c", code, *words]) as terminal:
        terminal.expect("> ")
        terminal.send("look\n")
        terminal.expect("steps left: 49")
        terminal.send(":quit\n")
        assert terminal.wait() == 0


# --------------------------------------------------------------------------- a terminal


class _Terminal:
    """A process at a pseudo-terminal: send keys, wait for text."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self.master = master
        self.seen = ""
        self._place = 0

    def send(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def expect(self, text: str) -> str:
        """Reads until `text` comes after what was expected before; returns what came until then."""
        end = time.monotonic() + GUARD_S
        while text not in self.seen[self._place :]:
            assert time.monotonic() < end, f"no {text!r} in:\n{self.seen[self._place :]}"
            assert self._read(1.0) or self.process.poll() is None, self.seen
        place = self.seen.index(text, self._place) + len(text)
        found, self._place = self.seen[self._place : place], place
        return found

    def wait(self) -> int:
        """Reads to the end; the exit code."""
        end = time.monotonic() + GUARD_S
        while self.process.poll() is None:
            assert time.monotonic() < end, f"it goes on:\n{self.seen[self._place :]}"
            self._read(0.2)
        while self._read(0.0):
            pass
        return self.process.returncode

    def _read(self, seconds: float) -> bool:
        if not select.select([self.master], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self.master, 65536)
        except OSError:  # the other end is closed
            return False
        self.seen += data.decode(errors="replace").replace("\r\n", "\n")
        return bool(data)


@contextmanager
def _terminal(words: list[str]) -> Iterator[_Terminal]:
    pty = pytest.importorskip("pty", reason="no pseudo-terminals on this system")
    master, slave = pty.openpty()
    process = subprocess.Popen(
        words, stdin=slave, stdout=slave, stderr=slave, cwd=ROOT, env=_environment(),
        start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    try:
        yield _Terminal(process, master)
    finally:
        process.kill()
        process.wait()
        os.close(master)


needs_readline = pytest.mark.skipif(
    importlib.util.find_spec("readline") is None, reason="this Python has no readline"
)


@needs_readline
def test_tab_completes_commands_and_specials(houses: Path) -> None:
    with _terminal(_words(houses)) as terminal:
        terminal.expect("\n> ")
        terminal.send("inv\t\n")
        assert "inventory" in terminal.expect("steps left: 49")
        assert "You are not carrying anything." in terminal.seen
        terminal.expect("\n> ")
        terminal.send("go to \t")  # several: they are listed, and the line stays
        listed = terminal.expect("\n> go to ")
        places = GameSet.from_path(houses).load(_words(houses)[7]).recs
        assert all(f"go to {place}" in listed for place in places)
        terminal.send("\x15:und\t\n")  # Ctrl-U empties the line
        terminal.expect("steps left: 50")
        terminal.send(":quit\n")
        assert terminal.wait() == 0


@needs_readline
def test_arrow_keys_bring_lines_back_and_nothing_is_written(houses: Path, tmp_path: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in Path.home().glob(".*history*")}
    with _terminal(_words(houses)) as terminal:
        terminal.expect("\n> ")
        terminal.send("look\n")
        terminal.expect("steps left: 49")
        terminal.expect("\n> ")
        terminal.send("\x1b[A\n")
        terminal.expect("steps left: 48")
        terminal.expect("\n> ")
        terminal.send("\x04")  # Ctrl-D
        assert terminal.wait() == 0
    assert before == {p: p.stat().st_mtime_ns for p in Path.home().glob(".*history*")}


@needs_readline
def test_history_is_kept_where_it_is_asked_for(houses: Path, tmp_path: Path) -> None:
    file = tmp_path / "history"
    for steps in (49, 49):
        with _terminal(_words(houses, "--history", file)) as terminal:
            terminal.expect("\n> ")
            # First typed, then brought back by the arrow key in another process.
            terminal.send("look\n" if not file.exists() else "\x1b[A\x1b[A\n")
            terminal.expect(f"steps left: {steps}")
            terminal.expect("\n> ")
            terminal.send(":quit\n")
            assert terminal.wait() == 0
    assert file.read_text().splitlines()[-4:] == ["look", ":quit", "look", ":quit"]
    assert file.stat().st_mode & 0o077 == 0, "others need not read it"


@needs_readline
def test_a_history_that_cannot_be_kept_is_said_before_the_game(houses: Path) -> None:
    with _terminal(_words(houses, "--history", "/does/not/exist/history")) as terminal:
        terminal.expect("\n> ")
        terminal.send(":quit\n")
        assert terminal.wait() == 2
    assert "--history /does/not/exist/history cannot be written" in terminal.seen


def test_a_candidate_that_cannot_be_typed_is_left_out() -> None:
    offered = ["go to desk 1", "go\x1b[2J", "look", "go to desk 1"]
    assert matches("go", offered) == ["go to desk 1"]
    assert matches("", offered) == ["go to desk 1", "look"]
    completer = Completer(lambda: offered)
    assert [completer("  lo", state) for state in (0, 1)] == ["look", None]
