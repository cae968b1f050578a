"""Replay recorded transcripts of the original engine and compare every step.

Prints `N episodes, N steps, N mismatches`. A step differs if the observation, the admissible
commands (in order) or the won flag do. Exit code 1 on any difference, or if nothing was compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from agent_envs.errors import MissingData
from trainer.cli.common import emit, game_set, printable, unset

if TYPE_CHECKING:
    from agent_envs.alfworld.original.verify import Mismatch


@dataclass(frozen=True, slots=True)
class Args:
    """Options of `sero verify alfworld`."""

    transcripts: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="TRANSCRIPTS")]
    """JSON lines, plain or .gz (see docs/testing.md)."""
    games: Annotated[str | None, unset("GAMES")] = None
    """The games that they were recorded on: a folder or an archive (default:
    $SERO_ALFWORLD_DATA, $ALFWORLD_DATA)."""
    json: bool = False
    """Print the counts as one JSON object on the last line."""


def run(args: Args) -> int:
    """Replay and print; 0 if something was compared and nothing differs."""
    from agent_envs.alfworld.original.verify import DETAILS_LIMIT, verify_transcripts

    games = game_set(args.games)
    if args.games is None and games.source.startswith("generated:"):
        raise MissingData(
            "Which games were the transcripts recorded on? Name their folder or archive with "
            "--games, or set SERO_ALFWORLD_DATA."
        )
    result = verify_transcripts(args.transcripts, games)
    for difference in result.details:
        print(printable(_described(difference)))
    if result.mismatches and len(result.details) >= DETAILS_LIMIT:
        print("... (the first differences only)")
    print(f"{result.episodes} episodes, {result.steps} steps, {result.mismatches} mismatches")
    emit(
        {"episodes": result.episodes, "steps": result.steps, "mismatches": result.mismatches},
        args.json,
    )
    return 0 if result.ok else 1


def _described(difference: Mismatch) -> str:
    """A difference in a few lines: of two lists of commands only what one of them lacks."""
    if difference.what == "game":
        return f"{difference.task_id}: the game cannot be replayed: {difference.found}"
    action = "reset" if difference.action is None else repr(difference.action)
    where = f"{difference.task_id}, step {difference.step}, {action}: {difference.what}"
    expected, found = difference.expected, difference.found
    if not (isinstance(expected, list) and isinstance(found, list)):
        return f"{where}\n  expected {expected!r}\n  found    {found!r}"
    missing = [command for command in expected if command not in found]
    extra = [command for command in found if command not in expected]
    if not (missing or extra):
        return f"{where}: the same commands in another order or number"
    return f"{where}\n  missing  {missing}\n  too many {extra}"
