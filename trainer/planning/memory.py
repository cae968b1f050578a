"""Bytes on the device while a run samples and while it learns, and on disk."""

from __future__ import annotations

import math
from typing import Any

from trainer.config import Config
from trainer.config.stopping import evaluation_saves
from trainer.planning.accounting import ModelShape, memory_of
from trainer.planning.load import Load, in_chat

__all__ = [
    "checkpoint_bytes",
    "critic_bytes",
    "disk_bytes",
    "kv_bytes",
    "memory_settings",
    "rollout_bytes",
    "rows_at_once",
    "update_bytes",
]

_DRAW_BYTES = 24
"""A logit's log-prob, probability and the sum up to it, in float64 (`trainer.generation.draw`)."""


def memory_settings(config: Config) -> dict[str, Any]:
    """Arguments of `trainer.planning.accounting.memory_of` besides the micro-batch."""
    return {
        "bf16": config.run.dtype == "bfloat16",
        "optimizer": config.optim.optimizer,
        "checkpointing": config.optim.gradient_checkpointing,
        "lora_rank": config.lora.rank,
        "reference": config.objective.kl_coef > 0,
        "both_gradients": config.auxiliary.measure_gradients
        and any(section.weight > 0 for _, section in config.auxiliary.active()),
    }


def micro_batch(config: Config, load: Load) -> int:
    """Tokens that the largest micro-batch runs: one that is longer than allowed goes alone."""
    return min(max(config.optim.micro_batch_tokens, load.length), load.tokens)


def critic_bytes(config: Config, shape: ModelShape) -> int:
    """Bytes that the value model keeps: float32 weights and two moments."""
    return 12 * shape.parameters if config.objective.has_critic else 0


def update_bytes(config: Config, shape: ModelShape, load: Load) -> dict[str, int]:
    """Bytes on the device while an update runs, by what they are for."""
    tokens = micro_batch(config, load)
    found = memory_of(shape, tokens, _trained(load, tokens), **memory_settings(config))
    critic = critic_bytes(config, shape)
    return {
        "weights": found.weights,
        **_copies(config, shape, found.copies),
        # Policy and critic step one after the other; the critic's gradients are counted too.
        "gradients": found.gradients + critic // 3,
        "optimiser": found.moments,
        **({"critic": critic} if critic else {}),
        "activations of a micro-batch": found.activations + found.one_layer + found.rounded,
        "logits of a piece": found.logits,
    }


def _copies(config: Config, shape: ModelShape, whole: int) -> dict[str, int]:
    """The copies of `memory_of` by what they are for."""
    kept = config.objective.kl_coef > 0 and not config.lora.rank
    reference = shape.parameters * (2 if config.run.dtype == "bfloat16" else 4) * kept
    return {"reference": reference, "sampler's copy": whole - reference}


def rollout_bytes(config: Config, shape: ModelShape, load: Load) -> dict[str, int]:
    """Bytes while replies are sampled; moments stay, gradients do not."""
    found = memory_of(shape, 1, 1, **memory_settings(config))
    half = config.run.dtype == "bfloat16"
    rows = rows_at_once(config, load)
    served = config.sampler.backend == "vllm"  # in memory of the server's own
    logit = _DRAW_BYTES + (2 if half else 4)
    return {
        "weights": found.weights,
        **_copies(config, shape, found.copies),
        "optimiser": found.moments,
        **({"critic": critic_bytes(config, shape)} if config.objective.has_critic else {}),
        "KV cache": 0 if served else _cached(config, load) * kv_bytes(shape, half),
        "logits of a step": 0 if served else rows * shape.vocab * logit,
    }


def rows_at_once(config: Config, load: Load) -> int:
    """Episodes for which a token is sampled in one pass of `hf` or `hf-cb`."""
    return max(1, min(load.trajectories, config.sampler.max_batch_tokens // load.length))


def kv_bytes(shape: ModelShape, half: bool) -> int:
    """Of one token: a key and a value in every layer."""
    return 2 * shape.layers * shape.keys * (2 if half else 4)


def _cached(config: Config, load: Load) -> int:
    """Tokens whose keys and values are kept at a time."""
    s = config.sampler
    batch = min(max(s.max_batch_tokens, load.length), load.trajectories * load.length)
    if s.backend == "hf-cb":
        return min(s.cache_tokens, load.trajectories * load.length)
    if not in_chat(config):
        return batch
    return batch + min(s.cache_tokens, load.trajectories * load.length)


def _trained(load: Load, tokens: int) -> int:
    return -(-tokens * load.trained // load.tokens)


def checkpoint_bytes(config: Config, shape: ModelShape) -> int:
    """Bytes of one checkpoint: float32 weights, moments, adapters, critic."""
    found = memory_of(shape, 1, 1, **memory_settings(config))
    adapters = shape.adapters(config.lora.rank) if config.lora.rank else 0
    critic = critic_bytes(config, shape)
    return 4 * shape.parameters + 4 * adapters + found.moments + critic


def disk_bytes(config: Config, shape: ModelShape, checkpoint: int) -> int:
    """Bytes of the initial policy and of all checkpoints that stay."""
    run = config.run
    every = [run.checkpoint_every, config.eval.every if evaluation_saves(config) else 0]
    periods = [period for period in every if period]
    made = sum(run.iterations // period for period in periods)
    if len(periods) == 2:
        made -= run.iterations // math.lcm(*periods)
    # The last iteration always has one.
    made += bool(run.iterations) and all(run.iterations % period for period in periods)
    most = {"last": 1, "best+last": 2}.get(str(getattr(run, "keep", "all")), made)
    return 4 * shape.parameters + min(made, most) * checkpoint
