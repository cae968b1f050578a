"""Conversations: the same replies with and without kept keys and values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.generation import models
from trainer.generation.base import Generation, GenerationRequest
from trainer.generation.hf import HFSampler
from trainer.generation.sessions import Prefix, PrefixStore, common_prefix
from trainer.models.policy import body_and_head
from trainer.rng import stream

END = models.END


def _talk(
    model: Any,
    *,
    kept: int,
    greedy: bool = False,
    turns: int = 5,
    episodes: int = 4,
    tokens: list[int] | None = None,
) -> list[list[Generation]]:
    """Several growing conversations at once; `tokens` counts what the model computes."""
    sampler = HFSampler(model, [END], pad_id=END, session_tokens=kept, join_share=0.3)
    draws = np.random.default_rng(5)
    glue = draws.integers(0, models.VOCAB, size=(episodes, turns, 9)).tolist()
    prompts = [list(glue[e][0][: 4 + e]) for e in range(episodes)]
    replies: list[list[Generation]] = [[] for _ in range(episodes)]
    embed = model.get_input_embeddings()
    count: list[int] = [] if tokens is None else tokens
    handle = embed.register_forward_hook(lambda _m, a, _o: count.append(a[0].numel()))

    def ask(episode: int) -> None:
        sampler.submit(
            episode,
            GenerationRequest(
                prompts[episode],
                stream(0, rollout=episode, turn=len(replies[episode])),
                10,
                0.8,
                greedy,
                session=f"episode {episode}",
            ),
        )

    for episode in range(episodes):
        ask(episode)
    try:
        while pairs := sampler.collect():
            for episode, reply in pairs:
                replies[episode].append(reply)
                if len(replies[episode]) < turns:
                    prompts[episode] += [*reply.ids, *glue[episode][len(replies[episode])]]
                    ask(episode)
    finally:
        handle.remove()
    assert sampler.store.tokens <= kept
    return replies


@pytest.mark.parametrize("kind", list(models.KINDS))
@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("kept", [10000, 60])
def test_replies_are_the_same_with_and_without(kind: str, greedy: bool, kept: int) -> None:
    model = models.KINDS[kind]()
    body_and_head(model)  # tries the model out once; not to be counted
    without: list[int] = []
    with_all: list[int] = []
    plain = _talk(model, kept=0, greedy=greedy, tokens=without)
    found = _talk(model, kept=kept, greedy=greedy, tokens=with_all)
    for a, b in zip(plain, found, strict=True):
        assert [r.ids for r in a] == [r.ids for r in b]
        for x, y in zip(a, b, strict=True):
            np.testing.assert_allclose(x.logprobs, y.logprobs, atol=1e-4)
    if kind == "learned":
        assert sum(with_all) == sum(without), "nothing can be reused"
    else:
        assert sum(with_all) < sum(without) * (0.6 if kept == 10000 else 1)


@pytest.mark.parametrize("kind", ["lean", "rotary"])
def test_only_the_common_prefix_is_reused(kind: str) -> None:
    model = models.KINDS[kind]()
    sampler = HFSampler(model, [END])
    first = [1, 2, 3, 4, 5, 6]
    sampler.generate([GenerationRequest(first, None, 4, greedy=True, session="a")])
    for prompt in ([1, 2, 3, 9, 9], [8, 1], first, first[:3], [1]):
        request = GenerationRequest(prompt, None, 6, greedy=True)
        named = GenerationRequest(prompt, None, 6, greedy=True, session="a")
        assert sampler.generate([named])[0].ids == sampler.generate([request])[0].ids


@pytest.mark.parametrize("kind", ["lean", "rotary"])
@pytest.mark.parametrize("told", [False, True])
def test_new_weights_forget_conversations(kind: str, told: bool) -> None:
    model = models.KINDS[kind]()
    sampler = HFSampler(model, [END])
    ask = GenerationRequest([1, 2, 3, 4], None, 6, greedy=True, session="a")
    sampler.generate([ask])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.3)
    model(input_ids=torch.tensor([[1, 2, 3]])).logits.sum().backward()
    optimizer.step()
    if told:
        sampler.refresh()
        assert sampler.store.tokens == 0
    fresh = HFSampler(model, [END]).generate([ask])[0]
    again = sampler.generate([ask])[0]
    assert again.ids == fresh.ids
    np.testing.assert_allclose(again.logprobs, fresh.logprobs, atol=1e-5)


def _prefix(*ids: int) -> Prefix:
    tensor = torch.arange(len(ids), dtype=torch.float32)[None, :, None]
    return Prefix(ids, ((tensor, tensor + 1),))


def test_the_store_keeps_to_its_budget_and_drops_the_least_recently_used() -> None:
    store = PrefixStore(6)
    store.put("a", _prefix(1, 2))
    store.put("b", _prefix(1, 2))
    store.put("c", _prefix(1, 2))
    assert store.find("a", [1, 2, 3]) is not None  # a is the most recent now
    store.put("d", _prefix(1))
    assert (len(store), store.tokens) == (3, 5)
    assert store.find("b", [1, 2, 3]) is None
    store.put("a", _prefix(1, 2, 3))
    assert store.tokens == 6
    store.put("huge", _prefix(*range(7)))
    assert store.find("huge", list(range(9))) is None
    assert store.tokens == 6
    store.clear()
    assert (len(store), store.tokens) == (0, 0)
    with pytest.raises(ValueError, match="max_tokens is -1"):
        PrefixStore(-1)


def test_a_found_prefix_leaves_a_token_to_compute() -> None:
    store = PrefixStore(10)
    store.put("a", _prefix(4, 5, 6))
    found = store.find("a", [4, 5, 6])
    assert found is not None
    assert found.ids == (4, 5)
    assert found.layers[0][0].shape == (1, 2, 1)
    assert store.find("a", [4]) is None
    assert store.find("a", [9, 9]) is None
    assert common_prefix([1, 2], [1, 2, 3]) == 2
    assert common_prefix([], [1]) == 0
