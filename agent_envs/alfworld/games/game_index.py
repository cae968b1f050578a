"""Which trials are games that can be played, and why the others cannot."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from agent_envs.alfworld.compile import generation_of, read_payload
from agent_envs.alfworld.games.game_archives import Trial, task_sentences
from agent_envs.alfworld.goals import parse_goal
from agent_envs.alfworld.model import TaskType
from agent_envs.alfworld.pddl import read_problem
from agent_envs.errors import CorruptGame, DataError, UnsupportedGame

Payload: TypeAlias = Mapping[str, Any] | bytes | str
PayloadSource: TypeAlias = Payload | Callable[[], Payload]


NATIVE, TEXTWORLD = "native", "textworld"


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
    UNREADABLE = "unreadable"
    """A folder; what is in it is not known."""


@dataclass(frozen=True, slots=True)
class GameRef:
    """One game of a set, not compiled."""

    task_id: str
    split: str
    task_type: TaskType
    engine: str = NATIVE
    """Which engine plays it: `NATIVE`, or `TEXTWORLD` where the file's rules or wording are not
    among those that the native engine knows."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A game of an index and how to read its file."""

    ref: GameRef
    digest: str
    read: Callable[[], Payload]
    trajectory: Callable[[], bytes] | None = None


def index_trial(trial: Trial, task_id: str) -> Entry | tuple[str, str, str]:
    """One trial: an entry, or (id, reason, detail) for leaving it out."""
    where = _printable(trial.where)
    if trial.problem is not None:
        return where, trial.problem, f"found at {where}"
    if task_id != _printable(task_id):
        return _printable(task_id), SkipReason.UNSAFE_PATH, f"a name is not UTF-8 at {where}"
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
        return task_id, SkipReason.NO_GAME, f"no *.tw-pddl at {where}"
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
            task_type = parse_goal(read_problem(payload["pddl_problem"]).goal).kind
        except UnsupportedGame as error:
            return task_id, SkipReason.UNSUPPORTED, str(error)
        except DataError as error:
            return task_id, SkipReason.CORRUPT, str(error)
    known = generation_of(payload["pddl_domain"], payload["grammar"]) is not None
    ref = GameRef(task_id, split, task_type, NATIVE if known else TEXTWORLD)
    return Entry(ref, digest_of(data), trial.game, trial.trajectory)


def read_sentences(entry: Entry) -> tuple[str, ...]:
    """What people wrote of the task of a game; see `task_sentences`.

    Raises:
        DataError: its trajectory cannot be read any more.
    """
    if entry.trajectory is None:
        return ()
    try:
        return task_sentences(json.loads(entry.trajectory()))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptGame(
            f"The trajectory of game {entry.ref.task_id!r} is damaged: {error}."
        ) from error


def _printable(name: str) -> str:
    """`name` with escapes for the bytes of a file name that are not UTF-8."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def type_of_folder(folder: str) -> TaskType | None:
    try:
        return TaskType(folder.partition("-")[0])
    except ValueError:
        return None


def digest_of(payload: Payload) -> str:
    if isinstance(payload, Mapping):
        payload = json.dumps(dict(payload), sort_keys=True)
    if isinstance(payload, str):
        payload = payload.encode("utf-8", "surrogatepass")
    return hashlib.sha256(payload).hexdigest()
