"""List the objectives that a run can have: what each needs, what it costs, where it is described.

Words after the command keep those that have all of them, e.g. `sero objectives oracle` or
`sero objectives base critic`. Narrow terminals show fewer columns; pipes, files and --json have
all of them. Needs no torch. Exit code 0 if there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from trainer.catalogue import Entry, chosen
from trainer.cli.common import emit, unset

DOCS = "docs/objectives"
UNCUT = 1000
"""Columns of what is no terminal: no cell is wrapped there."""
LEAST = {"arXiv": 60, "page": 70, "needs": 100, "source": 125, "passes": 150}
"""Columns that a terminal must have before one of the table is shown; the others always are."""


@dataclass(frozen=True, slots=True)
class Args:
    """Options of `sero objectives`."""

    words: Annotated[tuple[str, ...], tyro.conf.Positional, unset("[WORD ...]")] = ()
    """Show only objectives that have all of these in their name, title, source or needs."""
    json: bool = False
    """Print everything as one JSON object on the last line."""


def run(args: Args) -> int:
    """Print a table for each kind; 0 if anything was found."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = UNCUT
    entries = chosen(" ".join(args.words))
    if entries:
        show(entries, console)
    else:
        console.print(f"no objective has {' '.join(args.words)!r}", soft_wrap=True)
    emit({"objectives": [entry.as_dict() for entry in entries]}, args.json)
    return 0 if entries else 1


def show(entries: Sequence[Entry], console: Console) -> None:
    """A table for each kind, as wide as the console, and what its columns mean."""
    columns = shown(console.width)
    for kind, place in (("base", "objective.name"), ("auxiliary", "auxiliary")):
        own = [entry for entry in entries if entry.kind == kind]
        if not own:
            continue
        with console.capture() as captured:
            console.print(_table(f"{kind} objectives ({place})", own, columns))
        for line in captured.get().splitlines():
            console.out(line.rstrip(), highlight=False)
    if "passes" in columns:
        console.print(
            "passes: extra forward passes + forward-and-backward passes for each of these rows, "
            "beside the base's own.",
            soft_wrap=True,
        )
    missing = [name for name in LEAST if name not in columns]
    if missing:
        console.print(f"Not shown in so narrow a terminal: {', '.join(missing)}.", soft_wrap=True)
    console.print(f"Pages are in {DOCS}/.", soft_wrap=True)


def shown(width: int) -> list[str]:
    """Columns that there is room for.

    >>> shown(80)
    ['name', 'what', 'arXiv', 'page']
    """
    columns = ("name", "what", "source", "arXiv", "needs", "passes", "page")
    return [name for name in columns if width >= LEAST.get(name, 0)]


def _table(title: str, entries: Sequence[Entry], columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for name in columns:
        # Names, numbers and files are for copying: they stay whole.
        whole = name in ("name", "arXiv", "page")
        table.add_column(name, no_wrap=whole, style="cyan" if name == "name" else "")
    for entry in entries:
        cells = {
            "name": entry.name,
            "what": entry.title,
            "source": entry.source,
            "arXiv": entry.arxiv or "-",
            "needs": ", ".join(entry.needs) or "-",
            "passes": _cost(entry),
            "page": f"{entry.page}.md",
        }
        table.add_row(*(cells[name] for name in columns))
    return table


def _cost(entry: Entry) -> str:
    passes = f"{entry.forward} + {entry.backward}"
    cost = f"{passes} of {entry.rows}" if entry.rows else ""
    return "; ".join(part for part in (cost, entry.extra) if part) or "-"
