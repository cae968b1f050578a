"""``SeroALFWorld-v0``: the ALFWorld text game as a Gymnasium environment."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from operator import and_
from typing import Any, ClassVar

from agent_envs.alfworld.engine import admissible, step
from agent_envs.alfworld.games import GameSet, load_game_set, parse_task_types
from agent_envs.alfworld.goals import won
from agent_envs.alfworld.model import Game, PrivilegedView, State, TaskType
from agent_envs.alfworld.text import REFUSAL, intro
from agent_envs.core import TextEnv
from agent_envs.errors import (
    InvalidOption,
    MissingData,
    ResetNeeded,
    SnapshotMismatch,
    TaskNotFound,
)

ENGINE = "sero-native"
REWARD_VERSION = "alfworld-won-v1"
"""1 on the step that wins, else 0: the original's score."""


class ALFWorldEnv(TextEnv):
    """ALFWorld's household tasks (Shridhar et al. 2021, arXiv:2010.03768).

    Observations, admissible commands and rewards are those of the original engine, step for
    step. The first observation names the task; ``info["goal"]`` repeats its sentence. All legal
    commands can be listed, so ``info["action_templates"]`` is empty. The admissible commands are
    sorted.

    Args:
        data: games: a `GameSet`, or the path of a folder, archive or game file. Without it
            ``$SERO_ALFWORLD_DATA``, then ``$ALFWORLD_DATA``, then generated households.
        split: which split to play; None for all games.
        task_types: which of the six task types to play; None for all.
        max_steps: steps in an episode; 50 is the field's usual budget, None is no limit.
        render_mode: None or ``"ansi"``.

    Raises:
        MissingData: no data there, or no game in this split and of these types.
        InvalidOption: an unknown task type.
    """

    env_id: ClassVar[str] = "SeroALFWorld-v0"
    refusal: ClassVar[str] = REFUSAL
    shared_on_copy: ClassVar[frozenset[str]] = TextEnv.shared_on_copy | {
        "_games",
        "_ids",
        "_members",
        "_game",
        "_state",
    }

    def __init__(
        self,
        data: GameSet | str | os.PathLike[str] | None = None,
        split: str | None = "train",
        task_types: Iterable[TaskType | str] | None = None,
        max_steps: int | None = 50,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(max_steps=max_steps, render_mode=render_mode)
        if split is not None and not isinstance(split, str):
            raise InvalidOption(f"split is the name of a split or None, not {split!r}.")
        types = None if task_types is None else parse_task_types(task_types)
        self._games = load_game_set(data)
        self._ids = self._games.task_ids(split, types)
        self._members = frozenset(self._ids)
        self._game: Game | None = None
        self._state: State | None = None
        if not self._ids:
            wanted = "" if types is None else f" of task types {sorted(types)}"
            raise MissingData(
                f"No games{wanted} in split {split!r} of {self._games.source!r}. It has "
                f"{len(self._games)} games in the splits {list(self._games.splits)}; left out: "
                f"{self._games.skip_counts() or 'none'}. Choose one of these splits, or "
                "split=None for all."
            )

    @property
    def games(self) -> GameSet:
        """The games behind this env."""
        return self._games

    @property
    def data_revision(self) -> str:
        """The manifest hash of the games."""
        return self._games.manifest_hash

    def privileged(self) -> PrivilegedView:
        """Rules, true state and budget, for oracles.

        Raises:
            ResetNeeded: before the first reset.
        """
        if self._game is None or self._state is None:
            raise ResetNeeded("There is no privileged view before the first reset().")
        return PrivilegedView(self._game, self._state, self.remaining_steps)

    # ------------------------------------------------------------------ hooks of TextEnv

    def _task_ids(self) -> tuple[str, ...]:
        return self._ids

    def _task_revision(self, task_id: str) -> str:
        return self._checked_load(task_id).revision

    def _load(self, task_id: str) -> None:
        self._game = self._checked_load(task_id)

    def _begin(self) -> str:
        assert self._game is not None
        self._state = self._game.start
        return intro(self._game, self._state)

    def _apply(self, command: str) -> tuple[str, float, bool, float, bool]:
        game = self._game
        state, text, accepted = step(game, self._state, command)  # type: ignore[arg-type]
        self._state = state
        if won(game, state):  # type: ignore[arg-type]
            return text, 1.0, True, 1.0, accepted
        return text, 0.0, False, 0.0, accepted

    def _admissible(self) -> tuple[str, ...]:
        return admissible(self._game, self._state)  # type: ignore[arg-type]

    def _engine_state(self) -> State:
        assert self._state is not None
        return self._state

    def _set_engine_state(self, task_id: str, state: tuple[Any, ...]) -> None:
        game = self._game if self._game is not None and self._task_id == task_id else None
        if game is None:
            game = self._checked_load(task_id)
        # A `State` was made by the engine, for a game of this very revision. What comes from
        # bytes is a plain tuple, and may be anything.
        checked = state if type(state) is State else check_state(game, state)
        self._game, self._state = game, checked

    def _info_static(self) -> Mapping[str, Any]:
        game, task_id = self._game, self._task_id
        assert game is not None
        assert task_id is not None
        return {
            "task_type": str(game.task_type),
            "split": self._games.meta(task_id).split,
            "goal": game.task_sentence,
            "action_templates": (),
            "provenance": {
                "engine": ENGINE,
                "engine_version": engine_version(),
                "generation": game.generation,
                "data_revision": game.revision,
                "manifest_hash": self._games.manifest_hash,
                "reward_version": REWARD_VERSION,
            },
        }

    def _checked_load(self, task_id: str) -> Game:
        if task_id not in self._members:
            # A game that the set does not have is the set's to explain; of those it has, this
            # env plays a selection.
            self._games.meta(task_id)
            raise _other_selection(task_id, self._ids)
        return self._games.load(task_id)


def _other_selection(task_id: str, ids: tuple[str, ...]) -> TaskNotFound:
    near = TaskNotFound.among(task_id, ids)
    return TaskNotFound(
        f"Task {task_id!r} exists, but not in this env's split and task types. {near}"
    )


@cache
def engine_version() -> str:
    """Version of the native engine: that of the distribution."""
    try:
        return version("sero-rl")
    except PackageNotFoundError:  # run from a source tree
        return "0+source"


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
