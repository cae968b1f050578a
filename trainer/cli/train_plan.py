"""`sero train --plan`: the figures of `trainer.planning.plan` as text or as one JSON object."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from trainer.cli.common import printable
from trainer.config import Config
from trainer.planning.accounting import peak_flops
from trainer.planning.advice import remark
from trainer.planning.plan import FREE_SHARE, GB, Device, Plan

__all__ = ["detect", "figures", "lines"]


def detect(config: Config, name: str | None = None, memory_gb: float | None = None) -> Device:
    """The device that is planned for.

    Args:
        name: of a GPU, for its peak; None: that of `run.device` on this machine.
        memory_gb: in 10^9 bytes; None: what `run.device` has, unless another one is named.
    """
    memory = None if memory_gb is None else int(memory_gb * GB)
    if name is not None:
        return Device(name, memory, peak_flops(name))
    found = _here(config.run.device)
    return found if memory is None else Device(found.name, memory, found.peak)


def _here(device: str) -> Device:
    if device == "cpu":
        return Device("cpu", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), None)
    try:
        import torch

        found: Any = torch.cuda.get_device_properties(device)
    except (ImportError, RuntimeError, AssertionError, ValueError):
        return Device(device)
    return Device(str(found.name), int(found.total_memory), peak_flops(str(found.name)))


def figures(plan: Plan) -> dict[str, Any]:
    """The plan as plain data; bytes, FLOPs and seconds."""
    load, shape = plan.load, plan.shape
    return {
        "parameters": shape.parameters,
        "iterations": plan.iterations,
        "tokens": {
            "trajectories": load.trajectories,
            "turns": load.turns,
            "prompt": load.prompt,
            "reply": load.reply,
            "iteration": load.tokens,
            "trained": load.trained,
            "run": load.tokens * plan.iterations,
        },
        "memory": {
            "update": {**plan.update, "total": sum(plan.update.values())},
            "rollout": {**plan.rollout, "total": sum(plan.rollout.values())},
            "peak": plan.peak,
        },
        "device": {
            "name": plan.device.name,
            "memory": plan.device.memory,
            "processes": plan.processes,
            "peak_flops": plan.device.peak,
        },
        "flops": dict(plan.flops),
        "seconds": {**plan.seconds, "iteration": plan.iteration_s},
        "utilisation": {
            "rollout": plan.utilisation.rollout,
            "scoring": plan.utilisation.scoring,
            "update": plan.utilisation.update,
        },
        "disk": {"checkpoint": plan.checkpoint, "run": plan.disk},
        "fits": plan.fits,
        "advice": list(plan.advice),
        "notes": list(plan.notes),
    }


def lines(plan: Plan) -> Iterator[str]:
    """The plan as text."""
    load, shape = plan.load, plan.shape
    yield f"policy: {_count(shape.parameters)} parameters, {shape.layers} layers of {shape.hidden}"
    yield (
        f"tokens: {load.trajectories} trajectories x {load.turns} turns, {load.rows:,} sequences "
        f"of {load.length:,} = {load.tokens:,} an iteration, {load.trained:,} of them replies; "
        f"{load.tokens * plan.iterations:,} in {plan.iterations} iterations"
    )
    yield ""
    yield from _memory(plan.update, plan.rollout)
    yield ""
    yield _verdict(plan)
    for word in plan.advice:
        more = remark(word)
        yield f"  {word}" if more is None else f"  {word}  ({more})"
    yield ""
    yield from _times(plan)
    yield (
        f"disk: {_size(plan.checkpoint)} a checkpoint and {_size(plan.disk)} in all, tokenizers "
        "and recorded turns apart (run.keep says which checkpoints stay)"
    )
    yield from (f"note: {note}" for note in plan.notes)


def _memory(update: Mapping[str, int], rollout: Mapping[str, int]) -> Iterator[str]:
    yield f"{'memory, GB':<30}{'update':>10}{'rollout':>10}"
    for name in dict.fromkeys((*update, *rollout)):
        cells = (f"{part[name] / GB:.3f}" if name in part else "" for part in (update, rollout))
        yield f"{name:<30}" + "".join(f"{cell:>10}" for cell in cells)
    totals = (f"{sum(part.values()) / GB:.3f}" for part in (update, rollout))
    yield f"{'total':<30}" + "".join(f"{cell:>10}" for cell in totals)


def _verdict(plan: Plan) -> str:
    device = plan.device
    name = printable(device.name) or "the device"
    if device.memory is None:
        return f"fits: not known, {name} was not found here. Give its memory: --device-memory-gb N"
    usable = (1 - FREE_SHARE) * device.memory / GB
    each = f" in each of {plan.processes} processes" if plan.processes > 1 else ""
    of = (
        f"{plan.peak / GB:.1f} of {usable:.1f} usable GB of {name} ({device.memory / GB:.1f} GB)"
        f"{each}"
    )
    if plan.fits:
        return f"fits: yes, {of}"
    together = ", all of these together" if len(plan.advice) > 1 else ""
    return f"fits: NO, {of}. What to turn{together}:"


def _times(plan: Plan) -> Iterator[str]:
    device, shares = plan.device, plan.utilisation
    if device.peak is None:
        yield (
            f"time: not known, there is no peak rate for {printable(device.name) or 'it'}; "
            "--device 'NVIDIA H200' names a GPU"
        )
    else:
        each = f" of each of {plan.processes} devices" if plan.processes > 1 else ""
        yield f"time of an iteration, at assumed shares of {device.peak / 1e12:.0f} TFLOP/s{each}"
        assumed = {"rollout": shares.rollout, "scoring": shares.scoring, "update": shares.update}
        for name, seconds in plan.seconds.items():
            yield f"{name:<30}{_seconds(seconds):>10}  at {assumed[name]:.0%}"
        one = plan.iteration_s
        yield f"{'all':<30}{_seconds(one):>10}"
        if one is not None:
            yield f"{'the run':<30}{one * plan.iterations / 3600:>8.1f} h"
    yield f"model FLOPs an iteration: {sum(plan.flops.values()):.3g}"


def _size(count: int) -> str:
    """Bytes for people.

    >>> _size(18_524_571_648), _size(1_400_000_000_000), _size(8_000_000)
    ('18.5 GB', '1.4 TB', '0.008 GB')
    """
    if count >= 1000 * GB:
        return f"{count / (1000 * GB):.3g} TB"
    return f"{count / GB:.3g} GB"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"


def _count(number: int) -> str:
    for size, word in ((10**9, "billion"), (10**6, "million")):
        if number >= size:
            return f"{number / size:.2f} {word}"
    return f"{number:,}"
