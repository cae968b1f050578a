"""Which segments share a forward pass, and which passes share a micro-batch. Pure, no torch.

A causal model's states at a token depend on what stands before it and on nothing else. So where
the ids of one segment are the first ids of another, the longer one's pass holds every state of the
shorter one: in a conversation each turn's ids begin with those of the turn before, and one pass a
trajectory serves all of its turns. Where segments only begin alike, the beginning can be run once
(`trainer.models.prefix_tree`).
"""

from __future__ import annotations

from collections.abc import Sequence

from trainer.models.prefix_tree import Sharing, chains_in_order, common_tokens

__all__ = ["chains", "cut_groups", "micro_batches", "row_batches", "segment_batches",
           "tree_batches"]  # fmt: skip

# What a segment takes from others is gathered for it in each layer and kept for the backward pass:
# keys and values, less than a sixteenth of all that is kept of a token.
_KEPT = 16


def chains(ids: Sequence[Sequence[int]]) -> list[list[int]]:
    """Groups of indices in which the ids of each are the first ids of the group's longest.

    Equal ids are in one group. A group is in ascending length, so its last index is its longest;
    groups are in the order of their first members. Every index is in exactly one group. Of several
    longer ones an index joins one, whose choice depends on the ids alone.

    Args:
        ids: n token sequences, ids from 0 to 2^32 - 1.
    """
    return sorted(chains_in_order(ids), key=min)


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


def tree_batches(
    ids: Sequence[Sequence[int]], max_tokens: int, *, packed: bool = False
) -> list[list[int]] | None:
    """`segment_batches` that run common first tokens once, as `prefix_tree` has them.

    Segments that begin alike follow each other, so they come into one batch, and each batch is
    filled by what is run of it, and by a `_KEPT`th of what its segments take from others.

    Returns:
        None where it does not pay: less than an eighth of the tokens, padding included, would be
        saved. Gathering keys and values costs as much for prompts of 700 tokens, and half as much
        for prompts of 100, in a model of 0.7 million parameters on a CPU; less in larger ones.
    """
    groups = chains_in_order(ids)
    lengths = [len(ids[group[-1]]) for group in groups]
    common = common_tokens([ids[group[-1]] for group in groups])
    sharing = Sharing()
    batches: list[list[int]] = []
    run = filled = taken = 0
    for group, length, alike in zip(groups, lengths, common, strict=True):
        shared = sharing.take(alike)
        filled += length - shared
        taken += shared
        if not batches or filled + taken // _KEPT > max_tokens:
            sharing.restart()
            batches.append([])
            shared, filled, taken = 0, length, 0
        batches[-1].extend(group)
        run += length - shared
    plain = sum(
        sum(lengths[i] for i in batch) if packed else len(batch) * max(lengths[i] for i in batch)
        for batch in row_batches(lengths, max_tokens, packed=packed)
    )
    return batches if 8 * run <= 7 * plain else None


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
