"""The version of the native engines."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache  # reading it costs more than a reset
def engine_version() -> str:
    """Version of the native engines: that of the distribution."""
    try:
        return version("sero-rl")
    except PackageNotFoundError:  # run from a source tree
        return "0+source"
