"""Write generated households as game files, in ALFWorld's own folder tree.

(`sero data generate webshop` writes a generated shop; see its own `--help`.)

The same options write the same bytes anywhere. The original engine loads the files too. To play
them: `--data OUT`, or set SERO_ALFWORLD_DATA to OUT. An interrupted command is repeated as it was:
games that are there stay, the others are written; `--n` may be larger the second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from agent_envs.errors import SeroError
from trainer.cli import data_generate_webshop
from trainer.cli.common import emit, unset

ENVIRONMENTS = ("alfworld", "webshop")
DEFAULTS = {"train": 100, "valid_seen": 25, "valid_unseen": 25}
HELD_OUT = 0.1
"""Share of `--n` games that go to either of the two validation splits."""


@dataclass(frozen=True, slots=True)
class Args:
    """Options of `sero data generate alfworld`."""

    out: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """Folder to write to; it gets a subfolder json_2.1.1."""
    n: Annotated[int | None, unset("INT")] = None
    """Games in all: four fifths train, one tenth each of the others (default: 150, or the three
    numbers below)."""
    preset: Literal["standard", "small"] = "standard"
    """standard: like the public games; small: 8 receptacles and 8 objects."""
    seed: int = 0
    """Names the world: games of one seed share their rooms."""
    train: Annotated[int | None, unset("INT")] = None
    """Games of this split, in place of --n (default: 100)."""
    valid_seen: Annotated[int | None, unset("INT")] = None
    """Games of this split: the rooms of train, other placements (default: 25)."""
    valid_unseen: Annotated[int | None, unset("INT")] = None
    """Games of this split: rooms that occur in no other (default: 25)."""
    task_types: Annotated[tuple[str, ...], unset()] = ()
    """Only these task types (default: all six, in turn)."""
    receptacles: Annotated[int | None, unset("INT")] = None
    """Receptacles in each room (default: as the preset says)."""
    distractors: Annotated[int | None, unset("INT")] = None
    """Objects in each game that its task does not need (default: as the preset says)."""
    depth: Annotated[float | None, unset("SHARE")] = None
    """Share of games whose wanted objects all start behind closed doors; in the others none does
    (default: as often as in the public games)."""
    json: bool = False
    """Print what was written as one JSON object on the last line."""


def parse(words: Sequence[str]) -> Args | data_generate_webshop.Args:
    """Read the command's words: `alfworld --out DIR`, `webshop --out DIR`, or just `DIR`."""
    from types import SimpleNamespace

    from trainer.cli.common import parse_args

    rest, environment = list(words), ENVIRONMENTS[0]
    if rest and not rest[0].startswith("-"):
        has_out = any(word.split("=")[0] == "--out" for word in rest)
        if rest[0] in ENVIRONMENTS:
            environment = rest.pop(0)
        elif has_out:
            raise SeroError(
                f"nothing is generated for {rest[0]!r}; choose from {', '.join(ENVIRONMENTS)}."
            )
        if rest and not rest[0].startswith("-") and not has_out:
            rest.insert(0, "--out")
    module: Any = SimpleNamespace(Args=Args, __doc__=__doc__)
    if environment == "webshop":
        module = data_generate_webshop
    args = parse_args(module, f"sero data generate {environment}", rest)
    assert isinstance(args, Args | data_generate_webshop.Args)
    return args


def run(args: Args | data_generate_webshop.Args) -> int:
    """Write the files; 0 if they are all there and playable."""
    return _run_alfworld(args) if isinstance(args, Args) else data_generate_webshop.run(args)


def _run_alfworld(args: Args) -> int:
    """Write the tree and read it back."""
    from agent_envs.alfworld.games import GameSet
    from agent_envs.alfworld.households.generator import task_id, write_tree
    from trainer.cli.progress import bars

    counts, spec = split_counts(args), household_spec(args)
    new = 0
    with bars() as progress:
        bar = progress.add_task("games", total=sum(counts.values()), note="")

        def on_game(written: bool) -> None:
            nonlocal new
            new += written
            progress.advance(bar)

        try:
            total = write_tree(args.out, seed=args.seed, counts=counts, spec=spec, on_game=on_game)
        except OSError as error:
            raise SeroError(f"cannot write the games: {error}") from error
    games = GameSet.from_path(args.out)
    there = set(games.task_ids())
    missing = sum(
        task_id(args.seed, index, split, spec) not in there
        for split, number in counts.items()
        for index in range(number)
    )
    before = f", {total - new} were there" if new < total else ""
    print(f"wrote {new} games to {args.out}{before}; manifest hash {games.manifest_hash}")
    if missing or games.skipped:
        print(f"{missing} games are missing, {len(games.skipped)} cannot be played")
    print(f"play them: sero play alfworld --data {args.out}")
    emit(
        {
            "out": str(args.out),
            "games": len(games),
            "written": new,
            "splits": {split: len(games.task_ids(split)) for split in games.splits},
            "seed": args.seed,
            "preset": args.preset,
            "manifest_hash": games.manifest_hash,
        },
        args.json,
    )
    return 1 if missing or games.skipped else 0


def split_counts(args: Args) -> dict[str, int]:
    """Games of each split.

    Raises:
        SeroError: `--n` beside a number for one split, or less than 1; or no game at all.
    """
    given = {name: getattr(args, name) for name in DEFAULTS if getattr(args, name) is not None}
    if args.n is None:
        counts = DEFAULTS | given
        if not any(counts.values()):
            raise SeroError("no split is to get a game; give one of them a number from 1 up.")
        return counts
    if given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise SeroError(f"--n and {names} both say how many games; give one or the other.")
    if args.n < 1:
        raise SeroError(f"--n is {args.n}; give a whole number from 1 up.")
    held_out = round(args.n * HELD_OUT)
    return {
        "train": args.n - 2 * held_out,
        "valid_seen": held_out,
        "valid_unseen": held_out,
    }


def household_spec(args: Args) -> Any:
    """The preset with the knobs that were turned."""
    from dataclasses import replace

    from agent_envs.alfworld.games import parse_task_types
    from agent_envs.alfworld.households.spec import PRESETS

    spec = PRESETS[args.preset]
    changes: dict[str, Any] = {
        name: getattr(args, name)
        for name in ("receptacles", "distractors", "depth")
        if getattr(args, name) is not None
    }
    if "distractors" in changes:
        changes["objects"] = None
    if args.task_types:
        wanted = parse_task_types(args.task_types)
        changes["task_types"] = tuple(t for t in spec.task_types if t in wanted)
    return replace(spec, **changes)
