"""Promises of the sampler:

1. A row's reply depends on its prompt, its stream and the weights: not on order, neighbours,
   batch size, padding or equal prompts next to it.
2. The log-probs are those of the sampling distribution, for exactly the ids that come back.
3. Nothing is appended; padding follows from lengths, so the pad id may be the end id.
4. Global generators and the model's mode stay as they were.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close
from transformers import GPT2Config, GPT2LMHeadModel, MistralConfig, MistralForCausalLM

from trainer.generation import hf, hf_session
from trainer.generation.base import GenerationRequest, NonFiniteLogitsError
from trainer.generation.hf import HFSampler, invert_cdf
from trainer.models.policy import collate, token_logprobs
from trainer.models.tiny import TinyConfig, build_model, initialise
from trainer.rng import stream
from trainer.rollouts.data import make_segment

SHAPE = TinyConfig(
    hidden_size=32, intermediate_size=48, layers=2, heads=4, kv_heads=2, init_std=0.5
)
VOCAB, END = 23, 22


@pytest.fixture(scope="module")
def qwen():
    return build_model(VOCAB, SHAPE, seed=1)


def _other(kind: str):
    with torch.random.fork_rng(devices=[]):
        if kind == "sliding window":
            model = MistralForCausalLM(
                MistralConfig(
                    vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                    num_attention_heads=4, num_key_value_heads=2, sliding_window=8,
                )
            )  # fmt: skip
        else:
            model = GPT2LMHeadModel(
                GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=64)
            )
    initialise(model, seed=2, std=0.3)
    return model.eval()


def _prompts(count: int = 7) -> list[list[int]]:
    rng = np.random.default_rng(11)
    sizes = rng.integers(1, 30, size=count)
    prompts = [rng.integers(0, VOCAB, size=n).tolist() for n in sizes]
    prompts[0] = [END, 3, END, END]  # the end id inside a prompt is a token like any other
    prompts[-1] = list(prompts[1])  # equal prompts share a prefill
    return prompts


def _requests(prompts, temperature: float = 1.0, tokens: int = 12) -> list[GenerationRequest]:
    return [
        GenerationRequest(p, stream(0, rollout=i), tokens, temperature)
        for i, p in enumerate(prompts)
    ]


def _slow(model, request: GenerationRequest) -> tuple[list[int], list[float]]:
    """The same reply from full forwards over one unpadded row, in plain Python."""
    ids, logprobs = list(request.prompt_ids), []
    start = len(ids)
    while len(ids) - start < request.max_new_tokens and (len(ids) == start or ids[-1] != END):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0, -1].double()
        row = torch.log_softmax(logits / request.temperature, -1)
        if request.greedy:
            token = int(row.argmax())
        else:
            point, token, total = request.rng.random(), 0, 0.0
            for token in range(VOCAB):
                total += float(row[token].exp())
                if total > point:
                    break
        ids.append(token)
        logprobs.append(float(row[token]))
    return ids[start:], logprobs


@pytest.mark.parametrize("kind", ["qwen", "qwen left", "sliding window", "learned positions"])
@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_replies_equal_the_slow_loop(qwen, kind, temperature, monkeypatch):
    if kind == "qwen left":
        for module in (hf, hf_session):
            monkeypatch.setattr(module, "position_free", lambda *_: False)
    model = qwen if kind.startswith("qwen") else _other(kind)
    prompts = _prompts()
    found = HFSampler(model, [END], pad_id=END).generate(_requests(prompts, temperature))
    for reply, request in zip(found, _requests(prompts, temperature), strict=True):
        ids, logprobs = _slow(model, request)
        assert list(reply.ids) == ids
        np.testing.assert_allclose(reply.logprobs, logprobs, atol=2e-5)


def test_padding_side_follows_the_architecture(qwen):
    sides = [
        hf_session.ModelSession(m, [[1, 2]], 0).right
        for m in (qwen, _other("sliding window"), _other("learned positions"))
    ]
    assert sides == [True, False, False]


def test_order_and_size_of_the_batch_change_nothing(qwen):
    prompts = _prompts(9)
    base = HFSampler(qwen, [END]).generate(_requests(prompts))
    assert len({len(r.ids) for r in base}) > 1  # rows do finish at different steps
    order = [4, 0, 8, 2, 6, 1, 7, 3, 5]
    requests = _requests(prompts)
    shuffled = HFSampler(qwen, [END]).generate([requests[i] for i in order])
    for place, i in enumerate(order):
        assert shuffled[place].ids == base[i].ids
    for bound in (1, 90):
        split = HFSampler(qwen, [END], max_batch_tokens=bound).generate(_requests(prompts))
        assert [r.ids for r in split] == [r.ids for r in base]


def test_rows_with_bounds_of_their_own(qwen):
    prompts = _prompts()
    bounds = [1, 2, 12, 3, 1, 7, 5]
    requests = [
        GenerationRequest(p, stream(0, rollout=i), n)
        for i, (p, n) in enumerate(zip(prompts, bounds, strict=True))
    ]
    found = HFSampler(qwen, [END]).generate(requests)
    whole = HFSampler(qwen, [END]).generate(_requests(prompts))
    for reply, other, bound in zip(found, whole, bounds, strict=True):
        assert reply.ids == other.ids[:bound]
        stopped = reply.ids[-1] == END
        assert reply.finish_reason == ("stop" if stopped else "length")
        assert END not in reply.ids[:-1]


def test_equal_prompts_are_prefilled_once_but_sampled_apart(qwen):
    rows = []
    handle = qwen.model.embed_tokens.register_forward_hook(
        lambda _m, args, _o: rows.append(tuple(args[0].shape))
    )
    try:
        prompts = [[1, 2, 3]] * 4 + [[5]]
        found = HFSampler(qwen, [END]).generate(_requests(prompts))
    finally:
        handle.remove()
    assert rows[0] == (2, 3)
    assert rows[1][0] <= 5
    assert len({r.ids for r in found[:4]}) > 1


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_o26_first_ratio_is_one_and_the_second_epoch_moves(temperature):
    model = build_model(VOCAB, SHAPE, seed=4)
    prompts = _prompts()
    found = HFSampler(model, [END]).generate(_requests(prompts, temperature))
    batch = collate(
        [
            make_segment(p, r.ids, logprobs=r.logprobs, temperature=temperature)
            for p, r in zip(prompts, found, strict=True)
        ]
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def ratio():
        new = token_logprobs(model, batch).logprobs
        return new, torch.exp(new - batch.old_B_T)[batch.mask_B_T]

    new, first = ratio()
    assert_close(new, batch.old_B_T, atol=1e-4, rtol=0)
    assert ((first - 1).abs() > 0.2).float().mean() == 0
    assert_close(first, torch.ones_like(first), atol=1e-4, rtol=0)
    new.sum().neg().backward()
    optimizer.step()
    second = ratio()[1]
    assert ((second - 1).abs() > 1e-3).any()


@pytest.mark.parametrize("way", ["lean", "right", "left"])
def test_o31_greedy_prompts_of_3_and_40_tokens_batched_and_alone(qwen, way, monkeypatch):
    if way != "lean":  # whose own passes would be taken else
        monkeypatch.setattr(hf, "lean_of", lambda _: None)
    if way == "left":
        for module in (hf, hf_session):
            monkeypatch.setattr(module, "position_free", lambda *_: False)
    rng = np.random.default_rng(2)
    prompts = [rng.integers(0, VOCAB, size=n).tolist() for n in (3, 40)]
    prompts[0][1] = END
    requests = [GenerationRequest(p, None, 20, greedy=True) for p in prompts]
    sampler = HFSampler(qwen, [END], pad_id=END)
    batched = [r.ids for r in sampler.generate(requests)]
    alone = [sampler.generate([r])[0].ids for r in requests]
    assert batched == alone
    assert [list(ids) for ids in batched] == [_slow(qwen, r)[0] for r in requests]


def test_greedy_and_sampled_rows_mix_and_greedy_draws_nothing(qwen):
    rng = stream(1)
    state = rng.bit_generator.state["state"]["counter"].tolist()
    greedy = GenerationRequest([1, 2], rng, 6, greedy=True)
    sampled = GenerationRequest([1, 2], stream(0), 6, 3.0)
    mixed = HFSampler(qwen, [END]).generate([greedy, sampled])
    assert rng.bit_generator.state["state"]["counter"].tolist() == state
    assert list(mixed[0].ids) == _slow(qwen, greedy)[0]
    again = GenerationRequest([1, 2], stream(0), 6, 3.0)
    assert list(mixed[1].ids) == _slow(qwen, again)[0]


def test_one_uniform_a_token(qwen):
    rng = stream(9)
    reply = HFSampler(qwen, [END]).generate([GenerationRequest([4, 5], rng, 10)])[0]
    twin = stream(9)
    twin.random(len(reply.ids))
    assert rng.random() == twin.random()


def test_samples_follow_the_distribution(qwen):
    count, prompt = 4000, [7, 1, 3]
    with torch.no_grad():
        logits = qwen(input_ids=torch.tensor([prompt])).logits[0, -1].double()
    probs = torch.softmax(logits / 1.7, -1).numpy()
    requests = [GenerationRequest(prompt, stream(0, rollout=i), 1, 1.7) for i in range(count)]
    ids = [r.ids[0] for r in HFSampler(qwen, [END]).generate(requests)]
    counts = np.bincount(ids, minlength=VOCAB)
    error = np.abs(counts - count * probs) / np.sqrt(count * probs * (1 - probs) + 1)
    assert error.max() < 5


def test_inverse_cdf_by_hand():
    probs = torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]], dtype=torch.float64)
    points = {0.0: 1, 0.2499: 1, 0.25: 3, 0.7499: 3, 0.75: 4, 0.9999999: 4}
    for point, token in points.items():
        assert invert_cdf(probs, torch.tensor([point], dtype=torch.float64)).item() == token


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=20).filter(lambda p: sum(p) > 0),
    st.floats(0, 1, exclude_max=True),
)
def test_inverse_cdf_never_draws_the_impossible(weights, point):
    probs = torch.tensor([weights], dtype=torch.float64)
    for scaled in (probs, probs / probs.sum()):
        if not scaled.isfinite().all() or scaled.sum() == 0:
            continue
        index = invert_cdf(scaled, torch.tensor([point], dtype=torch.float64)).item()
        assert scaled[0, index] > 0


def test_inverse_cdf_at_the_last_float_below_one():
    point = torch.tensor([1 - 2**-53], dtype=torch.float64)
    probs = torch.tensor([[0.1] * 10 + [0.0]], dtype=torch.float64)
    assert invert_cdf(probs, point).item() == 9


def test_mode_and_global_generators_are_untouched():
    model = build_model(VOCAB, SHAPE, seed=1)
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    model.train()
    before = torch.get_rng_state()
    found = HFSampler(model, [END]).generate(_requests(_prompts()))
    assert model.training
    assert torch.equal(before, torch.get_rng_state())
    same = HFSampler(build_model(VOCAB, SHAPE, seed=1), [END]).generate(_requests(_prompts()))
    assert [r.ids for r in found] == [r.ids for r in same]
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_logits_that_are_not_finite_are_an_error():
    model = build_model(VOCAB, SHAPE, seed=1)
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(NonFiniteLogitsError, match="request 0, with a prompt of 2 tokens"):
        HFSampler(model, [END]).generate(_requests([[1, 2]]))


def test_impossible_requests_are_refused(qwen):
    sampler = HFSampler(qwen, [END])
    cases = {
        "prompt_ids is empty": GenerationRequest([], stream(0)),
        "max_new_tokens is 0": GenerationRequest([1], stream(0), 0),
        "temperature is 0": GenerationRequest([1], stream(0), 4, 0.0),
        "needs its own rng": GenerationRequest([1]),
    }
    for message, request in cases.items():
        with pytest.raises(ValueError, match=message):
            sampler.generate([request])
    with pytest.raises(ValueError, match="stop_ids is empty"):
        HFSampler(qwen, [])
    assert sampler.generate([]) == []
