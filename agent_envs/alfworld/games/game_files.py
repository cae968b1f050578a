"""Finding game files: folders, single files, and what is in archives."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from agent_envs.alfworld.games.game_archives import (
    ARCHIVE_SUFFIXES,
    CUSTOM_SPLIT,
    GAME_NAME,
    GAME_SUFFIX,
    MAX_FILE_BYTES,
    TRAJECTORY_NAME,
    Trial,
    in_archive,
)
from agent_envs.disk_cache import read_bytes
from agent_envs.errors import CorruptGame, MissingData

TREE = "json_2.1.1"
"""Folder of ALFWorld's own tree, which holds a folder for each split."""

KNOWN_SPLITS = ("train", "valid_seen", "valid_unseen", "valid_train")


def find_trials(path: Path) -> list[Trial]:
    """All trials under `path`, sorted by where they are.

    Raises:
        MissingData: `path` does not exist or is neither folder, archive nor game file.
        DataError: an archive that is damaged or exceeds the limits.
    """
    if path.is_dir():
        trials = _in_folder(path)
    elif not path.exists():
        raise MissingData(
            f"There are no ALFWorld games at {path}: no such file or folder. "
            "Name an existing folder or archive of games, or get them: "
            "`sero data fetch alfworld --out DIR`."
        )
    elif not path.is_file():
        raise MissingData(f"There are no ALFWorld games at {path}: neither a file nor a folder.")
    elif path.name.endswith(ARCHIVE_SUFFIXES):
        trials = in_archive(path)
    elif path.name.endswith(GAME_SUFFIX):
        trials = [_single(path)]
    else:
        raise MissingData(
            f"{path} is no ALFWorld data: expected a folder, an archive "
            f"({', '.join(ARCHIVE_SUFFIXES)}) or a game file (*{GAME_SUFFIX})."
        )
    return sorted(trials, key=lambda trial: trial.where)


def split_task_trial(parts: tuple[str, ...], name: str) -> tuple[str, str, str]:
    """The three parts of a task id, from the folders that lead to a trial.

    `name` stands in where there are too few folders.

    >>> split_task_trial(("json_2.1.1", "train", "heat-Egg", "trial_1"), "data")
    ('train', 'heat-Egg', 'trial_1')
    >>> split_task_trial(("heat-Egg", "trial_1"), "valid_seen")
    ('valid_seen', 'heat-Egg', 'trial_1')
    >>> split_task_trial(("trial_1",), "my_games")
    ('custom', 'my_games', 'trial_1')
    """
    if len(parts) >= 3:
        return parts[-3], parts[-2], parts[-1]
    if len(parts) == 2:
        return (name if name in KNOWN_SPLITS else CUSTOM_SPLIT), parts[0], parts[1]
    return CUSTOM_SPLIT, name, parts[0] if parts else "game"


def _place_in_tree(folder: Path) -> tuple[str, ...]:
    """The folders from the split down to `folder`, if it lies within ALFWorld's own tree.

    So a part of the tree, down to one game, keeps its ids.
    """
    parts = folder.resolve().parts
    for start in range(max(len(parts) - 3, 0), len(parts)):
        if parts[start] in KNOWN_SPLITS:
            return parts[start:]
    return ()


def _single(path: Path) -> Trial:
    parts = _place_in_tree(path.parent) if path.name == GAME_NAME else ()
    if len(parts) != 3:
        parts = (CUSTOM_SPLIT, "game", path.name.removesuffix(GAME_SUFFIX))
    trajectory = path.with_name(TRAJECTORY_NAME)
    return Trial(
        str(path),
        parts,
        game=FileReader(str(path)),
        trajectory=FileReader(str(trajectory)) if trajectory.is_file() else None,
    )


def _in_folder(root: Path) -> list[Trial]:
    trials: list[Trial] = []
    seen: set[object] = set()
    top = os.fspath(root)
    waiting = [(top, _place_in_tree(root))]
    while waiting:
        folder, parts = waiting.pop()
        try:
            key = _identity(folder)
            if key in seen:  # a link back up, or the same games twice
                continue
            seen.add(key)
            with os.scandir(folder) as entries:
                listed = sorted((entry.name, _is_folder(entry)) for entry in entries)
        except OSError as error:
            trials.append(Trial(str(error.filename or folder), (), problem="unreadable"))
            continue
        files = [name for name, is_folder in listed if not is_folder]
        trials += _trials_of(folder, parts, files)
        # The last one in is the next one out: a link comes after what its name sorts behind.
        waiting += [
            (os.path.join(folder, name), (*parts, name))
            for name, is_folder in reversed(listed)
            if is_folder
        ]
    return trials


def _identity(folder: str) -> object:
    seen = os.stat(folder)
    return (seen.st_dev, seen.st_ino) if seen.st_ino else os.path.realpath(folder)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _trials_of(folder: str, parts: tuple[str, ...], files: list[str]) -> list[Trial]:
    """The trials whose files lie in `folder`."""
    trajectory = None
    if TRAJECTORY_NAME in files:
        trajectory = FileReader(os.path.join(folder, TRAJECTORY_NAME))
    games = [name for name in files if name.endswith(GAME_SUFFIX)]
    if not games:
        return [] if trajectory is None else [Trial(folder, parts, trajectory=trajectory)]
    trials = []
    for name in games:
        own = name == GAME_NAME
        path = os.path.join(folder, name)
        trials.append(
            Trial(
                path,
                parts if own else (*parts, name.removesuffix(GAME_SUFFIX)),
                game=FileReader(path),
                trajectory=trajectory if own else None,
            )
        )
    return trials


@dataclass(frozen=True, slots=True)
class FileReader:
    """Reads one file when called."""

    path: str

    def __call__(self) -> bytes:
        try:
            return read_bytes(self.path, MAX_FILE_BYTES)
        except ValueError as error:
            raise CorruptGame(f"{error}; that is no game.") from error
        except OSError as error:
            raise MissingData(f"Cannot read {self.path}: {error}.") from error
