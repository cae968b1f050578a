"""A config's file: YAML, on top of the files that it extends.

    extends: [parts/alfworld.yaml, parts/gigpo.yaml]
    objective: {use_std: true}

Paths are relative to the file that names them. What a run records is the outcome, whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.errors import ConfigError

if TYPE_CHECKING:
    import yaml

__all__ = ["read_file"]

_NULL = "tag:yaml.org,2002:null"
_MERGE = "tag:yaml.org,2002:merge"


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
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no text in UTF-8 ({error}). Save it as UTF-8.") from error
    try:
        _check_keys(path, yaml.compose(text, Loader=yaml.SafeLoader))
        data = yaml.safe_load(text)
    except ConfigError:
        raise
    except (yaml.YAMLError, ValueError) as error:  # the latter: a date that there is not
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise ConfigError(f"{path} must hold a mapping of sections, found {type(data).__name__}.")
    return data


def _check_keys(path: Path, root: yaml.Node | None) -> None:
    """Refuses what YAML reads in silence and nobody means.

    Raises:
        ConfigError: a key stands twice in a mapping, and one value would be lost; an auxiliary
            section is empty, which YAML reads as null and so as switched off; or a value holds
            itself.
    """
    done: set[int] = set()

    def check(node: yaml.Node | None, name: str, within: tuple[int, ...]) -> None:
        if id(node) in within:
            raise ConfigError(f"{path}: {name!r} holds itself.")
        if id(node) in done or node is None or not isinstance(node.value, list):
            return
        here = (*within, id(node))
        lines: dict[Any, int] = {}
        for entry in node.value:
            key, value = entry if isinstance(entry, tuple) else (None, entry)
            dotted = name
            if key is not None:
                line = key.start_mark.line + 1
                dotted = f"{name}.{key.value}" if name else str(key.value)
                if isinstance(key.value, str) and key.tag != _MERGE:
                    if key.value in lines:
                        raise ConfigError(
                            f"{path}: {dotted!r} stands in line {lines[key.value]} and again in "
                            f"line {line}, and only one would count. Make one of both."
                        )
                    lines[key.value] = line
                if name == "auxiliary" and (value.tag, value.value) == (_NULL, ""):
                    raise ConfigError(
                        f"{path}, line {line}: {dotted} is empty, which YAML reads as null. Write "
                        f"`{key.value}: {{}}` to switch it on with its defaults, `{key.value}: "
                        "null` to switch it off."
                    )
            check(value, dotted, here)
        done.add(id(node))

    check(root, "", ())
