"""The strings and look-up tables of a game, for the engine's inner loop.

Cheap to make, since a game is loaded much more often than it is compiled: whatever depends on one
name alone ("go to desk 1") is made once per process and shared by all games that have the name,
and the ``go to`` commands of a place are listed when somebody stands there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from agent_envs.alfworld import operations as op
from agent_envs.alfworld.generations import Generation
from agent_envs.alfworld.model import Words

_NAMES = 8192  # real games use some 500; files of unknown origin must not fill the memory
_ROW = 256


class GoTo(dict[int, tuple[str, ...]]):
    """Per location the sorted ``go to`` commands there, each listed when first asked for."""

    __slots__ = ("_places", "_recs_at")

    def __init__(
        self,
        commands: Iterable[str],
        rec_loc: Iterable[int],
        recs_at: tuple[tuple[int, ...], ...],
    ) -> None:
        super().__init__()
        self._places = tuple(zip(commands, rec_loc, strict=True))
        self._recs_at = recs_at

    def __missing__(self, loc: int) -> tuple[str, ...]:
        # A receptacle at the present spot, or without any, cannot be gone to.
        nowhere = (loc, -1) if self._recs_at[loc] else (-1,)
        listed = tuple(sorted(name for name, place in self._places if place not in nowhere))
        self[loc] = listed
        return listed


def make_words(
    generation: Generation,
    objs: tuple[str, ...],
    recs: tuple[str, ...],
    spots: tuple[str, ...] | None,
    rec_loc: tuple[int, ...],
    recs_at: tuple[tuple[int, ...], ...],
) -> Words:
    """The words of a game.

    Args:
        generation: rules and wording of the game.
        objs: names of the objects.
        recs: names of the receptacles.
        spots: per receptacle, what one arrives at; None: the receptacle itself.
        rec_loc: per receptacle, its location or -1.
        recs_at: per location, the receptacles there.
    """
    go, open_, close, examine, arrive, on_rec, in_rec, closed = _columns(map(_of_rec, recs), 8)
    examine_obj, use, a_obj = _columns(map(_of_obj, objs), 3)
    commands = {"look": (op.LOOK, 0), "inventory": (op.INVENTORY, 0)}
    if generation.has_help:
        commands["help"] = (op.HELP, 0)
    for kind, spelled in ((op.GO, go), (op.OPEN, open_), (op.CLOSE, close)):
        commands.update(zip(spelled, _row(kind, len(recs)), strict=False))
    # Where an object and a receptacle share a name, it is the object that is examined.
    commands.update(zip(examine, _row(op.EXAMINE_REC, len(recs)), strict=False))
    commands.update(zip(examine_obj, _row(op.EXAMINE_OBJ, len(objs)), strict=False))
    commands.update(zip(use, _row(op.USE, len(objs)), strict=False))
    local_mask = [0] * len(recs_at)
    for rec, loc in enumerate(rec_loc):
        if loc >= 0:
            local_mask[loc] |= 1 << rec
    two_names, put, anywhere = _of_generation(generation)
    return Words(
        commands=commands,
        two_names=two_names,
        put=put,
        put_reply=generation.put_reply,
        anywhere=anywhere,
        arrive=arrive if spots is None else tuple(f"You arrive at {spot}. " for spot in spots),
        go_to=GoTo(go, rec_loc, recs_at),
        local_mask=tuple(local_mask),
        a_obj=a_obj,
        on_rec=on_rec,
        in_rec=in_rec,
        closed_rec=closed,
    )


@lru_cache(maxsize=_NAMES)
def shared(text: str) -> str:
    """`text`, the same object for equal texts."""
    return text


@lru_cache(maxsize=_NAMES)
def class_of(name: str) -> str:
    """The class of what has a name.

    >>> class_of("desk 2")
    'desk'
    """
    return shared(name.rpartition(" ")[0])


@lru_cache(maxsize=_NAMES)
def _of_rec(name: str) -> tuple[str, ...]:
    return (
        f"go to {name}",
        f"open {name}",
        f"close {name}",
        f"examine {name}",
        f"You arrive at {name}. ",
        f"On the {name}, you see ",
        f"The {name} is open. In it, you see ",
        f"The {name} is closed.",
    )


@lru_cache(maxsize=_NAMES)
def _of_obj(name: str) -> tuple[str, ...]:
    return f"examine {name}", f"use {name}", f"a {name}"


@lru_cache(maxsize=8)
def _of_generation(
    generation: Generation,
) -> tuple[dict[str, tuple[int, str]], tuple[str, str], tuple[str, ...]]:
    put, joint = generation.put
    anywhere = ("help", "inventory", "look") if generation.has_help else ("inventory", "look")
    return op.two_name_verbs(generation), (f"{put} ", f" {joint} "), anywhere


def _columns(rows: Iterable[tuple[str, ...]], width: int) -> Sequence[tuple[str, ...]]:
    return tuple(zip(*rows, strict=True)) or ((),) * width


@lru_cache(maxsize=64)
def _longer_row(kind: int, length: int) -> tuple[tuple[int, int], ...]:
    return tuple((kind, index) for index in range(length))


_ROWS = tuple(_longer_row(kind, _ROW) for kind in range(op.USE + 1))


def _row(kind: int, length: int) -> tuple[tuple[int, int], ...]:
    """(kind, 0), (kind, 1), ... up to `length` or more: the same tuples for every game."""
    return _ROWS[kind] if length <= _ROW else _longer_row(kind, length)
