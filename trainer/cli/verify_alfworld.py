"""Replay recorded transcripts of the original engine and compare every step.

Prints `N episodes, N steps, N mismatches`. A step differs if the observation, the admissible
commands (in order) or the won flag do. Exit code 1 on any difference, or if nothing was compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from trainer.cli.common import emit, game_set, printable


@dataclass(frozen=True, slots=True)
class Args:
    """Options of `sero verify alfworld`."""

    transcripts: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="TRANSCRIPTS")]
    """JSON lines, plain or .gz (see docs/testing.md)."""
    games: str | None = None
    """The games that they were recorded on: a folder or an archive (default:
    $SERO_ALFWORLD_DATA, $ALFWORLD_DATA)."""
    json: bool = False
    """Print the counts as one JSON object on the last line."""


def run(args: Args) -> int:
    """Replay and print; 0 if something was compared and nothing differs."""
    from agent_envs.alfworld.verify import verify_transcripts

    result = verify_transcripts(args.transcripts, game_set(args.games))
    for difference in result.details:
        where = f"{difference.task_id}, step {difference.step}, {difference.action!r}"
        print(printable(f"{where}: {difference.what}"))
        print(printable(f"  expected {difference.expected!r}\n  found    {difference.found!r}"))
    print(f"{result.episodes} episodes, {result.steps} steps, {result.mismatches} mismatches")
    emit(
        {"episodes": result.episodes, "steps": result.steps, "mismatches": result.mismatches},
        args.json,
    )
    return 0 if result.ok else 1
