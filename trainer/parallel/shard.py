"""Which groups, tasks and rows a rank gets. Pure.

Ranks hold neighbouring parts of every list, in the order of their numbers: putting the parts of all
ranks together gives the list of one process.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["own_parts", "part_of"]


def part_of(n: int, rank: int, world: int) -> range:
    """The indices of 0..n-1 that a rank has; sizes differ by at most one, and may be 0.

    >>> [list(part_of(5, rank, 3)) for rank in range(3)]
    [[0], [1, 2], [3, 4]]
    """
    if not 0 <= rank < world:
        raise ValueError(f"rank {rank} of {world} processes; expected 0 to {world - 1}")
    return range(rank * n // world, (rank + 1) * n // world)


def own_parts(parts: Sequence[Sequence[int]], counts: Sequence[int], rank: int) -> list[list[int]]:
    """Of every part of a list that lies over the ranks, the indices into this rank's own rows.

    Args:
        parts: indices into the rows of all ranks, one rank's behind the other's.
        counts: rows of each rank.

    >>> own_parts([[0, 3, 4], [1, 2]], [2, 3], 1)
    [[1, 2], [0]]
    """
    first = sum(counts[:rank])
    return [[i - first for i in part if first <= i < first + counts[rank]] for part in parts]
