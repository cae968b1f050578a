"""Pieces of HTML that the report's sections are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from trainer.report import charts
from trainer.report.charts import Panel

__all__ = ["panels", "section", "table", "words"]


def section(title: str, note: str, *parts: str) -> str:
    """A section with a heading; `note` is HTML. Empty where no part has anything."""
    body = "".join(parts)
    if not body:
        return ""
    return f'<section><h2>{escape(title)}</h2><p class="note">{note}</p>{body}</section>'


def table(names: Sequence[str], rows: str) -> str:
    """A table whose first column is text and the others are numbers; scrolls where it must."""
    head = "".join(f"<th{' class=n' if i else ''}>{name}</th>" for i, name in enumerate(names))
    return f'<div class="wide"><table><tr>{head}</tr>{rows}</table></div>'


def panels(metrics: Sequence[Mapping[str, Any]], wanted: Sequence[Panel], first: str = "") -> str:
    """Those of the small charts that have a value to draw, side by side, after `first`."""
    svgs = (first, *(charts.curves(metrics, panel) for panel in wanted))
    drawn = [svg for svg in svgs if svg]
    return f'<div class="charts">{"".join(drawn)}</div>' if drawn else ""


def words(name: str) -> str:
    """A name as words.

    >>> words("valid_seen")
    'valid seen'
    """
    return name.replace("_", " ")
