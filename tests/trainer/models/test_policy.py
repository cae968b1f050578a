"""Promises of the log-prob routine:

1. It equals a slow loop over single, unpadded sequences, at the row's temperature.
2. Only trained tokens count: labels elsewhere change nothing and get no gradient.
3. Padding follows from lengths. What fills it is irrelevant, and an end token that equals the
   pad id is trained where it was sampled.
4. Logits exist only where a trained token is predicted, and of a large vocabulary only a piece of
   them at a time.
5. Log-probs are float32 where the forward pass is in bfloat16.
6. Layers that are recomputed in the backward pass give the same gradients and draw nothing.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close
from transformers import GraniteConfig, GraniteForCausalLM

from tests.fakes import TableModel
from trainer.config import ConfigError
from trainer.models import policy
from trainer.models.packed_attention import packs
from trainer.models.policy import (
    body_and_head,
    collate,
    enable_gradient_checkpointing,
    evaluation_mode,
    micro_batches,
    pad_rows,
    token_logprobs,
)
from trainer.models.tiny import TinyConfig, build_model, initialise
from trainer.rollouts.data import Segment, make_segment

SHAPE = TinyConfig(
    hidden_size=32, intermediate_size=48, layers=2, heads=4, kv_heads=2, init_std=0.5
)
VOCAB = 23


@pytest.fixture(scope="module")
def model():
    return build_model(VOCAB, SHAPE, seed=3)


def _segments(temperature: float = 1.0) -> list[Segment]:
    rng = torch.Generator().manual_seed(5)

    def draw(n: int) -> list[int]:
        return torch.randint(0, VOCAB, (n,), generator=rng).tolist()

    rows = [make_segment(draw(p), draw(r), temperature=temperature) for p, r in [(3, 4), (9, 1)]]
    ids = draw(12)  # two trained stretches, as in a conversation
    mask = tuple(i in (2, 3, 8, 9, 10) for i in range(12))
    turn = (-1, -1, 0, 0, -1, -1, -1, -1, 1, 1, 1, -1)
    return [*rows, Segment(tuple(ids), mask, turn, (0.0,) * 12, temperature)]


def _slow(model, segment: Segment) -> tuple[list[float], list[float]]:
    """Log-probs and entropies of the trained tokens of one unpadded sequence, in float64."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([segment.ids])).logits[0].double()
    logprobs, entropies = [], []
    for place, trained in enumerate(segment.loss_mask):
        if trained:
            row = torch.log_softmax(logits[place - 1] / segment.temperature, -1)
            logprobs.append(float(row[segment.ids[place]]))
            entropies.append(float(-(row.exp() * row).sum()))
    return logprobs, entropies


@pytest.mark.parametrize("temperature", [0.6, 1.0, 2.5])
def test_o26_logprobs_equal_the_slow_loop_at_the_temperature(model, temperature):
    segments = _segments(temperature)
    found = token_logprobs(model, collate(segments), entropy=True)
    slow = [_slow(model, s) for s in segments]
    assert_close(found.logprobs, pad_rows([a for a, _ in slow], torch.float32), atol=2e-5, rtol=0)
    assert_close(found.entropy, pad_rows([b for _, b in slow], torch.float32), atol=2e-5, rtol=0)


def test_rows_of_different_temperatures_share_a_batch(model):
    cold, hot = _segments(0.5)[0], _segments(2.0)[1]
    found = token_logprobs(model, collate([cold, hot])).logprobs
    assert_close(found[0, :4], torch.tensor(_slow(model, cold)[0]).float(), atol=2e-5, rtol=0)
    assert_close(found[1, :1], torch.tensor(_slow(model, hot)[0]).float(), atol=2e-5, rtol=0)


def test_a_model_that_scales_its_logits_is_read_after_the_scaling():
    config = GraniteConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, logits_scaling=4.0,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        granite = GraniteForCausalLM(config).eval()
    initialise(granite, seed=1, std=0.5)
    assert body_and_head(granite) == (None, None)
    segments = _segments(0.7)
    found = token_logprobs(granite, collate(segments)).logprobs
    slow = pad_rows([_slow(granite, s)[0] for s in segments], torch.float32)
    assert_close(found, slow, atol=2e-5, rtol=0)


def test_o31_what_fills_the_padding_changes_no_bit(model):
    segments = _segments()
    losses = []
    for pad in (0, 7, VOCAB - 1):
        model.zero_grad()
        loss = token_logprobs(model, collate(segments, pad_id=pad)).logprobs.sum()
        loss.backward()
        losses.append((loss.item(), model.lm_head.weight.grad.clone()))
    assert losses[0][0] == losses[1][0] == losses[2][0]
    # The embedding is tied to the head: padding must add no gradient through it either.
    assert torch.equal(losses[0][1], losses[1][1])
    assert torch.equal(losses[0][1], losses[2][1])


def test_o31_end_token_equal_to_pad_is_trained_and_pads_are_not(model):
    end = 5
    short = make_segment((1, end, 2), (3, end))  # the prompt holds the id, too
    long = make_segment((1, 2, 3, 4, 6, 7, 8), (9, 10, end))
    batch = collate([short, long], pad_id=end)
    assert batch.labels_B_T[batch.mask_B_T].tolist() == [3, end, 9, 10, end]
    assert batch.trained == 5
    assert batch.lengths == (5, 10)
    found = token_logprobs(model, batch).logprobs
    assert_close(found[0, :2], torch.tensor(_slow(model, short)[0]).float(), atol=2e-5, rtol=0)


def test_o29_labels_at_mask_zero_change_nothing_and_get_no_gradient():
    rng = torch.Generator().manual_seed(0)
    segments = _segments()
    batch = collate(segments)
    shape = (*batch.ids_R_L.shape, VOCAB)
    table = TableModel(torch.randn(shape, generator=rng))
    loss = -token_logprobs(table, batch).logprobs.sum()
    loss.backward()
    touched = table.table.grad.abs().sum(-1) > 0
    expected = torch.zeros_like(touched)
    for row, segment in enumerate(segments):
        for place, trained in enumerate(segment.loss_mask):
            expected[row, place - 1] |= trained
    assert torch.equal(touched, expected)
    # The table ignores its input, so only labels can matter: change every untrained one.
    for row, segment in enumerate(segments):
        other = tuple(
            i if trained else (i + 1) % VOCAB
            for i, trained in zip(segment.ids, segment.loss_mask, strict=True)
        )
        segments[row] = Segment(
            other, segment.loss_mask, segment.token_turn, segment.logprobs, segment.temperature
        )
    again = -token_logprobs(table, collate(segments)).logprobs.sum()
    assert again.item() == loss.item()


def test_nothing_trained_gives_exact_zero_and_zero_gradient(model):
    model.zero_grad()
    segment = make_segment((1, 2, 3), (4, 5), mask=(False, False))
    found = token_logprobs(model, collate([segment, segment]), entropy=True)
    assert found.logprobs.shape == (2, 0)
    loss = found.logprobs.sum() + found.entropy.sum()
    loss.backward()
    assert loss.item() == 0.0
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_head_sees_only_positions_that_predict_a_trained_token(model):
    seen = []
    handle = model.lm_head.register_forward_hook(lambda _m, _a, out: seen.append(out.shape))
    try:
        batch = collate(_segments())
        body_and_head(model)  # the one-off probe is not what is counted
        seen.clear()
        token_logprobs(model, batch)
    finally:
        handle.remove()
    assert seen == [(batch.trained, VOCAB)]


def test_pieces_of_the_head_give_the_same_values_and_gradients(model, monkeypatch):
    batch = collate(_segments(0.8))

    def run():
        model.zero_grad()
        found = token_logprobs(model, batch, entropy=True)
        (found.logprobs.sum() + 0.3 * found.entropy.sum()).backward()
        return found, [p.grad.clone() for p in model.parameters()]

    whole, grads = run()

    monkeypatch.setattr(policy, "_CHUNK_LOGITS", 3 * VOCAB)
    monkeypatch.setattr(torch, "get_rng_state", _unread)
    pieces, others = run()
    assert_close(pieces.logprobs, whole.logprobs, atol=1e-5, rtol=0)
    assert_close(pieces.entropy, whole.entropy, atol=1e-5, rtol=0)
    for left, right in zip(grads, others, strict=True):
        assert_close(left, right, atol=1e-4, rtol=1e-4)


def test_of_a_large_vocabulary_only_a_piece_has_logits_at_a_time():
    """Qwen2's 151,936 tokens: no output of the head, and no saved tensor, is of all positions."""
    vocabulary, trained = 151_936, 600
    wide = build_model(
        vocabulary, TinyConfig(hidden_size=8, intermediate_size=8, layers=1, heads=1, kv_heads=1)
    )
    segment = make_segment((1, 2, 3), tuple(range(100, 100 + trained)))
    batch = collate([segment])
    body_and_head(wide)  # the one-off probe is not what is counted
    outputs, saved = [], []
    handle = wide.lm_head.register_forward_hook(lambda _m, _a, out: outputs.append(out.numel()))

    def keep(tensor):
        saved.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = token_logprobs(wide, batch).logprobs.sum()
    handle.remove()
    assert sum(outputs) == trained * vocabulary
    assert max(outputs) <= policy._CHUNK_LOGITS < trained * vocabulary
    # What the backward pass keeps: weights, and states of tokens, never logits.
    assert max(saved) <= vocabulary * 8
    assert sum(n for n in saved if n != vocabulary * 8) < trained * vocabulary / 100
    assert loss.isfinite()


@pytest.mark.parametrize("packed", [False, True])
def test_bfloat16_is_for_forward_passes_alone(packed):
    rounded = build_model(VOCAB, SHAPE, seed=3)
    if packed:
        assert packs(rounded)
    batch = collate(_segments(), packed=packed)
    exact = token_logprobs(rounded, batch, entropy=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = token_logprobs(rounded, batch, entropy=True)
    assert found.logprobs.dtype == found.entropy.dtype == torch.float32
    assert_close(found.logprobs, exact.logprobs, atol=0.5, rtol=0.1)
    assert not torch.equal(found.logprobs, exact.logprobs), "the passes are in bfloat16"
    # bfloat16 has 8 bits: rounded log-probs would be multiples of 2^-8 here.
    assert bool((found.logprobs != found.logprobs.bfloat16().float()).any())
    found.logprobs.sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in rounded.parameters() if p.grad is not None)


@pytest.mark.parametrize("packed", [False, True])
def test_recomputed_layers_give_the_same_gradients_and_draw_nothing(packed, monkeypatch):
    plain, recomputed = (build_model(VOCAB, SHAPE, seed=3) for _ in range(2))
    enable_gradient_checkpointing(recomputed)
    entered = []
    for layer in recomputed.model.layers:
        layer.mlp.register_forward_pre_hook(lambda *_: entered.append(torch.is_grad_enabled()))
    batch = collate(_segments(), packed=packed)
    values, grads, kept = [], [], []
    for one in (plain, recomputed):
        if packed:
            assert packs(one)
        body_and_head(one)
        entered.clear()
        with monkeypatch.context() as patch:
            patch.setattr(torch, "get_rng_state", _unread)
            sizes = []

            def keep(tensor, sizes=sizes):
                sizes.append(tensor.numel())
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                found = token_logprobs(one, batch).logprobs
            before = len(entered)
            found.sum().backward()
        values.append(found.detach())
        grads.append([p.grad.clone() for p in one.parameters()])
        kept.append(sum(sizes))
    assert before == 2, "each layer once"
    assert len(entered) == 4, "and once more in the backward pass"
    assert kept[1] < kept[0] / 2
    assert_close(values[1], values[0], atol=1e-6, rtol=0)
    for left, right in zip(*grads, strict=True):
        assert_close(left, right, atol=1e-5, rtol=1e-5)
    assert not any(m.training for m in recomputed.modules()), "the mode is the caller's again"
    # Nothing is recomputed where nothing is trained.
    entered.clear()
    with torch.no_grad():
        token_logprobs(recomputed, batch)
    assert len(entered) == 2


def _unread(*_):
    raise AssertionError("the global random state was read")


def test_a_model_that_cannot_recompute_is_refused():
    with pytest.raises(ConfigError, match=r"optim\.gradient_checkpointing: TableModel"):
        enable_gradient_checkpointing(TableModel(torch.zeros(1, 2, VOCAB)))


def test_micro_batches_add_up_to_the_whole(model):
    segments = _segments()
    whole = token_logprobs(model, collate(segments)).logprobs.sum()
    parts = [
        token_logprobs(model, collate([segments[i] for i in rows])).logprobs.sum()
        for rows in micro_batches([len(s.ids) for s in segments], 12)
    ]
    assert len(parts) == 3
    assert_close(sum(parts), whole, atol=1e-4, rtol=0)


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 200))
def test_micro_batches_partition_within_the_bound(lengths, bound):
    batches = micro_batches(lengths, bound)
    assert sorted(i for rows in batches for i in rows) == list(range(len(lengths)))
    for rows in batches:
        assert len(rows) == 1 or len(rows) * max(lengths[i] for i in rows) <= bound


def test_behaviour_logprobs_line_up_with_their_tokens():
    segment = make_segment((1, 2), (3, 4, 5), mask=(True, False, True), logprobs=(-1, -2, -3))
    batch = collate([segment, make_segment((1,), (6,), logprobs=(-4,))])
    assert batch.old_B_T.tolist() == [[-1, -3], [-4, 0]]
    assert batch.labels_B_T.tolist() == [[3, 5], [6, 0]]
    assert batch.mask_B_T.tolist() == [[True, True], [True, False]]


def test_evaluation_mode_gives_each_module_its_own_mode_back(model):
    model.train()
    model.model.layers[0].eval()
    with evaluation_mode(model):
        assert not any(m.training for m in model.modules())
    assert model.training
    assert not model.model.layers[0].training
    model.eval()


def test_empty_batch_is_refused():
    with pytest.raises(ValueError, match="empty list"):
        collate([])
