"""Packages of the extra ``site``, imported when they are used."""

from __future__ import annotations

import importlib
from typing import Any

from agent_envs.errors import MissingExtra


def needed(name: str) -> Any:
    """The module `name`.

    Raises:
        MissingExtra: it, or something that it needs, is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = (error.name or name).partition(".")[0]
        raise MissingExtra(
            f"The shop's web site needs the package {package!r}, which is not installed. It comes "
            "with the extra 'site': pip install '.[site]' in a checkout of sero."
        ) from error
