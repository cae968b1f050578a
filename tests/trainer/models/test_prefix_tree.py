"""Promises of common prefixes that are run once.

1. Every path spells its sequence, and every distinct prefix's token is run once.
2. A piece sees nothing but what all who pass it have in common.
3. Log-probs, entropies and gradients are those of sequences run one by one, in float64 to 1e-10,
   by the short way and by models of other architectures.
4. What is not a number in one segment reaches no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from tests.support import full_count
from tests.trainer.models.test_packing import (
    gradients,
    long_way,
    mixture,
    other,
    policy,
)
from trainer.models import prefix_tree as trees
from trainer.models import tree_attention
from trainer.models.critic import ValueModel
from trainer.models.lean import lean_of
from trainer.models.packed_attention import packs, shares, use_packing, use_sharing
from trainer.models.policy import (
    collate,
    enable_gradient_checkpointing,
    token_distributions,
    token_hidden,
    token_logprobs,
)
from trainer.models.prefix_tree import prefix_tree
from trainer.rollouts.data import Segment, make_segment

sequences = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=9), max_size=16)


@pytest.fixture
def every_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is common is shared, however short."""
    monkeypatch.setattr(trees.Sharing.__init__, "__defaults__", (1,))
    monkeypatch.setattr(trees.prefix_tree, "__defaults__", (1,))


# ------------------------------------------------------------------------------------- pure parts


@given(sequences)
def test_every_distinct_prefix_is_run_once(ids: list[list[int]]) -> None:
    tree = prefix_tree(ids, least=1)
    prefixes = {tuple(row[:n]) for row in ids for n in range(1, len(row) + 1)}
    assert len(tree.ids) == len(tree.places) == sum(tree.run_lengths) == len(prefixes)
    assert sorted(i for group in tree.groups for i in group) == list(range(len(ids)))


@given(sequences, st.integers(1, 5), st.randoms(use_true_random=False))
def test_paths_spell_their_sequences_in_any_order(
    ids: list[list[int]], least: int, random: Any
) -> None:
    tree = prefix_tree(ids, least)
    for group, path, count in zip(tree.groups, tree.paths, tree.shared, strict=True):
        assert tree.ids[path].tolist() == ids[group[-1]]
        assert tree.places[path].tolist() == list(range(len(path)))
        assert count == 0 or count >= least
        for index in group:
            assert tree.ids[path[: len(ids[index])]].tolist() == ids[index]
    mixed = prefix_tree(random.sample(ids, len(ids)), least)
    assert mixed.ids.tolist() == tree.ids.tolist()
    assert mixed.pieces == tree.pieces


@given(sequences, st.integers(1, 4))
def test_pieces_hold_each_token_once_and_end_where_others_leave(
    ids: list[list[int]], least: int
) -> None:
    tree = prefix_tree(ids, least)
    held = [int(tree.paths[row][d]) for row, a, b in tree.pieces for d in range(a, b)]
    assert held == list(range(len(tree.ids)))
    # Whoever passes through a token of a piece passes through all of it.
    for row, start, stop in tree.pieces:
        piece = set(tree.paths[row][start:stop].tolist())
        for path in tree.paths:
            assert piece <= set(path.tolist()) or not piece & set(path.tolist())


def test_short_beginnings_are_run_again() -> None:
    """Three in common are too few for `least` 4; five are not; nor are seven where five part."""
    ids = [[1, 2, 3, 9], [1, 2, 3, 8], [5, 5, 5, 5, 5, 1], [5, 5, 5, 5, 5, 2, 2, 1],
           [5, 5, 5, 5, 5, 2, 2, 2]]  # fmt: skip
    tree = prefix_tree(ids, least=4)
    assert tree.shared == [0, 0, 0, 5, 5]
    assert prefix_tree(ids, least=1).shared == [0, 3, 0, 5, 7]
    assert prefix_tree([]).pieces == []


# ----------------------------------------------------------------------------------- equal numbers


def drawn(seed: int) -> list[Segment]:
    """Segments that begin alike in all the ways there are."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    made: list[Segment] = []
    for _ in range(draw(2, 14)):
        ids = [draw(0, 3) for _ in range(draw(1, 14))]
        if made and draw(0, 4):
            # Begins like an earlier one, or is a beginning of it, or is the same.
            whole = made[draw(0, len(made))].ids
            ids = [*whole[: draw(1, len(whole) + 1)], *ids][: draw(1, 24)]
        mask = [False, *(bool(draw(0, 2)) for _ in ids[1:])]
        made.append(
            Segment(
                tuple(ids),
                tuple(mask),
                tuple(0 if on else -1 for on in mask),
                (0.0,) * len(ids),
                0.5 + draw(0, 20) / 10,
            )
        )
    made.append(make_segment((1, 2), (0, 1)))  # something is trained
    return made


def found(model: Any, segments: Sequence[Segment], **how: Any) -> tuple[list[Tensor], Tensor]:
    """Log-probs and entropies of each segment in float64, and the gradient of a weighted sum."""
    batch = collate(segments, **how)
    values = token_logprobs(model, batch, entropy=True)
    assert values.entropy is not None
    both = values.logprobs + 0.3 * values.entropy
    model.zero_grad()
    weight = torch.linspace(0.5, 1.5, both.shape[1])[None] if both.shape[1] else 1.0
    (both * weight * torch.arange(1, len(both) + 1)[:, None]).sum().backward()
    return [both[i, : s.trained].detach() for i, s in enumerate(segments)], gradients(model)


def one_by_one(model: Any, segments: Sequence[Segment]) -> tuple[list[Tensor], Tensor]:
    wide = max(s.trained for s in segments)
    rows, total = [], torch.zeros_like(torch.cat([p.flatten() for p in model.parameters()]))
    for number, segment in enumerate(segments, 1):
        values = token_logprobs(model, collate([segment]), entropy=True)
        assert values.entropy is not None
        both = (values.logprobs + 0.3 * values.entropy)[0]
        model.zero_grad()
        weight = torch.linspace(0.5, 1.5, wide)[: segment.trained]
        (both * weight * number).sum().backward()
        rows.append(both.detach())
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
        total = total + torch.cat([part.flatten() for part in parts])
    return rows, total


def check(model: Any, segments: Sequence[Segment], tolerance: float) -> None:
    rows, whole = one_by_one(model, segments)
    mine, gradient = found(model, segments, shared=True)
    for left, right in zip(mine, rows, strict=True):
        assert_close(left, right, atol=tolerance, rtol=tolerance)
    # Of 1,000 forests the worst differ by 3e-5, and each alone by 1e-5 from float64: rounding.
    assert_close(gradient, whole, atol=5 * tolerance * float(whole.abs().max()), rtol=0)


@pytest.mark.usefixtures("every_token")
@pytest.mark.parametrize("way", ["lean", "packed"])
def test_o23_random_forests_equal_one_by_one(way: str) -> None:
    model = policy()
    if way == "packed":
        long_way(model)
        assert packs(model)
    assert shares(model) if way == "packed" else use_sharing(model, None, packed=False)
    for seed in range(full_count(60, 1000)):
        check(model, drawn(seed), 1e-5)


@pytest.mark.usefixtures("every_token")
@pytest.mark.parametrize("way", ["lean", "packed"])
def test_o23_random_forests_in_float64(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Log-probs are float32 by contract, so hidden states and their gradients are compared."""
    # transformers rounds to float32 in its norms.
    monkeypatch.setattr(Qwen2RMSNorm, "forward", _norm)
    model = policy().double()
    if way == "packed":
        long_way(model)
        assert packs(model)
    for seed in range(full_count(40, 500)):
        segments = drawn(seed)
        states, grads = [], []
        for batches in ([segments], [[s] for s in segments]):
            model.zero_grad()
            of_all = []
            for some in batches:
                batch = collate(some, shared=len(some) > 1)
                if batch.trained == 0:
                    continue
                pair = _hidden(model, batch)
                of_all.append(pair)
            hidden = torch.cat(of_all)
            weight = torch.linspace(-1, 1, hidden.numel(), dtype=torch.float64)
            (hidden * weight.reshape(hidden.shape)).sum().backward()
            states.append(hidden.detach())
            grads.append(gradients(model))
        assert_close(states[0], states[1], atol=1e-10, rtol=0)
        assert_close(grads[0], grads[1], atol=1e-10 * float(grads[1].abs().max()), rtol=0)


def _norm(self: Any, x: Tensor) -> Tensor:
    scaled = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon)
    return self.weight * scaled


def _hidden(model: Any, batch: Any) -> Tensor:
    pair = token_hidden(model, batch)
    assert pair is not None
    return pair[0]


@pytest.mark.usefixtures("every_token")
@pytest.mark.parametrize("kind", ["granite", "gpt2"])
def test_o23_other_architectures_share_too(kind: str) -> None:
    model = other(kind)
    assert use_packing(model, None)
    assert use_sharing(model, None, packed=True)
    for seed in range(8):
        check(model, drawn(seed), 1e-5)
    check(model, mixture(), 1e-5)


@pytest.mark.usefixtures("every_token")
@pytest.mark.parametrize("size", [1, 1 << 22])
def test_however_attention_is_cut_into_calls(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a query each, calls of a part each or of all that there are, and as on a GPU."""
    costs = tree_attention._ON_CPU
    for changed in (
        costs._replace(call=0, queries=2),
        costs._replace(call=1 << 20),
        costs._replace(again=2),
        tree_attention._ELSEWHERE,
    ):
        monkeypatch.setattr(tree_attention, "_ON_CPU", changed)
        monkeypatch.setattr(tree_attention, "_MOST", size)
        for seed in range(4):
            check(policy(), drawn(seed), 1e-5)


@pytest.mark.usefixtures("every_token")
@pytest.mark.parametrize("way", ["lean", "packed"])
def test_o23_what_is_no_number_in_one_segment_reaches_no_other(way: str) -> None:
    """Token 0 has no embedding. Segments with it come first, so they run what others begin with,
    and have it behind that."""
    model = policy()
    if way == "packed":
        long_way(model)
        assert packs(model)
    bad = 0
    with torch.no_grad():
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
        model.model.embed_tokens.weight[bad] = torch.nan
    prompt = (1, 2, 3, 4, 5, 6)
    segments = [
        make_segment(prompt, (7, 8, 9)),
        make_segment(prompt, (bad, 7, 9)),
        make_segment(prompt, (7, 9, 9, 9, 1)),
        make_segment(prompt[:4], (9, 1)),
        make_segment((8, 8), (1, 2, 3)),
        make_segment(prompt[:4], (bad, 1, 1, 1, 1, 1)),
    ]
    batch = collate(segments, shared=True)
    assert len(batch.run_lengths) == 6
    values = token_logprobs(model, batch).logprobs
    for i, segment in enumerate(segments):
        own = values[i, : segment.trained]
        if bad not in segment.ids:
            assert_close(own, token_logprobs(model, collate([segment])).logprobs[0], atol=1e-5,
                         rtol=0)  # fmt: skip
        else:
            assert own.isnan().any()


@pytest.mark.usefixtures("every_token")
def test_no_segment_sees_another_that_it_shares_with() -> None:
    """What follows the common part of another changes: nothing moves but by rounding of calls."""
    prompt = tuple(range(1, 9))
    mine = make_segment(prompt, (3, 1, 2))
    for way in (policy(), policy()):
        one = token_logprobs(way, collate([mine, make_segment(prompt, (4, 4, 4))], shared=True))
        two = token_logprobs(way, collate([mine, make_segment(prompt, (5, 6, 7))], shared=True))
        assert torch.equal(one.logprobs[0], two.logprobs[0])


@pytest.mark.usefixtures("every_token")
@pytest.mark.parametrize("way", ["lean", "packed"])
def test_distributions_values_recomputed_layers_and_half_precision(way: str) -> None:
    model = policy()
    segments = [s for s in [*mixture(), *drawn(3)] if s.trained]
    values = ValueModel(model)
    torch.nn.init.normal_(values.head.weight, generator=torch.Generator().manual_seed(0))
    if way == "packed":
        long_way(model)
        long_way(values.backbone)
        assert packs(model)
        assert packs(values.backbone)
    batch = collate(segments, shared=True)
    lone = [collate([s]) for s in segments]
    together = token_distributions(model, batch)
    apart = torch.cat([token_distributions(model, b) for b in lone])
    assert_close(together, apart, atol=2e-5, rtol=0)
    of_all = values(batch)
    for i, b in enumerate(lone):
        assert_close(of_all[i, : segments[i].trained], values(b)[0], atol=2e-5, rtol=0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = token_logprobs(model, batch).logprobs
    exact = token_logprobs(model, batch).logprobs
    assert_close(rounded, exact, atol=0.6, rtol=0.1)
    # Recomputed layers take the model's own way, in the same row.
    model.zero_grad()
    exact.sum().backward()
    plain = gradients(model).clone()
    enable_gradient_checkpointing(model)
    assert packs(model)
    model.zero_grad()
    token_logprobs(model, batch).logprobs.sum().backward()
    assert_close(gradients(model), plain, atol=1e-5 * float(plain.abs().max()), rtol=1e-4)


@pytest.mark.usefixtures("every_token")
def test_nothing_trained_gives_nothing() -> None:
    segments = [make_segment((1, 2, 3, 4), (n, n), mask=(False, False)) for n in (5, 6)]
    for model in (policy(), other("gpt2")):
        if lean_of(model) is None:
            assert packs(model)
        values = token_logprobs(model, collate(segments, shared=True), entropy=True)
        assert values.logprobs.shape == (2, 0)


@pytest.mark.usefixtures("every_token")
def test_all_layers_keep_one_mask_for_the_backward_pass() -> None:
    """Its storage is the same one in each layer, and only where a gradient is wanted."""
    prompt = tuple(i % 7 for i in range(40))
    batch = collate([make_segment(prompt, (n, *(2,) * 30)) for n in range(8, 12)], shared=True)
    assert batch.tree is not None
    model = policy()
    long_way(model)
    assert packs(model)
    masks = {call.mask.shape for call in batch.tree.whole.calls if call.mask is not None}
    assert masks
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.shape in masks and not tensor.requires_grad and tensor.is_floating_point():
            place = tensor.data_ptr()
            kept[place] = kept.get(place, 0) + 1
        return tensor

    with torch.no_grad():
        token_logprobs(model, batch)
    assert not batch.tree.whole._added
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        token_logprobs(model, batch).logprobs.sum().backward()
    layers = model.config.num_hidden_layers
    assert layers > 1
    assert sorted(kept) == sorted(mask.data_ptr() for mask in batch.tree.whole._added.values())
    assert set(kept.values()) == {layers}
    # Half precision has masks of its own.
    with torch.autocast("cpu", dtype=torch.bfloat16):
        token_logprobs(model, batch)
    assert {kind for _, kind in batch.tree.whole._added} == {torch.float32, torch.bfloat16}


def test_a_long_piece_keeps_no_masks() -> None:
    """Replies of 1500 tokens behind 300 in common: what is kept grows with their tokens alone."""
    segments = [
        make_segment(tuple(i % 7 for i in range(300)), (n, *(2 for _ in range(1499))))
        for n in range(8, 11)
    ]
    tree = prefix_tree([s.ids for s in segments])
    assert len(tree.ids) == 300 + 3 * 1500
    row = tree_attention.tree_row(tree, tree.paths[0][:1])
    assert [(c.rows, c.mask) for c in row.whole.calls if c.mask is not None] == []
    check(policy(), [make_segment(s.ids[:-3], s.ids[-3:]) for s in segments], 1e-5)
