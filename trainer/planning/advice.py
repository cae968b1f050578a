"""Which settings make a run fit a device that it does not fit as it stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainer.config import Config, ConfigError
from trainer.planning.accounting import ModelShape, largest_micro_batch
from trainer.planning.load import Load, in_chat
from trainer.planning.memory import (
    critic_bytes,
    kv_bytes,
    memory_settings,
    rollout_bytes,
    update_bytes,
)

__all__ = ["FREE_SHARE", "GB", "advice", "budget_of"]

GB = 10**9
FREE_SHARE = 0.1
"""Of a device's memory, left to its driver, the allocator's gaps and what is not counted."""

_MICRO = "optim.micro_batch_tokens"
_Change = dict[str, Any]
_Knob = Callable[[Config, ModelShape, Load, int], _Change]


def budget_of(memory: int) -> int:
    """Bytes of a device that a run may use."""
    return int((1 - FREE_SHARE) * memory)


def advice(config: Config, shape: ModelShape, load: Load, memory: int) -> tuple[str, ...]:
    """Settings with which the run fits a device of so many bytes, as command-line options.

    The first of `_KNOBS`, one after the other, until it fits; or a sentence that none is enough.
    """
    budget = budget_of(memory)
    now, chosen = config, dict[str, Any]()
    for knob in _KNOBS:
        change = knob(now, shape, load, budget)
        if not change:
            continue
        try:
            now = now.replace(**change)
        except ConfigError:  # another setting excludes it
            continue
        chosen |= change
        if _need(now, shape, load) <= budget:
            return _options(_relaxed(config, chosen, shape, load, budget))
    tried, least = " ".join(_options(chosen)), _need(now, shape, load)
    return (
        f"{'even with ' + tried if tried else 'as it stands'} it takes {least / GB:.1f} GB: choose "
        f"a smaller model, or a device of {least / (1 - FREE_SHARE) / GB:.0f} GB or more",
    )


def _need(config: Config, shape: ModelShape, load: Load) -> int:
    found = (update_bytes(config, shape, load), rollout_bytes(config, shape, load))
    return max(sum(part.values()) for part in found)


def _relaxed(
    config: Config, chosen: _Change, shape: ModelShape, load: Load, budget: int
) -> _Change:
    """`chosen` without what the others made needless, and with cuts as small as they may be."""
    for key in tuple(chosen):
        rest = {name: value for name, value in chosen.items() if name != key}
        now = config.replace(**rest)
        if _need(now, shape, load) <= budget:
            chosen = rest
        elif key in _CUTS:
            chosen = {**_CUTS[key](now, shape, load, budget), **rest}
    return chosen


def _options(change: _Change) -> tuple[str, ...]:
    return tuple(f"--{key} {str(value).lower()}" for key, value in change.items())


def _smaller_cache(config: Config, shape: ModelShape, load: Load, budget: int) -> _Change:
    """Fewer keys and values, where sampling is what does not fit."""
    found = rollout_bytes(config, shape, load)
    over = sum(found.values()) - budget
    if over <= 0 or config.sampler.backend == "vllm":
        return {}
    half = config.run.dtype == "bfloat16"
    room = (found["KV cache"] - over) // kv_bytes(shape, half)
    chat = in_chat(config)
    floor = load.length
    if config.sampler.backend == "hf-cb":
        return {"sampler.cache_tokens": max(floor, room)}
    if not chat:
        return {"sampler.max_batch_tokens": max(floor, room)}
    cache = max(0, room - config.sampler.max_batch_tokens)
    change: dict[str, Any] = {"sampler.cache_tokens": cache}
    if cache == 0:
        change["sampler.max_batch_tokens"] = max(floor, room)
    return change


def _smaller_micro_batch(config: Config, shape: ModelShape, load: Load, budget: int) -> _Change:
    """The largest micro-batch that fits; the length of one sequence where none does."""
    if sum(update_bytes(config, shape, load).values()) <= budget:
        return {}
    gone = critic_bytes(config, shape) * 4 // 3
    share = load.trained / load.tokens
    tokens = largest_micro_batch(
        shape, budget - gone, trained_share=share, **memory_settings(config)
    )
    # A round number a little below, but never less than one sequence.
    wanted = max(load.length, tokens // 256 * 256)
    if wanted >= config.optim.micro_batch_tokens:
        return {}
    return {_MICRO: wanted}


def _checkpointing(config: Config, shape: ModelShape, load: Load, budget: int) -> _Change:
    if sum(update_bytes(config, shape, load).values()) <= budget:
        return {}
    return {} if config.optim.gradient_checkpointing else {"optim.gradient_checkpointing": True}


def _one_gradient(config: Config, shape: ModelShape, load: Load, budget: int) -> _Change:
    if sum(update_bytes(config, shape, load).values()) <= budget:
        return {}
    return (
        {"auxiliary.measure_gradients": False} if memory_settings(config)["both_gradients"] else {}
    )


def _small_moments(config: Config, shape: ModelShape, load: Load, budget: int) -> _Change:
    small = config.optim.optimizer != "adamw" or config.lora.rank > 0
    return {} if small else {"optim.optimizer": "adafactor"}


def _adapters(config: Config, shape: ModelShape, load: Load, budget: int) -> _Change:
    if config.lora.rank or config.objective.has_critic:
        return {}
    return {"lora.rank": 32}


# What costs least first: speed, then figures, then the optimiser, then what is trained.
_KNOBS = (
    _smaller_cache,
    _smaller_micro_batch,
    _checkpointing,
    _one_gradient,
    _small_moments,
    _adapters,
)

_CUTS: Mapping[str, _Knob] = {
    _MICRO: _smaller_micro_batch,
    "sampler.max_batch_tokens": _smaller_cache,
    "sampler.cache_tokens": _smaller_cache,
}
"""Settings with many values: what they are cut to depends on what else is set."""
