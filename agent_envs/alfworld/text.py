"""What the game says. The wording is ALFWorld's own and exact to the character.

Lists are in id order (objects and receptacles are numbered in that order), every entity takes the
article "a", and a comma stands before the last "and" of two or more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agent_envs.alfworld.model import Game, State, bits

REFUSAL = "Nothing happens."
"""The one answer to every command that does nothing."""

EMPTY_HANDED = "You are not carrying anything."

HELP = """\
Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""

WELCOME = "-= Welcome to TextWorld, ALFRED! =-"
_ROOM = "You are in the middle of a room. Looking quickly around you, you see "


def listing(items: Sequence[str]) -> str:
    """Join the items as the game does.

    >>> listing([]), listing(["a bed 1"]), listing(["a bed 2", "a bed 1"])
    ('nothing', 'a bed 1', 'a bed 2, and a bed 1')
    """
    if not items:
        return "nothing"
    if len(items) == 1:
        return items[0]
    return ", ".join(items[:-1]) + ", and " + items[-1]


def objects_text(game: Game, mask: int) -> str:
    """The list of the objects in `mask`, or "nothing"."""
    if not mask:
        return "nothing"
    names = game.words.a_obj
    items = []
    while mask:
        low = mask & -mask
        items.append(names[low.bit_length() - 1])
        mask ^= low
    if len(items) == 1:
        return items[0]
    last = items.pop()
    return ", ".join(items) + ", and " + last


def receptacle_text(game: Game, state: State, rec: int) -> str:
    """What one sees of a receptacle: its content, unless it is closed."""
    words = game.words
    if game.openable >> rec & 1:
        if not state.opened >> rec & 1:
            return words.closed_rec[rec]
        return words.in_rec[rec] + objects_text(game, state.contents[rec]) + "."
    return words.on_rec[rec] + objects_text(game, state.contents[rec]) + "."


def object_text(game: Game, state: State, obj: int) -> str:
    """What one sees of an object held. Things that can hold others always read as "normal"."""
    name = game.objs[obj]
    if game.receptacle_object >> obj & 1:
        inner = listing(_articled(game.objs[other] for other in game.inner[obj]))
        return f"This is a normal {name}. In it, you see {inner}."
    clean, hot, cool = state.clean >> obj & 1, state.hot >> obj & 1, state.cool >> obj & 1
    sliced = state.sliced >> obj & 1
    # Heat and cool exclude each other, but for what a game may state at its start: hot wins.
    if clean and hot:
        how = "hot and clean"
    elif clean and cool:
        how = "cool and clean"
    elif hot:
        how = "hot"
    elif clean:
        how = "clean"
    elif cool:
        how = "cool" if sliced else "cold"
    elif game.toggleable >> obj & 1 and state.toggled >> obj & 1:
        return f"This {name} is on."
    elif sliced and game.sliceable >> obj & 1:
        return f"This is a sliced {name}."
    else:
        return f"There's nothing special about {name}."
    return f"This is a {how} sliced {name}." if sliced else f"This is a {how} {name}."


def floor_text(game: Game, state: State) -> str:
    """What lies "next to" the receptacles here.

    The game lists an object once for every receptacle at this location that it was taken from
    and not put back into, if the object is recorded as being at this location: that is, objects
    moved between receptacles that share a place.
    """
    recs = game.recs_at[state.loc]
    items = []
    for obj in bits(state.at[state.loc]):
        for rec in recs:
            if state.removed[rec] >> obj & 1:
                items.append(game.words.a_obj[obj])
    return listing(items)


def look_text(game: Game, state: State) -> str:
    """The answer to ``look``. Away from any receptacle it names nothing at all."""
    recs = game.recs_at[state.loc]
    if not recs:
        return _ROOM + "nothing."
    facing = listing([game.recs[rec] for rec in recs])
    return f"You are facing the {facing}. Next to it, you see {floor_text(game, state)}."


def inventory_text(game: Game, state: State) -> str:
    """The answer to ``inventory``."""
    if state.held < 0:
        return EMPTY_HANDED
    return f"You are carrying: a {game.objs[state.held]}."


def intro(game: Game, state: State) -> str:
    """The first observation: welcome, surroundings (here with all receptacles), task."""
    if game.recs_at[state.loc]:
        around = look_text(game, state)
    else:
        placed = (name for name, loc in zip(game.recs, game.rec_loc, strict=True) if loc >= 0)
        around = _ROOM + listing(_articled(placed)) + "."
    return f"{WELCOME}\n\n{around}\n\nYour task is to: {game.task_sentence}"


def _articled(names: Iterable[str]) -> list[str]:
    return [f"a {name}" for name in names]
