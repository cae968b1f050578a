"""Which versions of the original engine's packages work together.

They are the extra ``reference``, and nothing but the original engine needs them. Other pairs fail
late and oddly (a parser generator that no longer reads the grammar, fields that one package does
not know of the other), so versions are checked before anything is imported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version

from agent_envs.errors import IncompatibleExtra, MissingExtra

EXTRA = "reference"
WORKING: Mapping[str, tuple[str, str | None]] = {
    "alfworld": ("0.4.2", "0.5"),
    "textworld": ("1.7", "1.8"),
    "tatsu": ("5.8.3", None),
    "fast-downward-textworld": ("20.6.4", "21"),
}
"""Package -> (first version, first one that is too new; None: that very version only)."""

_HINT = f"Install them together: pip install '.[{EXTRA}]' in a checkout of sero."


def installed_version(package: str) -> str | None:
    """Version of an installed package, None if there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def check_versions(found: Callable[[str], str | None] = installed_version) -> dict[str, str]:
    """The versions of the original engine's packages, if they work together.

    Raises:
        MissingExtra: a package is not installed.
        IncompatibleExtra: a version that does not work with the others; all found are named.
    """
    versions = {package: found(package) for package in WORKING}
    missing = [package for package, number in versions.items() if number is None]
    if missing:
        raise MissingExtra(
            f"The original ALFWorld engine needs the extra {EXTRA!r}: {', '.join(missing)} not "
            f"installed. It compiles C++ on installation. {_HINT}"
        )
    there = {package: number for package, number in versions.items() if number is not None}
    wrong = [package for package, number in there.items() if not _works(package, number)]
    if wrong:
        wanted = "; ".join(f"{package} {_range(package)}" for package in WORKING)
        have = "; ".join(f"{package} {number}" for package, number in there.items())
        raise IncompatibleExtra(
            f"The original ALFWorld engine (extra {EXTRA!r}) does not run with these versions. "
            f"Found: {have}. Expected: {wanted}. At fault: {', '.join(wrong)}. {_HINT}"
        )
    return there


def _works(package: str, number: str) -> bool:
    first, beyond = WORKING[package]
    if beyond is None:
        return _key(number) == _key(first)
    return _key(first) <= _key(number) < _key(beyond)


def _range(package: str) -> str:
    first, beyond = WORKING[package]
    return f"=={first}" if beyond is None else f">={first},<{beyond}"


def _key(number: str) -> tuple[int, ...]:
    """The release part of a version, without zeros at its end."""
    release = re.match(r"\d+(?:\.\d+)*", number)
    parts = [int(part) for part in release[0].split(".")] if release else []
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)
