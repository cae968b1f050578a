"""The spelling of commands: from text to an operation and the things that it names."""

from __future__ import annotations

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
