"""`metrics.jsonl`, the record of a run: every figure of every iteration, those without a value too.

Reports, resuming and comparisons read it, so it is no tracker that may fail: a run that cannot
write it stops.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.metrics import MetricsLog

__all__ = ["JsonlLogger", "finite"]


class JsonlLogger:
    """Writes whole records; what lies beyond a resume point is cut by `trainer.runs.resume`."""

    name = "jsonl"

    def __init__(self, path: Path) -> None:
        self._log = MetricsLog(path)

    def write(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Appends `record` as one line and returns it as written (see `finite`)."""
        written = finite(record)
        self._log.write(written)
        return written


def finite(record: Mapping[str, Any]) -> dict[str, Any]:
    """`record` with None in the place of NaN and infinity, which no JSON has.

    How many there were stands under `nonfinite_figures`, a name that is there only then.

    >>> finite({"a": 1.5, "b": float("nan"), "c": {"d": float("inf")}})
    {'a': 1.5, 'b': None, 'c': {'d': None}, 'nonfinite_figures': 2}
    """
    replaced = 0

    def clean(value: Any) -> Any:
        nonlocal replaced
        if isinstance(value, Mapping):
            return {name: clean(part) for name, part in value.items()}
        if isinstance(value, (list, tuple)):
            return [clean(part) for part in value]
        if isinstance(value, float) and not math.isfinite(value):
            replaced += 1
            return None
        return value

    cleaned: dict[str, Any] = clean(record)
    return {**cleaned, "nonfinite_figures": replaced} if replaced else cleaned
