"""Show which games are there, where they come from, and which are left out and why.

Looks where the environments look: `--data`, else $SERO_ALFWORLD_DATA, else $ALFWORLD_DATA, else
generated households. Exit code 0 if there is at least one game that this engine can play.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent_envs.errors import DataError
from trainer.cli.common import emit, game_set, printable, unset

VARIABLES = ("SERO_ALFWORLD_DATA", "ALFWORLD_DATA")


@dataclass(frozen=True, slots=True)
class Args:
    """Options of `sero data status`."""

    data: Annotated[str | None, unset("GAMES")] = None
    """An ALFWorld tree, a folder, an archive, one game file, or generated:small?seed=1."""
    skipped: bool = False
    """List every game that is left out, with its reason."""
    json: bool = False
    """Print the counts as one JSON object on the last line."""


def run(args: Args) -> int:
    """Print the table; 0 if there is a game that can be played."""
    games = game_set(args.data)
    refs = [games.meta(task_id) for task_id in games.task_ids()]
    counts = Counter((ref.split, str(ref.task_type)) for ref in refs)
    kinds = sorted({kind for _, kind in counts})
    console = Console(highlight=False, markup=False, emoji=False)

    def say(line: str) -> None:
        console.print(Text(printable(line)), soft_wrap=True)

    if args.data is None:
        for name in VARIABLES:
            say(f"${name}: {os.environ.get(name) or 'not set'}")
    generated = "  (generated households, not ALFWorld's own games)"
    note = generated if games.source.startswith("generated:") else ""
    say(f"source: {games.source}{note}")
    say(f"manifest hash: {games.manifest_hash}")
    table = Table()
    table.add_column("games")
    for split in games.splits:
        table.add_column(Text(printable(split)), justify="right")
    for kind in kinds:
        table.add_row(kind, *(str(counts[split, kind]) for split in games.splits))
    table.add_row("all", *(str(sum(counts[s, k] for k in kinds)) for s in games.splits))
    console.print(table)
    say(f"{len(refs)} games, {len(games.skipped)} left out")
    for reason, number in games.skip_counts().items():
        say(f"  {number} {reason}")
    if args.skipped:
        for task_id, reason in games.skipped:
            say(f"  {task_id}: {reason}")
    if games.skipped and not args.skipped:
        say("--skipped lists them")
    problem = _problem(games)
    if problem is not None:
        say(f"none of them can be played here. {problem}")
    emit(
        {
            "source": games.source,
            "manifest_hash": games.manifest_hash,
            "games": len(refs),
            "splits": {s: sum(counts[s, k] for k in kinds) for s in games.splits},
            "task_types": {k: sum(counts[s, k] for s in games.splits) for k in kinds},
            "skipped": games.skip_counts(),
            "skipped_games": [list(pair) for pair in games.skipped] if args.skipped else [],
        },
        args.json,
    )
    return 1 if problem is not None or not refs else 0


def _problem(games: Any) -> str | None:
    """Why not one of the games can be played (the first one's reason); None if one can."""
    first = None
    for task_id in games.task_ids():
        try:
            games.load(task_id)
        except DataError as error:
            first = first or str(error)
        else:
            return None
    return first
