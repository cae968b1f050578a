"""List the objectives that a run can have: what each needs, what it costs, where it is described.

Words after the command keep those that have all of them, e.g. `sero objectives oracle` or
`sero objectives base critic`. Needs no torch. Exit code 0 if there is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from trainer.catalogue import Entry, chosen
from trainer.cli.common import emit, unset

DOCS = "docs/objectives"


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
    entries = chosen(" ".join(args.words))
    for kind, place in (("base", "objective.name"), ("auxiliary", "auxiliary")):
        own = [entry for entry in entries if entry.kind == kind]
        if own:
            console.print(_table(f"{kind} objectives ({place})", own))
    if entries:
        console.print(
            "passes: extra forward passes + forward-and-backward passes for each of these rows, "
            f"beside the base's own. Pages: {DOCS}/NAME.md",
            soft_wrap=True,
        )
    else:
        console.print(f"no objective has {' '.join(args.words)!r}", soft_wrap=True)
    emit({"objectives": [entry.as_dict() for entry in entries]}, args.json)
    return 0 if entries else 1


def _table(title: str, entries: list[Entry]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    table.add_column("name", no_wrap=True, style="cyan")
    table.add_column("what", ratio=3)
    table.add_column("source", ratio=2)
    table.add_column("needs", ratio=1)
    table.add_column("passes", ratio=2)
    for entry in entries:
        paper = entry.source if entry.arxiv is None else f"{entry.source}, arXiv:{entry.arxiv}"
        table.add_row(entry.name, entry.title, paper, ", ".join(entry.needs) or "-", _cost(entry))
    return table


def _cost(entry: Entry) -> str:
    passes = f"{entry.forward} + {entry.backward}"
    cost = f"{passes} of {entry.rows}" if entry.rows else ""
    return "; ".join(part for part in (cost, entry.extra) if part) or "-"
