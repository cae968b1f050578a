"""A set of games: which there are, what was left out and why, and compiled games on request.

A task id is ``<split>/<task folder>/<trial folder>``, as in ALFWorld's own tree
(``valid_seen/pick_and_place_simple-Mug-None-Desk-308/trial_T2019...``).
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from agent_envs.alfworld.compile import compile_game, read_payload
from agent_envs.alfworld.games.game_archives import ARCHIVE_SUFFIXES, GAME_SUFFIX, Packed
from agent_envs.alfworld.games.game_cache import GameCache
from agent_envs.alfworld.games.game_files import TREE
from agent_envs.alfworld.games.game_index import (
    Entry,
    GameRef,
    Payload,
    PayloadSource,
    SkipReason,
    digest_of,
    read_sentences,
    type_of_folder,
)
from agent_envs.alfworld.games.index_cache import open_index
from agent_envs.alfworld.model import Game, TaskType
from agent_envs.disk_cache import remove
from agent_envs.errors import (
    CorruptGame,
    DataError,
    InvalidOption,
    MissingData,
    TaskNotFound,
    UnsupportedGame,
)

COMPILED_LIMIT = 256
"""Compiled games that a `GameSet` keeps in memory; the least recently used goes first."""

MAX_ON_REQUEST = 20_000
"""Games of a set that are made on request. Their ids alone take 0.1 ms each to make."""

_LAZY = "lazy"
_SUFFIXES = (*ARCHIVE_SUFFIXES, GAME_SUFFIX)


class GameSet:
    """An immutable set of games, shared by any number of envs.

    Games are compiled when asked for and kept, in memory and on disk, in bounded caches. The
    index is sorted by task id, so neither the order of a disk nor of an archive shows. A set is
    what was there when it was opened: a file that changed since is an error when it is read.
    """

    def __init__(
        self,
        entries: Iterable[Entry],
        *,
        source: str,
        skipped: Iterable[tuple[str, str, str]] = (),
        manifest_hash: str | None = None,
    ) -> None:
        by_id: dict[str, Entry] = {}
        left_out = list(skipped)
        for entry in entries:
            if entry.ref.task_id in by_id:
                left_out.append((entry.ref.task_id, SkipReason.DUPLICATE, "the id is taken"))
            else:
                by_id[entry.ref.task_id] = entry
        self._entries = dict(sorted(by_id.items()))
        self._ids = tuple(self._entries)
        self._details = {task_id: (reason, why) for task_id, reason, why in left_out}
        self._skipped = tuple(
            sorted((task_id, str(reason), why) for task_id, reason, why in left_out)
        )
        self.source = source
        """Where the games come from, for people."""
        self.skipped: tuple[tuple[str, str], ...] = tuple(
            (task_id, reason) for task_id, reason, _ in self._skipped
        )
        """(id, reason) of every trial that was found and left out; see `SkipReason`."""
        self.manifest_hash = manifest_hash or _manifest_hash(self._entries.values())
        """SHA-256 (hex) over all ids and contents."""
        self._index_file: str | None = None
        self._on_disk: GameCache | None = None
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
        root = resolved_path(path)
        given = Path(path).expanduser()
        if os.path.isdir(root / TREE):  # of a `Path`, a folder that is closed to us is an error
            root = root / TREE
        found = open_index(root)
        if not found.entries and not found.skipped:
            raise MissingData(
                f"There are no ALFWorld games below {root}: found neither *.tw-pddl nor "
                "traj_data.json. Point to the folder that holds json_2.1.1, or run "
                "`sero data generate`."
            )
        odd = [why for _, reason, why in found.skipped if reason == SkipReason.UNSUPPORTED]
        if odd and not found.entries:
            raise UnsupportedGame(f"{given}: {odd[0]}")
        made = cls(found.entries, source=str(given), skipped=found.skipped)
        made._index_file, made._on_disk = found.cache_file, GameCache.of_user()
        return made

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

        Raises:
            InvalidOption: an id of another form, or more than `MAX_ON_REQUEST` games to be made
                on request.
        """
        entries: list[Entry] = []
        for task_id, split, payload in games:
            if callable(payload) and len(entries) >= MAX_ON_REQUEST:
                raise too_many(source)
            parts = task_id.split("/")
            if len(parts) != 3 or parts[0] != split or not all(parts):
                raise InvalidOption(
                    f"A task id is '<split>/<task>/<trial>' of split {split!r}, got {task_id!r}."
                )
            if callable(payload):
                read, digest = payload, _LAZY
            else:
                read, digest = _constant(payload), digest_of(payload)
            task_type = type_of_folder(parts[1])
            if task_type is None:
                task_type = compile_game(read()).task_type
            entries.append(Entry(GameRef(task_id, split, task_type), digest, read))
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
        return read_payload(self._read(self._entry(task_id)))

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
            game = self._compile(self._entry(task_id))
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

    def annotations(self, task_id: str) -> tuple[str, ...]:
        """The sentences in which people described the task, read anew from its trajectory.

        Other words for the goal of the game, of varying care; () where there are none.

        Raises:
            TaskNotFound: as `load`.
            DataError: the trajectory cannot be read any more.
        """
        return read_sentences(self._entry(task_id))

    def skip_details(self) -> tuple[tuple[str, str, str], ...]:
        """(id, reason, what exactly) of every trial that was left out, sorted."""
        return self._skipped

    def skip_counts(self) -> dict[str, int]:
        """How many trials were left out, by reason."""
        return dict(sorted(Counter(reason for _, reason in self.skipped).items()))

    def _read(self, entry: Entry) -> Payload:
        """The game file as it was indexed: its digest is compared at every reading."""
        data = entry.read()
        if entry.digest != _LAZY and digest_of(data) != entry.digest:
            if self._index_file is not None:  # should the times of the file not tell
                remove(self._index_file)
            raise CorruptGame(
                f"The file of game {entry.ref.task_id!r} changed after it was indexed. Start anew."
            )
        return data

    def _compile(self, entry: Entry) -> Game:
        if self._on_disk is None:
            return compile_game(self._read(entry))
        # What was in an archive is in memory since, and cannot have changed.
        data = None if isinstance(entry.read, Packed) else self._read(entry)
        game = self._on_disk.get(entry.digest)
        if game is None:
            game = compile_game(self._read(entry) if data is None else data)
            self._on_disk.put(entry.digest, game)
        return game

    def _entry(self, task_id: str) -> Entry:
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


def parse_task_types(task_types: Iterable[TaskType | str]) -> frozenset[TaskType]:
    """Task types from their names.

    Raises:
        InvalidOption: an unknown name, or a single value where several names belong.
    """
    if isinstance(task_types, str) or not isinstance(task_types, Iterable):
        raise InvalidOption(f"task_types must be a sequence of strings, found {task_types!r}.")
    known = {kind.value: kind for kind in TaskType}
    names = [str(name) for name in task_types]
    unknown = sorted(set(names) - known.keys())
    if unknown:
        raise InvalidOption(f"Unknown task types {unknown}; there are {sorted(known)}.")
    return frozenset(known[name] for name in names)


def resolved_path(path: str | os.PathLike[str]) -> Path:
    """Where games lie, without links, though with a name that says what is there.

    Raises:
        InvalidOption: no path at all.
        MissingData: one that the system refuses.
    """
    if not isinstance(path, str | os.PathLike):
        raise InvalidOption(f"Games are named by a path or a text, or a GameSet; found {path!r}.")
    try:
        given = Path(path).expanduser()
        full = given.resolve()
        if full.is_file() and given.name.endswith(_SUFFIXES) > full.name.endswith(_SUFFIXES):
            # A store keeps files under their digests and links to them: the link's name counts.
            full = given.parent.resolve() / given.name
        full.exists()
    except (OSError, RuntimeError, ValueError, TypeError) as error:
        raise MissingData(
            f"There are no ALFWorld games at {os.fspath(path)!r:.200}: {error}."
        ) from error
    return full


def too_many(source: str) -> InvalidOption:
    """The error for more games on request than `MAX_ON_REQUEST`."""
    return InvalidOption(
        f"{source!r} asks for more than {MAX_ON_REQUEST:,} games, whose ids would take long to "
        "make anew in each process. Write them to disk once, `sero data generate alfworld --n N "
        "--out DIR`, and play DIR; or ask for fewer."
    )


def _constant(payload: Payload) -> Callable[[], Payload]:
    return lambda: payload


def _manifest_hash(entries: Iterable[Entry]) -> str:
    lines = "".join(f"{entry.ref.task_id}\0{entry.digest}\n" for entry in entries)
    return hashlib.sha256(lines.encode()).hexdigest()
