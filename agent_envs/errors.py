"""Typed errors. Every message says what failed, what was found and expected, and what to do."""

from __future__ import annotations

from collections.abc import Iterable

import gymnasium.error
from rapidfuzz import fuzz, process


class SeroError(Exception):
    """Base of every error that this package raises on purpose."""


class TaskNotFound(SeroError, KeyError):
    """A task id is not in the data of the env. The message suggests the nearest ids."""

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0]) if self.args else ""

    @classmethod
    def among(cls, task_id: object, known: Iterable[str], where: str = "this env") -> TaskNotFound:
        """Build the error for `task_id`, looking for similar ids in `known`."""
        ids = list(known)
        near = (
            process.extract(task_id, ids, scorer=fuzz.ratio, limit=3)
            if isinstance(task_id, str)
            else []
        )
        if near:
            hint = "Did you mean " + " or ".join(repr(match[0]) for match in near) + "?"
        elif ids:
            hint = f"Ids are strings such as {ids[0]!r}."
        else:
            hint = "There are no tasks; check the data and the filters."
        return cls(f"No task {task_id!r} among the {len(ids)} tasks of {where}. {hint}")


class InvalidOption(SeroError, ValueError):
    """An argument of a constructor or an entry of `reset(options=...)` is not understood."""


class ResetNeeded(SeroError, gymnasium.error.ResetNeeded):
    """`step`, `render` or `snapshot` without a running episode (never reset, or already over)."""


class MissingExtra(SeroError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""


class IncompatibleExtra(MissingExtra):
    """The packages of an extra are installed in versions that do not work together."""


class DataError(SeroError):
    """Base of errors about data files."""


class MissingData(DataError, FileNotFoundError):
    """A data path does not exist or holds no task."""


class CorruptGame(DataError, ValueError):
    """A data file exists but cannot be read as what it should be."""


class CorruptData(DataError, ValueError):
    """A data file exists but cannot be read as what it should be, or fails its checksum."""


class UnsupportedGame(DataError, ValueError):
    """A well-formed data file uses something that the engine does not know. Never guessed."""


class SnapshotError(SeroError):
    """Base of errors about snapshots. The running episode is unchanged when one is raised."""


class SnapshotMismatch(SnapshotError, ValueError):
    """The snapshot is well-formed but belongs to another env, wrapper stack, task or data."""


class SnapshotFormatError(SnapshotError, ValueError):
    """Bytes that are not a snapshot: damaged, forged, too large or of another format version."""


class UnknownWrapperState(SnapshotError, TypeError):
    """A wrapper in the stack keeps state that nobody described.

    `agent_envs.register_wrapper_state` describes it; `register_stateless_wrapper` declares that
    there is none.
    """


class PrivilegedAccess(SeroError):
    """The env has no privileged view, or it is closed to the caller."""


class ObservationTooLong(SeroError, ValueError):
    """A text does not fit the declared space, so it cannot travel through shared memory."""


class WorkerError(SeroError, RuntimeError):
    """A worker process of a vector env died, gave no answer in time, or raised something that
    this process cannot name. The message says which worker."""
