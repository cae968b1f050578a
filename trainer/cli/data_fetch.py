"""Get ALFWorld's own games from where they are published, and unpack them.

Two archives: the games, and the trajectories that hold people's descriptions of the tasks. A
download that was cut off goes on where it ended; run the same command again. Exit code 0 if
everything asked for is there and has games that can be played.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from agent_envs.alfworld.games.download import TIMEOUT_S
from agent_envs.alfworld.games.fetch import GAMES, OFFICIAL, Archive, Fetched, at_mirror, fetch
from trainer.cli.common import emit, printable, unset


@dataclass(frozen=True, slots=True)
class Args:
    """Options of `sero data fetch`."""

    what: Annotated[Literal["alfworld"], tyro.conf.Positional]
    """Whose data."""
    out: Path = Path("alfworld_data")
    """Folder to put them in; it gets a subfolder json_2.1.1."""
    url: Annotated[str | None, unset("URL")] = None
    """A mirror: the folder of the two archives, or one archive (default: the project's own
    releases)."""
    games_only: bool = False
    """Leave out the trajectories."""
    keep_archives: bool = False
    """Do not delete the archives after unpacking."""
    timeout: float = TIMEOUT_S
    """Longest wait for the server, in seconds, before a pause and another try."""
    json: bool = False
    """Print what came as one JSON object on the last line."""


def run(args: Args) -> int:
    """Fetch, unpack, index; 0 if all of it is there and playable."""
    from agent_envs.alfworld.games import GameSet

    archives: tuple[Archive, ...] = (GAMES,) if args.games_only else OFFICIAL
    if args.url is not None:
        archives = at_mirror(args.url, archives)
    with _bars() as progress:
        got = fetch(
            args.out,
            archives,
            keep_archives=args.keep_archives,
            timeout_s=args.timeout,
            progress=progress,
        )
    for one in got:
        print(_line(one))
    games = GameSet.from_path(args.out)
    splits = {split: len(games.task_ids(split)) for split in games.splits}
    counts = ", ".join(f"{number:,} {split}" for split, number in splits.items())
    print(printable(f"{len(games):,} games ({counts}); {len(games.skipped):,} left out"))
    print(f"play them: export SERO_ALFWORLD_DATA={args.out.resolve()}")
    emit(
        {
            "out": str(args.out),
            "archives": [asdict(one) for one in got],
            "games": len(games),
            "splits": splits,
            "skipped": games.skip_counts(),
            "manifest_hash": games.manifest_hash,
        },
        args.json,
    )
    return 0 if len(games) else 1


def _line(one: Fetched) -> str:
    state = "was there already" if one.already_there else "fetched and unpacked"
    return printable(
        f"{one.name}: {state}; {one.games:,} games, {one.trajectories:,} trajectories; "
        f"{one.size:,} bytes, SHA-256 {one.sha256} (none is published to compare it with)"
    )


class _Bars:
    """One bar for each thing that is done."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, what: str, done: int, total: int | None) -> None:
        task = self._tasks.get(what)
        if task is None:
            if what.startswith("unpacking"):
                task = self._progress.add_task(what, total=None)
            else:
                task = self._progress.add_task(what, total=total)
            self._tasks[what] = task
        self._progress.update(task, completed=done, total=total)


@contextmanager
def _bars() -> Iterator[_Bars]:
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
    ) as progress:
        yield _Bars(progress)
