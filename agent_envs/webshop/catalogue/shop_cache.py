"""Imported shops in the cache folder: whole stores, kept while they are used."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from importlib import resources
from pathlib import Path

from agent_envs.disk_cache import cache_folder
from agent_envs.errors import DataError
from agent_envs.webshop.catalogue.store import HEADER, Tables, is_store, open_store
from agent_envs.webshop.catalogue.store_place import PART, PlaceTaken, StoreNotWritten

CACHE_BYTES = 2 << 30
"""All stores together; the least recently used go first."""

_ABANDONED_S = 3600.0
_OWN = re.compile("[0-9a-f]{32}")
"""Names of entries; whatever else lies in the folder is not the cache's to delete."""
_NEVER = 0.0


def cached_store(name: str, build: Callable[[Path], object]) -> Tables | None:
    """The store `name` of the cache, built if need be; None if there can be none."""
    base = cache_folder()
    if base is None:
        return None
    folder = base / "webshop"
    out = folder / name
    for _ in range(3):
        seen = _identity(out)
        if seen is not None:
            with contextlib.suppress(DataError):
                tables = open_store(out)
                with contextlib.suppress(OSError):
                    os.utime(out / HEADER)  # used last now
                return tables
            _discard(out, seen)
        try:
            build(out)
        except PlaceTaken:
            continue  # another process was first
        except StoreNotWritten:
            return None
        _shrink(folder, out)
    return None


def _identity(place: Path) -> tuple[int, int] | None:
    """What tells an entry from another of the same name; None if there is none."""
    try:
        seen = os.lstat(place)
    except OSError:
        return None
    return seen.st_dev, seen.st_ino


def _discard(place: Path, seen: tuple[int, int]) -> None:
    """Delete the entry `seen` at `place`, moved away first: others see all of it or nothing.

    Another process may have found the same damage and have made the entry anew by now, which is
    then left, or put back.
    """
    with contextlib.suppress(OSError):
        trash = Path(tempfile.mkdtemp(prefix=f".{place.name}.", suffix=PART, dir=place.parent))
        try:
            if _identity(place) == seen:
                moved = trash / place.name
                os.rename(place, moved)
                if _identity(moved) != seen:
                    os.rename(moved, place)
        finally:
            shutil.rmtree(trash, ignore_errors=True)


def cached_shops() -> tuple[Path, tuple[int, ...]] | None:
    """The folder of the cached shops, and their sizes in bytes; None if there is no cache."""
    base = cache_folder()
    if base is None:
        return None
    return base / "webshop", tuple(size for _, size, _ in _stores_in(base / "webshop"))


def _stores_in(folder: Path) -> list[tuple[float, int, Path]]:
    """(time of last use, size, path) of each entry, the least recently used first.

    One without a header, which no process can use, was last used never.
    """
    stores: list[tuple[float, int, Path]] = []
    with contextlib.suppress(OSError):
        for place in folder.iterdir():
            with contextlib.suppress(OSError):  # another process may be deleting it
                if _OWN.fullmatch(place.name):
                    files = [file.stat() for file in place.rglob("*") if file.is_file()]
                    used = (place / HEADER).stat().st_mtime if is_store(place) else _NEVER
                    stores.append((used, sum(seen.st_size for seen in files), place))
    return sorted(stores)


def _shrink(folder: Path, kept: Path) -> None:
    """Delete the least recently used stores of the cache until `CACHE_BYTES` are left, and what
    killed processes left behind."""
    with contextlib.suppress(OSError):
        for place in folder.glob(f".*{PART}"):
            with contextlib.suppress(OSError):
                if time.time() - place.stat().st_mtime > _ABANDONED_S:
                    shutil.rmtree(place, ignore_errors=True)
    stores = _stores_in(folder)
    total = sum(size for _, size, _ in stores)
    for used, size, place in stores:
        seen = _identity(place)
        if (total > CACHE_BYTES or used == _NEVER) and place != kept and seen is not None:
            _discard(place, seen)
            total -= size


@cache
def code_hash() -> str:
    """Of the code that decides what a store holds."""
    digest = sha256()
    with contextlib.suppress(OSError):  # installed without its sources
        for package in ("catalogue", "search", "generated", "generated/data"):
            folder = resources.files("agent_envs.webshop").joinpath(package)
            for file in sorted(folder.iterdir(), key=lambda one: one.name):
                if file.is_file():
                    digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]
