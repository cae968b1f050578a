"""Write generated households as game files, in ALFWorld's own folder tree.

The same options write the same bytes anywhere. The original engine loads the files too. To play
them: `--data OUT`, or set SERO_ALFWORLD_DATA to OUT.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from agent_envs.errors import SeroError
from trainer.cli.common import emit, unset


@dataclass(frozen=True, slots=True)
class Args:
    """Options of `sero data generate`."""

    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Folder to write to; it gets a subfolder json_2.1.1."""
    preset: Literal["standard", "small"] = "standard"
    """standard: about as large as real rooms; small: 8 receptacles and 8 objects."""
    seed: int = 0
    """Names the world: games of one seed share their rooms."""
    train: int = 100
    """Games of this split."""
    valid_seen: int = 25
    """Games of this split: the rooms of train, other placements."""
    valid_unseen: int = 25
    """Games of this split: rooms that occur in no other."""
    task_types: Annotated[tuple[str, ...], unset()] = ()
    """Only these task types (default: all six, in turn)."""
    json: bool = False
    """Print what was written as one JSON object on the last line."""


def run(args: Args) -> int:
    """Write the tree, read it back; 0 if every game is there and playable."""
    from dataclasses import replace

    from agent_envs.alfworld.games import GameSet, parse_task_types
    from agent_envs.alfworld.generator import write_tree
    from agent_envs.alfworld.household_spec import PRESETS

    spec = PRESETS[args.preset]
    if args.task_types:
        wanted = parse_task_types(args.task_types)
        spec = replace(spec, task_types=tuple(t for t in spec.task_types if t in wanted))
    counts = {
        "train": args.train,
        "valid_seen": args.valid_seen,
        "valid_unseen": args.valid_unseen,
    }
    try:
        written = write_tree(args.out, seed=args.seed, counts=counts, spec=spec)
    except OSError as error:
        raise SeroError(f"cannot write the games: {error}") from error
    games = GameSet.from_path(args.out)
    print(f"wrote {written} games to {args.out}, manifest hash {games.manifest_hash}")
    print(f"play them: sero play alfworld --data {args.out}")
    emit(
        {
            "out": str(args.out),
            "games": len(games),
            "splits": {split: len(games.task_ids(split)) for split in games.splits},
            "seed": args.seed,
            "preset": args.preset,
            "manifest_hash": games.manifest_hash,
        },
        args.json,
    )
    return 0 if len(games) == written == sum(counts.values()) and not games.skipped else 1
