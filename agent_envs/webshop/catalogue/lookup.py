"""Finds entries of one file by asin while another file is read: bounded memory, any order."""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from agent_envs.webshop.catalogue.records import Records, RecordWriter, encode_text

_IN_MEMORY = 8 << 20


class Lookup:
    """(key, value) pairs in a temporary file, found by key; of equal keys the last one counts.

    Memory holds 24 bytes a pair.
    """

    def __init__(self, pairs: Iterable[tuple[str, Any]], folder: Path | None = None) -> None:
        """Values are made of lists, texts, numbers and None; the file lies in `folder`."""
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY, dir=str(folder) if folder else None)  # noqa: SIM115
        writer = RecordWriter(self._file)  # type: ignore[arg-type]
        hashes = array("Q")
        for key, value in pairs:
            writer.add([key, value])
            hashes.append(_hash(key))
        tables = writer.arrays("pairs")
        self._file.flush()
        found = np.array(hashes, dtype=np.uint64)
        self._order = np.argsort(found, kind="stable")
        self._hashes = found[self._order]
        self._records = Records(
            _FileBlob(self._file),  # type: ignore[arg-type]
            tables["pairs_offsets"],
            tables["pairs_checks"],
            "a temporary file",
        )

    def __len__(self) -> int:
        return len(self._hashes)

    def get(self, key: str) -> Any | None:
        """The value of `key`; None if there is none."""
        found = self._find(key)
        return None if found is None else found[1]

    def pairs(self) -> Iterator[tuple[str, Any]]:
        """All pairs that `get` can find, in the order in which they came."""
        for number, (key, value) in enumerate(self._records):
            found = self._find(key)
            if found is not None and found[0] == number:
                yield key, value

    def _find(self, key: str) -> tuple[int, Any] | None:
        wanted = np.uint64(_hash(key))
        place = int(np.searchsorted(self._hashes, wanted, side="right")) - 1
        while place >= 0 and self._hashes[place] == wanted:
            number = int(self._order[place])
            found, value = self._records[number]
            if found == key:
                return number, value
            place -= 1
        return None

    def close(self) -> None:
        """Delete the file."""
        self._file.close()


def _hash(key: str) -> int:
    return int.from_bytes(blake2b(encode_text(key), digest_size=8).digest(), "little")


class _FileBlob:
    """Slices of a file that only one thread reads."""

    __slots__ = ("_file",)

    def __init__(self, file: Any) -> None:
        self._file = file

    def __getitem__(self, place: slice) -> bytes:
        self._file.seek(place.start)
        data: bytes = self._file.read(place.stop - place.start)
        return data
