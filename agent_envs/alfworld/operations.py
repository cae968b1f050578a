"""The spelling of commands: from text to an operation and the things that it names."""

from __future__ import annotations

from collections.abc import Sequence

from agent_envs.alfworld.generations import Generation

LOOK, INVENTORY, HELP = 0, 1, 2
GO, OPEN, CLOSE, EXAMINE_REC = 3, 4, 5, 6
EXAMINE_OBJ, USE = 7, 8
TAKE, PUT, CLEAN, HEAT, COOL, SLICE = 9, 10, 11, 12, 13, 14


def two_name_verbs(generation: Generation) -> dict[str, tuple[int, str]]:
    """Verb -> (operation, preposition) of commands like ``take mug 1 from desk 2``."""
    put, joint = generation.put
    return {
        "take": (TAKE, "from"),
        put: (PUT, joint),
        "clean": (CLEAN, "with"),
        "heat": (HEAT, "with"),
        "cool": (COOL, "with"),
        "slice": (SLICE, "with"),
    }


def command_table(
    generation: Generation, objs: Sequence[str], recs: Sequence[str]
) -> dict[str, tuple[int, int]]:
    """All commands that name no or one thing: command -> (operation, index, or 0)."""
    table = {"look": (LOOK, 0), "inventory": (INVENTORY, 0)}
    if generation.has_help:
        table["help"] = (HELP, 0)
    for index, name in enumerate(recs):
        table["go to " + name] = (GO, index)
        table["open " + name] = (OPEN, index)
        table["close " + name] = (CLOSE, index)
        table["examine " + name] = (EXAMINE_REC, index)
    for index, name in enumerate(objs):
        table["examine " + name] = (EXAMINE_OBJ, index)
        table["use " + name] = (USE, index)
    return table
