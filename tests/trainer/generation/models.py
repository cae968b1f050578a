"""Tiny models of several architectures, and requests to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from trainer.generation.base import Generation, GenerationRequest
from trainer.models.policy import collate, token_logprobs
from trainer.models.tiny import TinyConfig, build_model, initialise
from trainer.rng import stream
from trainer.rollouts.data import make_segment

VOCAB, END = 23, 22
SHAPE = TinyConfig(
    hidden_size=32, intermediate_size=48, layers=2, heads=4, kv_heads=2, init_std=0.5
)


def lean() -> Any:
    """Qwen2, which takes the short way."""
    return build_model(VOCAB, SHAPE, seed=1)


def rotary() -> Any:
    """Llama: position-free, but not known to the short way."""
    with torch.random.fork_rng(devices=[]):
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
            )
        )  # fmt: skip
    initialise(model, seed=3, std=0.5)
    return model.eval()


def learned() -> Any:
    """GPT-2: learned positions, so nothing can join a running batch."""
    with torch.random.fork_rng(devices=[]):
        model = GPT2LMHeadModel(
            GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=256)
        )
    initialise(model, seed=2, std=0.3)
    return model.eval()


KINDS: dict[str, Callable[[], Any]] = {"lean": lean, "rotary": rotary, "learned": learned}


def prompts(count: int, longest: int = 30) -> list[list[int]]:
    draws = np.random.default_rng(11)
    sizes = draws.integers(1, longest, size=count)
    rows = [[int(i) for i in draws.integers(0, VOCAB, size=n)] for n in sizes]
    rows[0] = [END, 3, END, END]  # the end id inside a prompt is a token like any other
    rows[-1] = list(rows[1])
    return rows


def requests(rows: Sequence[Sequence[int]], **settings: Any) -> list[GenerationRequest]:
    """Fresh streams every time, so that the same request can be made again."""
    return [
        GenerationRequest(row, stream(0, rollout=i), **{"max_new_tokens": 12, **settings})
        for i, row in enumerate(rows)
    ]


def drained(sampler: Any) -> dict[int, Generation]:
    found: dict[int, Generation] = {}
    while pairs := sampler.collect():
        found |= dict(pairs)
    return found


def recomputed(
    model: Any, rows: Sequence[Sequence[int]], replies: Sequence[Generation], temperature: float
) -> list[list[float]]:
    """The trainer's log-probs of sampled replies."""
    segments = [
        make_segment(list(row), r.ids, logprobs=r.logprobs, temperature=temperature)
        for row, r in zip(rows, replies, strict=True)
    ]
    with torch.no_grad():
        values = token_logprobs(model, collate(segments)).logprobs.tolist()
    return [row[: len(r.ids)] for row, r in zip(values, replies, strict=True)]
