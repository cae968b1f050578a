"""What says that a folder's files are as they were written: `manifest.json`, a hash of each.

    {"format": 1, "files": {NAME: {"sha256": HEX, "size": BYTES}}}

Every checkpoint has one, and so has `initial/` of a run, which the reference of a KL, the weights
under adapters and a start before the first checkpoint come from. A run of before there was such a
file, or a model of somebody else's making, has none and is taken as it is.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from agent_envs.errors import SeroError
from trainer.runs.info import write_json

__all__ = [
    "FORMAT",
    "MANIFEST",
    "CheckpointError",
    "check_files",
    "check_policy_files",
    "policy_files",
    "read_json",
    "sync",
    "write_manifest",
]

FORMAT = 1
MANIFEST = "manifest.json"
_SUFFIXES = (".safetensors", ".json", ".jinja", ".txt", ".model")
_OF_TRAINING = ("state.json", MANIFEST)


class CheckpointError(SeroError):
    """A checkpoint that is missing, incomplete, corrupt or does not fit; names the file."""


def write_manifest(folder: Path, files: Iterable[Path]) -> None:
    """Writes what files of the folder hold into its manifest, after they are on the disk."""
    table = {}
    for path in files:
        sync(path)
        size = path.stat().st_size
        table[path.relative_to(folder).as_posix()] = {"sha256": _digest(path), "size": size}
    write_json(folder / MANIFEST, {"format": FORMAT, "files": table})


def check_files(folder: Path, files: Mapping[str, Any], way_out: str) -> None:
    """Compares files with the table of a manifest.

    Args:
        way_out: what to do about a file that differs, for the message.

    Raises:
        CheckpointError: one is missing, unreadable or not as it was written; names it.
    """
    for name, entry in files.items():
        file = folder / name
        if not file.is_file():
            raise CheckpointError(f"{file} is missing. {way_out}")
        try:
            found = _digest(file)
        except OSError as error:
            raise CheckpointError(f"{file} cannot be read: {error.strerror}. {way_out}") from error
        expected = entry.get("sha256") if isinstance(entry, dict) else entry
        if found != expected:
            raise CheckpointError(
                f"{file} is corrupt: SHA-256 is {found[:12]}..., the manifest says "
                f"{expected!s:.12}... {way_out}"
            )


def check_policy_files(folder: Path) -> None:
    """Compares a policy's weights, config and tokenizer with the folder's manifest, if it has one.

    Raises:
        CheckpointError: a file is missing, unreadable or not as it was written; names it.
    """
    path = folder / MANIFEST
    if not path.exists():
        return
    manifest = read_json(path)
    files = manifest.get("files")
    if manifest.get("format") != FORMAT or not isinstance(files, dict):
        return  # somebody else's file of this name
    check_files(
        folder,
        {name: entry for name, entry in files.items() if _is_policy(name)},
        f"Restore the file from a copy, or use another policy. If it was changed on purpose, "
        f"delete {path}.",
    )


def policy_files(folder: Path) -> list[Path]:
    """The files of a policy in a folder, by name."""
    return sorted(path for path in folder.iterdir() if path.is_file() and _is_policy(path.name))


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file of a checkpoint.

    Raises:
        CheckpointError: the file is missing or corrupt.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing: no checkpoint, or an incomplete one.") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is corrupt: {error}") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} is corrupt: expected a JSON object.")
    return data


def sync(path: Path) -> None:
    """Waits until a file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _is_policy(name: str) -> bool:
    """Whether a file of this name is read with a policy; an optimiser's or a critic's is not."""
    if name in _OF_TRAINING or name.startswith(".") or not name.endswith(_SUFFIXES):
        return False
    return name.startswith("model") or not name.endswith(".safetensors")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
