"""Anchor groups and step returns: what GiGPO and HGPO compare at the level of single turns.

An anchor is the state before a turn. Turns of one task group that start in the same state answer
the same question, whichever trajectory they belong to, so their discounted returns compare.
Sources: GiGPO, Feng et al. 2025 (arXiv:2505.10978); HGPO (arXiv:2602.22817).

Axis letters: M turns (rows), N trajectories.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence, Set
from difflib import SequenceMatcher
from typing import Any

import torch
from torch import Tensor

from trainer.objectives.groups import check_vectors, dense_ids
from trainer.objectives.grpo import FLAVORS, Flavor

_NAN = ("nan",)


class AnchorError(ValueError):
    """Raised when a state cannot serve as an anchor."""


def anchor_ids(keys: Sequence[Any], uid_M: Tensor, *, similarity: float | None = None) -> Tensor:
    """Number the anchors of a batch 0, 1, 2, ... in order of first appearance.

    Two turns share an anchor if they are of one task group and their states are equal (see
    `canonical_key`), in whichever trajectories and at whichever steps, or, with `similarity`, if
    their texts fall into one cluster (see `similar_clusters`).

    Args:
        keys: M states: texts, numbers, arrays, or lists and mappings of those.
        uid_M: int64 (M,), task-group id of each turn.
        similarity: None compares exactly; a number in (0, 1] is the threshold of the clusters,
            which depend on the order of the rows (published: 0.95).

    Returns:
        int64 (M,); no number occurs in two task groups.

    Raises:
        ValueError: lengths differ or the threshold is out of range.
        AnchorError: a state cannot be compared.

    Source: GiGPO (arXiv:2505.10978); the clusters follow the public behaviour of verl-agent.
    """
    check_vectors(uid_M=uid_M)
    uids = uid_M.tolist()
    if len(keys) != len(uids):
        raise ValueError(f"Expected one key for each of {len(uids)} turns, found {len(keys)}.")
    if similarity is None:
        return dense_ids([(uid, canonical_key(key)) for uid, key in zip(uids, keys, strict=True)])
    rows_of: dict[int, list[int]] = {}
    for row, uid in enumerate(uids):
        rows_of.setdefault(uid, []).append(row)
    cluster_of = [0] * len(uids)
    for rows in rows_of.values():
        clusters = similar_clusters([keys[row] for row in rows], similarity)
        for row, cluster in zip(rows, clusters, strict=True):
            cluster_of[row] = cluster
    return dense_ids(list(zip(uids, cluster_of, strict=True)))


def canonical_key(key: Any) -> Hashable:
    """A hashable stand-in that is equal for equal states.

    Arrays (numpy, torch) are equal if shape and entries are; lists and tuples entry by entry;
    mappings and sets whatever their order; NaN equals NaN. Everything else compares as Python
    does. An array, a list and a mapping are never equal to each other.

    Raises:
        AnchorError: the state holds something that cannot be hashed.
    """
    if isinstance(key, str):
        return key
    if isinstance(key, float):
        return _NAN if key != key else key
    if hasattr(key, "tolist") and hasattr(key, "shape"):
        if not key.shape:
            return canonical_key(key.tolist())
        entries = tuple(map(canonical_key, key.reshape(-1).tolist()))
        return ("array", tuple(key.shape), entries)
    if isinstance(key, Mapping):
        pairs = ((canonical_key(name), canonical_key(value)) for name, value in key.items())
        return ("mapping", frozenset(pairs))
    if isinstance(key, list | tuple):
        return ("list", tuple(map(canonical_key, key)))
    if isinstance(key, Set):
        return ("set", frozenset(map(canonical_key, key)))
    try:
        hash(key)
    except TypeError as error:
        raise AnchorError(
            f"A state holds a {type(key).__name__}, which cannot be compared. Use texts, numbers, "
            "arrays, or lists and mappings of those."
        ) from error
    found: Hashable = key
    return found


def similar_clusters(texts: Sequence[str], threshold: float = 0.95) -> list[int]:
    """First-fit clusters of similar texts.

    The texts are taken in order. Each joins the first cluster whose first member f satisfies
    ratio(text, f) >= threshold, with ratio = 2 * matches / (len(text) + len(f)) as
    `difflib.SequenceMatcher` counts matches; else it opens a cluster.

    The result depends on the order. Two things are skipped, and neither changes it: a repeated
    text ends where it did before (its ratio with itself is 1), and a ratio is not computed where
    the letters in common, an upper bound of the matches, already leave it below the threshold.

    Args:
        texts: states of one task group, in row order.
        threshold: in (0, 1].

    Returns:
        Cluster of each text, numbered 0, 1, 2, ... in order of opening.

    Raises:
        ValueError: the threshold is out of range.
        AnchorError: a state is no text.

    Source: the similarity variant of the public GiGPO code.
    """
    if not 0 < threshold <= 1:
        raise ValueError(f"The similarity threshold must be in (0, 1], found {threshold}.")
    other = next((text for text in texts if not isinstance(text, str)), None)
    if other is not None:
        raise AnchorError(
            f"Similarity compares texts, found a {type(other).__name__}. Use exact anchors "
            "(similarity None) for other states."
        )
    distinct = list(dict.fromkeys(texts))
    letters = _letter_counts(distinct)
    lengths = letters.sum(1)
    cluster_of: dict[str, int] = {}
    founders: list[int] = []
    matchers: list[SequenceMatcher[str]] = []
    for row, text in enumerate(distinct):
        common = torch.minimum(letters[founders], letters[row]).sum(1)
        highest = 2.0 * common / (lengths[founders] + lengths[row])
        for cluster in (highest >= threshold).nonzero().flatten().tolist():
            matchers[cluster].set_seq1(text)
            if matchers[cluster].ratio() >= threshold:
                cluster_of[text] = cluster
                break
        else:
            cluster_of[text] = len(founders)
            founders.append(row)
            # The matcher indexes its second text once, so that is the founder.
            matchers.append(SequenceMatcher(None, "", text))
    return [cluster_of[text] for text in texts]


def time_order(trajectory_M: Tensor, t_M: Tensor | None) -> Tensor:
    """Rows sorted by trajectory and, within one, by time.

    Args:
        trajectory_M: int64 (M,), trajectory of each row.
        t_M: int64 (M,), step within the trajectory; None: rows come in time order.

    Returns:
        int64 (M,), row indices.

    Raises:
        ValueError: shapes differ, or a trajectory has two rows of one step. Copies of rows (to
            fill a batch) would be taken for further steps.
    """
    if t_M is None:
        return torch.argsort(trajectory_M, stable=True)
    check_vectors(trajectory_M=trajectory_M, t_M=t_M)
    by_time = torch.argsort(t_M, stable=True)
    order_M = by_time[torch.argsort(trajectory_M[by_time], stable=True)]
    trajectory, t = trajectory_M[order_M], t_M[order_M]
    twice = ((trajectory[1:] == trajectory[:-1]) & (t[1:] == t[:-1])).nonzero()
    if twice.numel():
        row = int(order_M[twice[0, 0]])
        raise ValueError(
            f"Trajectory {int(trajectory_M[row])} has two turns with t={int(t_M[row])}. Compute "
            "advantages before rows are duplicated, and number the turns of a trajectory."
        )
    return order_M


def step_returns(
    step_rewards_M: Tensor,
    format_valid_M: Tensor,
    tid_M: Tensor,
    t_M: Tensor | None = None,
    *,
    flavor: Flavor = "paper",
    gamma: float = 0.95,
    penalty: float = 0.1,
) -> Tensor:
    """Discounted return from each turn on.

        R_t = sum over k >= t of gamma^(k - t) * (r_k - penalty * malformed_k)         ("paper")
        R_t = sum over k >= t of gamma^(k - t) * r_k  -  penalty * malformed_t         (code)

    In the second form a penalty stays on its own turn and is not discounted; the flavours "code"
    and "code_traj" share it.

    Args:
        step_rewards_M: float (M,), environment reward of each turn.
        format_valid_M: bool (M,), False where the reply broke the format.
        tid_M: int64 (M,), trajectory id, unique over the batch.
        t_M: int64 (M,), step within the trajectory; None: rows come in time order. Only the
            order counts, so a missing step is not discounted for.
        flavor: as above.
        gamma: discount, in [0, 1].
        penalty: of a malformed reply.

    Returns:
        float64 (M,), detached, in the order of the input rows.

    Raises:
        ValueError: shapes differ, an option is out of range, a reward is not finite, or a
            trajectory has two turns of one step.

    Source: GiGPO (arXiv:2505.10978); code: public behaviour of verl-agent.
    """
    check_vectors(step_rewards_M=step_rewards_M, format_valid_M=format_valid_M, tid_M=tid_M)
    if flavor not in FLAVORS:
        raise ValueError(f"flavor must be one of {FLAVORS}, found {flavor!r}.")
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma must be in [0, 1], found {gamma}.")
    rewards = step_rewards_M.detach().double()
    if not bool(torch.isfinite(rewards).all()):
        raise ValueError("step_rewards_M has a NaN or infinite entry; drop that trajectory first.")
    penalties = penalty * (~format_valid_M.bool()).double()
    order_M = time_order(tid_M, t_M)
    gains = (rewards - penalties if flavor == "paper" else rewards)[order_M].tolist()
    tids = tid_M[order_M].tolist()
    # From the last row to the first; a new trajectory id starts from 0.
    later, following = 0.0, None
    for i in range(len(gains) - 1, -1, -1):
        if tids[i] != following:
            later, following = 0.0, tids[i]
        gains[i] = later = gains[i] + gamma * later
    return_M = torch.empty_like(rewards)
    return_M[order_M] = torch.tensor(gains, dtype=torch.float64, device=rewards.device)
    return return_M if flavor == "paper" else return_M - penalties


def pair_ids(first_M: Tensor, second_M: Tensor) -> Tensor:
    """Dense numbers of the pairs (first, second), int64 (M,); equal pairs get equal numbers."""
    first = torch.unique(first_M, return_inverse=True)[1]
    seconds, second = torch.unique(second_M, return_inverse=True)
    pair_M: Tensor = torch.unique(first * seconds.numel() + second, return_inverse=True)[1]
    return pair_M


def _letter_counts(texts: Sequence[str]) -> Tensor:
    """How often each letter occurs in each text, float64 (texts, letters)."""
    column_of: dict[str, int] = {}
    rows: list[int] = []
    columns: list[int] = []
    counts: list[float] = []
    for row, text in enumerate(texts):
        for letter, count in Counter(text).items():
            rows.append(row)
            columns.append(column_of.setdefault(letter, len(column_of)))
            counts.append(count)
    table = torch.zeros(len(texts), len(column_of), dtype=torch.float64)
    table[rows, columns] = torch.tensor(counts, dtype=torch.float64)
    return table
