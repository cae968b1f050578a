"""How far a run of two ranks is from that of one process."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from tests.trainer import small
from tests.trainer.parallel.learning import Case, written
from trainer.models.critic import ValueModel
from trainer.models.lora import add_adapters
from trainer.parallel.wrap import whole_state

TOLERANCE = 1e-6
MODES = ("ddp", "fsdp")


def start(case: Case | None = None) -> dict[str, Tensor]:
    """Weights that a case begins with."""
    model = small.model()
    config = None if case is None else case.config()
    if config is not None and config.lora.rank:
        model = add_adapters(model, config.lora)
    return whole_state(model.double())


def values_start() -> dict[str, Tensor]:
    """The critic's likewise."""
    return whole_state(ValueModel(small.model().double()).double())


def compare(
    folder: Path, case: Case, alone: Case | None = None, *, critic: bool = False
) -> tuple[float, float, float]:
    """Largest relative error of a step's gradient (with SGD, what it moved), how far weights moved,
    and how far ranks are from one another."""
    place = "critic/" if critic else ""
    one, zero, other = (
        {key.removeprefix(place): value for key, value in found.items() if key.startswith(place)}
        for found in (
            written(folder, alone or case, "alone"), *(written(folder, case, r) for r in ("0", "1"))
        )
    )  # fmt: skip
    begin = values_start() if critic else start(case)
    worst = moved = apart = 0.0
    last, shared_last = dict(begin), dict(begin)
    for step in range(case.steps):
        error = size = 0.0
        for name in begin:
            here, shared = one[f"{step}/{name}"], zero[f"{step}/{name}"]
            gradient, theirs = here - last[name], shared - shared_last[name]
            error += float((gradient - theirs).square().sum())
            size += float(gradient.square().sum())
            apart = max(apart, float((shared - other[f"{step}/{name}"]).abs().max()))
            moved = max(moved, float((here - begin[name]).abs().max()))
            last[name], shared_last[name] = here, shared
        worst = max(worst, (error / size) ** 0.5)
    return worst, moved, apart
