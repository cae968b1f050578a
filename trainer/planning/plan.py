"""What a run will take, before anything is loaded: tokens, memory, time, disk. Arithmetic alone.

Bytes and operations are those of `trainer.planning.accounting`. Token counts are upper bounds
unless they are given: every episode takes all its turns, every prompt and reply is as long as it
may be. Times divide model FLOPs by a share of the device's peak (`Utilisation`), which is an
assumption and printed as one.

Not counted: evaluation, environments, and what auxiliary objectives add.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

from trainer.config import Config
from trainer.planning.accounting import ModelShape, flops_of, shape_of
from trainer.planning.advice import FREE_SHARE, GB, advice, budget_of, needs
from trainer.planning.load import Load, PlanError, load_of
from trainer.planning.memory import checkpoint_bytes, disk_bytes, rows_at_once

__all__ = [
    "FREE_SHARE",
    "GB",
    "SHAPES",
    "Device",
    "Load",
    "Plan",
    "PlanError",
    "Utilisation",
    "load_of",
    "make_plan",
    "shape_for",
]

SHAPES: Mapping[str, ModelShape] = {
    "qwen2.5-1.5b": ModelShape(28, 1536, 12, 2, 128, 8960, 151_936, tied=True, bias=True),
    "qwen2.5-7b": ModelShape(28, 3584, 28, 4, 128, 18_944, 152_064, tied=False, bias=True),
    "smollm2-135m": ModelShape(30, 576, 9, 3, 64, 1536, 49_152, tied=True, bias=False),
}
"""From the models' public config.json."""


@dataclass(frozen=True, slots=True)
class Utilisation:
    """Shares of the peak that passes are assumed to reach. Ours, for one GPU that is kept busy.

    Sampling is bound by memory, not by arithmetic, so its share is small; passes over whole
    sequences reach about as much as well-kept training code reports.
    """

    rollout: float = 0.15
    scoring: float = 0.45
    update: float = 0.45


@dataclass(frozen=True, slots=True)
class Device:
    """Where the run will be: bytes of memory and dense bfloat16 FLOP/s; None: not known."""

    name: str = ""
    memory: int | None = None
    peak: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run will take.

    Attributes:
        update, rollout: bytes on a device by name, while each of the two goes on.
        flops, seconds: of an iteration by phase; a time is None where the peak is not known.
        checkpoint: bytes of one checkpoint without its tokenizer; `disk`: of the whole run.
        fits: None where the device's memory is not known.
        advice: settings that make it fit, or why none does; empty where it fits.
        notes: what is assumed and what is left out.
        processes: that share the run, each with a device; FLOPs are those of all of them.
    """

    shape: ModelShape
    load: Load
    device: Device
    iterations: int
    update: Mapping[str, int]
    rollout: Mapping[str, int]
    flops: Mapping[str, float]
    seconds: Mapping[str, float | None]
    checkpoint: int
    disk: int
    fits: bool | None
    advice: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    utilisation: Utilisation = field(default_factory=Utilisation)
    processes: int = 1

    @property
    def peak(self) -> int:
        """Bytes at the highest."""
        return max(sum(self.update.values()), sum(self.rollout.values()))

    @property
    def iteration_s(self) -> float | None:
        times = [value for value in self.seconds.values() if value is not None]
        return sum(times) if len(times) == len(self.seconds) else None


def shape_for(config: Config, preset: str | None = None) -> ModelShape:
    """Sizes of the policy: a preset's, those of `model.path`, or of the config's own tiny model.

    Raises:
        PlanError: there is no such preset, or no readable config.json.
        AccountingError: a model of another kind.
    """
    if preset is not None:
        if preset not in SHAPES:
            raise PlanError(f"--shape {preset!r} must be one of {', '.join(SHAPES)}.")
        return SHAPES[preset]
    m = config.model
    if m.path is None:
        # A tokenizer of a small text has fewer entries: the vocabulary is an upper bound.
        return ModelShape(
            m.layers, m.hidden_size, m.heads, m.kv_heads, m.hidden_size // m.heads,
            m.intermediate_size, m.vocab_size, tied=True, bias=True,
        )  # fmt: skip
    file = Path(m.path) / "config.json"
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PlanError(
            f"The sizes of the model cannot be read: {error}. Give its folder, --model.path "
            f"FOLDER, or its sizes, --shape {'|'.join(SHAPES)}."
        ) from error
    if not isinstance(data, dict):
        raise PlanError(f"{file} holds no mapping but {type(data).__name__}.")
    return shape_of(SimpleNamespace(**data))


def make_plan(
    config: Config,
    shape: ModelShape,
    load: Load,
    device: Device | None = None,
    utilisation: Utilisation | None = None,
    processes: int = 1,
) -> Plan:
    """The plan of a run of `config` with a policy of these sizes.

    Args:
        device: that of each process.
        processes: how many share the run.

    Raises:
        PlanError: less than one process, or several and `parallel.mode` is none.
    """
    if processes < 1:
        raise PlanError(f"--processes {processes} must be 1 or more.")
    if processes > 1 and config.parallel.mode == "none":
        raise PlanError(
            f"--processes {processes} with parallel.mode=none: each would train alone. Add "
            "--parallel.mode fsdp, which divides weights, gradients and moments, or ddp, which "
            "divides the trajectories alone."
        )
    where, shares = device or Device(), utilisation or Utilisation()
    update, rollout = needs(config, shape, load, processes)
    flops = _flops(config, shape, load)
    # What is recomputed in the backward pass costs time and is no model FLOP.
    again = 4 / 3 if config.optim.gradient_checkpointing else 1.0
    slow = {
        "rollout": 1 / shares.rollout,
        "scoring": 1 / shares.scoring,
        "update": again / shares.update,
    }
    seconds = {
        name: None if where.peak is None else amount * slow[name] / (where.peak * processes)
        for name, amount in flops.items()
    }
    checkpoint = checkpoint_bytes(config, shape)
    plan = Plan(
        shape, load, where, config.run.iterations, update, rollout, flops, seconds, checkpoint,
        disk_bytes(config, shape, checkpoint), None, notes=_notes(config, load, processes),
        utilisation=shares, processes=processes,
    )  # fmt: skip
    if where.memory is None:
        return plan
    fits = plan.peak <= budget_of(where.memory)
    what = () if fits else advice(config, shape, load, where.memory, processes)
    return replace(plan, fits=fits, advice=what)


def _flops(config: Config, shape: ModelShape, load: Load) -> dict[str, float]:
    """Model FLOPs of an iteration. A reply's token costs the same one by one or all at once."""
    forward = flops_of(shape, load.work, backward=False)
    unheaded = flops_of(shape, replace(load.work, trained=0), backward=False)
    o = config.objective
    critic = float(o.has_critic)
    scoring = (config.optim.old_logprobs == "recompute") + (o.kl_coef > 0)
    trained = flops_of(shape, load.work, frozen=config.lora.rank > 0) + critic * 3 * unheaded
    return {
        "rollout": forward,
        "scoring": scoring * forward + critic * unheaded,
        "update": config.optim.epochs * trained,
    }


def _notes(config: Config, load: Load, processes: int) -> tuple[str, ...]:
    notes = [f"a tenth of the device's memory is left free ({FREE_SHARE:.0%})"]
    names = [name for name, _ in config.auxiliary.active()]
    if names:
        notes.append(f"what auxiliary objectives add is not counted: {', '.join(names)}")
    rows = rows_at_once(config, load)
    mine, whose = -(-load.trajectories // processes), " of a process" if processes > 1 else ""
    if config.sampler.backend == "hf" and rows < mine:
        notes.append(
            f"{rows} of {mine} trajectories{whose} are sampled at a time, as "
            f"sampler.max_batch_tokens={config.sampler.max_batch_tokens} allows. So few may keep a "
            "GPU far below the assumed share: raise it where there is memory, it changes no result"
        )
    mode = config.parallel.mode
    if mode != "none" and processes == 1:
        notes.append(
            f"figures are of one process that does everything: parallel.mode={mode} divides them, "
            "see --processes N"
        )
    elif mode != "none":
        also = ", weights, gradients and moments" if mode == "fsdp" else ", nothing else"
        notes.append(
            f"memory is that of one of {processes} processes: parallel.mode={mode} divides "
            f"trajectories{also}. An upper bound: rounded copies of weights are counted whole. "
            "What the processes wait for each other is not counted"
        )
    if config.sampler.backend == "vllm":
        notes.append("the vLLM server's memory is not counted: it has a device of its own")
    return tuple(notes)
