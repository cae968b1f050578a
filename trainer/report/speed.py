"""Where a run's time went: phases over the iterations, tokens a second, utilisation."""

from __future__ import annotations

from html import escape

from trainer.report import charts
from trainer.report.charts import Panel
from trainer.report.data import ReportData, counted, phase_totals
from trainer.report.parts import panels, section, table

__all__ = ["speed"]

_ALL = "Tokens a second, all phases"
_PANELS = (
    Panel("Sampled tokens a second", (("perf/rollout_tokens_per_s", "tokens"),)),
    Panel("Updated tokens a second", (("perf/update_tokens_per_s", "tokens"),)),
    Panel("Model FLOP utilisation", (("perf/mfu", "share of the peak"),)),
)


def speed(data: ReportData) -> str:
    """The section; empty where no phase was timed."""
    totals = phase_totals(data.metrics)
    whole = sum(totals.values())
    rows = "".join(
        f'<tr><td><i class="key" style="background:{charts.phase_colour(i)}"></i>{escape(name)}'
        f'</td><td class="n">{seconds:.1f}</td><td class="n">{seconds / len(data.metrics):.2f}</td>'
        f'<td class="n">{seconds / whole if whole else 0:.1%}</td></tr>'
        for i, (name, seconds) in enumerate(totals.items())
    )
    if not rows:
        return ""
    # Runs of before the rates were logged by phase have one of them.
    known = any("perf/tokens_per_s" in row for row in data.metrics)
    rate = Panel(_ALL, (("perf/tokens_per_s" if known else "tokens_per_s", "tokens"),))
    stack = charts.phase_stack(data.metrics, totals)
    return section(
        "Where the time went",
        f"{whole:.0f} seconds in {counted(len(data.metrics), 'iteration')}, evaluation and "
        "checkpoints apart. The chart of seconds has the colours of the table.",
        charts.phase_bar(totals),
        table(("phase", "seconds", "s an iteration", "share"), rows),
        panels(data.metrics, (rate, *_PANELS), stack),
    )
