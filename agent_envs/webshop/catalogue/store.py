"""The imported form of a shop: a folder of arrays and record files that processes share.

Arrays are mapped into memory and records read one by one, so opening reads next to nothing,
whatever the size, and all processes of a machine share what they touch. `store.json` names every
other file with its size and SHA-256. Sizes are compared at every opening, digests too if the store
is small; each record has a check sum of its own, which is compared whenever it is read. A store is
complete or absent: it is written beside its place and renamed (`store_place`).
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from agent_envs.errors import CorruptData, MissingData
from agent_envs.webshop.catalogue.records import Blob, Records, RecordWriter, open_blob

FORMAT = "sero-webshop-store"
VERSION = 1
"""Of the layout; bumped whenever it changes, since older code must not misread it."""
HEADER = "store.json"
INDEX = "index"
"""Subfolder of the search index, which has a format of its own."""
VERIFIED_BYTES = 32 << 20
"""Stores up to this size are compared with their digests at every opening (about 20 ms)."""

_MAX_HEADER = 16 << 20


@dataclass(frozen=True, slots=True)
class Tables:
    """Arrays and records of one shop, in memory or in files."""

    header: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]
    blobs: Mapping[str, Blob]
    folder: Path | None = None
    """Where they lie; None for tables in memory."""

    @property
    def revision(self) -> str:
        """SHA-256 (hex) of the content."""
        return str(self.header["revision"])

    def __reduce__(self) -> tuple[Any, ...]:
        if self.folder is not None:
            return _reopened, (self.folder, self.revision)
        return Tables, (dict(self.header), dict(self.arrays), dict(self.blobs))

    def records(self, name: str) -> Records:
        """The records called `name`."""
        where = f"{name}.jsonl" if self.folder is None else str(self.folder / f"{name}.jsonl")
        arrays = self.arrays
        return Records(self.blobs[name], arrays[f"{name}_offsets"], arrays[f"{name}_checks"], where)


class TableWriter:
    """Collects the tables of a shop, record files directly on disk if it has a folder."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._files: dict[str, BinaryIO] = {}
        self._records: dict[str, RecordWriter] = {}
        self.arrays: dict[str, NDArray[Any]] = {}

    def records(self, name: str) -> RecordWriter:
        """A new file of records."""
        file: BinaryIO
        if self.folder is None:
            file = io.BytesIO()
        else:
            file = open(self.folder / f"{name}.jsonl", "xb", buffering=1 << 20)  # noqa: SIM115
        self._files[name] = file
        self._records[name] = RecordWriter(file)
        return self._records[name]

    def finish(self, header: Mapping[str, Any]) -> Tables:
        """Write what is not yet on disk, the header last, and open the result.

        Args:
            header: what the store says of itself beside its files.
        """
        for name, writer in self._records.items():
            self.arrays.update(writer.arrays(name))
        digests = {f"{name}.jsonl": writer.sha256 for name, writer in self._records.items()}
        sizes = {f"{name}.jsonl": file.tell() for name, file in self._files.items()}
        for name, values in self.arrays.items():
            image = io.BytesIO()
            np.save(image, np.ascontiguousarray(values), allow_pickle=False)
            data = image.getbuffer()
            digests[f"{name}.npy"], sizes[f"{name}.npy"] = sha256(data).hexdigest(), len(data)
            if self.folder is not None:
                (self.folder / f"{name}.npy").write_bytes(data)
        lines = "".join(f"{name}\0{digests[name]}\n" for name in sorted(digests))
        full = {
            "format": FORMAT,
            "version": VERSION,
            **header,
            "revision": sha256(lines.encode()).hexdigest(),
            "files": {name: [sizes[name], digests[name]] for name in sorted(digests)},
        }
        if self.folder is None:
            blobs = {
                name: file.getvalue()
                for name, file in self._files.items()
                if isinstance(file, io.BytesIO)
            }
            return Tables(full, dict(self.arrays), blobs)
        self.close()
        _write_header(self.folder, full)
        return open_store(self.folder)

    def close(self) -> None:
        """Close the record files."""
        for file in self._files.values():
            file.close()


def is_store(folder: Path) -> bool:
    """Whether a store lies at `folder`."""
    return os.path.isfile(folder / HEADER)


def open_store(folder: Path, *, verify: bool | None = None) -> Tables:
    """Open the files of the store at `folder`.

    Args:
        verify: compare all digests (True), none (False), or those of a small store (None).

    Raises:
        MissingData: no store there.
        CorruptData: of another version, incomplete or damaged.
    """
    header = read_header(folder)
    files = header["files"]
    for name, (size, _) in files.items():
        try:
            found = os.stat(folder / name).st_size
        except OSError as error:
            raise _damaged(folder, f"{name} cannot be read ({error.strerror or error})") from error
        if found != size:
            raise _damaged(folder, f"{name} has {found:,} bytes, expected {size:,}")
    total = sum(size for size, _ in files.values())
    if verify or (verify is None and total <= VERIFIED_BYTES):
        verify_store(folder, header)
    arrays: dict[str, NDArray[Any]] = {}
    blobs: dict[str, Blob] = {}
    try:
        for name in files:
            stem, _, kind = name.rpartition(".")
            if kind == "npy":
                mapped = np.load(folder / name, mmap_mode="r", allow_pickle=False)
                arrays[stem] = np.asarray(mapped)  # the plain class: faster to index
            else:
                blobs[stem] = open_blob(folder / name)
    except (OSError, ValueError) as error:
        raise _damaged(folder, f"{name} cannot be opened ({error})") from error
    for name, blob in blobs.items():
        offsets = arrays.get(f"{name}_offsets")
        if offsets is None or not len(offsets) or int(offsets[-1]) != len(blob):
            raise _damaged(folder, f"{name}_offsets.npy does not fit {name}.jsonl")
    return Tables(header, arrays, blobs, folder)


def _reopened(folder: Path, revision: str) -> Tables:
    """The store at `folder`, if it still holds what it held in another process."""
    tables = open_store(folder)
    if tables.revision != revision:
        raise CorruptData(
            f"The WebShop store {folder} was replaced: it has revision {tables.revision[:12]}, "
            f"expected {revision[:12]}. Start anew."
        )
    return tables


def verify_store(folder: Path, header: Mapping[str, Any] | None = None) -> None:
    """Compare the digests of all files of a store with its header.

    Raises:
        CorruptData: one differs.
    """
    header = read_header(folder) if header is None else header
    for name, (_, digest) in header["files"].items():
        try:
            with open(folder / name, "rb") as file:
                found = _digest(file)
        except OSError as error:
            raise _damaged(folder, f"{name} cannot be read ({error.strerror or error})") from error
        if found != digest:
            raise _damaged(folder, f"the SHA-256 of {name} is {found[:16]}, not {digest[:16]}")


def read_header(folder: Path) -> dict[str, Any]:
    """What the store at `folder` says of itself.

    Raises:
        MissingData: no store there.
        CorruptData: the header is damaged or of another version.
    """
    try:
        with open(folder / HEADER, "rb") as file:
            data = file.read(_MAX_HEADER + 1)
    except OSError as error:
        raise MissingData(
            f"There is no WebShop store at {folder}: {HEADER} cannot be read "
            f"({error.strerror or error}). `sero data import webshop RAW --out STORE` makes one."
        ) from error
    digest, _, body = data.partition(b"\n")
    try:
        header = json.loads(body)
        is_ours = isinstance(header, dict) and header.get("format") == FORMAT
    except (ValueError, RecursionError):
        is_ours = False
    if not is_ours:
        raise _damaged(folder, f"{HEADER} is no header of a WebShop store")
    if header.get("version") != VERSION:
        raise CorruptData(
            f"The WebShop store {folder} has format version {header.get('version')!r}, this "
            f"version of sero reads {VERSION}. Make it anew from the original files: "
            "`sero data import webshop RAW --out STORE`."
        )
    if digest.decode("ascii", "replace") != sha256(body).hexdigest():
        raise _damaged(folder, f"the digest of {HEADER} is not the one that was written")
    checked: dict[str, Any] = header
    return checked


def _write_header(folder: Path, header: Mapping[str, Any]) -> None:
    body = json.dumps(header, indent=1, ensure_ascii=True, allow_nan=False).encode()
    with open(folder / HEADER, "xb") as file:
        file.write(sha256(body).hexdigest().encode() + b"\n" + body)
        file.flush()
        os.fsync(file.fileno())


def _digest(file: BinaryIO) -> str:
    digest = sha256()
    while piece := file.read(1 << 20):
        digest.update(piece)
    return digest.hexdigest()


def _damaged(folder: Path, why: str) -> CorruptData:
    return CorruptData(
        f"The WebShop store {folder} is damaged or incomplete: {why}. Make it anew from the "
        "original files: `sero data import webshop RAW --out STORE`."
    )
