"""Check the objectives against a file of numeric vectors.

Prints `N passed, N failed` (with `--only`, also how many were excluded). A method that is not
known is a failure. Needs the extra `train`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from agent_envs.errors import SeroError
from trainer.cli.common import emit, unset

SHOWN = 20


@dataclass(frozen=True, slots=True)
class Args:
    """Options of `sero verify objectives`."""

    vectors: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="VECTORS")]
    """JSON file of vectors (base or auxiliary layout, see docs/objectives.md)."""
    only: Annotated[str | None, unset("PATTERN")] = None
    """Shell glob on `method/name` or on the case's id, e.g. 'grpo/*' or 'sero.*'."""
    json: bool = False
    """Print the counts as one JSON object on the last line."""


def run(args: Args) -> int:
    """Check and print; 0 if something was checked and all of it holds."""
    from trainer.vectors.verify import VectorFileError, verify

    try:
        result = verify(args.vectors, args.only)
    except VectorFileError as error:
        raise SeroError(str(error)) from error
    wrong = [failure for failure in result.failures if not failure.unknown]
    for failure in wrong[:SHOWN]:
        print(f"FAILED {failure.id}: expected {failure.expected!r}, got {failure.got!r}")
    if len(wrong) > SHOWN:
        print(f"... and {len(wrong) - SHOWN} more")
    for method, number in result.unknown.items():
        print(f"FAILED {method}: not implemented, {number} cases")
    if not (result.passed or result.failed):
        print("nothing was checked")
    line = f"{result.passed} passed, {result.failed} failed"
    print(line if args.only is None else f"{line}, {result.excluded} excluded")
    counts = {"passed": result.passed, "failed": result.failed, "excluded": result.excluded}
    emit(counts, args.json)
    return 0 if result.ok else 1
