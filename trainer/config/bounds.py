"""Values that are each in range and make no run together, or that no arithmetic holds.

A run that was made before a rule stays readable and goes on: see `recorded` in
`trainer.config.dead_switches`, and `Config.replace`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trainer.config.dead_switches import reading

if TYPE_CHECKING:
    from trainer.config import Config

__all__ = ["LARGEST", "LONGEST_S", "out_of_bounds"]

LARGEST = 1e12
"""Of a decimal setting. Rewards, advantages and gradients are squared and summed in float32, which
ends at 3.4e38: this squared leaves room for a sum of 10^14 of them."""
LONGEST_S = 1e9
"""Of a time in seconds, 31 years: systems count waits in nanoseconds and 64 bits."""
_SEEDS = (-(2**63), 2**63 - 1)


def out_of_bounds(config: Config) -> list[str]:
    """One sentence or two for each such value; empty: there is none, or a record is being read."""
    if reading():
        return []
    return [*_steps_without_turns(config), *_decay_before_its_start(config), *_sizes(config)]


def _steps_without_turns(config: Config) -> Iterator[str]:
    rollout, steps = config.rollout, config.optim.steps
    # With LUFFY an episode of the oracle may join each trajectory's group.
    joined = 2 if config.auxiliary.luffy is not None else 1
    most = rollout.tasks * rollout.rollouts * config.env.max_steps * joined
    if steps > most:
        yield (
            f"optim.steps={steps} cuts the turns of an iteration into more parts than there can be "
            f"turns: rollout.tasks={rollout.tasks} x rollout.rollouts={rollout.rollouts} x "
            f"env.max_steps={config.env.max_steps}{' x 2 with auxiliary.luffy' * (joined - 1)} = "
            f"{most}. Use at most that; a few are usual."
        )


def _decay_before_its_start(config: Config) -> Iterator[str]:
    optim = config.optim
    if optim.decay_steps is not None and optim.decay_steps < optim.warmup_steps:
        yield (
            f"optim.decay_steps={optim.decay_steps} ends before optim.warmup_steps="
            f"{optim.warmup_steps} does: the learning rate would be at a tenth before it was ever "
            "whole. Both are counted from the first step; use more decay_steps or fewer "
            "warmup_steps."
        )


def _sizes(config: Config) -> Iterator[str]:
    for name, value in _values(config):
        field = name.rpartition(".")[2]
        most = LONGEST_S if field.endswith("_s") else LARGEST
        if field == "lr":
            continue  # one that is too large shows as it acts: see `trainer.runs.nonfinite`
        if isinstance(value, float) and abs(value) > most:
            yield f"{name}={value:g} must be at most {most:g}: larger numbers overflow in a run."
        elif field.endswith("seed") and isinstance(value, int):
            least, most_seed = _SEEDS
            if not least <= value <= most_seed:
                yield (
                    f"{name}={value} must fit 64 bits, from {least} to {most_seed}: generators of "
                    "random numbers take no more."
                )


def _values(section: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a config that is no section, by its dotted name."""
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        name = f"{path}.{field.name}" if path else field.name
        if dataclasses.is_dataclass(value):
            yield from _values(value, name)
        else:
            yield name, value
