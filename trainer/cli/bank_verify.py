"""Run all branches of an oracle bank again, and compare every step.

Prints `N branches, N steps, N differences`, and before it each difference with the number of its
branch. Asks no oracle: the recorded commands are run from the recorded states, those of the policy
too. Exit code 1 on any difference, or if the bank is empty; 2 if the file cannot be read, or its
data are not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from trainer.cli.common import emit, printable, unset


@dataclass(frozen=True, slots=True)
class Args:
    """Options of `sero bank verify`."""

    bank: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """As `sero bank build` wrote it."""
    data: Annotated[str | None, unset("DATA")] = None
    """Where the same data lie on this machine (default: as the bank says)."""
    json: bool = False
    """Print the counts as one JSON object on the last line."""


def run(args: Args) -> int:
    """Run again and print; 0 if there is a branch and nothing differs."""
    from oracles.bank import verify_bank
    from oracles.bank_format import read_file

    source = None
    if args.data is not None:
        header = read_file(args.bank).header
        source = (header.env_id, {**header.env_kwargs, "data": args.data})
    result = verify_bank(args.bank, source)
    for difference in result.mismatches:
        print(printable(str(difference)))
    wrong = {d.branch for d in result.mismatches}
    print(
        f"{result.branches} branches, {result.steps} steps, {len(result.mismatches)} differences"
        + (f" in {len(wrong - {None})} branches" if wrong else "")
    )
    emit(
        {
            "branches": result.branches,
            "steps": result.steps,
            "mismatches": len(result.mismatches),
            "bad_branches": sorted(number for number in wrong if number is not None),
        },
        args.json,
    )
    return 0 if result.ok else 1
