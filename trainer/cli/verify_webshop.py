"""Replay recorded transcripts of the original WebShop and compare every step.

Prints `N episodes, N steps, N mismatches`, and before it how many pages of results differ in the
order of nearly equal results alone, which is no mismatch. A step differs if the observation, the
clickable texts (in order), the reward, one of its parts, the end, or the purchase does. Exit code 1
on any difference, or if nothing was compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from agent_envs.errors import MissingData
from trainer.cli.common import emit, printable, unset

if TYPE_CHECKING:
    from agent_envs.webshop.original.verify import Mismatch


@dataclass(frozen=True, slots=True)
class Args:
    """Options of `sero verify webshop`."""

    transcripts: Annotated[tuple[Path, ...], tyro.conf.Positional, unset("TRANSCRIPTS")]
    """JSON lines, plain or .gz (see docs/webshop.md)."""
    data: Annotated[str | None, unset("DIR")] = None
    """The products that they were recorded on: a folder of the original's files, or an imported
    store (default: $SERO_WEBSHOP_DATA)."""
    compat: bool = False
    """Replay with the original's faults brought back."""
    json: bool = False
    """Print the counts as one JSON object on the last line."""


def run(args: Args) -> int:
    """Replay and print; 0 if something was compared and nothing differs."""
    from agent_envs.webshop.original.verify import DETAILS_LIMIT, verify_transcripts
    from agent_envs.webshop.shop import load_shop

    if not args.transcripts:
        raise MissingData("Name at least one file of transcripts.")
    shop = load_shop(args.data)
    if args.data is None and shop.source.startswith("generated"):
        raise MissingData(
            "Which products were the transcripts recorded on? Name their folder with --data, or "
            "set SERO_WEBSHOP_DATA."
        )
    result = verify_transcripts(args.transcripts, shop, compat=args.compat)
    for difference in result.details:
        print(printable(_described(difference)))
    if result.mismatches and len(result.details) >= DETAILS_LIMIT:
        print("... (the first differences only)")
    print(f"{result.near_ties} near-tied pages of results")
    print(f"{result.episodes} episodes, {result.steps} steps, {result.mismatches} mismatches")
    emit(
        {
            "episodes": result.episodes,
            "steps": result.steps,
            "mismatches": result.mismatches,
            "near_ties": result.near_ties,
        },
        args.json,
    )
    return 0 if result.ok else 1


def _described(difference: Mismatch) -> str:
    action = "reset" if difference.action is None else repr(difference.action)
    where = f"{difference.episode}, step {difference.step}, {action}: {difference.what}"
    return f"{where}\n  expected {difference.expected!r}\n  found    {difference.found!r}"
