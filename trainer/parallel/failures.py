"""What a rank says when it fails, and what the others say who waited for it.

A collective whose other side is gone fails with a message about sockets. The rank that failed first
leaves a line in the store that all ranks share, and the others quote it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch.distributed as dist

from agent_envs.errors import SeroError

__all__ = ["RankError", "telling"]

_KEY = "first"
_LONGEST = 2000
_LOST = ("closed by peer", "reset by peer", "timed out", "gloo/", "nccl")


class RankError(SeroError, RuntimeError):
    """Another process of the run failed or is gone; this one was well."""


@contextmanager
def telling(store: Any, rank: int) -> Iterator[None]:
    """Inside, an error of this rank is left in `store`, and one about the others is explained.

    Raises:
        RankError: the error here is only that another rank had one, or has gone without a word.
    """
    try:
        yield
    except BaseException as error:
        first = _read(store)
        if not _is_loss(error):
            if first is None:
                with suppress(Exception):  # whatever became of the store, the error matters
                    store.set(_KEY, f"{rank} {_line(error)}")
            raise
        if first is not None and first[0] != rank:
            raise RankError(
                f"Rank {first[0]} of this run failed, and rank {rank} cannot go on without it: "
                f"{first[1]}"
            ) from error
        raise RankError(
            f"Rank {rank} lost another process of this run, which left no message: it may have "
            "been killed (out of memory?) or have waited longer than parallel.timeout_s. See "
            f"the output of the other ranks. Found here: {_line(error)}"
        ) from error


def _read(store: Any) -> tuple[int, str] | None:
    """(rank, what it said) of the first that failed; None without one, or without the store."""
    with suppress(Exception):
        if store.check([_KEY]):
            rank, _, line = store.get(_KEY).decode("utf-8", "replace").partition(" ")
            return int(rank), line
    return None


def _is_loss(error: BaseException) -> bool:
    """Whether an error is about the other side of an exchange."""
    if not isinstance(error, RuntimeError) or isinstance(error, SeroError):
        return False
    return isinstance(error, dist.DistError) or any(word in str(error).lower() for word in _LOST)


def _line(error: BaseException) -> str:
    """Its kind and what it says, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:_LONGEST]
