"""Which settings make a run fit a device that it does not fit as it stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import util
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

__all__ = ["FREE_SHARE", "GB", "advice", "budget_of", "needs", "remark"]

GB = 10**9
FREE_SHARE = 0.1
"""Of a device's memory, left to its driver, the allocator's gaps and what is not counted."""

_MICRO = "optim.micro_batch_tokens"
_SHARDED = ("weights", "gradients", "optimiser", "critic")
_Change = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Case:
    """A run's sizes, over how many processes it is dealt out, and bytes that each may use."""

    shape: ModelShape
    load: Load
    processes: int
    budget: int

    def update(self, config: Config) -> int:
        return sum(needs(config, self.shape, self.load, self.processes)[0].values())

    def rollout(self, config: Config) -> dict[str, int]:
        return needs(config, self.shape, self.load, self.processes)[1]

    def need(self, config: Config) -> int:
        return max(self.update(config), sum(self.rollout(config).values()))


_Knob = Callable[[Config, _Case], _Change]


def budget_of(memory: int) -> int:
    """Bytes of a device that a run may use."""
    return int((1 - FREE_SHARE) * memory)


def needs(
    config: Config, shape: ModelShape, load: Load, processes: int = 1
) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes of the update and of sampling on one of so many processes, by what they are for.

    Each has its part of the trajectories. With `parallel.mode: fsdp` (torch's `fully_shard`) it
    also has its part of weights, gradients and moments, for a time one decoder layer and the
    embeddings whole with their gradients, and a whole copy that samples. With `ddp`
    all of it is whole everywhere.
    """
    if processes > 1:
        mine = -(-load.trajectories // processes)
        load = replace(load, trajectories=mine, rows=mine * (load.rows // load.trajectories))
    update, rollout = update_bytes(config, shape, load), rollout_bytes(config, shape, load)
    if processes == 1 or config.parallel.mode != "fsdp":
        return update, rollout
    for part in (update, rollout):
        for name in _SHARDED:
            if name in part:
                part[name] = -(-part[name] // processes)
        if config.run.dtype != "bfloat16":
            part["sampler's copy"] += 4 * shape.parameters
    tables = shape.vocab * shape.hidden * (1 if shape.tied else 2)
    update["gathered layer and embeddings"] = 8 * (shape.layer_matrices + tables)
    return update, rollout


def advice(
    config: Config, shape: ModelShape, load: Load, memory: int, processes: int = 1
) -> tuple[str, ...]:
    """Settings with which the run fits a device of so many bytes, as command-line options.

    The first of `_KNOBS`, one after the other, until it fits: all of them together are needed. Or a
    sentence that none is enough.
    """
    case = _Case(shape, load, processes, budget_of(memory))
    now, chosen = config, dict[str, Any]()
    for knob in _KNOBS:
        change = knob(now, case)
        if not change:
            continue
        try:
            now = now.replace(**change)
        except ConfigError:  # another setting excludes it
            continue
        chosen |= change
        if case.need(now) <= case.budget:
            return _options(_relaxed(config, chosen, case))
    tried, least = " ".join(_options(chosen)), case.need(now)
    more = "" if processes > 1 else ", or more devices (--parallel.mode fsdp, --processes N)"
    return (
        f"{'even with ' + tried if tried else 'as it stands'} it takes {least / GB:.1f} GB: choose "
        f"a smaller model, or a device of {least / (1 - FREE_SHARE) / GB:.0f} GB or more{more}",
    )


def remark(option: str) -> str | None:
    """What else one has to know of an option of `advice`."""
    name, _, value = option.partition(" ")
    if option == "--optim.optimizer adamw_8bit":
        here = "" if util.find_spec("bitsandbytes") else ", which this machine does not have"
        return f"needs bitsandbytes{here}: pip install bitsandbytes"
    if option == "--optim.optimizer adafactor":
        return (
            "its optim.lr is relative to the size of the weights, so it means something else than "
            "AdamW's: choose it anew (torch's default: 1e-2)"
        )
    if name == "--lora.rank" and value != "0":
        return "trains adapters and nothing else, usually with a larger optim.lr; needs peft"
    if name == "--auxiliary.measure_gradients":
        return "the norms of base and auxiliary gradients are then not told apart"
    return None


def _relaxed(config: Config, chosen: _Change, case: _Case) -> _Change:
    """`chosen` without what the others made needless, and with cuts as small as they may be."""
    for key in tuple(chosen):
        rest = {name: value for name, value in chosen.items() if name != key}
        now = config.replace(**rest)
        if case.need(now) <= case.budget:
            chosen = rest
        elif key in _CUTS:
            chosen = {**_CUTS[key](now, case), **rest}
    return chosen


def _options(change: _Change) -> tuple[str, ...]:
    return tuple(f"--{key} {str(value).lower()}" for key, value in change.items())


def _smaller_cache(config: Config, case: _Case) -> _Change:
    """Fewer keys and values, where sampling is what does not fit."""
    found = case.rollout(config)
    over = sum(found.values()) - case.budget
    if over <= 0 or config.sampler.backend == "vllm":
        return {}
    half = config.run.dtype == "bfloat16"
    room = (found["KV cache"] - over) // kv_bytes(case.shape, half)
    chat = in_chat(config)
    floor = case.load.length
    if config.sampler.backend == "hf-cb":
        return {"sampler.cache_tokens": max(floor, room)}
    if not chat:
        return {"sampler.max_batch_tokens": max(floor, room)}
    cache = max(0, room - config.sampler.max_batch_tokens)
    change: dict[str, Any] = {"sampler.cache_tokens": cache}
    if cache == 0:
        change["sampler.max_batch_tokens"] = max(floor, room)
    return change


def _smaller_micro_batch(config: Config, case: _Case) -> _Change:
    """The largest micro-batch that fits; the length of one sequence where none does."""
    if case.update(config) <= case.budget:
        return {}
    load = case.load
    gone = critic_bytes(config, case.shape) * 4 // 3
    # What other processes hold does not depend on the micro-batch.
    elsewhere = sum(needs(config, case.shape, load)[0].values()) - case.update(config)
    share = load.trained / load.tokens
    tokens = largest_micro_batch(
        case.shape,
        case.budget - gone + elsewhere,
        trained_share=share,
        **memory_settings(config),
    )
    # A round number a little below, but never less than one sequence.
    wanted = max(load.length, tokens // 256 * 256)
    if wanted >= config.optim.micro_batch_tokens:
        return {}
    return {_MICRO: wanted}


def _checkpointing(config: Config, case: _Case) -> _Change:
    if case.update(config) <= case.budget:
        return {}
    return {} if config.optim.gradient_checkpointing else {"optim.gradient_checkpointing": True}


def _one_gradient(config: Config, case: _Case) -> _Change:
    if case.update(config) <= case.budget:
        return {}
    return (
        {"auxiliary.measure_gradients": False} if memory_settings(config)["both_gradients"] else {}
    )


def _eight_bit(config: Config, case: _Case) -> _Change:
    """AdamW with moments of one byte, which keeps the meaning of the learning rate."""
    fits = config.optim.optimizer == "adamw" and config.run.device.startswith("cuda")
    return {"optim.optimizer": "adamw_8bit"} if fits and not config.lora.rank else {}


def _small_moments(config: Config, case: _Case) -> _Change:
    whole = config.optim.optimizer in ("adamw", "adamw_8bit") and not config.lora.rank
    return {"optim.optimizer": "adafactor"} if whole else {}


def _adapters(config: Config, case: _Case) -> _Change:
    if config.lora.rank or config.objective.has_critic:
        return {}
    return {"lora.rank": 32}


# What costs least first: speed, then figures, then the optimiser, then what is trained.
_KNOBS: tuple[_Knob, ...] = (
    _smaller_cache,
    _smaller_micro_batch,
    _checkpointing,
    _one_gradient,
    _eight_bit,
    _small_moments,
    _adapters,
)

_CUTS: Mapping[str, _Knob] = {
    _MICRO: _smaller_micro_batch,
    "sampler.max_batch_tokens": _smaller_cache,
    "sampler.cache_tokens": _smaller_cache,
}
"""Settings with many values: what they are cut to depends on what else is set."""
