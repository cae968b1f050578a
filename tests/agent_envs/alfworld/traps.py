"""A walk through the household of oddities (household.py) that meets every corner of the rules."""

from __future__ import annotations

from agent_envs.alfworld.generations import GENERATIONS
from agent_envs.alfworld.original.lockstep_walks import HOSTILE
from tests.agent_envs.alfworld.household import LOOK, PUT, TREAT, TWO

WALK = """
look | go to desk 1 | go to desk 2 | examine mug 3 | use cellphone 1 | use desklamp 1
use desklamp 1 | take pen 1 from desk 1 | examine pen 1 | take mug 3 from desk 2
PUT pen 1 ON desk 2 | look | take bowl 1 from desk 2 | examine bowl 1 | PUT bowl 1 ON desk 1
look | take bowl 1 from desk 1 | open drawer 1 | PUT bowl 1 ON drawer 1 | look
take butterknife 1 from drawer 1 | go to shelf 1 | look | go to fridge 1
slice apple 1 with butterknife 1 | open fridge 1 | PUT butterknife 1 ON fridge 1
take mug 2 from fridge 1 | examine mug 2 | cool mug 2 with fridge 1 | examine mug 2
PUT mug 2 ON fridge 1 | take apple 1 from fridge 1 | examine apple 1 | close fridge 1
PUT apple 1 ON fridge 1 | go to microwave 1 | heat apple 1 with microwave 1 | examine apple 1
heat apple 1 with microwave 1 | open microwave 1 | go to bathtubbasin 1
clean apple 1 with bathtubbasin 1 | go to sinkbasin 1 | clean apple 1 with sinkbasin 1
examine apple 1 | PUT apple 1 ON sinkbasin 1 | go to shelf 1 | take pen 1 from shelf 1
go to desk 1 | PUT pen 1 ON desk 1 | look | go to shelf 1 | take teddybear 1 from shelf 1
go to desk 1 | PUT teddybear 1 ON desk 1 | use desklamp 1 | inventory | help
"""
"""PUT ... ON stands for the command that puts down."""

GOALS = {
    "put": PUT.format(obj="PenType", rec="DeskType"),
    "heat": TREAT.format(able="heatable", done="isHot", obj="AppleType", rec="SinkBasinType"),
    "two": TWO.format(obj="MugType", rec="DeskType"),
    "look": LOOK.format(obj="MugType"),
}
"""The first holds at the start and is given up on the way."""


def spelled(command: str, generation: str) -> str:
    """`command` with PUT ... ON as `generation` says it."""
    put, joint = GENERATIONS[generation].put
    return command.replace("PUT ", f"{put} ").replace(" ON ", f" {joint} ")


def trap_walk(generation: str) -> tuple[str, ...]:
    """All of it: `WALK`, and each hostile text with a normal command after it."""
    walk = [part.strip() for part in WALK.replace("\n", "|").split("|") if part.strip()]
    other = next(name for name in GENERATIONS if name != generation)
    commands = []
    for command in walk:
        if "PUT " in command:  # the other generation's word does nothing
            commands.append(spelled(command, other))
        commands.append(spelled(command, generation))
    for text in HOSTILE.values():
        commands += [text, "look"]
    return tuple(commands)


def everything(generation: str) -> set[str]:
    """The situations that `trap_walk` meets with the goal "put": all that have a name."""
    verbs = {"clean", "close", "cool", "examine", "go", "heat", "inventory", "look", "open"}
    verbs |= {"slice", "take", "use", GENERATIONS[generation].put[0]}
    if GENERATIONS[generation].has_help:
        verbs.add("help")
    return (
        verbs
        | {f"{state} in hand" for state in ("clean", "cool", "hot", "sliced")}
        | {f"hostile: {name}" for name in HOSTILE}
        | {"beside", "closed receptacle", "dead end", "no longer won", "object in two receptacles"}
        | {"open receptacle", "refused", "shared location", "won"}
    )
