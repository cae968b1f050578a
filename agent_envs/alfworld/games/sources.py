"""Where games come from: what an argument or the environment names, else generated households."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from agent_envs.alfworld.games.game_set import (
    MAX_ON_REQUEST,
    GameSet,
    resolved_path,
    too_many,
)
from agent_envs.errors import MissingData

OWN_VARIABLE, VARIABLE = "SERO_ALFWORLD_DATA", "ALFWORLD_DATA"
PREFIX = "generated:"


def load_game_set(data: GameSet | str | os.PathLike[str] | None = None) -> GameSet:
    """The games that `data` names; without it those of the environment, else generated ones.

    In this order: `data` itself, ``$SERO_ALFWORLD_DATA``, ``$ALFWORLD_DATA``, and the default
    set of generated households. A path is indexed once per process. A text that starts with
    ``generated:`` names generated households instead of a path, for example
    ``generated:small?seed=1`` (see `agent_envs.alfworld.households.generator.parse_source`).

    Raises:
        MissingData: a path that does not exist or holds no game, with what named it.
        InvalidSpec: a ``generated:`` text that is not understood.
        InvalidOption: one that asks for more games than can be listed in a moment, or `data` that
            is none of these.
    """
    if isinstance(data, GameSet):
        return data
    if data is not None:
        generated = _generated(data)
        if generated is not None:
            return generated
        return _from_path(str(resolved_path(data)))
    for variable in (OWN_VARIABLE, VARIABLE):
        value = os.environ.get(variable)
        generated = _generated(value) if value else None
        if generated is not None:
            return generated
        if value:
            try:
                path = resolved_path(value)
                if variable == VARIABLE and _is_untouched_cache(path):
                    continue
                return _from_path(str(path))
            except MissingData as error:
                raise MissingData(
                    f"${variable} is {value!r}, but: {error} `sero data fetch alfworld` "
                    "gets ALFWorld's games, `sero data generate` makes some; or "
                    f"unset {variable} to play generated households."
                ) from error
    from agent_envs.alfworld.households.generator import default_game_set

    return default_game_set()


def _generated(data: str | os.PathLike[str]) -> GameSet | None:
    text = os.fspath(data) if isinstance(data, os.PathLike) else data
    if not isinstance(text, str) or not text.startswith(PREFIX):
        return None
    # These modules need a `GameSet` themselves.
    from agent_envs.alfworld.households.generator import parse_source
    from agent_envs.alfworld.households.source import read_source

    if sum(number for _, number in read_source(text).counts) > MAX_ON_REQUEST:
        raise too_many(text)
    return parse_source(text)


def _is_untouched_cache(path: Path) -> bool:
    """Whether `path` is ALFWorld's default folder without any data in it.

    Importing the package `alfworld` creates that folder and sets the variable to it, so this
    says nothing about what the user wants.
    """
    # The functions of `os.path` take it that there may be no home, or one that is closed to us.
    default = os.path.realpath(os.path.expanduser("~/.cache/alfworld"))
    try:
        return str(path) == default and not (os.path.isdir(path) and os.listdir(path))
    except OSError:
        return False


@lru_cache(maxsize=8)
def _from_path(path: str) -> GameSet:
    return GameSet.from_path(path)
