"""Getting ALFWorld's own games from where they are published.

Two archives make up the tree ``json_2.1.1``: one holds the game files, one the trajectories from
which people's descriptions of the tasks come. No checksums are published for them. Each archive
is therefore checked by the CRC that a zip file keeps of every member, before any of it becomes
visible, and the SHA-256 that was seen is noted, so that machines can be compared.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from agent_envs.alfworld.games.download import (
    TIMEOUT_S,
    CorruptDownload,
    DownloadRefused,
    DownloadStopped,
    check_url,
    download,
    file_sha256,
)
from agent_envs.alfworld.games.game_archives import (
    ARCHIVE_SUFFIXES,
    GAME_NAME,
    GAME_SUFFIX,
    TRAJECTORY_NAME,
    members,
)
from agent_envs.alfworld.games.game_files import TREE, split_task_trial
from agent_envs.errors import DataError, InvalidOption

_RELEASES = "https://github.com/alfworld/alfworld/releases/download"
NOTE = "fetched.json"


@dataclass(frozen=True, slots=True)
class Archive:
    """A published archive."""

    name: str
    url: str
    holds: str
    size: int | None = None
    sha256: str | None = None
    """Of the file, where it is known."""


GAMES = Archive(
    "json_2.1.2_tw-pddl.zip", f"{_RELEASES}/0.4.0/json_2.1.2_tw-pddl.zip", "the game files"
)
TRAJECTORIES = Archive(
    "json_2.1.1_json.zip",
    f"{_RELEASES}/0.2.2/json_2.1.1_json.zip",
    "the trajectories, with people's descriptions of the tasks",
)
OFFICIAL = (GAMES, TRAJECTORIES)

OFFICIAL_COUNTS = {"train": 3553, "valid_seen": 140, "valid_unseen": 134, "valid_train": 200}
"""Playable games by split; `valid_train` is a sample of its own, which few use."""


def compared_with_official(counts: Mapping[str, int]) -> dict[str, str]:
    """By split, whether the official games are all there.

    >>> compared_with_official({"train": 360, "valid_seen": 140})
    {'train': 'partial: 360 of 3,553', 'valid_seen': 'complete', 'valid_unseen': 'missing'}
    """
    told = {}
    for split, official in OFFICIAL_COUNTS.items():
        found = counts.get(split, 0)
        if found == official:
            told[split] = "complete"
        elif found > official:
            told[split] = f"{found:,}, {found - official:,} more than the official {official:,}"
        elif found:
            told[split] = f"partial: {found:,} of {official:,}"
        elif split != "valid_train":
            told[split] = "missing"
    return told


@dataclass(frozen=True, slots=True)
class Fetched:
    """What came of one archive."""

    name: str
    url: str
    size: int
    sha256: str
    games: int
    trajectories: int
    """Files in the tree that came from it."""
    already_there: bool = False


Progress = Callable[[str, int, int | None], None]
"""Called with what is being done ("getting NAME"), bytes done, and bytes in all if known."""


def at_mirror(url: str, archives: Sequence[Archive] = OFFICIAL) -> tuple[Archive, ...]:
    """The archives as they lie on a mirror.

    Args:
        url: a folder that holds archives of these names; or one archive (its address ends like
            one), which then is all there is to get.

    Raises:
        DownloadRefused: not an http(s) address.
    """
    check_url(url)
    name = PurePosixPath(url.partition("?")[0]).name
    if name.endswith(ARCHIVE_SUFFIXES):
        return (Archive(name, url, "games"),)
    return tuple(
        Archive(one.name, f"{url.rstrip('/')}/{one.name}", one.holds, one.size, one.sha256)
        for one in archives
    )


def fetch(
    out: Path,
    archives: Sequence[Archive] = OFFICIAL,
    *,
    keep_archives: bool = False,
    timeout_s: float = TIMEOUT_S,
    progress: Progress = lambda what, done, total: None,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Fetched, ...]:
    """Get `archives` and unpack them as ``out/json_2.1.1/<split>/<task>/<trial>/``.

    What an earlier call finished is not done again, and an unfinished download goes on. A file of
    an archive's name that somebody put into `out` is taken as the archive.

    Raises:
        DownloadStopped, DownloadRefused: with what to do where there is no internet.
        CorruptDownload: an archive is not what it should be; nothing of it was unpacked.
        DataError: `out` cannot be written, or another process is fetching into it.
    """
    if not isinstance(timeout_s, int | float) or not 0 < timeout_s <= 86_400:
        raise InvalidOption(f"The time-out is {timeout_s!r} s; give more than 0, at most a day.")
    try:
        out.mkdir(parents=True, exist_ok=True)
        with _alone(out):
            _clear(_staging(out))
            return tuple(
                _one(out, archive, keep_archives, timeout_s, progress, sleep)
                for archive in archives
            )
    except DataError:  # some are of the class OSError, too
        raise
    except OSError as error:
        raise DataError(f"Cannot make the folder {out}, or write into it: {error}.") from error


def _one(
    out: Path,
    archive: Archive,
    keep: bool,
    timeout_s: float,
    progress: Progress,
    sleep: Callable[[float], None],
) -> Fetched:
    notes = _read_notes(out)
    noted = _noted(notes, archive, out)
    if noted is not None:
        return noted
    file = out / archive.name
    own = not file.exists()
    if own:
        what = f"getting {archive.name}"
        try:
            download(
                archive.url,
                file,
                size=archive.size,
                sha256=archive.sha256,
                timeout_s=timeout_s,
                progress=lambda got, total: progress(what, got, total),
                sleep=sleep,
            )
        except DownloadStopped as error:
            raise DownloadStopped(_stopped(out, archive, error), error.got, error.total) from error
        except DownloadRefused as error:
            raise DownloadRefused(f"{error} {_by_hand(out, archive)}") from error
    fetched = _unpacked(out, archive, file, own, progress)
    _write_notes(out, {**notes, archive.name: asdict(fetched)})
    if own and not keep:
        with contextlib.suppress(OSError):
            file.unlink()
    return fetched


def _stopped(out: Path, archive: Archive, error: DownloadStopped) -> str:
    of = "" if error.total is None else f" of {error.total:,}"
    kept = f"{error.got:,}{of} bytes are there; the same command goes on from them. "
    return (
        f"Cannot get {archive.url}: {error}. {kept if error.got else 'Nothing was received. '}"
        f"{_by_hand(out, archive)}"
    )


def _by_hand(out: Path, archive: Archive) -> str:
    file = out / archive.name
    if archive.holds == TRAJECTORIES.holds:
        way_out = "The games can be played without it."
    else:
        way_out = (
            f"Or play from the archive as it is: export SERO_ALFWORLD_DATA={file}. Without "
            "ALFWorld's games, unset SERO_ALFWORLD_DATA and ALFWORLD_DATA to play generated "
            "households."
        )
    return (
        f"If this machine has no internet: get {archive.url} on one that has ({archive.holds}), "
        f"put it here as {file} and run the same command again, which then unpacks it. {way_out}"
    )


# ---------------------------------------------------------------------------- unpacking


def _unpacked(out: Path, archive: Archive, file: Path, own: bool, progress: Progress) -> Fetched:
    """Unpack beside the tree, and move into it once everything proved to be whole."""
    staging = _staging(out)
    what = f"unpacking {archive.name}"
    counts, done = {GAME_NAME: 0, TRAJECTORY_NAME: 0}, 0
    try:
        size, digest = file.stat().st_size, file_sha256(file)
        for name, problem, data in members(file):
            place = PurePosixPath(name)
            if place.name.startswith("._") or "__MACOSX" in place.parts:
                continue  # not files of the archive, but what a Mac notes about them
            if problem is not None:
                raise CorruptDownload(f"{file} holds {name!r}, which is not safe ({problem}).")
            parts = split_task_trial(place.parts[:-1], archive.name.partition(".")[0])
            target = staging.joinpath(*parts, place.name)
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.exists():
                continue  # a second file of this place: as in an index, the first one counts
            target.write_bytes(data)
            counts[TRAJECTORY_NAME if place.name == TRAJECTORY_NAME else GAME_NAME] += 1
            done += len(data)
            progress(what, done, None)
        if not any(counts.values()):
            raise CorruptDownload(f"{file} holds no games.")
        _merge(staging, out / TREE)
    except OSError as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"Cannot unpack {file} into {out}: {error}.") from error
    except DataError as error:
        fate = "It was left where it is; delete it to have it fetched."
        if own:
            file.unlink(missing_ok=True)
            fate = "It was deleted; the same command gets it anew. Nothing was unpacked."
        raise CorruptDownload(
            f"What {archive.url} gave cannot be used. {error} {fate} {_by_hand(out, archive)}"
        ) from error
    finally:
        _clear(staging)
    return Fetched(
        archive.name, archive.url, size, digest, counts[GAME_NAME], counts[TRAJECTORY_NAME]
    )


def _staging(out: Path) -> Path:
    return out / f".{TREE}.part"


def _clear(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _merge(source: Path, target: Path) -> None:
    for folder, _, files in os.walk(source):
        place = target / Path(folder).relative_to(source)
        place.mkdir(parents=True, exist_ok=True)
        for name in files:
            os.replace(Path(folder) / name, place / name)


# ---------------------------------------------------------------------------- notes


def _read_notes(out: Path) -> dict[str, Any]:
    try:
        notes = json.loads((out / NOTE).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return notes if isinstance(notes, dict) else {}


def _write_notes(out: Path, notes: dict[str, Any]) -> None:
    temporary = out / f"{NOTE}.part"
    try:
        temporary.write_text(json.dumps(notes, indent=2, sort_keys=True), encoding="utf-8")
        os.replace(temporary, out / NOTE)
    except OSError as error:
        raise DataError(f"Cannot write {out / NOTE}: {error}.") from error


def _noted(notes: dict[str, Any], archive: Archive, out: Path) -> Fetched | None:
    """What is noted of an archive whose files are still there."""
    try:
        note = notes[archive.name]
        fetched = Fetched(
            archive.name,
            str(note["url"]),
            int(note["size"]),
            str(note["sha256"]),
            int(note["games"]),
            int(note["trajectories"]),
            already_there=True,
        )
    except (TypeError, LookupError, ValueError):
        return None
    if archive.sha256 not in (None, fetched.sha256) or fetched.url != archive.url:
        return None
    names = [name for _, _, files in os.walk(out / TREE) for name in files]
    games = sum(name.endswith(GAME_SUFFIX) for name in names)
    complete = games >= fetched.games and names.count(TRAJECTORY_NAME) >= fetched.trajectories
    return fetched if complete else None


@contextlib.contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Hold the folder for this process, where the system has such locks."""
    try:
        import fcntl
    except ImportError:  # Windows: two at once spoil each other's pieces, which their check finds
        yield
        return
    with open(out / ".fetch.lock", "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DataError(
                f"Another process is fetching into {out}. Wait for it, or choose another folder."
            ) from error
        yield
