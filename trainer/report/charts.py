"""Charts of the report, as text for inside an HTML page. Same input, same bytes.

Each is drawn for the width of a phone, so that its letters stay readable there; the page puts as
many side by side as fit. Colours are names of the page's style sheet, which has two sets of them.
"""

from __future__ import annotations

import io
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from trainer.metrics import wilson
from trainer.report.data import Evaluation, series

INK, MUTED, GRID = "#1f2933", "#7b8794", "#e4e7eb"
COLOURS = ("#9aa5b1", "#0b7285", "#e8590c", "#5f3dc4")
_VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--line",
    **{colour: f"--series-{i}" for i, colour in enumerate(COLOURS)},
}
_COLOUR = re.compile("|".join(_VARIABLES))
_STYLE = {
    "text.parse_math": False,  # a dollar sign in a task is text
    "font.family": "sans-serif",
    "font.size": 10,
    "svg.fonttype": "none",
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 9,
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
    # Names of the parts depend on the label: no two charts of a page share one.
    with matplotlib.rc_context({"svg.hashsalt": label}):
        figure.savefig(
            buffer, format="svg", metadata={"Date": None, "Creator": None}, transparent=True
        )
    text = buffer.getvalue()
    # Only the element itself: an XML prologue has no place inside HTML.
    svg = re.sub(r'<g id="[^"]*"', "<g", text[text.index("<svg") :])
    svg = re.sub(
        r'(?<= style=")[^"<>]*(?=")',
        lambda style: _COLOUR.sub(lambda found: f"var({_VARIABLES[found[0]]})", style[0]),
        svg,
    )
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)


def _short(text: str, most: int = 44) -> str:
    """`text`, cut where it would leave no room for the chart."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _percent(value: float, _: object) -> str:
    return f"{value:.0%}"


@dataclass(frozen=True, slots=True)
class Panel:
    """A small chart: (metric name, label) of each line, and whether the axis is 0 % to 100 %."""

    title: str
    lines: tuple[tuple[str, str], ...]
    share: bool = False


def curves(metrics: Sequence[Mapping[str, Any]], panel: Panel) -> str:
    """One or more metrics over the iterations.

    Args:
        metrics: one mapping an iteration.

    Returns:
        SVG text, empty if there is no value to draw.
    """
    lines = [(label, *data) for name, label in panel.lines if (data := series(metrics, name))[0]]
    if not lines:
        return ""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(3.55, 2.6 if len(lines) > 1 else 2.4), layout="constrained")
        axes = figure.subplots()
        for colour, (label, xs, ys) in zip(COLOURS[1:] + COLOURS[:1], lines, strict=False):
            marker = "o" if len(xs) < 12 else None
            axes.plot(xs, ys, color=colour, label=_short(label), linewidth=1.6, marker=marker, ms=3)
        axes.set_title(_short(panel.title, 34))
        axes.set_xlabel("iteration", labelpad=3)
        if panel.share:
            axes.set_ylim(-0.03, 1.03)
            axes.yaxis.set_major_formatter(_percent)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        first, last = (pick(x for _, xs, _ in lines for x in xs) for pick in (min, max))
        if first == last:  # else the axis spans a fraction of one iteration
            axes.set_xlim(first - 1, last + 1)
        if len(lines) > 1:
            short = sum(len(label) for label, _, _ in lines) < 34
            figure.legend(
                loc="outside lower left", ncols=2 if short else 1, fontsize=9,
                handlelength=1.1, handletextpad=0.4, columnspacing=1.0, borderaxespad=0.2,
            )  # fmt: skip
        return _svg(figure, f"{panel.title}, over the iterations")


MOST_DRAWN = len(COLOURS)


def drawn(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Those of many evaluations that can be told apart in a chart: the first and the last ones."""
    if len(evaluations) <= MOST_DRAWN:
        return list(evaluations)
    return [evaluations[0], *evaluations[1 - MOST_DRAWN :]]


def success_by_type(evaluations: Sequence[Evaluation]) -> str:
    """Success by task type, one colour an evaluation, with 95 % Wilson intervals."""
    kinds = sorted({kind for e in evaluations for kind in e.by_type})
    groups = ["all", *kinds] if len(kinds) > 1 else kinds
    if not groups:
        return ""
    shown = drawn(evaluations)
    with matplotlib.rc_context(_STYLE):
        height = 0.75 + len(groups) * (0.27 + 0.15 * len(shown))
        figure = Figure(figsize=(4.2, height), layout="constrained")
        axes = figure.subplots()
        for i, evaluation in enumerate(shown):
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
                ys.append(j + 0.5 * (i + 0.5) / len(shown))
                low.append(won / n - down)
                high.append(up - won / n)
            axes.errorbar(
                xs, ys, xerr=[low, high], fmt="o", color=COLOURS[i], label=_short(evaluation.label),
                markersize=5, elinewidth=2.2, capsize=0,
            )  # fmt: skip
        for j, group in enumerate(groups):
            # Above its points and not beside the axis: names are long, phones are narrow.
            axes.text(-0.02, j - 0.06, _short(group.replace("_", " ")), va="bottom", fontsize=9.5)
        axes.set_yticks([])
        axes.set_ylim(len(groups) - 0.35, -0.5)
        axes.set_xlim(-0.02, 1.02)
        axes.set_xlabel("tasks solved", labelpad=3)
        axes.xaxis.set_major_formatter(_percent)
        axes.spines["left"].set_visible(False)
        short = max(len(evaluation.label) for evaluation in shown) < 22
        axes.legend(
            loc="lower left", bbox_to_anchor=(-0.03, 1.0), ncols=2 if short else 1, fontsize=9,
            handletextpad=0.2, columnspacing=1.2, borderaxespad=0.1,
        )  # fmt: skip
        return _svg(figure, f"success by task type, {evaluations[0].split}, with 95 % intervals")


# Not one of them is a colour of `COLOURS`: these are the same in both sets of the style sheet.
PHASE_COLOURS = ("#0c7286", "#3cc9db", "#e8590d", "#ffc078", "#7950f2", "#b198fc", "#868e96")


def phase_colour(number: int) -> str:
    """The colour of a phase in `phase_bar`, by its place there."""
    return PHASE_COLOURS[min(number, len(PHASE_COLOURS) - 1)]


def phase_stack(metrics: Sequence[Mapping[str, Any]], phases: Collection[str]) -> str:
    """Seconds of each iteration, one colour a phase, those of `phase_colour`.

    Args:
        metrics: one mapping an iteration.
        phases: names as in `phase_totals`, the longest first; the first is lowest.

    Returns:
        SVG text, empty if there is nothing to draw.
    """
    rows = [row for row in metrics if any(_phase(row, name) for name in phases)]
    if not rows:
        return ""
    # A step as wide as its iteration, so that a single one has a width too.
    middles = [float(row.get("iteration", i)) + 1 for i, row in enumerate(rows)]
    edges = [middles[0] - 0.5, *(middle + 0.5 for middle in middles)]
    heights = [[_phase(row, name) for row in rows] for name in phases]
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(3.55, 2.4), layout="constrained")
        axes = figure.subplots()
        axes.stackplot(
            edges, [[*values, values[-1]] for values in heights], step="post", linewidth=0,
            colors=[phase_colour(i) for i in range(len(heights))], edgecolor="none",
        )  # fmt: skip
        axes.set_title("Seconds an iteration, by phase")
        axes.set_xlabel("iteration", labelpad=3)
        axes.set_xlim(edges[0], edges[-1])
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        return _svg(figure, "Seconds of each phase, over the iterations")


def _phase(row: Mapping[str, Any], name: str) -> float:
    value = row.get(f"time/{name}", row.get(f"time/{name}_s"))
    return float(value) if isinstance(value, (int, float)) else 0.0


def phase_bar(totals: Mapping[str, float]) -> str:
    """Share of the wall time by phase, as one horizontal bar."""
    whole = sum(totals.values())
    if whole <= 0:
        return ""
    parts = "".join(
        f'<i style="width:{100 * seconds / whole:.2f}%;background:{phase_colour(i)}"></i>'
        for i, seconds in enumerate(totals.values())
    )
    return f'<div class="bar" role="img" aria-label="share of the wall time by phase">{parts}</div>'
