"""Sets of games: the index, what was left out and why, and compiled games on request.

A task id is ``<split>/<task folder>/<trial folder>``, as in ALFWorld's own tree
(``valid_seen/pick_and_place_simple-Mug-None-Desk-308/trial_T2019...``).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias

from agent_envs.alfworld.compile import compile_game, read_payload
from agent_envs.alfworld.game_files import Trial, find_trials, split_task_trial
from agent_envs.alfworld.model import Game, TaskType
from agent_envs.errors import (
    CorruptGame,
    DataError,
    InvalidOption,
    MissingData,
    TaskNotFound,
    UnsupportedGame,
)

Payload: TypeAlias = Mapping[str, Any] | bytes | str
PayloadSource: TypeAlias = Payload | Callable[[], Payload]

COMPILED_LIMIT = 256
"""Compiled games that a `GameSet` keeps; the least recently used goes first."""

OWN_VARIABLE, VARIABLE = "SERO_ALFWORLD_DATA", "ALFWORLD_DATA"
_TREE = "json_2.1.1"


class SkipReason(StrEnum):
    """Why a trial is not in the index. The first three are ALFWorld's own rules."""

    MOVABLE = "movable_receptacle"
    SLICED = "sliced_object"
    UNSOLVABLE = "unsolvable"
    NO_GAME = "no_game_file"
    NOT_CHECKED = "solvable_not_stated"
    UNKNOWN_TASK = "unknown_task_type"
    CORRUPT = "corrupt"
    UNSUPPORTED = "unsupported"
    DUPLICATE = "duplicate"
    UNSAFE_PATH = "unsafe_path"
    NOT_A_FILE = "not_a_file"
    TOO_LARGE = "too_large"


@dataclass(frozen=True, slots=True)
class GameRef:
    """One game of a set, not compiled."""

    task_id: str
    split: str
    task_type: TaskType


@dataclass(frozen=True, slots=True)
class _Entry:
    ref: GameRef
    digest: str
    read: Callable[[], Payload]


class GameSet:
    """An immutable set of games, shared by any number of envs.

    Games are compiled when asked for and kept in a bounded cache. The index is sorted by task
    id, so neither the order of a disk nor of an archive shows.
    """

    def __init__(
        self,
        entries: Iterable[_Entry],
        *,
        source: str,
        skipped: Iterable[tuple[str, str, str]] = (),
        manifest_hash: str | None = None,
    ) -> None:
        by_id: dict[str, _Entry] = {}
        left_out = list(skipped)
        for entry in entries:
            if entry.ref.task_id in by_id:
                left_out.append((entry.ref.task_id, SkipReason.DUPLICATE, "the id is taken"))
            else:
                by_id[entry.ref.task_id] = entry
        self._entries = dict(sorted(by_id.items()))
        self._ids = tuple(self._entries)
        self._details = {task_id: (reason, why) for task_id, reason, why in left_out}
        self.source = source
        """Where the games come from, for people."""
        self.skipped: tuple[tuple[str, str], ...] = tuple(
            sorted((task_id, str(reason)) for task_id, reason, _ in left_out)
        )
        """(id, reason) of every trial that was found and left out; see `SkipReason`."""
        self.manifest_hash = manifest_hash or _manifest_hash(self._entries.values())
        """SHA-256 (hex) over all ids and contents."""
        self._compiled: OrderedDict[str, Game] = OrderedDict()
        self._lock = Lock()

    @classmethod
    def from_path(cls, path: str | os.PathLike[str]) -> GameSet:
        """Index a folder (ALFWorld's tree, a part of it, any folder), an archive or one game.

        Raises:
            MissingData: nothing there that looks like a game.
            UnsupportedGame: games, but all of them for another engine.
            DataError: an unreadable archive.
        """
        given = Path(path).expanduser()
        root = given.resolve()
        if (root / _TREE).is_dir():
            root = root / _TREE
        trials = find_trials(root)
        if not trials:
            raise MissingData(
                f"There are no ALFWorld games below {root}: found neither *.tw-pddl nor "
                "traj_data.json. Point to the folder that holds json_2.1.1, or run "
                "`sero data generate`."
            )
        entries: list[_Entry] = []
        skipped: list[tuple[str, str, str]] = []
        name = root.name.partition(".")[0] if root.is_file() else root.name
        for trial in trials:
            found = _index(trial, "/".join(split_task_trial(trial.parts, name)))
            if isinstance(found, _Entry):
                entries.append(found)
            else:
                skipped.append(found)
        unsupported = [why for _, reason, why in skipped if reason == SkipReason.UNSUPPORTED]
        if unsupported and not entries:
            raise UnsupportedGame(f"{given}: {unsupported[0]}")
        return cls(entries, source=str(given), skipped=skipped)

    @classmethod
    def from_games(
        cls,
        games: Iterable[tuple[str, str, PayloadSource]],
        *,
        source: str = "memory",
        manifest_hash: str | None = None,
    ) -> GameSet:
        """A set of (task id, split, game) with games in memory or made on request.

        A game that is made on request (a function without arguments) is not looked at until it
        is asked for; give the hash of the set then.
        """
        entries = []
        for task_id, split, payload in games:
            parts = task_id.split("/")
            if len(parts) != 3 or parts[0] != split or not all(parts):
                raise InvalidOption(
                    f"A task id is '<split>/<task>/<trial>' of split {split!r}, got {task_id!r}."
                )
            if callable(payload):
                read, digest = payload, "lazy"
            else:
                read, digest = _constant(payload), _digest(payload)
            task_type = _type_of_folder(parts[1])
            if task_type is None:
                task_type = compile_game(read()).task_type
            entries.append(_Entry(GameRef(task_id, split, task_type), digest, read))
        return cls(entries, source=source, manifest_hash=manifest_hash)

    def task_ids(
        self, split: str | None = None, task_types: Iterable[TaskType | str] | None = None
    ) -> tuple[str, ...]:
        """Sorted ids of all games, or of one split, or of some task types.

        Raises:
            InvalidOption: an unknown task type.
        """
        if split is None and task_types is None:
            return self._ids
        wanted = None if task_types is None else parse_task_types(task_types)
        return tuple(
            task_id
            for task_id, entry in self._entries.items()
            if (split is None or entry.ref.split == split)
            and (wanted is None or entry.ref.task_type in wanted)
        )

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits that have games, sorted."""
        return tuple(sorted({entry.ref.split for entry in self._entries.values()}))

    def meta(self, task_id: str) -> GameRef:
        """What the index knows of a game, without compiling it."""
        return self._entry(task_id).ref

    def payload(self, task_id: str) -> Mapping[str, Any]:
        """The JSON object of a game file, read anew.

        Raises:
            CorruptGame: unreadable, or changed since it was indexed.
        """
        entry = self._entry(task_id)
        data = entry.read()
        if entry.digest != "lazy" and _digest(data) != entry.digest:
            raise CorruptGame(
                f"The file of game {task_id!r} changed after it was indexed. Start anew."
            )
        return read_payload(data)

    def load(self, task_id: str) -> Game:
        """The compiled game, shared by all who ask for it.

        Raises:
            TaskNotFound: no such game; says the reason if it was left out of the index.
            DataError: the game cannot be compiled.
        """
        with self._lock:
            game = self._compiled.get(task_id)
            if game is not None:
                self._compiled.move_to_end(task_id)
                return game
        try:
            game = compile_game(self.payload(task_id))
        except DataError as error:
            raise type(error)(f"Game {task_id!r}: {error}") from error
        with self._lock:
            game = self._compiled.setdefault(task_id, game)
            while len(self._compiled) > COMPILED_LIMIT:
                self._compiled.popitem(last=False)
        return game

    def walkthrough(self, task_id: str) -> tuple[str, ...] | None:
        """The shipped plan of a game, if it has one."""
        return self.load(task_id).walkthrough

    def skip_counts(self) -> dict[str, int]:
        """How many trials were left out, by reason."""
        return dict(sorted(Counter(reason for _, reason in self.skipped).items()))

    def _entry(self, task_id: str) -> _Entry:
        entry = self._entries.get(task_id)
        if entry is not None:
            return entry
        if task_id in self._details:
            reason, why = self._details[task_id]
            raise TaskNotFound(f"Task {task_id!r} is not playable: {reason} ({why}).")
        raise TaskNotFound.among(task_id, self._ids, self.source)

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, task_id: object) -> bool:
        return task_id in self._entries

    def __repr__(self) -> str:
        return f"<GameSet {self.source!r}: {len(self)} games, {len(self.skipped)} skipped>"

    def __copy__(self) -> GameSet:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> GameSet:
        """Copies share the set; `gymnasium.make` copies its arguments."""
        return self

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_lock"], state["_compiled"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._compiled, self._lock = OrderedDict(), Lock()


def load_game_set(data: GameSet | str | os.PathLike[str] | None = None) -> GameSet:
    """The games that `data` names; without it those of the environment, else generated ones.

    In this order: `data` itself, ``$SERO_ALFWORLD_DATA``, ``$ALFWORLD_DATA``, and the default
    set of generated households. A path is indexed once per process. A text that starts with
    ``generated:`` names generated households instead of a path, for example
    ``generated:small?seed=1`` (see `agent_envs.alfworld.generator.parse_source`).

    Raises:
        MissingData: a path that does not exist or holds no game, with what named it.
        InvalidSpec: a ``generated:`` text that is not understood.
    """
    if isinstance(data, GameSet):
        return data
    if data is not None:
        generated = _generated(data)
        if generated is not None:
            return generated
        return _from_path(str(Path(data).expanduser().resolve()))
    for variable in (OWN_VARIABLE, VARIABLE):
        value = os.environ.get(variable)
        generated = _generated(value) if value else None
        if generated is not None:
            return generated
        if value:
            path = Path(value).expanduser().resolve()
            if variable == VARIABLE and _is_untouched_cache(path):
                continue
            try:
                return _from_path(str(path))
            except MissingData as error:
                raise MissingData(
                    f"${variable} is {value!r} (resolved: {path}), but: {error} Get the games "
                    f"with `sero data fetch alfworld`, or unset {variable} to play generated "
                    "households."
                ) from error
    from agent_envs.alfworld.generator import default_game_set

    return default_game_set()


def _generated(data: str | os.PathLike[str]) -> GameSet | None:
    from agent_envs.alfworld.generator import parse_source

    return parse_source(os.fspath(data))


def _is_untouched_cache(path: Path) -> bool:
    """Whether `path` is ALFWorld's default folder without any data in it.

    Importing the package `alfworld` creates that folder and sets the variable to it, so this
    says nothing about what the user wants.
    """
    default = Path("~/.cache/alfworld").expanduser().resolve()
    return path == default and not (path.is_dir() and any(path.iterdir()))


@lru_cache(maxsize=8)
def _from_path(path: str) -> GameSet:
    return GameSet.from_path(path)


def parse_task_types(task_types: Iterable[TaskType | str]) -> frozenset[TaskType]:
    """Task types from their names.

    Raises:
        InvalidOption: an unknown name, or a single string where several names belong.
    """
    if isinstance(task_types, str):
        raise InvalidOption(f"task_types is a sequence of names, got the string {task_types!r}.")
    known = {kind.value: kind for kind in TaskType}
    names = [str(name) for name in task_types]
    unknown = sorted(set(names) - known.keys())
    if unknown:
        raise InvalidOption(f"Unknown task types {unknown}; there are {sorted(known)}.")
    return frozenset(known[name] for name in names)


def _index(trial: Trial, task_id: str) -> _Entry | tuple[str, str, str]:
    """One trial: an entry, or (id, reason, detail) for leaving it out."""
    if trial.problem is not None:
        return trial.where, trial.problem, f"found at {trial.where}"
    split, folder, _ = task_id.split("/")
    try:
        trajectory = json.loads(trial.trajectory()) if trial.trajectory is not None else {}
        params = trajectory.get("pddl_params") or {}
        task_name = str(trajectory.get("task_type") or folder.partition("-")[0])
        sliced = bool(params.get("object_sliced"))
    except (ValueError, AttributeError, RecursionError, DataError) as error:
        return task_id, SkipReason.CORRUPT, f"trajectory: {error}"
    # ALFWorld's rules look at the folder's name alone; the trajectory says the same.
    if "movable" in folder or "movable" in task_name:
        return task_id, SkipReason.MOVABLE, "tasks with movable receptacles have no text game"
    if sliced or "Sliced" in folder:
        return task_id, SkipReason.SLICED, "tasks with sliced objects have no text game"
    if trial.game is None:
        return task_id, SkipReason.NO_GAME, f"no *.tw-pddl at {trial.where}"
    try:
        data = trial.game()
        payload = read_payload(data)
    except DataError as error:
        return task_id, SkipReason.CORRUPT, str(error)
    if "solvable" not in payload:
        return task_id, SkipReason.NOT_CHECKED, "the file does not say whether it is solvable"
    if not payload["solvable"]:
        return task_id, SkipReason.UNSOLVABLE, "the file is marked as not solvable"
    try:
        task_type = TaskType(task_name)
    except ValueError:
        if trial.trajectory is not None:
            return task_id, SkipReason.UNKNOWN_TASK, f"task type {task_name!r}"
        try:
            task_type = compile_game(payload).task_type
        except UnsupportedGame as error:
            return task_id, SkipReason.UNSUPPORTED, str(error)
        except DataError as error:
            return task_id, SkipReason.CORRUPT, str(error)
    return _Entry(GameRef(task_id, split, task_type), _digest(data), trial.game)


def _type_of_folder(folder: str) -> TaskType | None:
    try:
        return TaskType(folder.partition("-")[0])
    except ValueError:
        return None


def _constant(payload: Payload) -> Callable[[], Payload]:
    return lambda: payload


def _digest(payload: Payload) -> str:
    if isinstance(payload, Mapping):
        payload = json.dumps(dict(payload), sort_keys=True)
    if isinstance(payload, str):
        payload = payload.encode("utf-8", "surrogatepass")
    return hashlib.sha256(payload).hexdigest()


def _manifest_hash(entries: Iterable[_Entry]) -> str:
    lines = "".join(f"{entry.ref.task_id}\0{entry.digest}\n" for entry in entries)
    return hashlib.sha256(lines.encode()).hexdigest()
