"""Common first tokens of several sequences, each of them once. Pure, no torch.

A causal model's states at a token depend on what stands before it and on nothing else. So where
sequences begin alike, the states of what they have in common are the same, and one of them can run
it for all: replies to one prompt, turns of one conversation, prompts with the same rules.

Sequences stand in the order of their content, so each has most in common with the one before it.
From there it takes its first tokens, and runs the rest itself, behind them. What is run is a row of
N tokens in which every sequence has a path: the places of its tokens, the first of them in other
sequences' parts. A part is cut into pieces where others leave it, so that a piece's queries see
keys that all who pass it have in common: what comes after is not even masked.

Letters: R sequences that are run, L tokens of one, N tokens that are run in all.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["LEAST", "Piece", "PrefixTree", "Sharing", "chains_in_order", "common_tokens",
           "prefix_tree"]  # fmt: skip

Ints = NDArray[np.int64]

LEAST = 4
"""Fewer tokens than this are run again. Between 1 and 32 it makes no difference that can be
measured on a CPU; where a call is dearer, fewer pieces are better."""


class Piece(NamedTuple):
    """Tokens `start` to `stop` of a sequence, which it runs itself in one stretch."""

    row: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """What is run of some sequences.

    Attributes:
        groups: chains (see `trainer.models.packing.chains`); the last index of each is run, in
            the order of the groups: R of them.
        shared: tokens of each that an earlier one runs, (R,).
        paths: place in the row of N of each sequence's tokens, R arrays of (L,).
        pieces: in the order of the row.
        ids: tokens that are run, (N,).
        places: how many tokens stand before each, (N,).
    """

    groups: list[list[int]]
    shared: list[int]
    paths: list[Ints]
    pieces: list[Piece]
    ids: Ints
    places: Ints

    @property
    def run_lengths(self) -> tuple[int, ...]:
        """Tokens that each sequence runs itself."""
        return tuple(len(p) - s for p, s in zip(self.paths, self.shared, strict=True))


class Sharing:
    """Decides how many tokens each sequence takes from the one before it.

    Sequences may leave a path where others have left it, or `least` tokens or more behind that.

    Args:
        least: 1 or more; 1: every common token is shared.
    """

    def __init__(self, least: int = LEAST) -> None:
        self.least = least
        self._ways: list[int] = []

    def take(self, common: int) -> int:
        """Of a sequence that has its first `common` tokens in common with the last one."""
        while self._ways and self._ways[-1] > common:
            self._ways.pop()
        last = self._ways[-1] if self._ways else 0
        if common - last < self.least:
            return last
        self._ways.append(common)
        return common

    def restart(self) -> None:
        """The next sequence has none before it."""
        self._ways.clear()


def chains_in_order(ids: Sequence[Sequence[int]]) -> list[list[int]]:
    """Chains in the order of their content, each in ascending length.

    Time: a sort by content, O(total tokens + n log n * common prefix) with a small constant.
    """
    keys = [_sortable(row) for row in ids]
    # Whatever begins with a row's bytes follows it at once, so the next row is the one to look at.
    order = sorted(range(len(keys)), key=lambda i: (keys[i], i))
    groups: list[list[int]] = []
    following = b""
    for index in reversed(order):
        if groups and following.startswith(keys[index]):
            groups[-1].append(index)
        else:
            groups.append([index])
        following = keys[index]
    for group in groups:
        group.sort(key=lambda i: (len(ids[i]), i))
    return groups[::-1]


def common_tokens(rows: Sequence[Sequence[int] | Ints]) -> list[int]:
    """How many first tokens each row has in common with the one before it; 0 for the first."""
    arrays = [np.asarray(row, dtype=np.int64) for row in rows]
    found = [0] * min(len(arrays), 1)
    for left, right in pairwise(arrays):
        n = min(len(left), len(right))
        differs = left[:n] != right[:n]
        found.append(int(differs.argmax()) if differs.any() else n)
    return found


def prefix_tree(ids: Sequence[Sequence[int]], least: int = LEAST) -> PrefixTree:
    """The tree of these sequences; depends on their ids alone, not on their order.

    Args:
        ids: token sequences, none empty.
        least: see `Sharing`.
    """
    groups = chains_in_order(ids)
    rows = [np.asarray(ids[group[-1]], dtype=np.int64) for group in groups]
    sharing = Sharing(least)
    shared = [sharing.take(common) for common in common_tokens(rows)]
    paths: list[Ints] = []
    before = np.empty(0, dtype=np.int64)
    filled = 0
    for row, count in zip(rows, shared, strict=True):
        own = len(row) - count
        before = np.concatenate([before[:count], np.arange(filled, filled + own)])
        paths.append(before)
        filled += own
    none = [np.empty(0, dtype=np.int64)]
    return PrefixTree(
        groups=groups,
        shared=shared,
        paths=paths,
        pieces=_pieces([len(row) for row in rows], shared),
        ids=np.concatenate([*(r[s:] for r, s in zip(rows, shared, strict=True)), *none]),
        places=np.concatenate(
            [*(np.arange(s, len(r)) for r, s in zip(rows, shared, strict=True)), *none]
        ),
    )


def _pieces(lengths: Sequence[int], shared: Sequence[int]) -> list[Piece]:
    """Every sequence's own tokens, cut where later ones leave its path."""
    cuts: list[set[int]] = [set() for _ in lengths]
    owners: list[int] = []  # whose parts the present path runs through, from its beginning
    for row, count in enumerate(shared):
        while owners and shared[owners[-1]] >= count > 0:
            owners.pop()
        if count == 0:
            owners.clear()
        else:
            cuts[owners[-1]].add(count)
        owners.append(row)
    pieces = []
    for row, (start, length) in enumerate(zip(shared, lengths, strict=True)):
        ends = [start, *sorted(cuts[row]), length]
        pieces += [Piece(row, a, b) for a, b in pairwise(ends)]
    return pieces


def _sortable(ids: Sequence[int]) -> bytes:
    """Bytes whose order is that of the ids, four bytes each, the same on every machine."""
    words = array("I", ids)
    if sys.byteorder == "little":
        words.byteswap()
    return words.tobytes()
