"""What a run was made with: package versions, data and prompt hashes, the resolved config."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["package_versions", "run_info", "write_json"]

_PACKAGES = ("sero-rl", "torch", "transformers", "tokenizers", "gymnasium", "numpy")


def package_versions() -> dict[str, str | None]:
    """Version of Python and of each package that can move a result; `None`: not installed."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def run_info(
    config: Mapping[str, Any],
    *,
    manifest_hash: str,
    prompt_hash: str,
    provenance: Mapping[str, Any],
) -> dict[str, Any]:
    """The record that opens a run folder (`run.json`)."""
    return {
        "format": 1,
        "config": dict(config),
        "manifest_hash": manifest_hash,
        "prompt_hash": prompt_hash,
        "provenance": dict(provenance),
        "versions": package_versions(),
        "machine": {"cpus": os.cpu_count(), "platform": platform.platform()},
    }


def write_json(path: Path, data: Any) -> None:
    """Writes JSON atomically: readers see the former file or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(data, file, indent=2, allow_nan=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
