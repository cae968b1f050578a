"""Writes generated games as ALFWorld's own folder tree, whole games only, going on where it was.

A game's folder is made elsewhere and moved into place, so whoever reads the tree, at any time and
after any interruption, finds complete games only. A file beside the tree says which games it
holds: the same set goes on there, another one is refused.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from agent_envs.alfworld.games.game_files import TREE

MARKER = "generated.json"
_TEMPORARY = ".writing-"
_ABANDONED_S = 3600.0

Files = Mapping[str, Any]
"""File name -> JSON value."""


def write_games(
    out: Path,
    games: Iterable[tuple[str, Callable[[], Files]]],
    names: tuple[str, ...],
    *,
    source: str,
    content: str,
    on_game: Callable[[bool], None] | None = None,
) -> int:
    """Write those of the games that are not there yet; returns the number of all of them.

    Args:
        out: folder to write to; it gets the tree and the file that describes it.
        games: task id ("split/task/trial") and what makes the files of its folder.
        names: the files that make a game complete.
        source: the set in words, kept for people.
        content: a hash that is equal for sets that may share a tree.
        on_game: called after each game, with whether it had to be written.

    Raises:
        FileExistsError: `out` holds a tree of something else; nothing is written.
    """
    root = out / TREE
    if root.exists() and _content(out / MARKER) != content:
        raise FileExistsError(
            f"{root} exists and holds other games than {source}; games of two sets must not mix. "
            "Remove it or choose another folder."
        )
    number = 0
    with _workshop(out) as workshop:
        _replace_text(workshop, out / MARKER, {"source": source, "content": content})
        root.mkdir(exist_ok=True)
        for task_id, make in games:
            folder = root.joinpath(*task_id.split("/"))
            missing = not all(_is_whole(folder / name) for name in names)
            if missing:
                _write_folder(workshop, folder, make())
            number += 1
            if on_game is not None:
                on_game(missing)
    return number


@contextmanager
def _workshop(out: Path) -> Iterator[Path]:
    """A temporary folder beside the tree, on the same file system."""
    out.mkdir(parents=True, exist_ok=True)
    for left in out.glob(f"{_TEMPORARY}*"):  # of a process that was killed
        with suppress(OSError):  # of one that ended just now
            if time.time() - left.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(left, ignore_errors=True)
    path = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=out))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _write_folder(workshop: Path, folder: Path, files: Files) -> None:
    made = workshop / folder.name
    made.mkdir()
    for name, value in files.items():
        (made / name).write_text(json.dumps(value), encoding="utf-8", newline="\n")
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.rename(made, folder)
    except OSError:
        if not folder.is_dir():
            raise
        for name in files:  # a damaged game, or one that another process wrote meanwhile
            os.replace(made / name, folder / name)
        made.rmdir()


def _replace_text(workshop: Path, path: Path, value: Any) -> None:
    made = workshop / path.name
    made.write_text(json.dumps(value) + "\n", encoding="utf-8", newline="\n")
    os.replace(made, path)


def _is_whole(path: Path) -> bool:
    """Whether a file is there and not empty, as after a power cut."""
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def _content(marker: Path) -> str | None:
    try:
        found = json.loads(marker.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found.get("content") if isinstance(found, dict) else None
