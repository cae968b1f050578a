"""Game files in archives, safely.

Whatever an archive holds, members are read in memory, under limits on size and number, and only
those whose names say that they are a game or its trajectory.
"""

from __future__ import annotations

import json
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from tarfile import HeaderError, ReadError
from typing import IO, Any, Self

from agent_envs.alfworld.generations import domain_text, grammar_text
from agent_envs.errors import CorruptGame, DataError

GAME_NAME = "game.tw-pddl"
GAME_SUFFIX = ".tw-pddl"
TRAJECTORY_NAME = "traj_data.json"
ARCHIVE_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".zip")
CUSTOM_SPLIT = "custom"

MAX_FILE_BYTES = 16 << 20
MAX_ARCHIVE_BYTES = 16 << 30
MAX_MEMBERS = 500_000
MAX_HEADER_BYTES = 1 << 20
"""Of what a tar archive says of one member beyond its first 512 bytes, such as a long name."""

_LONG_HEADERS = frozenset(
    (
        *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
        *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    )
)


@dataclass(slots=True)
class Trial:
    """What was found of one trial: where its files are, or why they cannot be used."""

    where: str
    """For people: path on disk or name in the archive."""
    parts: tuple[str, ...]
    """Folders that lead to it, the trial's own last."""
    game: Callable[[], bytes] | None = None
    trajectory: Callable[[], bytes] | None = None
    problem: str | None = None
    """Why it must not be read, e.g. ``"unsafe_path"``."""


class _StrictTarInfo(tarfile.TarInfo):
    """`tarfile` takes a damaged header, or none at all, for the end of the archive, and reads
    headers of any size into memory: a megabyte of archive can hold gigabytes of them."""

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tarfile)
        except HeaderError as error:
            if type(error).__name__ == "EOFHeaderError":  # the blocks that end every archive
                raise
            raise ReadError(f"{error}, at byte {tarfile.offset}") from error

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if header.type in _LONG_HEADERS and not 0 <= header.size <= MAX_HEADER_BYTES:
            raise ReadError(
                f"a header of {header.size:,} bytes, expected {MAX_HEADER_BYTES:,} at most"
            )
        if header.type == tarfile.GNUTYPE_SPARSE:  # followed by a list of holes without bound
            raise _sparse()
        return header

    def _proc_gnusparse_10(self, *_: object) -> None:
        raise _sparse()  # `tarfile` calls this for another such list


def _sparse() -> ReadError:
    return ReadError("a sparse file; pack the games without tar's option --sparse")


def in_archive(path: Path) -> list[Trial]:
    """The trials in an archive.

    Raises:
        DataError: as `members`.
    """
    trials: dict[tuple[str, ...], Trial] = {}
    refused: list[Trial] = []
    for name, problem, data in members(path):
        where = f"{path.name}:{name}"
        if problem is not None:
            refused.append(Trial(where, (CUSTOM_SPLIT, "refused", name), problem=problem))
            continue
        *folders, file = PurePosixPath(name).parts
        own = file in (GAME_NAME, TRAJECTORY_NAME)
        parts = tuple(folders) if own else (*folders, file.removesuffix(GAME_SUFFIX))
        trial = trials.setdefault(parts, Trial(where, parts))
        if file == TRAJECTORY_NAME:
            trial.trajectory = Packed.of(_trajectory_core(data))
        elif trial.game is None:
            trial.where, trial.game = where, Packed.of(data)
        else:
            refused.append(Trial(where, parts, problem="duplicate"))
    return [*trials.values(), *refused]


def members(path: Path) -> Iterator[tuple[str, str | None, bytes]]:
    """Name, reason for refusal or None, and content of each member that matters.

    Raises:
        DataError: the archive is damaged or exceeds the limits.
    """
    try:
        yield from _members(path)
    except DataError:
        raise
    except Exception as error:  # the decoders raise a dozen kinds on damaged data
        raise DataError(f"Cannot read the archive {path}: {error}.") from error


def _members(path: Path) -> Iterator[tuple[str, str | None, bytes]]:
    budget = _Budget(path)
    if path.name.endswith(".zip"):
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                budget.spend(0)
                if info.is_dir() or not _matters(info.filename):
                    continue
                mode = info.external_attr >> 16
                regular = not stat.S_IFMT(mode) or stat.S_ISREG(mode)
                problem = _refusal(info.filename, info.file_size, regular)
                if problem is None:
                    budget.spend(info.file_size)
                    with archive.open(info) as file:
                        yield info.filename, None, _read_limited(file, info.filename)
                else:
                    yield info.filename, problem, b""
        return
    # As a stream: one pass, no seeking back, constant memory.
    with tarfile.open(path, mode="r|*", tarinfo=_StrictTarInfo) as archive:
        for member in archive:
            budget.spend(member.size)
            if member.isdir() or not _matters(member.name):
                continue
            problem = _refusal(member.name, member.size, member.isreg())
            handle = archive.extractfile(member) if problem is None else None
            if handle is None:
                yield member.name, problem or "not_a_file", b""
            else:
                yield member.name, None, _read_limited(handle, member.name)


def _read_limited(file: IO[bytes], name: str) -> bytes:
    data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise CorruptGame(f"{name} is larger than {MAX_FILE_BYTES >> 20} MiB; that is no game.")
    return data


class _Budget:
    def __init__(self, path: Path) -> None:
        self.path, self.size, self.members = path, 0, 0

    def spend(self, size: int) -> None:
        self.size += max(size, 0)
        self.members += 1
        if self.size > MAX_ARCHIVE_BYTES or self.members > MAX_MEMBERS:
            raise DataError(
                f"The archive {self.path} unpacks to more than {MAX_ARCHIVE_BYTES >> 30} GiB or "
                f"{MAX_MEMBERS} members; unpack it yourself and give the folder."
            )


def _matters(name: str) -> bool:
    file = name.replace("\\", "/").rpartition("/")[2]
    return file == TRAJECTORY_NAME or file.endswith(GAME_SUFFIX)


def _refusal(name: str, size: int, regular: bool) -> str | None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or ":" in name:
        return "unsafe_path"
    if not regular:
        return "not_a_file"
    if size > MAX_FILE_BYTES:
        return "too_large"
    return None


def _trajectory_core(data: bytes) -> bytes:
    """The few entries of a trajectory that are of use here; the rest can be megabytes."""
    try:
        whole = json.loads(data)
        core: dict[str, Any] = {key: whole[key] for key in ("task_type", "pddl_params")}
        core["turk_annotations"] = {"anns": [{"task_desc": s} for s in task_sentences(whole)]}
        return json.dumps(core).encode()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return data


def task_sentences(trajectory: Any) -> tuple[str, ...]:
    """What people wrote of the task, to the blank; none if the trajectory has none.

    >>> task_sentences({"turk_annotations": {"anns": [{"task_desc": "Heat an egg. "}]}})
    ('Heat an egg. ',)
    """
    found = (trajectory.get("turk_annotations") or {}).get("anns") or ()
    sentences = (ann.get("task_desc") for ann in found if isinstance(ann, dict))
    texts = (text for text in sentences if isinstance(text, str))
    return tuple(text for text in texts if text.strip() and _is_unicode(text))


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


@cache
def _dictionary() -> bytes:
    return (domain_text() + grammar_text()).encode()


class Packed:
    """A text kept in memory, compressed against the domain and grammar that games share."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    @classmethod
    def of(cls, text: bytes) -> Packed:
        """Pack `text`."""
        packer = zlib.compressobj(level=1, zdict=_dictionary())
        return cls(packer.compress(text) + packer.flush())

    def __call__(self) -> bytes:
        unpacker = zlib.decompressobj(zdict=_dictionary())
        return unpacker.decompress(self.data) + unpacker.flush()
