"""How much faster a growing conversation is with its keys and values kept between turns."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from trainer.generation.base import GenerationRequest
from trainer.generation.hf import HFSampler
from trainer.models.tiny import TinyConfig, build_model

__all__ = ["Conversation", "measure"]

VOCABULARY = 512
SHAPE = TinyConfig(
    hidden_size=320, intermediate_size=1024, layers=7, heads=8, kv_heads=4, max_positions=4096
)
"""9.2 million parameters."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Sizes in tokens, but for `turns` and `rows`, the conversations that run at once."""

    turns: int = 12
    rows: int = 2
    first: int = 256  # rules, task and first observation
    later: int = 64  # an observation and what surrounds it
    reply: int = 8


def measure(
    sizes: Conversation | None = None, *, seed: int = 0, repeats: int = 2
) -> dict[str, float]:
    """Plays the same conversations with and without kept keys and values, on the CPU.

    Replies are greedy and of equal length, so that both ways compute the same replies.

    Args:
        sizes: None: the defaults.
        seed: of weights and tokens.
        repeats: of each way, in turn; the fastest counts.

    Returns:
        `ratio` of the times, `with_s` and `without_s` of one pass in seconds, `parameters`, and
        `same`: 1 if both ways gave the same replies.
    """
    sizes = Conversation() if sizes is None else sizes
    model = build_model(VOCABULARY, SHAPE, seed=seed)
    seconds: dict[int, list[float]] = {0: [], 1 << 20: []}
    replies: dict[int, list[tuple[int, ...]]] = {}
    for _ in range(repeats):
        for kept in seconds:
            # No token ends a reply: the stop id lies outside the vocabulary.
            sampler = HFSampler(model, [VOCABULARY], session_tokens=kept)
            start = time.perf_counter()
            replies[kept] = _converse(sampler, sizes, seed)
            seconds[kept].append(time.perf_counter() - start)
    without_s, with_s = (min(times) for times in seconds.values())
    plain, kept_replies = replies.values()
    return {
        "ratio": without_s / with_s,
        "with_s": with_s,
        "without_s": without_s,
        "parameters": float(sum(p.numel() for p in model.parameters())),
        "same": float(plain == kept_replies),
    }


def _converse(sampler: HFSampler, sizes: Conversation, seed: int) -> list[tuple[int, ...]]:
    """All replies, turn by turn."""
    draws = np.random.default_rng(seed)
    prompts = draws.integers(0, VOCABULARY, (sizes.rows, sizes.first)).tolist()
    found: list[tuple[int, ...]] = []
    for _ in range(sizes.turns):
        requests = [
            GenerationRequest(tuple(p), None, sizes.reply, greedy=True, session=str(row))
            for row, p in enumerate(prompts)
        ]
        later = draws.integers(0, VOCABULARY, (sizes.rows, sizes.later)).tolist()
        for prompt, reply, glue in zip(prompts, sampler.generate(requests), later, strict=True):
            found.append(reply.ids)
            prompt += [*reply.ids, *glue]
    return found
