"""Errands: the steps of an ALFWorld plan that matter, and the commands that carry them out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from agent_envs.alfworld.generations import GENERATIONS
from agent_envs.alfworld.model import Game, State, TaskType, bits

Verb = Literal["take", "put", "treat", "use"]
"""``treat`` is clean, heat or cool, whichever the task asks for."""


class Errand(NamedTuple):
    """Something to do at a receptacle."""

    verb: Verb
    rec: int
    obj: int


class Place(NamedTuple):
    """A receptacle as a choice. `shut` is 1 if it must be opened first, else 0."""

    rec: int
    loc: int
    shut: int


class Source(NamedTuple):
    """An object to take, and where from."""

    obj: int
    rec: int
    loc: int
    shut: int


class Target(NamedTuple):
    """A receptacle that the goal asks for."""

    rec: int
    loc: int
    shut: int
    inside: int
    """Mask of the wanted objects in it."""
    fits: int
    """Mask of the wanted objects that may be put in it."""


def fetch_and_put(source: Source, target: Target) -> tuple[Errand, Errand]:
    """Take the object of `source` and put it into `target`."""
    return Errand("take", source.rec, source.obj), Errand("put", target.rec, source.obj)


def commands(game: Game, state: State, errands: Iterable[Errand]) -> tuple[str, ...]:
    """The commands that run `errands` from `state`: each `go to` and `open` where it is needed.

    A ``use`` errand without an object (-1) only asks to be at the lamp's receptacle.
    """
    loc, opened = state.loc, state.opened
    treat = {TaskType.CLEAN: "clean", TaskType.HEAT: "heat", TaskType.COOL: "cool"}
    put, joint = GENERATIONS[game.generation].put
    lines: list[str] = []
    for verb, rec, obj in errands:
        name = game.recs[rec]
        if game.rec_loc[rec] != loc:
            loc = game.rec_loc[rec]
            lines.append(f"go to {name}")
        if verb == "use":
            if obj >= 0:
                lines.append(f"use {game.objs[obj]}")
            continue
        if verb == "treat":
            lines.append(f"{treat[game.goal.kind]} {game.objs[obj]} with {name}")
            continue
        if game.openable >> rec & 1 and not opened >> rec & 1:
            opened |= 1 << rec
            lines.append(f"open {name}")
        lines.append(
            f"take {game.objs[obj]} from {name}"
            if verb == "take"
            else f"{put} {game.objs[obj]} {joint} {name}"
        )
    return tuple(lines)


def dead_end(game: Game, state: State) -> str:
    """Why no plan exists from `state`, in words. To be asked only when the search found none."""
    goal, held = game.goal, state.held
    wanted = {TaskType.TWO: "two of the wanted objects"}.get(goal.kind, "a wanted object")
    useful = held >= 0 and bool(goal.objects >> held & 1)
    if held >= 0 and not useful and not any(mask >> held & 1 for mask in game.can_hold):
        return f"the hands are full of {game.objs[held]!r}, which no receptacle can hold"
    present = 0
    for mask in state.contents:
        present |= mask
    in_reach = present & goal.objects & game.pickupable | (1 << held if useful else 0)
    if not in_reach:
        return "no wanted object can be picked up anywhere"
    if goal.kind is TaskType.LOOK:
        lamps = present | (1 << held if held >= 0 else 0)
        if not lamps & goal.lamps:
            return "no desk lamp stands in a receptacle"
    elif not any(game.can_hold[rec] & in_reach for rec in bits(goal.receptacles)):
        return "no receptacle of the wanted kind can hold the wanted object"
    tool = {
        TaskType.CLEAN: (game.sinks, state.clean, "sink to clean"),
        TaskType.HEAT: (game.microwaves, state.hot, "microwave to heat"),
        TaskType.COOL: (game.fridges, state.cool, "fridge to cool"),
    }.get(goal.kind)
    if tool is not None and not tool[0] and not in_reach & tool[1]:
        return f"there is no {tool[2]} the object with"
    if held >= 0 and not any(mask >> held & 1 for mask in game.can_hold):
        return f"the hands are full of {game.objs[held]!r}, which no receptacle can hold"
    return f"{wanted} cannot be brought where the task wants"
