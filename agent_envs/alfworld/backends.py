"""The two engines behind `SeroALFWorld-v0`, as functions of a game and a state.

To the native one a game is a table and a state a tuple of integers. To the original one a game is
a running session and a state the commands that lead to it. Both are values to whoever holds them:
keeping one is a snapshot, and no function changes what it was given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import and_
from typing import TYPE_CHECKING, Any, ClassVar

from agent_envs.alfworld import engine as native
from agent_envs.alfworld import goals
from agent_envs.alfworld.compile import compile_game, generation_of, revision
from agent_envs.alfworld.games import GameSet
from agent_envs.alfworld.model import Game, State
from agent_envs.alfworld.text import intro
from agent_envs.alfworld.variants import Variant, varied, varied_payload
from agent_envs.errors import (
    DataError,
    InvalidOption,
    PrivilegedAccess,
    SnapshotMismatch,
)
from agent_envs.version import engine_version

if TYPE_CHECKING:
    from agent_envs.alfworld.original.textworld_session import Point, Session

NATIVE, TEXTWORLD = "sero-native", "textworld"
"""Names of the engines in ``info["provenance"]``."""


class Engine(ABC):
    """What an env asks of an engine. `game` is what `load` gave, `state` what a function gave."""

    name: ClassVar[str]
    step: Callable[[Any, Any, str], tuple[Any, str, bool]]
    """(game, state, command) -> next state, what the game answers, whether it took the command."""
    won: Callable[[Any, Any], bool]
    admissible: Callable[[Any, Any], tuple[str, ...]]

    @abstractmethod
    def version(self) -> str:
        """Version of the engine, or of its packages."""

    @abstractmethod
    def revision(self, games: GameSet, task_id: str) -> str:
        """`Game.revision` of a game that need not have been loaded."""

    @abstractmethod
    def load(self, games: GameSet, task_id: str, variant: Variant) -> Any:
        """A game, ready to play. Raises `DataError`."""

    @abstractmethod
    def start(self, game: Any) -> tuple[Any, str]:
        """The first state and the first observation."""

    @abstractmethod
    def to_plain(self, game: Any, state: Any) -> tuple[Any, ...]:
        """`state` as nested tuples of plain values that mean the same in any process."""

    @abstractmethod
    def from_plain(self, game: Any, value: tuple[Any, ...]) -> Any:
        """Inverse of `to_plain`; `SnapshotMismatch` for anything that is no state of `game`."""

    @abstractmethod
    def describe(self, game: Any) -> tuple[str, str, str]:
        """Task sentence, generation of the rules and wording, revision."""

    @abstractmethod
    def view(self, game: Any, state: Any) -> tuple[Game, State]:
        """Rules and true state, as the native engine writes them."""

    @abstractmethod
    def around(self, game: Any, state: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of what the agent holds, and of the receptacles where it stands."""


class NativeEngine(Engine):
    """Pure functions over immutable tables."""

    name = NATIVE
    step = staticmethod(native.step)
    won = staticmethod(goals.won)
    admissible = staticmethod(native.admissible)

    def version(self) -> str:
        return engine_version()

    def revision(self, games: GameSet, task_id: str) -> str:
        return games.load(task_id).revision

    def load(self, games: GameSet, task_id: str, variant: Variant) -> Game:
        return varied(games.load(task_id), variant)

    def start(self, game: Game) -> tuple[State, str]:
        return game.start, intro(game, game.start)

    def to_plain(self, game: Game, state: State) -> State:
        return state

    def from_plain(self, game: Game, value: tuple[Any, ...]) -> State:
        # A `State` was made by the engine, for a game of this very revision. What comes from
        # bytes is a plain tuple, and may be anything.
        if type(value) is State:
            return value
        if value and value[0] == TEXTWORLD:
            raise SnapshotMismatch(
                "The snapshot was made by the engine 'textworld', this env plays with 'native'."
            )
        return check_state(game, value)

    def describe(self, game: Game) -> tuple[str, str, str]:
        return game.task_sentence, game.generation, game.revision

    def view(self, game: Game, state: State) -> tuple[Game, State]:
        return game, state

    def around(self, game: Game, state: State) -> tuple[tuple[str, ...], tuple[str, ...]]:
        held = () if state.held < 0 else (game.objs[state.held],)
        return held, tuple([game.recs[rec] for rec in game.recs_at[state.loc]])


@dataclass(frozen=True, slots=True)
class Running:
    """A game of the original engine: its session, what it is called and made of."""

    session: Session
    payload: Mapping[str, Any]
    variant: Variant
    revision: str
    """Of the game file, whatever the variant."""


class TextWorldEngine(Engine):
    """The original packages. Slow, and one call at a time in a process; the reference."""

    name = TEXTWORLD

    @staticmethod
    def step(game: Running, state: Point, command: str) -> tuple[Point, str, bool]:
        return game.session.step(state, command)

    @staticmethod
    def won(game: Running, state: Point) -> bool:
        return state.won

    @staticmethod
    def admissible(game: Running, state: Point) -> tuple[str, ...]:
        return state.admissible

    def version(self) -> str:
        from agent_envs.alfworld.original.packages import check_versions

        return ", ".join(f"{package} {number}" for package, number in check_versions().items())

    def revision(self, games: GameSet, task_id: str) -> str:
        return revision(games.payload(task_id))

    def load(self, games: GameSet, task_id: str, variant: Variant) -> Running:
        from agent_envs.alfworld.original.textworld_session import open_session

        payload = games.payload(task_id)
        session = open_session(varied_payload(payload, variant), variant.naming)
        return Running(session, payload, variant, revision(payload))

    def start(self, game: Running) -> tuple[Point, str]:
        return game.session.start, game.session.intro

    def to_plain(self, game: Running, state: Point) -> tuple[Any, ...]:
        game.session.keep(state)
        return TEXTWORLD, *state.commands

    def from_plain(self, game: Running, value: tuple[Any, ...]) -> Point:
        if not value or value[0] != TEXTWORLD:
            raise SnapshotMismatch(
                "The snapshot was made by the engine 'native', this env plays with 'textworld'."
            )
        return game.session.point(value[1:])

    def describe(self, game: Running) -> tuple[str, str, str]:
        known = generation_of(game.payload["pddl_domain"], game.payload["grammar"])
        return game.session.goal, known.name if known else "unknown", game.revision

    def view(self, game: Running, state: Point) -> tuple[Game, State]:
        from agent_envs.alfworld.original.textworld_session import state_of

        session = game.session
        if session.table is None:
            try:
                session.table = varied(compile_game(game.payload), game.variant)
            except DataError as error:
                raise PrivilegedAccess(
                    f"There is no privileged view of a game that only the original engine knows: "
                    f"{error}"
                ) from error
        return session.table, state_of(session.table, session.facts(state))

    def around(self, game: Running, state: Point) -> tuple[tuple[str, ...], tuple[str, ...]]:
        facts, names = game.session.facts(state), game.session.names()
        here = {fact[2] for fact in facts if fact[0] == "atlocation"}
        held = sorted(fact[2] for fact in facts if fact[0] == "holds")
        spots = sorted(
            fact[1] for fact in facts if fact[0] == "receptacleatlocation" and fact[2] in here
        )
        return tuple(names[name] for name in held), tuple(names[name] for name in spots)


ENGINES: dict[str, Engine] = {"native": NativeEngine(), "textworld": TextWorldEngine()}
"""By the name that an env is made with."""


def engine_named(name: object) -> Engine:
    """The engine of an option ``engine=``; `InvalidOption` if there is none."""
    if not isinstance(name, str) or name not in ENGINES:
        raise InvalidOption(f"engine must be one of {sorted(ENGINES)}, found {name!r}.")
    return ENGINES[name]


def check_state(game: Game, state: tuple[Any, ...]) -> State:
    """`state` as a `State` of `game`, if it is one.

    Raises:
        SnapshotMismatch: wrong shape, type or range, an open receptacle without a door, or an
            object both in a receptacle and taken from it.
    """
    fields: Any = state
    start = game.start
    if not isinstance(fields, tuple) or len(fields) != len(start):
        raise SnapshotMismatch(f"The engine state has not the {len(start)} fields of a game's.")
    n_objects = len(game.objs)
    limits = [1 << n_objects] * len(fields)
    limits[0], limits[4] = len(game.locs), 1 << len(game.recs)
    for name, value, model, limit in zip(State._fields, fields, start, limits, strict=True):
        if isinstance(model, tuple):
            good = (
                isinstance(value, tuple)
                and len(value) == len(model)
                and set(map(type, value)) <= {int}
                and (not value or (min(value) >= 0 and max(value) < limit))
            )
        elif name == "held":
            good = type(value) is int and -1 <= value < n_objects
        else:
            good = type(value) is int and 0 <= value < limit
        if not good:
            raise SnapshotMismatch(f"Field {name!r} of the engine state does not fit this game.")
    checked = State(*fields)
    if checked.opened & ~(game.openable | start.opened) or any(
        map(and_, checked.contents, checked.removed)
    ):
        raise SnapshotMismatch("The engine state contradicts itself.")
    return checked
