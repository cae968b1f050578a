"""The original engine (packages `textworld` and `alfworld`) behind a small interface.

A reference for tests, `sero verify` and `sero bench`, and a way to play files whose rules the
native engine does not know. Never needed to run: it compiles C++ on installation and brings Fast
Downward (GPL-3), so it is the extra ``reference``.

Its packages keep state of the whole process (a parser, options of a translator, ``sys.argv``), so
one call at a time goes into them, whatever the thread: `ENGINE_LOCK`. Use processes to go faster.
"""

from __future__ import annotations

import copy
import ctypes
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import RLock
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from agent_envs.alfworld.compile import read_payload
from agent_envs.alfworld.naming import number_names, shuffled
from agent_envs.alfworld.original.packages import check_versions
from agent_envs.errors import (
    InvalidOption,
    MissingData,
    MissingExtra,
    ResetNeeded,
    UnsupportedGame,
)

ENGINE_LOCK = RLock()
"""Held during every call into the original engine."""

_MIRROR = ("_facts", "_vars_by_name", "_vars_by_type", "_var_counts")


class Saved(NamedTuple):
    """A point of an episode in one running game; good until its next `reset` or `close`."""

    state_id: int
    """The library's own name for a state of the world."""
    mirror: tuple[Any, ...]
    """What Python keeps of the world beside the library, which texts are made of."""
    operators: Any
    live: tuple[Any, ...]
    """The last answer, among it what commands stand for."""


class Reply(NamedTuple):
    """What the original engine answers; after a reset score is 0 and done is False."""

    observation: str
    admissible: tuple[str, ...]
    won: bool
    score: float = 0.0
    done: bool = False
    expert_action: str | None = None
    """The hand-coded expert's next command, if it was asked for."""


class TextWorldGame:
    """One game in the original engine, wrapped and named as ALFWorld does it.

    Args:
        game: a game file: its path, its content, or its JSON object.
        expert: run ALFWorld's hand-coded expert along (slower; needs the path of a game with its
            ``traj_data.json``).
        naming: number things in the order of `naming.shuffled` with this key, as ALFWorld's
            ``domain_randomization`` does with an order of chance.

    Raises:
        MissingExtra: the packages are not installed, or in versions that do not work together.
        MissingData: no such file.
        CorruptGame: not a game file.
        UnsupportedGame: the engine itself refuses the game.
    """

    def __init__(
        self,
        game: str | os.PathLike[str] | bytes | Mapping[str, Any],
        *,
        expert: bool = False,
        naming: int | None = None,
    ) -> None:
        self._env: Any = None
        self._pddl: Any = None
        self._started = False
        with ENGINE_LOCK:
            check_versions()
            packages = load_packages()
        path = Path(game) if isinstance(game, os.PathLike) else None
        if isinstance(game, str) and not game.lstrip().startswith("{"):
            path = Path(game)
        if path is not None:
            if not path.is_file():
                raise MissingData(f"There is no game file {path}.")
            payload = read_payload(path.read_bytes())
        else:
            payload = read_payload(game)  # type: ignore[arg-type]
        if expert and (path is None or not path.with_name("traj_data.json").is_file()):
            raise InvalidOption(
                "The expert reads traj_data.json: give the path of a game in a tree."
            )
        infos = packages.infos(won=True, admissible_commands=True)
        with _engine_call():
            self._pddl = _make_env(packages, infos)
            env = packages.demangler(self._pddl, shuffle=False)
            env = packages.names(env)
            if expert:
                env = packages.expert(env, "handcoded")
            # The engine takes the object as well as a path, and then nothing else is read.
            try:
                env.load(str(path) if expert else dict(payload))
            except SystemExit as error:  # how Fast Downward's translator reports errors
                raise UnsupportedGame(f"The original engine refuses the game: {error}.") from error
            except Exception as error:  # it checks little, and fails anywhere
                raise UnsupportedGame(
                    f"The original engine fails on the game: {type(error).__name__}: {error}."
                ) from error
            if naming is not None:
                entities = self._pddl._entity_infos
                for name, shown in number_names(shuffled(entities, naming)).items():
                    entities[name].name = shown
        self._env = env
        self._expert = expert

    def reset(self) -> Reply:
        """Start the game anew."""
        with _engine_call():
            state = self._running().reset()
        self._started = True
        return self._reply(state, 0.0, False)

    def step(self, command: str) -> Reply:
        """Carry out one command.

        Raises:
            ResetNeeded: before the first reset or after `close`.
        """
        if not self._started:
            raise ResetNeeded("Call reset() before step().")
        with _engine_call():
            state, score, done = self._running().step(command)
        return self._reply(state, float(score), bool(done))

    def save(self) -> Saved:
        """The point that the game is at, for `back`. About 0.1 ms."""
        pddl = self._at_a_point("save")
        world = pddl._pddl_state
        return Saved(
            pddl.downward_lib.get_state_id(),
            tuple(_copied(getattr(world, name)) for name in _MIRROR),
            world._operators,
            (pddl.state, pddl.prev_state, pddl._last_action, pddl._moves),
        )

    def back(self, saved: Saved) -> None:
        """Go to a point that `save` gave since the last `reset`."""
        pddl = self._at_a_point("back")
        world = pddl._pddl_state
        with ENGINE_LOCK:
            pddl.downward_lib.set_state_id(saved.state_id)
            for name, value in zip(_MIRROR, saved.mirror, strict=True):
                setattr(world, name, _copied(value))
            world._operators = saved.operators
            pddl.state, pddl.prev_state, pddl._last_action, pddl._moves = saved.live

    def mark(self) -> tuple[Any, ...]:
        """A value that changes whenever a command changes the world."""
        pddl = self._at_a_point("mark")
        # The mirror also keeps what is not so any more. A change that the library does not see
        # can only add to that, hence the counts.
        counts = sorted((str(name), len(facts)) for name, facts in pddl._pddl_state._facts.items())
        return (pddl.downward_lib.get_state_id(), *counts)

    def facts(self) -> frozenset[tuple[str, ...]]:
        """What is so, as (predicate, ids ...).

        ``not_inreceptacle`` is among it, after a ``take``: the game's texts read it.
        """
        pddl = self._at_a_point("facts")
        world, lib = pddl._pddl_state, pddl.downward_lib
        with ENGINE_LOCK:
            atoms = (load_packages().atom * lib.get_state_size())()
            lib.get_state(atoms)
            found = {_flat(atom.get_fact(world.name2type)) for atom in atoms}
        # The library knows best what changes, since Python's mirror carries out both branches of
        # a condition; the mirror alone has what never changes, and its own negations.
        changing = {fact[0].removeprefix("not_") for fact in found}
        mirror = {_flat(fact) for fact in world.facts}
        negations = {fact for fact in mirror if fact[0].startswith("not_")}
        fixed = {fact for fact in mirror - negations if fact[0] not in changing}
        so = {fact for fact in found if not fact[0].startswith("not_")}
        return frozenset(so | fixed | negations)

    def names(self) -> dict[str, str]:
        """What the player reads for each id."""
        self._running()
        return {name: info.name for name, info in self._pddl._entity_infos.items()}

    def plan(self) -> tuple[str, ...]:
        """Commands of a plan by the engine's own planner from the current state; () if none.

        Takes seconds to minutes.
        """
        if not self._started:
            raise ResetNeeded("Call reset() before plan().")
        with _engine_call():
            # The infos of the games' own naming: the plan is spelled in them.
            return tuple(self._pddl._pddl_state.replan(self._pddl._entity_infos))

    def close(self) -> None:
        """Give the engine's library back to the next game."""
        pddl, self._pddl, self._env, self._started = self._pddl, None, None, False
        if pddl is not None:
            pddl.downward_lib.cleanup()
            _libraries.append(pddl.downward_lib)

    def _at_a_point(self, what: str) -> Any:
        if not self._started:
            raise ResetNeeded(f"Call reset() before {what}().")
        return self._pddl

    def _running(self) -> Any:
        if self._env is None:
            raise ResetNeeded("This game is closed.")
        return self._env

    def _reply(self, state: Any, score: float, done: bool) -> Reply:
        plan = state["extra.expert_plan"] if self._expert else None
        return Reply(
            state["feedback"],
            tuple(state["admissible_commands"]),
            bool(state["won"]),
            score,
            done,
            plan[0] if plan else None,
        )

    def __enter__(self) -> TextWorldGame:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(Exception):  # the interpreter may be shutting down
            self.close()


# A copy of Fast Downward's library (34 MB, of which the disk is freed only when the process ends)
# serves one game at a time. Unloading one crashes at exit, since it leaves exit handlers behind, so
# copies are kept: as many as there ever were games open at once.
_libraries: list[Any] = []


def _make_env(packages: _Packages, infos: Any) -> Any:
    if not _libraries:
        env = packages.env(infos)
        # The library's own names for states; its Python interface does not declare them.
        env.downward_lib.get_state_id.restype = ctypes.c_int
        env.downward_lib.set_state_id.argtypes = [ctypes.c_int]
        env.downward_lib.set_state_id.restype = None
        return env
    env = packages.env.__new__(packages.env)
    super(packages.env, env).__init__(infos)  # all of its constructor but loading a library
    env.downward_lib = _libraries.pop()
    return env


def _copied(facts: Any) -> Any:
    """A copy of a dict, and of the sets in it, but not of the facts."""
    new = copy.copy(facts)
    for key, value in facts.items():
        if isinstance(value, set):
            new[key] = value.copy()
    return new


def _flat(fact: Any) -> tuple[str, ...]:
    return (fact.name, *[argument.name for argument in fact.arguments])


class _Packages(NamedTuple):
    infos: Any
    atom: Any
    parsers: tuple[Any, ...]
    env: Any
    demangler: Any
    names: Any
    expert: Any


@cache
def load_packages() -> _Packages:
    """What is used of the original's packages, imported without leaving traces in the process.

    Raises:
        MissingExtra: they are not installed.
    """
    try:
        with _own_variable(), _own_numbers():
            from alfworld.agents.environment.alfred_tw_env import (
                AlfredDemangler,
                AlfredExpert,
                AlfredInfos,
            )
            from textworld import EnvInfos
            from textworld.envs.pddl import PddlEnv, logic, textgen
    except ImportError as error:
        raise MissingExtra(
            f"The original ALFWorld engine (extra `reference`) cannot be imported: {error}. "
            "Install it anew: pip install '.[reference]' in a checkout of sero."
        ) from error
    parsers = logic._PARSER, textgen._PARSER
    return _Packages(
        EnvInfos, logic.Atom, parsers, PddlEnv, AlfredDemangler, AlfredInfos, AlfredExpert
    )


@contextmanager
def _engine_call() -> Iterator[None]:
    """One call at a time, which leaves nothing behind in the process."""
    with ENGINE_LOCK:
        argv = sys.argv
        try:
            yield
        finally:
            sys.argv = argv  # Fast Downward's translator rewrites it
            for parser in load_packages().parsers:
                # It keeps its last failure, that the frames which led there, and those our
                # games: they would stay alive until somebody parses something again.
                parser._furthest_exception = None


@contextmanager
def _own_numbers() -> Iterator[None]:
    """Undo that importing `textworld` draws from NumPy's global generator."""
    before = np.random.get_state()
    try:
        yield
    finally:
        np.random.set_state(before)


@contextmanager
def _own_variable() -> Iterator[None]:
    """Undo that importing `alfworld` makes a folder at home and points ``$ALFWORLD_DATA`` to it."""
    former = os.environ.get("ALFWORLD_DATA")
    if "alfworld" in sys.modules or former:  # empty is as good as unset, and breaks the import
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ALFWORLD_DATA"] = folder
        try:
            yield
        finally:
            os.environ.pop("ALFWORLD_DATA", None)
            if former is not None:
                os.environ["ALFWORLD_DATA"] = former
