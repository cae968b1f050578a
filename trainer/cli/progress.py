"""Progress of training in the terminal, on standard error."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from agent_envs.errors import SeroError
from trainer.cli.common import mean_score
from trainer.metrics import overflow_warning, phase_seconds

EVERY_S = 30.0
"""Most seconds between two lines of a log while something is counted."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """Callbacks for `trainer.loop.train`."""

    on_warmstart: Callable[[int, float], None]
    on_iteration: Callable[[Mapping[str, Any]], None]
    on_evaluation: Callable[[str, Any], None]

    def as_arguments(self) -> dict[str, Any]:
        """Keyword arguments of `train`."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


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
def training(
    warm_steps: int, iterations: int, max_prompt_tokens: int | None = None
) -> Iterator[Hooks]:
    """Shows the warm start (if it has steps) and the iterations of one run.

    Bars in a terminal. Elsewhere lines, so that a log shows that the run is alive: one an
    iteration, one before and one after each evaluation, and at most one every `EVERY_S` seconds of
    the warm start. Where most rollouts end
    because a prompt is beyond `max_prompt_tokens`, that is said once.
    """
    progress = bars()
    if not progress.console.is_terminal:
        yield _lines(warm_steps, iterations, progress.console, max_prompt_tokens)
        return
    with progress:
        warm = progress.add_task("warm start", total=warm_steps, note="", visible=warm_steps > 0)
        warming = warm_steps > 0  # until then the clock of the iterations stands
        main = progress.add_task(
            "training  ", total=iterations, note="", visible=iterations > 0 and not warming
        )

        def on_warmstart(step: int, loss: float) -> None:
            progress.update(warm, completed=step + 1, note=f"loss {loss:.3f}")
            if step + 1 == warm_steps and iterations > 0:
                progress.reset(main, visible=True)

        note, warn = _Note(iterations), _Warning(progress.console, max_prompt_tokens)

        def on_iteration(metrics: Mapping[str, Any]) -> None:
            warn(metrics)
            progress.update(main, completed=metrics["iteration"] + 1, note=note(metrics))

        def on_evaluation(split: str, found: Any) -> None:
            progress.console.print(_evaluation(split, found), soft_wrap=True)

        try:
            yield Hooks(on_warmstart, on_iteration, on_evaluation)
        except SeroError:
            # What could not start shows no empty bars above the error.
            for task in progress.tasks:
                progress.update(task.id, visible=task.completed > 0)
            raise


@contextmanager
def several(names: Iterable[str], total: int) -> Iterator[Callable[[Mapping[str, int]], None]]:
    """Shows runs side by side; what it gives is called with the finished iterations by name."""
    progress = bars()
    say = _Lines(progress.console)
    if not progress.console.is_terminal:

        def tell(done: Mapping[str, int]) -> None:
            parts = ", ".join(f"{name} {done[name]}/{total}" for name in told)
            say(parts, now=all(done[name] == total for name in told))

        told = list(names)
        yield tell
        return
    with progress:
        tasks = {name: progress.add_task(name, total=total, note="") for name in names}

        def update(done: Mapping[str, int]) -> None:
            for name, task in tasks.items():
                progress.update(task, completed=done[name])

        yield update


class _Lines:
    """Prints lines with the time since the first, at most one every `EVERY_S` seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._begin = time.monotonic()
        self._last = -EVERY_S

    def __call__(self, text: str, *, now: bool = False) -> None:
        """Prints, `now` or if the last line is old enough."""
        seconds = time.monotonic() - self._begin
        if now or seconds - self._last >= EVERY_S:
            self._last = seconds
            clock = timedelta(seconds=int(seconds))
            self._console.print(f"{clock} {text}", soft_wrap=True)
            self._console.file.flush()


class _Warning:
    """Says once what makes most rollouts end without a reply."""

    def __init__(self, console: Console, limit: int | None) -> None:
        self._console, self._limit, self._said = console, limit, False

    def __call__(self, metrics: Mapping[str, Any]) -> None:
        share, longest = (metrics.get(f"context_overflow_{key}") for key in ("share", "longest"))
        warning = overflow_warning(share, longest, self._limit, "rollouts")
        if warning is not None and not self._said:
            self._said = True
            self._console.print(f"WARNING: {warning}", soft_wrap=True)


def _lines(
    warm_steps: int, iterations: int, console: Console, max_prompt_tokens: int | None
) -> Hooks:
    say = _Lines(console)
    note, warn = _Note(iterations), _Warning(console, max_prompt_tokens)

    def on_warmstart(step: int, loss: float) -> None:
        done = step + 1
        say(f"warm start {done}/{warm_steps}, loss {loss:.3f}", now=done in (1, warm_steps))

    def on_iteration(metrics: Mapping[str, Any]) -> None:
        parts = (f"iteration {metrics['iteration'] + 1}/{iterations}", note(metrics))
        say(", ".join(part for part in parts if part), now=True)
        warn(metrics)

    def on_evaluation(split: str, found: Any) -> None:
        say(_evaluation(split, found), now=True)

    return Hooks(on_warmstart, on_iteration, on_evaluation)


def _evaluation(split: str, found: int | Mapping[str, Any]) -> str:
    """What is said of a split: that its tasks are played, and how they went."""
    if isinstance(found, int):
        return f"evaluating {found} tasks of {split}"
    return f"{split}: {found['wins']} of {found['n']} tasks{mean_score(found)}"


class _Note:
    """What stands beside an iteration: its success, its speed, where the time went, time left.

    What the metrics do not say is left out. The time left goes by the iterations seen so far,
    with the evaluations and checkpoints between them; after the first one by its own seconds.
    """

    def __init__(self, iterations: int) -> None:
        self._iterations = iterations
        self._first: tuple[int, float] | None = None

    def __call__(self, metrics: Mapping[str, Any]) -> str:
        success = metrics.get("success_rate")
        tokens = metrics.get("perf/tokens_per_s", metrics.get("tokens_per_s"))
        parts = (
            None if success is None else f"won {success:.0%} of the rollouts",
            None if tokens is None else f"{tokens:,.0f} tokens/s",
            _split(phase_seconds(metrics)),
            self._left(metrics),
        )
        return ", ".join(part for part in parts if part)

    def _left(self, metrics: Mapping[str, Any]) -> str | None:
        iteration, now = metrics["iteration"], time.monotonic()
        if self._first is None:
            self._first = (iteration, now)
        begin, start = self._first
        one = (now - start) / (iteration - begin) if iteration > begin else None
        one = metrics.get("iteration_s") if one is None else one
        remaining = self._iterations - iteration - 1
        if one is None or remaining <= 0:
            return None
        return f"{timedelta(seconds=round(one * remaining))} left"


def _split(seconds: Mapping[str, float], most: int = 3) -> str | None:
    """The longest phases with their shares of the time, the longest first.

    >>> _split({"collect": 6.0, "record": 0.01, "update": 3.99})
    'collect 60% update 40%'
    """
    whole = sum(seconds.values())
    if whole <= 0:
        return None
    longest = sorted(seconds.items(), key=lambda item: -item[1])[:most]
    return " ".join(
        f"{name} {share:.0%}" for name, part in longest if (share := part / whole) >= 0.005
    )
