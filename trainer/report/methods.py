"""The auxiliary objectives of a run in its report: their main figures over the iterations."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from html import escape
from typing import Any

from trainer.report.charts import Panel
from trainer.report.data import EVIDENCE, ReportData
from trainer.report.parts import panels, section, table

__all__ = ["auxiliaries", "figures_of"]

_MOST_PANELS = 6


def auxiliaries(data: ReportData, drawn: Collection[str]) -> str:
    """A section for each of `data.auxiliary`; `drawn` are figures that have a chart already."""
    return "".join(_one(data.metrics, name, drawn) for name in data.auxiliary)


def figures_of(metrics: Sequence[Mapping[str, Any]], name: str) -> list[str]:
    """Names of an objective's figures that have a number in some iteration.

    Its loss first, then what shows that it trains something, then the others as they were logged.
    """
    keys = dict.fromkeys(
        key
        for row in metrics
        for key, value in row.items()
        if (key == f"loss/{name}" or key.startswith(f"{name}/")) and _is_number(value)
    )
    first = (f"loss/{name}", *(f"{name}/{key}" for key in EVIDENCE))
    return [*(key for key in first if key in keys), *(key for key in keys if key not in first)]


def _one(metrics: Sequence[Mapping[str, Any]], name: str, drawn: Collection[str]) -> str:
    figures = figures_of(metrics, name)
    moving = [key for key in figures if key not in drawn and len(set(_values(metrics, key))) > 1]
    small = [
        Panel(_short(key, name), ((key, _short(key, name)),), share=key.endswith("_share"))
        for key in moving[:_MOST_PANELS]
    ]
    rows = "".join(_row(_short(key, name), _values(metrics, key)) for key in figures)
    return section(
        f"Auxiliary objective: {name}",
        "Its own figures, one point an iteration; losses are without the objective's weight.",
        panels(metrics, small),
        (table(("figure", "first", "last", "mean", "iterations"), rows) if rows else "")
        + _gloss(figures),
    )


def _row(name: str, values: Sequence[float]) -> str:
    shown = (values[0], values[-1], math.fsum(values) / len(values))
    cells = "".join(f'<td class="n">{value:.4g}</td>' for value in shown)
    return f'<tr><td>{escape(name)}</td>{cells}<td class="n">{len(values)}</td></tr>'


_GLOSSES = {
    "z": "z: the student's probability of a token of the oracle's command, all branch states",
    "z_root": "z root: the same at a branch's first state",
    "effective_depth": "effective depth: sum of a branch's weights, how many of its steps count",
}


def _gloss(figures: Sequence[str]) -> str:
    """What figures with short names are, for those that are there."""
    told = [text for key, text in _GLOSSES.items() if f"sero/{key}" in figures]
    return f'<p class="note">{escape("; ".join(told))}.</p>' if told else ""


def _short(key: str, name: str) -> str:
    return "loss" if key == f"loss/{name}" else key.removeprefix(f"{name}/").replace("_", " ")


def _values(metrics: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [float(row[key]) for row in metrics if _is_number(row.get(key))]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
