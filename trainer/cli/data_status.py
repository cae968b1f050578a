"""Show which games and products are there, where they come from, what is left out and why.

Looks where the environments look: `--data`, which names ALFWorld games or WebShop data; else
$SERO_ALFWORLD_DATA, else $ALFWORLD_DATA, else generated households, and $SERO_WEBSHOP_DATA, else a
generated shop. Exit code 0 if there is something to play in each that was looked at.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent_envs.errors import DataError
from trainer.cli.common import emit, game_set, parse_args, printable, unset

VARIABLES = ("SERO_ALFWORLD_DATA", "ALFWORLD_DATA")
GENERATED = "generated:"
ENVIRONMENTS = ("alfworld", "webshop")


@dataclass(frozen=True, slots=True)
class Args:
    """Options of `sero data status`."""

    data: Annotated[str | None, unset("DATA")] = None
    """An ALFWorld tree, a folder, an archive, one game file, or generated:small?seed=1; or
    WebShop's own files or a store."""
    env: Literal["any", "alfworld", "webshop"] = "any"
    """Look at one environment's data only; any: at both, or at what --data names."""
    skipped: bool = False
    """List everything that is left out, with its reason."""
    verify: bool = False
    """Compare all check sums of a WebShop store."""
    json: bool = False
    """Print the counts as one JSON object on the last line."""


def parse(words: Sequence[str]) -> Args:
    """Read the command's words; `alfworld` or `webshop` in front is short for --env."""
    module = SimpleNamespace(Args=Args, __doc__=__doc__)
    rest = list(words)
    if rest and rest[0] in ENVIRONMENTS:
        rest[:1] = ["--env", rest[0]]
    args = parse_args(module, "sero data status", rest)
    assert isinstance(args, Args)
    return args


def run(args: Args) -> int:
    """Print what is there; 0 if it can be played.

    Raises:
        DataError: after everything else was shown, if data that is named cannot be read.
    """
    from trainer.cli import webshop_status

    env = args.env
    if env == "any" and args.data is not None:
        env = "webshop" if webshop_status.is_webshop(args.data) else "alfworld"
    console = Console(highlight=False, markup=False, emoji=False)
    figures: dict[str, Any] = {}
    playable = True
    problem: DataError | None = None

    def say(line: str) -> None:
        console.print(Text(printable(line)), soft_wrap=True)

    if env != "webshop":
        try:
            games, playable = _alfworld(args, console, say)
            figures.update(games)
        except DataError as error:
            problem = error
    if env == "any":
        say("")
    if env != "alfworld":
        try:
            shop = webshop_status.show(
                args.data, console, say, skipped=args.skipped, verify=args.verify
            )
            figures["webshop"] = shop
            playable = playable and any(kind["all"] for kind in shop["goals"].values())
        except DataError as error:
            problem = problem or error
    if problem is not None:
        raise problem
    emit(figures, args.json)
    return 0 if playable else 1


def _alfworld(
    args: Args, console: Console, say: Callable[[str], None]
) -> tuple[dict[str, Any], bool]:
    """Print the table of games; the figures, and whether one can be played."""
    games = game_set(args.data)
    refs = [games.meta(task_id) for task_id in games.task_ids()]
    splits = {split: len(games.task_ids(split)) for split in games.splits}
    official = _official(games, splits)
    found_by = _found_by(args.data, games)
    if args.data is None:
        for name in VARIABLES:
            say(f"${name}: {os.environ.get(name) or 'not set'}")
    say(f"source: {games.source}  ({found_by})")
    say(f"manifest hash: {games.manifest_hash}")
    kinds = Counter(str(ref.task_type) for ref in refs)
    console.print(_table(refs, splits, sorted(kinds)))
    if official:
        say("beside ALFWorld's own: " + "; ".join(f"{s} {how}" for s, how in official.items()))
    say(f"{len(refs):,} games, {len(games.skipped):,} left out")
    examples = _skipped(games, say)
    if args.skipped:
        for task_id, reason, why in games.skip_details():
            say(f"  {task_id}: {reason} ({why})")
    elif games.skipped:
        say("--skipped lists them")
    engines = Counter(ref.engine for ref in refs)
    if engines["textworld"]:
        say(
            f"{engines['textworld']:,} games have rules or wording that only the original engine "
            'knows: engine="textworld", extra `reference`'
        )
    caches = _caches(say)
    problem = _problem(games)
    if problem is not None:
        say(f"none of them can be played here. {problem}")
    figures = {
        "source": games.source,
        "found_by": found_by,
        "manifest_hash": games.manifest_hash,
        "games": len(refs),
        "splits": splits,
        "official": official,
        "task_types": dict(sorted(kinds.items())),
        "engines": dict(sorted(engines.items())),
        "skipped": games.skip_counts(),
        "skip_examples": examples,
        "skipped_games": [list(one) for one in games.skip_details()] if args.skipped else [],
        "caches": caches,
    }
    return figures, problem is None and bool(refs)


def _found_by(data: str | None, games: Any) -> str:
    if data is not None:
        return "named by --data"
    for name in VARIABLES:
        value = os.environ.get(name)
        if value and games.source.startswith(GENERATED) == value.startswith(GENERATED):
            return f"named by ${name}"
    return "nothing names any: generated households, not ALFWorld's own games"


def _official(games: Any, splits: dict[str, int]) -> dict[str, str]:
    """How the numbers compare with ALFWorld's; {} for sets that are not ALFWorld's."""
    from agent_envs.alfworld.games.fetch import OFFICIAL_COUNTS, compared_with_official

    # Trials are named after the day on which they were recorded: trial_T20190907_...
    recorded = any("/trial_T" in task_id for task_id in games.task_ids())
    if not recorded or not splits.keys() & OFFICIAL_COUNTS.keys():
        return {}
    return compared_with_official(splits)


def _table(refs: list[Any], splits: dict[str, int], kinds: list[str]) -> Table:
    counts = Counter((ref.split, str(ref.task_type)) for ref in refs)
    table = Table()
    table.add_column("games")
    for split in splits:
        table.add_column(Text(printable(split)), justify="right")
    for kind in kinds:
        table.add_row(kind, *(f"{counts[split, kind]:,}" for split in splits))
    table.add_row("all", *(f"{number:,}" for number in splits.values()))
    return table


def _skipped(games: Any, say: Callable[[str], None]) -> dict[str, list[str]]:
    """Print a line for each reason, with its first game; these games and what exactly it is."""
    examples: dict[str, list[str]] = {}
    for task_id, reason, why in games.skip_details():
        examples.setdefault(reason, [task_id, why])
    for reason, number in games.skip_counts().items():
        task_id, why = examples[reason]
        say(f"  {number:,} {reason}, for example {task_id}: {why}")
    return examples


def _caches(say: Callable[[str], None]) -> dict[str, Any]:
    from agent_envs import disk_cache
    from agent_envs.alfworld.games import game_cache, index_cache

    folder = disk_cache.cache_folder()
    if folder is None:
        say(f"caches: turned off by ${disk_cache.CACHE_VARIABLE}")
        return {"folder": None}
    told: dict[str, Any] = {"folder": str(folder)}
    limits = {"indexes": index_cache.LIMIT_BYTES, "games": game_cache.LIMIT_BYTES}
    for name, limit in limits.items():
        sizes = [size for _, size, _ in disk_cache.files_in(str(folder / name))]
        told[name] = {"files": len(sizes), "bytes": sum(sizes), "limit": limit}
    parts = (
        f"{told[name]['files']:,} {what}, {told[name]['bytes'] / 2**20:.1f} MB of at most "
        f"{told[name]['limit'] >> 20}"
        for name, what in (("indexes", "indexes"), ("games", "compiled games"))
    )
    say(f"caches in {folder}: {'; '.join(parts)}")
    return told


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
