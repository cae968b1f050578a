"""What the commands share: parsing, figures on the last line, text that is safe to print."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import tyro


def parse_args(module: Any, prog: str, words: Sequence[str]) -> Any:
    """Parse `words` into `module.Args`; the module's docstring is the help text."""
    return tyro.cli(
        module.Args,
        prog=prog,
        args=list(words),
        description=module.__doc__,
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes),
    )


def unset(metavar: str | None = None) -> Any:
    """An option whose help text says itself what happens where it is not given.

    Annotates a field that defaults to None or (); without it the help text shows `{None}|INT` and
    `(default: None)`.
    """
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="")


def emit(figures: Mapping[str, object], as_json: bool) -> None:
    """Print `figures` as one JSON object on a line of its own, if asked for.

    Commands call this last, so that scripts read the last line of the output.
    """
    if as_json:
        print(json.dumps(figures, ensure_ascii=True, allow_nan=False), flush=True)


def mean_score(result: Mapping[str, Any]) -> str:
    """The mean task score of an evaluation, where it says more than the share of successes.

    >>> mean_score({"score": 0.61, "success": 0.25})
    ', mean score 0.610'
    >>> mean_score({"score": 0.25, "success": 0.25})
    ''
    """
    score = result.get("score")
    return "" if score in (None, result["success"]) else f", mean score {score:.3f}"


@contextmanager
def interrupted(tell: Callable[[], str]) -> Iterator[None]:
    """On Ctrl-C, says on one line what `tell` returns before the command ends."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"\nsero: stopped. {printable(tell())}", file=sys.stderr, flush=True)
        raise


def checkpoints_in(run: Path) -> list[int]:
    """Iterations of the checkpoints in a run folder, the earliest first."""
    folders = (run / "checkpoints").glob("*")
    return sorted(int(path.name) for path in folders if path.name.isdecimal())


def printable(text: str) -> str:
    """`text` with every control character but newline and tab made visible.

    Game text comes from files of unknown origin: an escape sequence in it must not reach the
    terminal of the person who plays.

    >>> printable("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text
    )


def game_set(data: str | None) -> Any:
    """The games a command works on: `data`, else $SERO_ALFWORLD_DATA, $ALFWORLD_DATA, else
    generated households."""
    from agent_envs.alfworld.games import load_game_set

    return load_game_set(data)


def machine() -> dict[str, object]:
    """What the figures were measured on: processor, cores, system, Python and package versions."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **versions(("sero-rl", "gymnasium", "numpy", "textworld", "alfworld")),
    }


def versions(names: Iterable[str]) -> dict[str, str]:
    """Versions of those of the distributions `names` that are installed."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
