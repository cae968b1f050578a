"""Where a run goes on: its last checkpoint, or an earlier one when that is corrupt.

Going on from an earlier checkpoint makes again what came after it. Nothing of that is deleted: it
moves to `aside/NNNNNN/` in the run folder, named after the checkpoint, with the files' own names.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from trainer.config import Config, resolve
from trainer.metrics import MetricsLog
from trainer.runs.checkpoint import (
    Checkpoint,
    CheckpointError,
    checkpoint_numbers,
    latest_checkpoint,
    load_checkpoint,
)
from trainer.runs.folder import RunFolder
from trainer.runs.info import write_json

__all__ = [
    "changed_fields",
    "checkpoint_to_resume",
    "clear_strays",
    "cut_logs",
    "record_length",
    "set_aside",
]

_NUMBER = re.compile(r"(\d{6,})(_.*\.json|\.parquet)?")
# Names that `tempfile` gives to what will be a numbered file, or one of the run's own.
_STRAY = re.compile(
    r"\.(\d{6,}(_.*\.json|\.parquet)?|(manifest|run|status|warmstart)\.json)\.\w{8}"
)


def checkpoint_to_resume(folder: RunFolder, iteration: int | None = None) -> Checkpoint:
    """The checkpoint after `iteration` iterations, verified; None: the last.

    Raises:
        CheckpointError: it is missing or corrupt; names the last intact one before it and the
            option that takes it.
    """
    numbers = checkpoint_numbers(folder.checkpoints)
    if iteration is not None and iteration not in numbers:
        raise CheckpointError(
            f"{folder.path} has no checkpoint of iteration {iteration}. It has: "
            f"{', '.join(map(str, numbers)) or 'none'}."
        )
    path = folder.checkpoints / f"{iteration:06d}" if iteration is not None else None
    path = path or latest_checkpoint(folder.checkpoints)
    try:
        return load_checkpoint(path)
    except CheckpointError as error:
        for earlier in numbers:
            if earlier < int(path.name) and _is_intact(folder, earlier):
                way_out = (
                    f"The last intact one before it is of iteration {earlier}: `sero train ... "
                    f"--resume-from {earlier}` goes on from there."
                )
                break
        else:
            way_out = "None before it is intact: start anew in another folder."
        raise CheckpointError(f"{error} {way_out}") from error


def changed_fields(before: Config, now: Config, most: int = 6) -> str:
    """`section.key=OLD, now NEW` of the fields that differ, at most so many of them."""
    left, right = _flat(resolve(before)), _flat(resolve(now))
    told = [
        f"{name}={left.get(name)!r:.60}, now {right.get(name)!r:.60}"
        for name in left | right
        if left.get(name, _flat) != right.get(name, _flat)
    ]
    more = [f"and {len(told) - most} more"] if len(told) > most else []
    return "; ".join([*told[:most], *more])


_LENGTH = ("iterations", "checkpoint_every", "keep", "early_stop")


def record_length(
    folder: RunFolder, info: Mapping[str, Any], made_with: Config, now: Config, done: int
) -> None:
    """Puts into run.json how long a resumed run is to be, and which checkpoints it keeps.

    The folder stands for its run.json: what goes on with it, chooses its best checkpoint or reports
    on it has to know.

    Args:
        info: what run.json holds; `made_with`: its config.
        done: finished iterations. A run is never shorter than that: its last evaluation would be
            none that its config asks for.
    """
    before, after = resolve(made_with)["run"], resolve(now)["run"]
    after["iterations"] = max(after["iterations"], done)
    changed = {name: after[name] for name in _LENGTH if before[name] != after[name]}
    if changed:
        config = info["config"]
        run = {**config.get("run", {}), **changed}
        write_json(folder.info, {**info, "config": {**config, "run": run}})


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def clear_strays(folder: RunFolder) -> None:
    """Removes what a killed run was still writing, or removing, under a name of its own."""
    parts = (folder.initial, folder.checkpoints, folder.path / "turns", folder.path / "eval")
    for path in [path for place in (folder.path, *parts) for path in place.glob(".*")]:
        if _STRAY.fullmatch(path.name) is None:
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def cut_logs(folder: RunFolder, iteration: int) -> None:
    """Drops what was logged after the checkpoint: it is about to happen again."""
    for path in (folder.metrics, folder.roots):
        MetricsLog(path).truncate(iteration)


def set_aside(folder: RunFolder, iteration: int) -> Path | None:
    """Moves what a run has beyond `iteration` finished iterations out of the way.

    Log lines, turns, evaluations and checkpoints, in this order: broken off at any point, the
    same call again moves the rest.

    Returns:
        The folder that holds it now, or None if there was nothing to move.

    Raises:
        MetricsError: a log cannot be read. Nothing has moved.
    """
    logs = [path for path in (folder.metrics, folder.roots) if path.exists()]
    for path in logs:
        MetricsLog(path).read()
    tails = {path: tail for path in logs if (tail := _tail(path, iteration))}
    found = list(_beyond(folder, iteration))
    if not found and not tails:
        return None
    aside = _new_folder(folder, iteration)
    for path, tail in tails.items():
        (aside / path.name).write_text(tail, encoding="utf-8")
    cut_logs(folder, iteration)
    for path in found:
        target = aside / path.relative_to(folder.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, target)
    return aside


def _tail(path: Path, iteration: int) -> str:
    """The lines of a log that `cut_logs` drops, a torn last line included."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if not _is_before(line, iteration))


def _is_before(line: str, iteration: int) -> bool:
    try:
        return bool(json.loads(line)["iteration"] < iteration)
    except (ValueError, KeyError, TypeError):
        return False


def _beyond(folder: RunFolder, iteration: int) -> Iterator[Path]:
    """Files and folders named after an iteration that is about to happen again."""
    # Turns carry the number of their iteration, counted from 0; the others how many were done.
    for name, first in (
        ("turns", iteration),
        ("eval", iteration + 1),
        ("eval/later", iteration + 1),
        ("checkpoints", iteration + 1),
    ):
        for path in sorted((folder.path / name).glob("*")):
            match = _NUMBER.fullmatch(path.name)
            if match is not None and int(match[1]) >= first:
                yield path


def _new_folder(folder: RunFolder, iteration: int) -> Path:
    for number in count(1):
        name = f"{iteration:06d}" if number == 1 else f"{iteration:06d}-{number}"
        path = folder.path / "aside" / name
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        return path
    raise AssertionError("count() has no end")


def _is_intact(folder: RunFolder, iteration: int) -> bool:
    try:
        load_checkpoint(folder.checkpoints / f"{iteration:06d}")
    except CheckpointError:
        return False
    return True
