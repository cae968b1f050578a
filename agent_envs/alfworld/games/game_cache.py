"""Compiled games on disk, so that a game file is parsed once per machine, not per process.

The key of a game is the SHA-256 of its file's bytes, together with a hash over the code that
compiles: a changed file or another version of the compiler has another key, so nothing outdated
can be found. A file holds the tables of a `Game` as JSON under a digest; one that is damaged
counts as absent. Names, classes and strings are not kept, since making them is as quick as
reading them.

The cache is bounded: beyond `LIMIT_BYTES` the games that were not used for longest go. A use is
noted at most once an hour per game, to spare the disk, and the size is looked up anew after every
`LIMIT_BYTES` / 16 written, so several processes together may exceed the limit by that much each.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import dataclass, field, fields
from functools import cache
from importlib import resources
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from agent_envs.alfworld.generations import GENERATIONS
from agent_envs.alfworld.model import Game, Goal, State, TaskType, bits
from agent_envs.alfworld.words import class_of, make_words, shared
from agent_envs.disk_cache import (
    cache_folder,
    files_in,
    read_sealed,
    remove,
    shrink,
    write_sealed,
)

LIMIT_BYTES = 256 << 20
MAX_GAME_BYTES = 4 << 20
_FORMAT = 1
_NOTED_S = 3600.0

_PLAIN = ("revision", "generation", "task_sentence", "solvable")
_MASKS = (
    *("openable", "pickupable", "cleanable", "heatable", "coolable", "toggleable", "sliceable"),
    *("receptacle_object", "knife", "sinks", "microwaves", "fridges"),
)
_LISTS = ("rec_ids", "rec_loc", "locs", "obj_ids", "can_hold")
_STORED = (*_PLAIN, *_MASKS, *_LISTS)
_OWN = ("task_type", "recs", "objs", "recs_at", "inner", "start", "goal", "walkthrough")
_DERIVED = ("rec_class", "obj_class", "goal_recs", "obj_index", "rec_index", "words")
# The modules whose code decides what is in the tables.
_CODE = (
    *("compile", "games/game_cache", "generations", "goals", "model", "naming", "pddl", "tables"),
    "words",
)


@cache
def compiler_hash() -> str:
    """Short hash over the code that turns a game file into tables."""
    try:
        folder = resources.files("agent_envs.alfworld")
        texts = [(folder / f"{name}.py").read_bytes() for name in _CODE]
    except OSError:  # installed without its sources
        try:
            texts = [version("sero-rl").encode()]
        except PackageNotFoundError:
            texts = [os.urandom(16)]  # unknown code shares nothing
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]


@dataclass(slots=True)
class GameCache:
    """The compiled games in one folder. Several processes and threads may share it."""

    folder: str
    limit: int = LIMIT_BYTES
    code: str = field(default_factory=compiler_hash)
    _to_write: int = field(default=0, repr=False)
    """Bytes that may be written before the size of the folder is looked up."""

    @classmethod
    def of_user(cls) -> GameCache | None:
        """The cache in the folder of all caches; None if they are turned off."""
        folder = cache_folder()
        return None if folder is None else cls(str(folder / "games"))

    def get(self, digest: str) -> Game | None:
        """The game of the file with this SHA-256, if its tables are there and whole."""
        path, head = self._place(digest)
        body = read_sealed(path, head, MAX_GAME_BYTES)
        if body is None:
            return None
        try:
            game = _decode(json.loads(body))
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            remove(path)
            return None
        try:
            now = time.time()
            if now - os.stat(path).st_mtime > _NOTED_S:
                os.utime(path, (now, now))
        except OSError:
            pass
        return game

    def put(self, digest: str, game: Game) -> None:
        """Keep the tables of a game, if that is possible."""
        path, head = self._place(digest)
        body = json.dumps(_encode(game), separators=(",", ":")).encode()
        if len(body) + len(head) + 66 > min(MAX_GAME_BYTES, self.limit):
            return
        if write_sealed(path, head, body):
            self._to_write -= len(body)
            if self._to_write < 0:
                shrink(self.folder, self.limit)
                self._to_write = self.limit // 16

    def size(self) -> tuple[int, int]:
        """Number of games and bytes on disk."""
        files = files_in(self.folder)
        return len(files), sum(size for _, size, _ in files)

    def _place(self, digest: str) -> tuple[str, str]:
        name = f"{digest[:32]}-{self.code}.json"
        return os.path.join(self.folder, name), f"sero-game {_FORMAT} {digest} {self.code}"


def _encode(game: Game) -> dict[str, Any]:
    spots = None
    if GENERATIONS[game.generation].arrives_at_location:
        spots = [text.removeprefix("You arrive at ")[:-2] for text in game.words.arrive]
    stored = {name: getattr(game, name) for name in (*_STORED, *_OWN)}
    goal = game.goal
    stored["goal"] = [goal.kind, goal.objects, goal.receptacles, goal.lamps]
    return stored | {"spots": spots}


def _decode(stored: dict[str, Any]) -> Game:
    values = {name: stored[name] for name in (*_PLAIN, *_MASKS)}
    for name in _LISTS:
        values[name] = tuple(stored[name])
    objs = tuple(map(shared, stored["objs"]))
    recs = tuple(map(shared, stored["recs"]))
    recs_at = tuple(map(tuple, stored["recs_at"]))
    kind, *masks = stored["goal"]
    goal = Goal(TaskType(kind), *masks)
    plan, spots = stored["walkthrough"], stored["spots"]
    return Game(
        **values,
        task_type=TaskType(stored["task_type"]),
        recs=recs,
        objs=objs,
        rec_class=tuple(map(class_of, recs)),
        obj_class=tuple(map(class_of, objs)),
        recs_at=recs_at,
        inner=tuple(map(tuple, stored["inner"])),
        start=_state(stored["start"]),
        goal=goal,
        goal_recs=tuple(bits(goal.receptacles)),
        walkthrough=None if plan is None else tuple(plan),
        obj_index=dict(zip(objs, range(len(objs)), strict=True)),
        rec_index=dict(zip(recs, range(len(recs)), strict=True)),
        words=make_words(
            GENERATIONS[values["generation"]],
            objs,
            recs,
            None if spots is None else tuple(spots),
            values["rec_loc"],
            recs_at,
        ),
    )


def _state(fields_: list[Any]) -> State:
    values: list[Any] = [tuple(value) if type(value) is list else value for value in fields_]
    return State(*values)


assert {f.name for f in fields(Game)} == {*_STORED, *_OWN, *_DERIVED}, "a field is forgotten"
