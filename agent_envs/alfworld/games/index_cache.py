"""The index of a folder or archive of games, kept on disk between processes.

What is kept of a trial is what reading its files told: whether it is a game, its type, the
digest of its file. It is used again only while size, time of change and time of status change of
both files are the same (of the whole archive, for an archive, whose games are then kept too). A
file that was changed less than two seconds before it was indexed is read again next time, since a
second change may not show in its times. Names and places of the files are always looked up anew,
so what was added or removed shows; so does a change that leaves all times alone, as an error,
when the game itself is read (`GameSet.load` compares digests).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from agent_envs.alfworld.games.game_archives import ARCHIVE_SUFFIXES, Packed, Trial
from agent_envs.alfworld.games.game_cache import compiler_hash
from agent_envs.alfworld.games.game_files import FileReader, find_trials, split_task_trial
from agent_envs.alfworld.games.game_index import Entry, GameRef, SkipReason, index_trial
from agent_envs.alfworld.model import TaskType
from agent_envs.disk_cache import (
    cache_folder,
    read_sealed,
    remove,
    shrink,
    write_sealed,
)

LIMIT_BYTES = 256 << 20
"""All indexes together; the least recently used go first."""
MAX_INDEX_BYTES = 128 << 20
SETTLED_NS = 2_000_000_000

Skip: TypeAlias = tuple[str, str, str]
Outcome: TypeAlias = Entry | Skip
Stamp: TypeAlias = list[list[int]]
"""Size, time of change and time of status change (ns) of each file."""
T = TypeVar("T")


@dataclass(slots=True)
class Index:
    """What was found at one place."""

    entries: list[Entry] = field(default_factory=list)
    skipped: list[Skip] = field(default_factory=list)
    """(id, reason, detail) of what was left out."""
    cache_file: str | None = None
    """Where the index is kept, if it is."""

    def add(self, outcome: Outcome) -> None:
        if isinstance(outcome, Entry):
            self.entries.append(outcome)
        else:
            self.skipped.append(outcome)


def open_index(root: Path) -> Index:
    """Index the folder, archive or game file at `root`, with the help of the cache.

    Raises:
        MissingData: nothing there, or neither folder, archive nor game file.
        DataError: an archive that is damaged or exceeds the limits.
    """
    folder = cache_folder()
    is_archive = root.is_file() and root.name.endswith(ARCHIVE_SUFFIXES)
    if folder is None or not (is_archive or root.is_dir()):
        found = Index()
        for trial in find_trials(root):
            found.add(index_trial(trial, _id_of(trial, root, root.is_dir())))
        return found
    name = hashlib.sha256(os.fsencode(root)).hexdigest()[:32]
    store = _Store(str(folder / "indexes"), f"{name}.{'pack' if is_archive else 'json'}")
    return (_open_archive if is_archive else _open_folder)(root, store)


def _id_of(trial: Trial, root: Path, is_dir: bool = False) -> str:
    name = root.name if is_dir else root.name.partition(".")[0]
    return "/".join(split_task_trial(trial.parts, name))


# ---------------------------------------------------------------------------- folders


def _open_folder(root: Path, store: _Store) -> Index:
    started = time.time_ns()
    known = store.read(json.loads) or {}
    kept: dict[str, Any] = {}
    found = Index(cache_file=store.path)
    for trial in find_trials(root):
        task_id = _id_of(trial, root, is_dir=True)
        stamp = _stamp_of(trial)
        record = known.get(trial.where)
        if stamp is not None and record is not None and record[0] == stamp:
            outcome = _outcome(record[1], trial, task_id)
        else:
            outcome = index_trial(trial, task_id)
            record = None
            # What could not be read may be readable next time, whatever its times say. And the
            # files are looked at once more: they may have changed while they were read.
            if (isinstance(outcome, Entry) or outcome[1] != SkipReason.CORRUPT) and _settled(
                stamp, started
            ):
                record = [stamp, _facts(outcome)] if _stamp_of(trial) == stamp else None
        if record is not None:
            kept[trial.where] = record
        found.add(outcome)
    if kept != known:
        store.write(json.dumps(kept, separators=(",", ":")).encode())
    return found


def _stamp_of(trial: Trial) -> Stamp | None:
    """Size and times of a trial's files; None if they cannot be told."""
    readers = [r for r in (trial.game, trial.trajectory) if isinstance(r, FileReader)]
    try:
        return [_times(os.stat(reader.path)) for reader in readers] or None
    except OSError:
        return None


def _times(seen: os.stat_result) -> list[int]:
    return [seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns]


def _settled(stamp: Stamp | None, started: int) -> bool:
    return stamp is not None and all(max(times[1:]) < started - SETTLED_NS for times in stamp)


def _facts(outcome: Outcome) -> list[str]:
    """What reading a trial's files told."""
    if isinstance(outcome, Entry):
        return [str(outcome.ref.task_type), outcome.ref.engine, outcome.digest]
    return [*map(str, outcome)]


def _outcome(facts: list[str], trial: Trial, task_id: str) -> Outcome:
    """Inverse of `_facts`."""
    first, second, third = facts
    kind = _TYPES.get(first)
    if kind is None or trial.game is None:
        return first, SkipReason(second), third
    split = task_id.partition("/")[0]
    return Entry(GameRef(task_id, split, kind, second), third, trial.game, trial.trajectory)


_TYPES = {kind.value: kind for kind in TaskType}


# ---------------------------------------------------------------------------- archives


def _open_archive(root: Path, store: _Store) -> Index:
    started = time.time_ns()
    stamp = [_times(os.stat(root))]
    found = store.read(lambda body: _unpack(body, stamp, root))
    if found is not None:
        found.cache_file = store.path
        return found
    found = Index()
    trials, facts = find_trials(root), []
    for trial in trials:
        outcome = index_trial(trial, _id_of(trial, root))
        found.add(outcome)
        facts.append(_facts(outcome))
    if _settled(stamp, started) and [_times(os.stat(root))] == stamp:
        found.cache_file = store.path
        store.write(_pack(stamp, trials, facts))
    return found


def _pack(stamp: Stamp, trials: list[Trial], facts: list[list[str]]) -> bytes:
    """The length of a JSON text, the text, and the packed files of all trials in a row."""
    pieces: list[bytes] = []
    records = []
    for trial, told in zip(trials, facts, strict=True):
        sizes: list[int | None] = []
        for reader in (trial.game, trial.trajectory):
            data = reader.data if isinstance(reader, Packed) else None
            sizes.append(None if data is None else len(data))
            pieces.append(data or b"")
        records.append([trial.where, trial.parts, trial.problem, sizes, told])
    table = json.dumps([stamp, records], separators=(",", ":")).encode()
    return b"".join((len(table).to_bytes(8, "big"), table, *pieces))


def _unpack(body: bytes, stamp: Stamp, root: Path) -> Index | None:
    """Inverse of `_pack`; None if it is about another state of the archive."""
    place = 8 + int.from_bytes(body[:8], "big")
    written, records = json.loads(body[8:place])
    if written != stamp:
        return None
    found = Index()
    for where, parts, problem, sizes, told in records:
        readers: list[Packed | None] = []
        for size in sizes:
            readers.append(None if size is None else Packed(body[place : place + size]))
            place += size or 0
        trial = Trial(where, tuple(parts), readers[0], readers[1], problem)
        found.add(_outcome(told, trial, _id_of(trial, root)))
    return found


# ---------------------------------------------------------------------------- files


@cache
def _code_hash() -> str:
    try:
        folder = resources.files(__package__)
        names = ("game_archives", "game_files", "game_index", "index_cache")
        texts = [(folder / f"{name}.py").read_bytes() for name in names]
    except OSError:  # installed without its sources
        texts = []
    return hashlib.sha256(b"\0".join([compiler_hash().encode(), *texts])).hexdigest()[:16]


class _Store:
    """One file of the cache."""

    def __init__(self, folder: str, name: str) -> None:
        self.folder, self.path = folder, os.path.join(folder, name)
        self.head = f"sero-index 1 {name} {_code_hash()}"

    def read(self, decode: Callable[[bytes], T | None]) -> T | None:
        """What the file holds; None if that is of no use."""
        body = read_sealed(self.path, self.head, MAX_INDEX_BYTES)
        try:
            found = None if body is None else decode(body)
        except (ValueError, TypeError, LookupError, RecursionError):
            return None
        if found is not None:
            with contextlib.suppress(OSError):
                os.utime(self.path)  # used last now
        return found

    def write(self, body: bytes) -> None:
        if len(body) + len(self.head) + 66 > MAX_INDEX_BYTES:
            remove(self.path)
        elif write_sealed(self.path, self.head, body):
            shrink(self.folder, LIMIT_BYTES)
