"""JSON records in one long text, with their places and check sums: written once, read at random."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import zlib
from array import array
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from agent_envs.errors import CorruptData


class FileBlob:
    """The bytes of a file by slices, read when asked for.

    There is no position that threads or forked processes could disturb. Unlike a mapping of the
    file it adds nothing to the memory of the process, and a file that was cut off meanwhile gives
    fewer bytes, no bus error.
    """

    __slots__ = ("_file", "_size")

    def __init__(self, path: Path) -> None:
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed with this object
        self._size = os.fstat(self._file.fileno()).st_size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, place: slice) -> bytes:
        return os.pread(self._file.fileno(), place.stop - place.start, place.start)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # it could not be opened
            self._file.close()


Blob: TypeAlias = bytes | mmap.mmap | FileBlob
"""Bytes in memory or in a file, read by slices."""


def open_blob(path: Path) -> Blob:
    """The bytes of a file. It is mapped where the system cannot read at a place."""
    if hasattr(os, "pread"):
        return FileBlob(path)
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return b""  # an empty file cannot be mapped
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


# Text may hold half of a surrogate pair, as JSON can; it is kept as it is.
_ERRORS = "surrogatepass"


def encode_text(text: str) -> bytes:
    """UTF-8 that can hold any `str`."""
    return text.encode("utf-8", _ERRORS)


def decode_text(data: bytes) -> str:
    """Inverse of `encode_text`."""
    return data.decode("utf-8", _ERRORS)


class RecordWriter:
    """Appends records to a file, one a line."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._digest = file, sha256()
        self._offsets, self._checks = array("q", [0]), array("I")

    def __len__(self) -> int:
        return len(self._checks)

    def add(self, value: Any) -> None:
        """Append `value`, made of lists, texts, numbers and None."""
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        data = encode_text(text + "\n")
        self._file.write(data)
        self._digest.update(data)
        self._offsets.append(self._offsets[-1] + len(data))
        self._checks.append(zlib.crc32(data))

    @property
    def sha256(self) -> str:
        """Of everything that was written."""
        return self._digest.hexdigest()

    def arrays(self, name: str) -> dict[str, NDArray[Any]]:
        """The tables that `Records` reads by, under the names that it expects."""
        return {
            f"{name}_offsets": np.array(self._offsets, dtype=np.int64),
            f"{name}_checks": np.array(self._checks, dtype=np.uint32),
        }


class Records:
    """Reads what a `RecordWriter` wrote. Safe for threads and after a fork: it has no position."""

    __slots__ = ("_blob", "_checks", "_offsets", "_what")

    def __init__(
        self, blob: Blob, offsets: NDArray[np.int64], checks: NDArray[np.uint32], what: str
    ) -> None:
        """`what` names the file in messages."""
        self._blob, self._offsets, self._checks, self._what = blob, offsets, checks, what

    def __len__(self) -> int:
        return len(self._checks)

    def __getitem__(self, number: int) -> Any:
        """Record `number`, decoded anew.

        Raises:
            CorruptData: it is not what was written.
        """
        start, end = int(self._offsets[number]), int(self._offsets[number + 1])
        data = self._blob[start:end]
        if zlib.crc32(data) != int(self._checks[number]):
            raise CorruptData(
                f"Record {number:,} of {self._what} is damaged: its check sum is not the one that "
                "was written. Make the store anew: `sero data import webshop RAW --out STORE`."
            )
        return json.loads(decode_text(data))

    def __iter__(self) -> Iterator[Any]:
        return (self[number] for number in range(len(self)))
