"""Charts of the report, as inline SVG text. Same input, same bytes."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from trainer.metrics import wilson
from trainer.report.data import Evaluation, series

INK, MUTED, GRID = "#1f2933", "#7b8794", "#e4e7eb"
COLOURS = ("#9aa5b1", "#0b7285", "#e8590c", "#5f3dc4")
_STYLE = {
    "text.parse_math": False,  # a dollar sign in a task is text
    "font.family": "sans-serif",
    "font.size": 10,
    "svg.fonttype": "none",
    "svg.hashsalt": "sero",
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "legend.frameon": False,
}


def _svg(figure: Figure, label: str) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = buffer.getvalue()
    # Only the element itself: an XML prologue has no place inside HTML.
    svg = text[text.index("<svg") :]
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


@dataclass(frozen=True, slots=True)
class Panel:
    """A small chart: (metric name, label) of each line, and whether the axis is 0 to 1."""

    title: str
    lines: tuple[tuple[str, str], ...]
    share: bool = False


def curves(metrics: Sequence[Mapping[str, Any]], panels: Sequence[Panel]) -> str:
    """Small panels side by side, each with one or more metrics over the iterations.

    Args:
        metrics: one mapping an iteration.
        panels: those without any value are left out.

    Returns:
        SVG text, empty if nothing is left to draw.
    """
    values = [
        (p, [(label, *data) for name, label in p.lines if (data := series(metrics, name))[0]])
        for p in panels
    ]
    drawn = [(panel, lines) for panel, lines in values if lines]
    if not drawn:
        return ""
    columns = min(3, len(drawn))
    rows = -(-len(drawn) // columns)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(3.55 * columns, 2.6 * rows), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
        for cell, (panel, lines) in zip(axes.flat, drawn, strict=False):
            for colour, (label, xs, ys) in zip(COLOURS[1:] + COLOURS[:1], lines, strict=False):
                marker = "o" if len(xs) < 12 else None
                cell.plot(xs, ys, color=colour, label=label, linewidth=1.6, marker=marker, ms=3)
            cell.set_title(panel.title)
            if panel.share:
                cell.set_ylim(-0.03, 1.03)
            cell.xaxis.get_major_locator().set_params(integer=True)
            if len(lines) > 1:
                cell.legend(
                    loc="upper left", bbox_to_anchor=(-0.03, -0.1), ncols=2, fontsize=8,
                    handlelength=1.1, handletextpad=0.4, columnspacing=1.0, borderaxespad=0.2,
                )  # fmt: skip
        for cell in list(axes.flat)[len(drawn) :]:
            cell.set_visible(False)
        return _svg(figure, "training curves over the iterations")


def success_by_type(evaluations: Sequence[Evaluation]) -> str:
    """Success by task type, one colour an evaluation, with 95 % Wilson intervals."""
    kinds = sorted({kind for e in evaluations for kind in e.by_type})
    groups = ["all", *kinds] if len(kinds) > 1 else kinds
    if not groups:
        return ""
    with matplotlib.rc_context(_STYLE):
        height = 0.6 + len(groups) * (0.16 + 0.17 * len(evaluations))
        figure = Figure(figsize=(7.6, height), layout="constrained")
        axes = figure.subplots()
        for i, evaluation in enumerate(evaluations):
            xs, ys, low, high = [], [], [], []
            for j, group in enumerate(groups):
                if group == "all":
                    won, n = evaluation.successes, evaluation.tasks
                else:
                    won, n = evaluation.by_type.get(group, (0, 0))
                if n == 0:
                    continue
                down, up = wilson(won, n)
                xs.append(won / n)
                ys.append(j + 0.62 * ((i + 0.5) / len(evaluations) - 0.5))
                low.append(won / n - down)
                high.append(up - won / n)
            colour = COLOURS[i % len(COLOURS)]
            axes.errorbar(
                xs, ys, xerr=[low, high], fmt="o", color=colour, label=evaluation.label,
                markersize=5, elinewidth=2.2, capsize=0,
            )  # fmt: skip
        axes.set_yticks(range(len(groups)), [group.replace("_", " ") for group in groups])
        axes.tick_params(axis="y", colors=INK, length=0)
        axes.set_ylim(len(groups) - 0.45, -0.55)
        axes.set_xlim(-0.02, 1.02)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.grid(axis="y", visible=False)
        axes.legend(
            loc="lower left", bbox_to_anchor=(0, 1.0), ncols=len(evaluations), fontsize=9,
            handletextpad=0.2, borderaxespad=0.1,
        )  # fmt: skip
        return _svg(figure, "success by task type with 95 % intervals")


def phase_bar(totals: Mapping[str, float]) -> str:
    """Share of the wall time by phase, as one horizontal bar."""
    whole = sum(totals.values())
    if whole <= 0:
        return ""
    palette = ("#0b7285", "#3bc9db", "#e8590c", "#ffc078", "#5f3dc4", "#b197fc", "#868e96")
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(10.4, 0.95), layout="constrained")
        axes = figure.subplots()
        left = 0.0
        for i, (name, seconds) in enumerate(totals.items()):
            share = seconds / whole
            axes.barh(0, share, left=left, color=palette[i % len(palette)], label=name, height=0.5)
            if share > 0.06:
                axes.text(
                    left + share / 2, 0, f"{share:.0%}", ha="center", va="center",
                    color="white", fontsize=9, fontweight="bold",
                )  # fmt: skip
            left += share
        axes.set_axis_off()
        axes.set_xlim(0, 1)
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=min(8, len(totals)), fontsize=9
        )
        return _svg(figure, "share of the wall time by phase")
