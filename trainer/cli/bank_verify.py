"""Run all branches of an oracle bank again, and compare every step.

Prints `N branches, N steps, N differences`, and before it each difference with the number of its
branch. Asks no oracle: the recorded commands are run from the recorded states, those of the policy
too. Exit code 1 on any difference, or if the bank is empty; 2 if the file cannot be read, or its
data are not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from agent_envs.errors import SeroError
from trainer.cli.common import emit, printable, unset

if TYPE_CHECKING:
    from oracles.bank import BankHeader
    from oracles.branches import EnvRecipe


@dataclass(frozen=True, slots=True)
class Args:
    """Options of `sero bank verify`."""

    bank: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """As `sero bank build` wrote it."""
    data: Annotated[str | None, unset("DATA")] = None
    """Where the same data lie on this machine (default: as the bank says)."""
    env: Annotated[str | None, unset("MODULE:NAME")] = None
    """Makes the environment of a bank of somebody's own. Nothing is imported that is not named."""
    json: bool = False
    """Print the counts as one JSON object on the last line."""


def run(args: Args) -> int:
    """Run again and print; 0 if there is a branch and nothing differs."""
    from oracles.bank import verify_bank
    from oracles.bank_format import read_file

    source = None
    if args.data is not None or args.env is not None:
        header = read_file(args.bank).header
        source = _recipe(header, args.env, args.data)
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


def _recipe(header: BankHeader, env: str | None, data: str | None) -> EnvRecipe:
    """Makes the bank's environment, on data that lie elsewhere, or by the code that is named."""
    from oracles.branches import EnvRecipe
    from trainer.worlds.sources import ImportedRecipe

    options = header.env_kwargs if data is None else {**header.env_kwargs, "data": data}
    if env is None:
        return EnvRecipe(header.env_id, options)
    if env != header.env_id:
        raise SeroError(f"--env {env}: the bank is of {header.env_id}. Name that one.")
    return ImportedRecipe(env, options) if ":" in env else EnvRecipe(env, options)
