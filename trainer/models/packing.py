"""Which segments share a forward pass, and which passes share a micro-batch. Pure, no torch.

A causal model's states at a token depend on what stands before it and on nothing else. So where
the ids of one segment are the first ids of another, the longer one's pass holds every state of the
shorter one: in a conversation each turn's ids begin with those of the turn before, and one pass a
trajectory serves all of its turns.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

__all__ = ["chains", "cut_groups", "micro_batches", "row_batches", "segment_batches"]


def chains(ids: Sequence[Sequence[int]]) -> list[list[int]]:
    """Groups of indices in which the ids of each are the first ids of the group's longest.

    Equal ids are in one group. A group is in ascending length, so its last index is its longest;
    groups are in the order of their first members. Every index is in exactly one group. Of several
    longer ones an index joins one, whose choice depends on the ids alone.

    Time: a sort by content, O(total tokens + n log n * common prefix) with a small constant.

    Args:
        ids: n token sequences, ids from 0 to 2^32 - 1.
    """
    keys = [_sortable(row) for row in ids]
    # Whatever begins with a row's bytes follows it at once, so the next row is the one to look at.
    order = sorted(range(len(keys)), key=lambda i: (keys[i], i))
    groups: list[list[int]] = []
    following = b""
    for place in range(len(order) - 1, -1, -1):
        index = order[place]
        if groups and following.startswith(keys[index]):
            groups[-1].append(index)
        else:
            groups.append([index])
        following = keys[index]
    for group in groups:
        group.sort(key=lambda i: (len(ids[i]), i))
    return sorted(groups, key=min)


def micro_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Split row indices so that rows x longest row stays within `max_tokens`.

    Rows of like length go together, so little is padded. A row longer than the bound gets a
    batch of its own. Ties keep their order, so the split is deterministic.
    """
    return row_batches(lengths, max_tokens, packed=False)


def row_batches(lengths: Sequence[int], max_tokens: int, *, packed: bool) -> list[list[int]]:
    """Split row indices so that a batch stays within `max_tokens`.

    Its size is the sum of its rows where they are `packed` one behind the other, else rows x
    longest. A row longer than the bound gets a batch of its own. Deterministic.

    Raises:
        ValueError: `max_tokens` is below 1.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens is {max_tokens}; expected 1 or more")
    batches: list[list[int]] = []
    filled = 0
    for index in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        # Ascending order: the row that joins is the longest so far.
        length = lengths[index]
        size = filled + length if packed else (len(batches[-1]) + 1) * length if batches else 0
        if batches and size <= max_tokens:
            batches[-1].append(index)
            filled += length
        else:
            batches.append([index])
            filled = length
    return batches


def segment_batches(
    ids: Sequence[Sequence[int]], max_tokens: int, *, packed: bool = False
) -> list[list[int]]:
    """Split segments so that what is run of them stays within `max_tokens` a batch.

    The members of a chain (see `chains`) stay together: only the longest is run.
    """
    groups = chains(ids)
    rows = row_batches([len(ids[g[-1]]) for g in groups], max_tokens, packed=packed)
    return [[i for row in batch for i in groups[row]] for batch in rows]


def cut_groups(groups: Sequence[Sequence[int]], parts: int) -> list[list[int]]:
    """Deals groups out to `parts` parts of about as many members, in their order; none is cut.

    For the turns of conversations: those of one stay in one optimiser step, which runs it once.
    A group goes where its middle falls, so a part's size is off by less than the largest group.
    Parts may be empty; each is sorted.
    """
    dealt: list[list[int]] = [[] for _ in range(parts)]
    total, before = sum(map(len, groups)), 0
    for group in groups:
        dealt[(2 * before + len(group)) * parts // (2 * total) if group else 0].extend(group)
        before += len(group)
    return [sorted(part) for part in dealt]


def _sortable(ids: Sequence[int]) -> bytes:
    """Bytes whose order is that of the ids, four bytes each, the same on every machine."""
    words = array("I", ids)
    if sys.byteorder == "little":
        words.byteswap()
    return words.tobytes()
