"""Progress of training in the terminal, on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from agent_envs.errors import SeroError


@dataclass(frozen=True, slots=True)
class Hooks:
    """Callbacks for `trainer.loop.train`."""

    on_warmstart: Callable[[int, float], None]
    on_iteration: Callable[[Mapping[str, Any]], None]

    def as_arguments(self) -> dict[str, Any]:
        """Keyword arguments of `train`."""
        return {"on_warmstart": self.on_warmstart, "on_iteration": self.on_iteration}


def bars() -> Progress:
    """Progress bars with a count, the time and a note; plain text where there is no terminal."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
        console=Console(stderr=True, highlight=False, markup=False, emoji=False),
    )


@contextmanager
def training(warm_steps: int, iterations: int) -> Iterator[Hooks]:
    """Shows the warm start (if it has steps) and the iterations of one run."""
    with bars() as progress:
        warm = progress.add_task("warm start", total=warm_steps, note="", visible=warm_steps > 0)
        warming = warm_steps > 0  # until then the clock of the iterations stands
        main = progress.add_task(
            "training  ", total=iterations, note="", visible=iterations > 0 and not warming
        )

        def on_warmstart(step: int, loss: float) -> None:
            progress.update(warm, completed=step + 1, note=f"loss {loss:.3f}")
            if step + 1 == warm_steps and iterations > 0:
                progress.reset(main, visible=True)

        def on_iteration(metrics: Mapping[str, Any]) -> None:
            success = metrics.get("success_rate")
            note = "" if success is None else f"won {success:.0%} of the rollouts"
            progress.update(main, completed=metrics["iteration"] + 1, note=note)

        try:
            yield Hooks(on_warmstart, on_iteration)
        except SeroError:
            # What could not start shows no empty bars above the error.
            for task in progress.tasks:
                progress.update(task.id, visible=task.completed > 0)
            raise
