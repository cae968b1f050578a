"""Promises of micro-batches and updates in which common prefixes are run once.

1. Batches keep those that share together, are filled by what is run, and do not depend on order.
2. An update gives the same gradient however it is cut, and counts what it has run.
3. A model that loses its way in a tree is found out; where nothing is in common, nothing changes.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from tests.trainer.models.test_packing import (
    VOCAB,
    conversation,
    gradients,
    long_way,
    mixture,
    policy,
)
from trainer.learning.update import AuxiliaryRow, auxiliary_backward, passes
from trainer.methods.protocol import PassLimits
from trainer.models import packed_attention, packing
from trainer.models.packed_attention import packs, shares, use_packing, use_sharing
from trainer.models.packing import tree_batches
from trainer.models.policy import collate, token_logprobs
from trainer.models.prefix_tree import prefix_tree
from trainer.planning.accounting import Work
from trainer.rollouts.data import Segment, make_segment

sequences = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=9), max_size=16)


@given(sequences, st.integers(1, 40), st.booleans(), st.randoms(use_true_random=False))
def test_batches_are_filled_by_what_is_run(
    ids: list[list[int]], bound: int, packed: bool, random: Any
) -> None:
    batches = tree_batches(ids, bound, packed=packed)
    order = random.sample(range(len(ids)), len(ids))
    again = tree_batches([ids[i] for i in order], bound, packed=packed)
    if batches is None or again is None:
        assert batches is again is None
        return
    assert sorted(i for rows in batches for i in rows) == list(range(len(ids)))
    # Equal ids are interchangeable, so compare contents.
    assert [sorted(ids[i] for i in rows) for rows in batches] == [
        sorted(ids[order[i]] for i in rows) for rows in again
    ]
    for rows in batches:
        tree = prefix_tree([ids[i] for i in rows])
        kept = len(tree.ids) + sum(tree.shared) // packing._KEPT
        assert len(tree.groups) == 1 or kept <= bound
    # None of it fits into the batch before, so no batch is too small.
    for before, after in pairwise(batches):
        first = [after[i] for i in prefix_tree([ids[i] for i in after]).groups[0]]
        tree = prefix_tree([ids[i] for i in (*before, *first)])
        assert len(tree.ids) + sum(tree.shared) // packing._KEPT > bound


def test_groups_stay_together_and_where_nothing_is_shared_nothing_changes() -> None:
    prompts = [[p] * 30 for p in range(4)]
    ids = [[*prompts[i % 4], i, i + 1, i + 2] for i in range(32)]
    batches = tree_batches(ids, 70)
    assert batches is not None
    assert [sorted(i % 4 for i in rows) for rows in batches] == [[p] * 8 for p in range(4)]
    assert tree_batches([[i] * 30 for i in range(8)], 60) is None
    assert tree_batches([], 60) is None or tree_batches([], 60) == []


# ---------------------------------------------------------------------------------- whole updates


def group(rollouts: int = 6) -> list[Segment]:
    """Replies to one prompt and to one that begins like it."""
    prompts = [tuple(i % VOCAB for i in range(40)), (*(i % VOCAB for i in range(30)), 5, 5, 5)]
    return [
        make_segment(prompts[i % 2], (i, i + 1, i + 2), temperature=0.7 + i / 10)
        for i in range(rollouts)
    ]


@pytest.mark.parametrize("way", ["lean", "packed"])
@pytest.mark.parametrize("size", [1, 60, 10**6])
def test_o23_an_update_is_the_same_however_it_is_cut(way: str, size: int) -> None:
    segments = [*group(), *(s for s in mixture() if s.trained)]
    rows = [AuxiliaryRow(s, 0.1 + 0.05 * i) for i, s in enumerate(segments)]
    model = policy()
    expected = torch.zeros(())
    for row in rows:
        expected = (
            expected
            - row.coefficient * token_logprobs(model, collate([row.segment])).logprobs.sum()
        )
    expected.backward()
    whole = gradients(model).clone()
    model.zero_grad()
    if way == "packed":
        long_way(model)
    value = auxiliary_backward(model, rows, 1.0, PassLimits(size, 0))
    assert value == pytest.approx(float(expected.detach()), rel=1e-5)
    assert_close(gradients(model), whole, atol=1e-5 * float(whole.abs().max()), rtol=0)


def test_a_prompt_of_a_group_is_run_once_and_counted_as_run() -> None:
    segments = group()
    model = policy()
    ((micro, batch),) = passes(model, segments, PassLimits(1000, 0))
    assert sorted(micro) == list(range(6))
    # 40 tokens, 10 of the other prompt less those in common, and replies of 3.
    assert sum(batch.run_lengths) == batch.ids_R_L.numel() == 40 + 3 + 6 * 3
    work = Work.of(batch.run_lengths, batch.trained, batch.shared_lengths)
    seen = [n + 1 for n in batch.place_1_L[0].tolist()] if batch.place_1_L is not None else []
    assert work == Work(61, sum(seen), 18)
    # Asked not to pack, or where nothing is in common, rows are padded as ever.
    ((_, plain),) = passes(model, segments, PassLimits(1000, 0, packing=False))
    assert plain.tree is None
    assert plain.ids_R_L.shape == (6, 43)
    apart = [make_segment((i, i + 1, i + 2), (1, 2)) for i in range(6)]
    ((_, plain),) = passes(model, apart, PassLimits(1000, 0))
    assert plain.tree is None


def test_the_probe_finds_a_model_that_loses_its_way_in_a_tree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Packed rows are right and trees are not: chains are shared, and nothing more."""
    original = packed_attention.tree_row

    def wrong(*args: Any) -> Any:
        row = original(*args)
        return replace(row, whole=replace(row.whole, calls=row.whole.calls[::-1]))

    model = policy()
    long_way(model)
    monkeypatch.setattr(packed_attention, "tree_row", wrong)
    assert packs(model)
    assert not shares(model)
    assert use_packing(model, None)
    assert not use_sharing(model, None, packed=True)
    ((_, batch),) = passes(model, group(), PassLimits(1000, 0))
    assert batch.tree is None
    assert batch.place_1_L is not None
    assert not use_sharing(policy("eager"), None, packed=False)
    assert not use_sharing(policy(), False, packed=False)


@settings(max_examples=20)
@given(st.integers(0, 10**6))
def test_conversations_share_their_beginning(seed: int) -> None:
    """Two of one task part after its first prompt; each is one stretch from there on."""
    left, right = conversation(3, seed=seed), conversation(3, seed=seed + 1)
    system = (1, 2, 3, 4, 5, 6, 7, 8)
    segments = [
        make_segment(system + s.ids[: -s.trained], s.ids[-s.trained :]) for s in (*left, *right)
    ]
    tree = prefix_tree([s.ids for s in segments])
    assert len(tree.groups) == 2
    assert len(tree.pieces) == 3
    assert tree.shared[1] >= len(system)
