"""A config's file: YAML, on top of the files that it extends.

    extends: [parts/alfworld.yaml, parts/gigpo.yaml]
    objective: {use_std: true}

Paths are relative to the file that names them. What a run records is the outcome, whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.errors import ConfigError

__all__ = ["read_file"]


def read_file(path: Path, within: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A file on top of the files that it extends; later ones lie on earlier ones.

    Args:
        path: the file.
        within: the files that led here, outermost first, resolved.

    Raises:
        ConfigError: a file is missing, holds no mapping or is no YAML, or files extend each other
            in a circle; names them.
    """
    chain = (*within, path.resolve())
    if chain[-1] in within:
        raise ConfigError(
            "Configs extend each other in a circle: " + " -> ".join(map(str, chain)) + "."
        )
    data = dict(_read_yaml(path))
    named = data.pop("extends", [])
    bases = [named] if isinstance(named, str) else named
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise ConfigError(
            f"{path}: extends={named!r} must be a path relative to this file, or a list of them."
        )
    merged: dict[str, Any] = {}
    for base in bases:
        file = path.parent / base
        if not file.is_file():
            raise ConfigError(f"{path} extends {base!r}, and there is no file {file}.")
        merged = _overlaid(merged, read_file(file, chain))
    return _overlaid(merged, data)


def _overlaid(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with what `top` says, section by section."""
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        merged[key] = _overlaid(below, value) if both else value  # type: ignore[arg-type]
    return merged


def _read_yaml(path: Path) -> Mapping[str, Any]:
    import yaml  # the trainer's extra; configs built in Python do not need it

    try:
        text = path.read_text(encoding="utf-8")
    except IsADirectoryError as error:
        raise ConfigError(
            f"{path} is a folder. Name a config file, such as those in examples/."
        ) from error
    except OSError as error:
        raise ConfigError(f"Cannot read the config {path}: {error.strerror}.") from error
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise ConfigError(f"{path} must hold a mapping of sections, found {type(data).__name__}.")
    return data
