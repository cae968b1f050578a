"""The original engine as functions of a state, like the native one.

A state is the tuple of the commands so far that changed something, so it means the same in any
process. A `Session` goes to it before it acts: at once where the live engine is there or was there
and the place was kept, else by replaying the commands.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from agent_envs.alfworld.compile import revision
from agent_envs.alfworld.model import Game, State
from agent_envs.alfworld.original.textworld_engine import ENGINE_LOCK, Reply, Saved, TextWorldGame
from agent_envs.errors import CorruptGame, SnapshotMismatch

KEPT = 32
"""Places of an episode that a session keeps; each takes some 100 kB."""

_TASK = "Your task is to: "
# In the order of `State`.
_FLAGS = ("opened", "isclean", "ishot", "iscool", "issliced", "istoggled", "ison")


class Point(NamedTuple):
    """A state of the original engine. Immutable."""

    commands: tuple[str, ...]
    """From the start to here, without those that changed nothing. The rest follows from it."""
    admissible: tuple[str, ...]
    won: bool


class Session:
    """One game in the original engine. Any number of envs may share it, in any thread.

    Made by `open_session`. Raises what `TextWorldGame` raises.
    """

    def __init__(self, payload: Mapping[str, Any], naming: int | None) -> None:
        self.table: Game | None = None
        """The game as the native engine compiles it, once somebody asked for its rules."""
        self._game = TextWorldGame(payload, naming=naming)
        self._kept: OrderedDict[tuple[str, ...], tuple[Saved, Point]] = OrderedDict()
        reply = self._game.reset()
        self.intro = reply.observation
        self.start = self._at = _point((), reply)
        self._first = self._game.save()

    @property
    def goal(self) -> str:
        """The task sentence, as the player reads it."""
        before, _, sentence = self.intro.partition(_TASK)  # people may write these words again
        return sentence or before

    def step(self, point: Point, command: str) -> tuple[Point, str, bool]:
        """The next state, what the game answers, whether it took the command."""
        with ENGINE_LOCK:
            self._go(point)
            before = self._game.mark()
            reply = self._game.step(command)
            taken = command.strip() in point.admissible
            if taken and self._game.mark() != before:
                self._at = _point((*point.commands, command.strip()), reply)
            return self._at, reply.observation, taken

    def keep(self, point: Point) -> None:
        """Make a return to `point` quick, if it is where the engine is."""
        with ENGINE_LOCK:
            if self._at.commands == point.commands:
                self._kept[point.commands] = self._game.save(), point
                self._kept.move_to_end(point.commands)
                while len(self._kept) > KEPT:
                    self._kept.popitem(last=False)

    def point(self, commands: tuple[Any, ...]) -> Point:
        """The state that `commands`, which may be anything, lead to from the start.

        Raises:
            SnapshotMismatch: one of them is not taken, or changes nothing.
        """
        if not all(type(command) is str for command in commands):
            raise SnapshotMismatch("The engine state is no tuple of commands.")
        with ENGINE_LOCK:
            if commands == self._at.commands:
                return self._at
            if commands in self._kept:
                return self._kept[commands][1]
            if self._at is not self.start:
                self.keep(self._at)
            return self._replay(commands)

    def facts(self, point: Point) -> frozenset[tuple[str, ...]]:
        """What is so, as (predicate, ids ...)."""
        with ENGINE_LOCK:
            self._go(point)
            return self._game.facts()

    def names(self) -> dict[str, str]:
        """What the player reads for each id."""
        return self._game.names()

    def _go(self, point: Point) -> None:
        if point.commands == self._at.commands:
            return
        if self._at is not self.start:
            self.keep(self._at)
        if point.commands in self._kept:
            self._go_to_kept(point.commands)
        else:
            self._replay(point.commands)

    def _go_to_kept(self, commands: tuple[str, ...]) -> None:
        saved, self._at = self._kept[commands]
        self._kept.move_to_end(commands)
        self._game.back(saved)

    def _replay(self, commands: tuple[str, ...]) -> Point:
        known = next((n for n in range(len(commands), 0, -1) if commands[:n] in self._kept), 0)
        if known:
            self._go_to_kept(commands[:known])
        else:
            self._game.back(self._first)
            self._at = self.start
        for command in commands[known:]:
            before = self._at
            _, _, taken = self.step(before, command)
            if not taken or self._at is before or self._at.commands[-1] != command:
                raise SnapshotMismatch(
                    f"The command {command!r} of the engine state is not possible where it stands."
                )
        return self._at


def _point(commands: tuple[str, ...], reply: Reply) -> Point:
    return Point(commands, reply.admissible, reply.won)


_sessions: WeakValueDictionary[tuple[str, int | None], Session] = WeakValueDictionary()


def open_session(payload: Mapping[str, Any], naming: int | None = None) -> Session:
    """The session of a game, the running one if there is one: a library serves one game."""
    key = revision(payload), naming
    with ENGINE_LOCK:
        session = _sessions.get(key)
        if session is None:
            session = _sessions[key] = Session(payload, naming)
        return session


def state_of(game: Game, facts: frozenset[tuple[str, ...]]) -> State:
    """The native state of the world that the original engine's facts describe.

    Raises:
        CorruptGame: the facts are not of this game.
    """
    objs = {name: index for index, name in enumerate(game.obj_ids)}
    recs = {name: index for index, name in enumerate(game.rec_ids)}
    locs = {name: index for index, name in enumerate(game.locs)}
    contents, removed = [0] * len(recs), [0] * len(recs)
    at = [0] * len(locs)
    flags = dict.fromkeys(_FLAGS, 0)
    loc, held = -1, -1
    try:
        for name, *ids in facts:
            if name == "atlocation":
                loc = locs[ids[1]]
            elif name == "holds":
                held = objs[ids[1]]
            elif name == "inreceptacle":
                contents[recs[ids[1]]] |= 1 << objs[ids[0]]
            elif name == "not_inreceptacle":
                removed[recs[ids[1]]] |= 1 << objs[ids[0]]
            elif name == "objectatlocation":
                at[locs[ids[1]]] |= 1 << objs[ids[0]]
            elif name in flags:
                flags[name] |= 1 << (recs if name == "opened" else objs)[ids[0]]
    except KeyError as error:
        raise CorruptGame(f"The original engine speaks of {error}, which the game lacks.") from None
    if loc < 0:
        raise CorruptGame("The original engine says nothing of where the agent is.")
    fields = (loc, held, tuple(contents), tuple(at), *flags.values(), tuple(removed))
    return State._make(fields)
