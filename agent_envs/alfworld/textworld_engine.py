"""The original engine (packages `textworld` and `alfworld`) behind a small interface.

A reference for tests, `sero verify` and `sero bench`, and a way to play files whose rules the
native engine does not know. Never needed to run: it compiles C++ on installation and brings Fast
Downward (GPL-3), so it is the extra ``reference``.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from agent_envs.alfworld.compile import read_payload
from agent_envs.errors import (
    InvalidOption,
    MissingData,
    MissingExtra,
    ResetNeeded,
    UnsupportedGame,
)


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

    Raises:
        MissingExtra: the packages are not installed.
        MissingData: no such file.
        CorruptGame: not a game file.
        UnsupportedGame: the engine itself refuses the game.
    """

    def __init__(
        self, game: str | os.PathLike[str] | bytes | Mapping[str, Any], *, expert: bool = False
    ) -> None:
        self._env: Any = None
        self._pddl: Any = None
        self._started = False
        packages = _import()
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
        with _own_argv():
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
        self._env = env
        self._expert = expert

    def reset(self) -> Reply:
        """Start the game anew."""
        with _own_argv():
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
        state, score, done = self._running().step(command)
        return self._reply(state, float(score), bool(done))

    def plan(self) -> tuple[str, ...]:
        """Commands of a plan by the engine's own planner from the current state; () if none.

        Takes seconds to minutes.
        """
        if not self._started:
            raise ResetNeeded("Call reset() before plan().")
        with _own_argv():
            # The infos of the games' own naming: the plan is spelled in them.
            return tuple(self._pddl._pddl_state.replan(self._pddl._entity_infos))

    def close(self) -> None:
        """Give the engine's library back to the next game."""
        pddl, self._pddl, self._env, self._started = self._pddl, None, None, False
        if pddl is not None:
            pddl.downward_lib.cleanup()
            _libraries.append(pddl.downward_lib)

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
        return packages.env(infos)
    env = packages.env.__new__(packages.env)
    super(packages.env, env).__init__(infos)  # all of its constructor but loading a library
    env.downward_lib = _libraries.pop()
    return env


class _Packages(NamedTuple):
    infos: Any
    env: Any
    demangler: Any
    names: Any
    expert: Any


def _import() -> _Packages:
    try:
        with _own_variable():
            from alfworld.agents.environment.alfred_tw_env import (
                AlfredDemangler,
                AlfredExpert,
                AlfredInfos,
            )
            from textworld import EnvInfos
            from textworld.envs.pddl import PddlEnv
    except ImportError as error:
        raise MissingExtra(
            f"The original ALFWorld engine is not installed ({error}). It needs a C++ compiler: "
            "pip install '.[reference]' in a checkout of sero."
        ) from error
    return _Packages(EnvInfos, PddlEnv, AlfredDemangler, AlfredInfos, AlfredExpert)


@contextmanager
def _own_argv() -> Iterator[None]:
    """Undo that Fast Downward's translator rewrites ``sys.argv`` on each call."""
    argv = sys.argv
    try:
        yield
    finally:
        sys.argv = argv


@contextmanager
def _own_variable() -> Iterator[None]:
    """Undo that importing `alfworld` makes a folder at home and points ``$ALFWORLD_DATA`` to it."""
    if "alfworld" in sys.modules or "ALFWORLD_DATA" in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ALFWORLD_DATA"] = folder
        try:
            yield
        finally:
            os.environ.pop("ALFWORLD_DATA", None)
