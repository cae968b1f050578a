"""Keyed random streams: every draw is named by what it is for, not by when it happens.

A stream depends on its key alone, so scheduling, batch order and the number of workers change
nothing.
"""

from __future__ import annotations

import hashlib
import json

import numpy as np

GENERATE = "generate"


def stream_key(
    seed: int,
    iteration: int = 0,
    task: int | str = 0,
    rollout: int = 0,
    turn: int = 0,
    purpose: str = GENERATE,
) -> int:
    """128 bits that identify one stream. Equal arguments, equal key, in any process.

    The encoding keeps types and borders: task 1 differs from task "1", and no two lists of
    arguments run together into the same text.
    """
    parts = (int(seed), int(iteration), task, int(rollout), int(turn), purpose)
    digest = hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).digest()
    return int.from_bytes(digest, "little")


def stream(
    seed: int,
    iteration: int = 0,
    task: int | str = 0,
    rollout: int = 0,
    turn: int = 0,
    purpose: str = GENERATE,
) -> np.random.Generator:
    """A fresh generator at the start of its stream (Philox, counter based).

    >>> bool(stream(0, turn=1).random() == stream(0, turn=1).random())
    True
    """
    key = stream_key(seed, iteration, task, rollout, turn, purpose)
    return np.random.Generator(np.random.Philox(key=key))
