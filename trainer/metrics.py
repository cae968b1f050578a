"""Metrics: one JSON object per iteration in `metrics.jsonl`, phase times, rates, interval maths."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent_envs.errors import SeroError
from agent_envs.statistics import wilson

__all__ = [
    "MetricsError",
    "MetricsLog",
    "Phases",
    "mean_or_none",
    "overflow_warning",
    "perf_metrics",
    "phase_seconds",
    "read_metrics",
    "wilson",
]


class MetricsError(SeroError, ValueError):
    """A metrics file that cannot be read."""


class MetricsLog:
    """Appends one JSON line per iteration.

    NaN and infinity are refused: a metric that has no value is `None` (JSON `null`).
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, metrics: Mapping[str, Any]) -> None:
        line = json.dumps(dict(metrics), allow_nan=False)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()

    def read(self) -> list[dict[str, Any]]:
        """As `read_metrics`; a line without its iteration is an error as well."""
        lines = read_metrics(self.path)
        for line in lines:
            if type(line.get("iteration")) is not int:
                raise MetricsError(f"{self.path}: a line has no integer 'iteration': {line!r:.80}.")
        return lines

    def truncate(self, iterations: int) -> None:
        """Drops lines of iteration >= `iterations`: a resumed run writes them again."""
        if not self.path.exists():
            return
        kept = [line for line in self.read() if line["iteration"] < iterations]
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        os.replace(temporary, self.path)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file; a torn last line (the run was killed) is left out.

    Raises:
        MetricsError: the file is no text, or a line before the last is no JSON object.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise MetricsError(f"{path} is no text ({error}). Restore it from a copy.") from error
    result = []
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                break
            raise MetricsError(
                f"{path}, line {number}: not JSON ({error}). Repair or remove the line."
            ) from error
        if not isinstance(found, dict):
            raise MetricsError(
                f"{path}, line {number}: no JSON object but {line:.40}. Repair or remove the line."
            )
        result.append(found)
    return result


class Phases:
    """Wall seconds by phase: `with phases("collect"): ...`. Re-entering a phase adds to it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def overflow_warning(
    share: float | None, longest: int | None, limit: int | None, what: str = "episodes"
) -> str | None:
    """What to say where most episodes end because their next prompt is too long; None: nothing.

    Args:
        share: of the episodes that ended so.
        longest: prompt that did not fit, in tokens; None: not known.
        limit: in tokens; None: not known.

    >>> overflow_warning(0.75, 812, 512, "rollouts")[:71]
    '75% of the rollouts ended because the next prompt was longer than promp'
    """
    if share is None or share <= 0.5:
        return None
    told = "" if limit is None else f"={limit}"
    size = "" if longest is None else f"; the longest had {longest} tokens"
    return (
        f"{share:.0%} of the {what} ended because the next prompt was longer than "
        f"prompt.max_prompt_tokens{told}{size}. Raise it, or make prompts shorter "
        "(prompt.template, prompt.history_length)."
    )


def phase_seconds(record: Mapping[str, Any]) -> dict[str, float]:
    """Wall seconds by phase in one iteration's metrics (`time/...`), in their order.

    >>> phase_seconds({"time/collect": 2.0, "time/update": None, "iteration_s": 3.0})
    {'collect': 2.0}
    """
    return {
        name[5:]: float(value)
        for name, value in record.items()
        if name.startswith("time/") and isinstance(value, (int, float))
    }


def perf_metrics(
    *,
    played_tokens: int,
    sampled_tokens: int,
    learnt_tokens: int,
    seconds: Mapping[str, float],
    iteration_s: float,
    flops: float | None = None,
    peak_flops: float | None = None,
) -> dict[str, float | None]:
    """Rates of one iteration; None where there is nothing to divide by.

    Args:
        played_tokens: of the prompts and replies of all turns that were played.
        sampled_tokens: of the replies alone.
        learnt_tokens: of the turns that were learnt from, prompts and replies, every epoch anew.
        seconds: wall seconds by phase; `collect` and `update` are read.
        iteration_s: wall seconds of the whole iteration.
        flops: floating-point operations that the model's mathematics asks for, sampling, scoring
            and update together; what is recomputed to save memory does not count.
        peak_flops: of the devices, per second, all together; None: not known, as on a CPU.
    """
    return {
        "perf/tokens_per_s": _rate(played_tokens, iteration_s),
        "perf/rollout_tokens_per_s": _rate(sampled_tokens, seconds.get("collect")),
        "perf/update_tokens_per_s": _rate(learnt_tokens, seconds.get("update")),
        "perf/model_flops": flops,
        "perf/mfu": None if flops is None else _rate(flops, iteration_s * (peak_flops or 0.0)),
    }


def _rate(amount: float, per: float | None) -> float | None:
    return amount / per if per else None


def mean_or_none(values: Iterable[float]) -> float | None:
    """Arithmetic mean, `None` where there is nothing to average."""
    items = list(values)
    return math.fsum(items) / len(items) if items else None
