"""The file of an index: a block of description, then arrays that are mapped, not read.

The first 4,096 bytes hold a line that names the format, the SHA-256 of the description, and the
description: JSON with name, type, length and place of every array and the SHA-256 of all that
follows the block. Arrays are little-endian and start at multiples of 64 bytes. Opening checks the
description and every size; the content itself is checked where the file is small or on demand.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agent_envs.errors import CorruptData, MissingData

Arrays = dict[str, "NDArray[np.generic]"]

_MAGIC = b"sero search index 1\n"
_BLOCK = 4096
_ALIGN = 64
_PIECE = 1 << 24


def write_arrays(path: Path, arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Write the file in one step, so that others see all of it or what was there before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{os.getpid()}.{time.time_ns()}.part"
    try:
        with open(temporary, "xb") as file:
            file.write(bytes(_BLOCK))
            digest = hashlib.sha256()
            described = {}
            for name, array in arrays.items():
                gap = bytes(-file.tell() % _ALIGN)
                file.write(gap)
                digest.update(gap)
                little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
                described[name] = [little.dtype.str, little.size, file.tell()]
                view = little.view(np.uint8).data
                for start in range(0, len(view), _PIECE):
                    file.write(view[start : start + _PIECE])
                    digest.update(view[start : start + _PIECE])
            size = file.tell()
            text = {"arrays": described, "size": size, "sha256": digest.hexdigest()}
            block = json.dumps(text, separators=(",", ":")).encode()
            file.seek(0)
            file.write(_MAGIC + hashlib.sha256(block).hexdigest().encode() + b"\n" + block + b"\n")
            if file.tell() > _BLOCK:
                raise ValueError(f"{len(arrays)} arrays cannot be described in {_BLOCK} bytes")
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


class MappedArrays:
    """The arrays of a file, read-only. Pages are read when first touched, and shared."""

    def __init__(self, path: Path, types: Mapping[str, str]) -> None:
        """Map the file at `path`, which must hold exactly the arrays that `types` names.

        Args:
            types: the type of every array, as numpy writes it: ``"<i4"``.

        Raises:
            MissingData: there is no such file.
            CorruptData: it is something else, of another version, cut off or damaged.
        """
        self.path = path
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < _BLOCK:
                    raise corrupt(path, f"it has {size} bytes, less than its first block")
                self._map = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise MissingData(
                f"There is no search index {path}. Build it with SearchIndex.build(...).save(...) "
                "or import the catalogue again."
            ) from None
        except (OSError, ValueError, OverflowError) as error:
            if isinstance(error, CorruptData):
                raise
            raise corrupt(path, f"it cannot be mapped ({error})") from None
        described, self.digest = self._described(size, types)
        self.arrays: Arrays = {
            name: np.frombuffer(self._map, np.dtype(types[name]), length, place)
            for name, (length, place) in described.items()
        }

    def _described(
        self, size: int, types: Mapping[str, str]
    ) -> tuple[dict[str, tuple[int, int]], str]:
        """(length, place) of every array, and the digest of all of them."""
        block = self._map[:_BLOCK]
        if not block.startswith(_MAGIC):
            raise corrupt(self.path, f"it starts with {block[: len(_MAGIC)]!r}, not {_MAGIC!r}")
        expected, _, rest = block[len(_MAGIC) :].partition(b"\n")
        text = rest.partition(b"\n")[0]
        if hashlib.sha256(text).hexdigest().encode() != expected:
            raise corrupt(self.path, "its description does not match its checksum")
        try:
            told = json.loads(text)
            if told["size"] != size:
                raise ValueError(f"it has {size} bytes, and should have {told['size']}")
            if list(told["arrays"]) != list(types):
                raise ValueError(f"it holds {list(told['arrays'])}, and should {list(types)}")
            described, free = {}, _BLOCK
            for name, (kind, length, place) in told["arrays"].items():
                fits = type(length) is type(place) is int and length >= 0 and place >= free
                if kind != types[name] or not fits or place % _ALIGN:
                    raise ValueError(f"array {name!r} cannot be {kind}, {length} from {place}")
                free = place + length * np.dtype(kind).itemsize
                described[name] = (length, place)
            if free > size:
                raise ValueError("arrays reach beyond its end")
            return described, str(told["sha256"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise corrupt(self.path, f"its description makes no sense: {error}") from None

    def verify(self) -> None:
        """Read everything and compare with the checksum.

        Raises:
            CorruptData: it differs.
        """
        digest = hashlib.sha256()
        with memoryview(self._map) as view:
            for start in range(_BLOCK, len(view), _PIECE):
                digest.update(view[start : start + _PIECE])
        self.release()
        if digest.hexdigest() != self.digest:
            raise corrupt(self.path, "its content does not match its checksum")

    def release(self) -> None:
        """Give up the pages that this process holds; they come back when touched again."""
        if hasattr(self._map, "madvise"):  # not on every system
            self._map.madvise(mmap.MADV_DONTNEED)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self._map)


def corrupt(path: Path | None, what: str) -> CorruptData:
    """The error for a damaged index."""
    return CorruptData(
        f"The search index {path if path is not None else 'in memory'} cannot be used: {what}. "
        "Delete its folder and build it again (import the catalogue again)."
    )
