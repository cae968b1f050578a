"""Charts of the page of `sero bench oracle`, as text for inside HTML. Same input, same bytes.

In the style of `trainer.report.charts`, whose colours these share. Each takes a part of the object
of `oracles.bench.figures.to_json` and gives an empty text where there is nothing to draw.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from oracles.bench.verdict import MOST_OVERHEAD
from trainer.report.charts import _STYLE as STYLE
from trainer.report.charts import COLOURS, MUTED
from trainer.report.charts import _percent as percent
from trainer.report.charts import _svg as svg

__all__ = [
    "bin_name",
    "gap_histogram",
    "gradient_ratio",
    "mean_weights",
    "overhead_bar",
    "reach_by_depth",
    "restore_time",
    "success_by",
    "sweep_success",
]

Part = Mapping[str, Any]

_GREY, _TEAL, _ORANGE, _VIOLET = COLOURS
_FAR = 20
"""Times as long: the scale is logarithmic."""
_ZERO = 1e-9
"""Borders of bins that are closer to 0 are 0."""


@contextmanager
def _chart(title: str, below: str = "", height: float = 2.6) -> Iterator[tuple[Any, Any]]:
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.9, height), layout="constrained")
        axes = figure.subplots()
        axes.set_title(title)
        axes.set_xlabel(below, labelpad=3)
        yield figure, axes


def _legend(figure: Any, columns: int = 2) -> None:
    figure.legend(
        loc="outside lower left", ncols=columns, fontsize=9,
        handlelength=1.3, handletextpad=0.5, columnspacing=1.2, borderaxespad=0.2,
    )  # fmt: skip


def _plain(value: float, _: object) -> str:
    return f"{value:,g}" if value < 1e6 else f"{value:g}"


def _ticks(axes: Any, labels: Sequence[str]) -> None:
    """One tick a bin; of many, those that fit beside each other."""
    width = max(map(len, labels), default=1)
    each = -(-len(labels) * (width + 2) // 46)
    axes.set_xticks(range(0, len(labels), each), labels[::each])


def bin_name(part: Part) -> str:
    """`from` and `to` of a bin, whole numbers without a point."""
    low, high = (f"{part[name]:g}" for name in ("from", "to"))
    return low if low == high else f"{low}–{high}"


def restore_time(by_depth: Sequence[Part]) -> str:
    """Time of a restore over the depth of its state."""
    bins = [part for part in by_depth if part["restore_us"] is not None]
    if not bins:
        return ""
    with _chart("Time of a restore, µs", "steps taken at the state") as (figure, axes):
        for name, label, colour in (("p50", "half within", _TEAL), ("p95", "95 % within", _ORANGE)):
            times = [part["restore_us"][name] for part in bins]
            axes.plot(range(len(bins)), times, "o-", color=colour, label=label, lw=1.6, ms=4)
        _ticks(axes, [bin_name(part) for part in bins])
        low, top = (
            pick(part["restore_us"][name] for part in bins)
            for pick, name in ((min, "p50"), (max, "p95"))
        )
        if 0 < _FAR * low < top:  # one slow moment of the machine would hide everything else
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(_plain)
        else:
            axes.set_ylim(0, 1.12 * top if top > 0 else 1)
        axes.minorticks_off()
        _legend(figure)
        return svg(figure, "time of a restore in microseconds, by depth of the state")


def success_by(bins: Sequence[Part], title: str, below: str, policy: float | None) -> str:
    """Success of the oracle by bin, with intervals, and the policy's as a line."""
    shown = [part for part in bins if part["roots"]]
    if not shown:
        return ""
    with _chart(title, below) as (figure, axes):
        shares = [part["share"] for part in shown]
        below_, above = (
            [abs(part["share"] - part[name]) for part in shown] for name in ("low", "high")
        )
        axes.errorbar(
            range(len(shown)), shares, yerr=[below_, above], fmt="o", color=_TEAL, label="oracle",
            markersize=5, elinewidth=2.2, capsize=0,
        )  # fmt: skip
        if policy is not None:
            axes.axhline(policy, color=_GREY, linestyle="--", label="policy, all its episodes")
        _ticks(axes, [bin_name(part) for part in shown])
        axes.set_xlim(-0.5, len(shown) - 0.5)
        axes.set_ylim(-0.03, 1.03)
        axes.yaxis.set_major_formatter(percent)
        _legend(figure)
        return svg(figure, f"{title}, with 95 % intervals")


def gap_histogram(bins: Sequence[Part]) -> str:
    """How many states have which gap."""
    if not any(part["n"] for part in bins):
        return ""
    with _chart("Gap, state by state", "oracle's return minus the policy's") as (_, axes):
        for part in bins:
            width = part["to"] - part["from"]
            colour = _ORANGE if part["to"] <= _ZERO else _GREY if part["from"] < _ZERO else _TEAL
            axes.bar(part["from"], part["n"], width=0.94 * width, align="edge", color=colour)
        axes.set_ylabel("states", labelpad=3)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        return svg(figure=axes.figure, label="histogram of the gap over the states")


def reach_by_depth(z_by_depth: Sequence[Part]) -> str:
    """z over the depth in the branch: median, mean, and the middle 80 %."""
    if not z_by_depth:
        return ""
    with _chart("z, step by step", "steps from the root of a branch") as (figure, axes):
        places = range(len(z_by_depth))
        low, middle, high, mean = (
            [part[name] for part in z_by_depth] for name in ("p10", "p50", "p90", "mean")
        )
        axes.fill_between(places, low, high, color=_TEAL, alpha=0.18, lw=0, label="middle 80 %")
        axes.plot(places, middle, "o-", color=_TEAL, label="median", lw=1.6, ms=4)
        axes.plot(places, mean, "s--", color=_ORANGE, label="mean", lw=1.3, ms=3)
        _ticks(axes, [f"{part['depth']:g}" for part in z_by_depth])
        axes.set_ylim(-0.03, 1.03)
        _legend(figure, 3)
        return svg(figure, "z by depth in the branch")


def mean_weights(weights: Sequence[float]) -> str:
    """Mean weight w of the steps of a branch."""
    if not weights:
        return ""
    with _chart("Mean weight w", "steps from the root of a branch") as (_, axes):
        axes.bar(range(len(weights)), weights, color=_TEAL, width=0.85)
        axes.set_ylim(0, 1.03)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        return svg(axes.figure, "mean weight by depth in the branch")


PARTS = (
    ("restore_share", "restores", _VIOLET),
    ("oracle_share", "oracle", _TEAL),
    ("env_share", "environment", _GREY),
    ("model_share", "model", _ORANGE),
)


def overhead_bar(cost: Part) -> str:
    """What adds up to the overhead, beside what is allowed."""
    with _chart("Overhead, by what takes it", "share of an iteration", 1.75) as (figure, axes):
        left = 0.0
        for key, label, colour in PARTS:
            share = cost[key]
            if share is None:
                continue
            axes.barh(0, share, left=left, height=0.5, color=colour, label=label)
            left += share
        axes.axvline(MOST_OVERHEAD, color=MUTED, linestyle="--", lw=1.2)
        side = "right" if left > 2 * MOST_OVERHEAD else "left"
        axes.annotate(
            "allowed", (MOST_OVERHEAD, 0.42), (4 if side == "left" else -4, 0),
            textcoords="offset points", ha=side, va="bottom", fontsize=9, color=MUTED,
        )  # fmt: skip
        axes.set_ylim(-0.4, 0.75)
        axes.set_xlim(0, max(1.4 * MOST_OVERHEAD, 1.05 * left))
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(percent)
        _legend(figure, 4)
        return svg(figure, "overhead as a share of an iteration, by what takes it")


def gradient_ratio(weights: Sequence[Part]) -> str:
    """The oracle's gradient by the base's, over the weight."""
    shown = [part for part in weights if part["ratio"] and part["weight"] > 0]
    if not shown:
        return ""
    with _chart("Gradient, oracle by base", "weight of the auxiliary loss") as (
        figure,
        axes,
    ):
        axes.axhspan(0.1, 1, color=_TEAL, alpha=0.15, lw=0, label="0.1 to 1: worth trying")
        axes.loglog(
            [part["weight"] for part in shown], [part["ratio"] for part in shown], "o-",
            color=_ORANGE, lw=1.6, ms=4, label="ratio of norms",
        )  # fmt: skip
        axes.set_xticks([part["weight"] for part in shown])
        axes.set_xticklabels([f"{part['weight']:g}" for part in shown], fontsize=8)
        axes.yaxis.set_major_formatter(_plain)
        axes.minorticks_off()
        _legend(figure)
        return svg(figure, "ratio of the oracle's gradient to the base's, by weight")


def sweep_success(rows: Sequence[Part], split: str) -> str:
    """Success after training, by weight."""
    shown = [row for row in rows if row["split"] == split and row["n"]]
    if not shown:
        return ""
    with _chart(f"Success, {split.replace('_', ' ')}", "weight of the auxiliary loss") as (_, axes):
        error = [[abs(row["success"] - row[name]) for row in shown] for name in ("low", "high")]
        axes.errorbar(
            range(len(shown)), [row["success"] for row in shown], yerr=error, fmt="o", color=_TEAL,
            markersize=5, elinewidth=2.2, capsize=0,
        )  # fmt: skip
        _ticks(axes, [f"{row['weight']:g}" for row in shown])
        axes.set_xlim(-0.5, len(shown) - 0.5)
        axes.set_ylim(-0.03, 1.03)
        axes.yaxis.set_major_formatter(percent)
        return svg(axes.figure, f"success after training by weight, {split}, with 95 % intervals")
