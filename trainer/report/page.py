"""Lays the report out as one HTML page without any outside asset.

Everything that comes from games, models or configs is escaped. Style and charts are inside.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path

from trainer.metrics import wilson
from trainer.report import charts
from trainer.report.charts import Panel
from trainer.report.data import Evaluation, Example, ReportData, Step, phase_totals

_PANELS = (
    Panel("Episodes won in training", (("success_rate", "share of rollouts"),), share=True),
    Panel(
        "Share of turns",
        (("command_valid_share", "accepted by the game"), ("format_valid_share", "well-formed")),
        share=True,
    ),
    Panel("Groups with mixed outcomes", (("mixed_group_share", "share of groups"),), share=True),
    Panel("Entropy, nats a token", (("entropy", "entropy"),)),
    Panel("Loss", (("loss/policy", "policy"), ("loss/auxiliary", "auxiliary, unweighted"))),
    Panel(
        "Gradient norm before clipping",
        (("grad/base_norm", "base"), ("grad/aux_norm", "auxiliary, weighted")),
    ),
)
_ORACLE_PANELS = (
    Panel(
        "Gate",
        (("sero/gate_mean", "mean gate g"), ("sero/gate_zero_share", "share of roots with g = 0")),
        share=True,
    ),
    Panel(
        "Reach",
        (("sero/z", "mean z, all branch states"), ("sero/z_root", "mean z at the root")),
        share=True,
    ),
    Panel("Effective depth, steps", (("sero/effective_depth", "sum of weights"),)),
)


def write_report(data: ReportData, path: Path) -> Path:
    """Write the page to `path` (its folder is made) and return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(data), encoding="utf-8")
    return path


def render(data: ReportData) -> str:
    """The page as text."""
    style = resources.files(__package__).joinpath("style.css").read_text(encoding="utf-8")
    body = "\n".join(
        part
        for part in (
            _header(data),
            _success(data),
            _curves(data),
            _example(data.example) if data.example is not None else "",
            _oracle(data),
            _phases(data),
            _provenance(data),
        )
        if part
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(data.title)}</title>\n<style>\n{style}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def splits(evaluations: Sequence[Evaluation]) -> list[tuple[str, list[Evaluation]]]:
    """Evaluations by split, both in the order in which they first occur."""
    found: dict[str, list[Evaluation]] = {}
    for evaluation in evaluations:
        found.setdefault(evaluation.split, []).append(evaluation)
    return list(found.items())


def _share(evaluation: Evaluation) -> str:
    return f"{evaluation.successes / evaluation.tasks:.1%}" if evaluation.tasks else "–"


def _header(data: ReportData) -> str:
    tiles = []
    for split, group in splits(data.evaluations):
        last = group[-1]
        low, high = wilson(last.successes, last.tasks)
        before = f"<small>{_share(group[0])} → </small>" if len(group) > 1 else ""
        tiles.append(
            f'<div class="tile"><div class="name">success, {escape(split.replace("_", " "))}</div>'
            f'<div class="value">{before}{_share(last)}</div>'
            f'<div class="detail">{last.successes} of {last.tasks} tasks, '
            f"95 % interval {low:.1%} to {high:.1%}</div></div>"
        )
    facts = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in data.facts
    )
    return (
        f'<header><h1>{escape(data.title)}</h1><p class="lead">{escape(data.lead)}</p>'
        + (f'<div class="tiles">{"".join(tiles)}</div>' if tiles else "")
        + (f'<dl class="facts">{facts}</dl>' if facts else "")
        + "</header>"
    )


def _section(title: str, note: str, *parts: str) -> str:
    body = "".join(parts)
    if not body:
        return ""
    return f'<section><h2>{escape(title)}</h2><p class="note">{note}</p>{body}</section>'


def _success(data: ReportData) -> str:
    parts = []
    for split, group in splits(data.evaluations):
        table = "".join(
            f"<tr><td>{escape(e.label)}</td>"
            f'<td class="n">{e.successes}</td><td class="n">{e.tasks}</td>'
            f'<td class="n">{_share(e)}</td></tr>'
            for e in group
        )
        parts.append(
            f"<h3>{escape(split.replace('_', ' '))}</h3>{charts.success_by_type(group)}"
            '<table><tr><th>evaluation</th><th class="n">won</th><th class="n">tasks</th>'
            f'<th class="n">share</th></tr>{table}</table>'
        )
    return _section(
        "Success by task type",
        "Held-out tasks, each played once, the same list every time. Lines are 95 % Wilson "
        "intervals: where they overlap widely, the difference may be chance.",
        *parts,
    )


def _curves(data: ReportData) -> str:
    return _section(
        "Training",
        "One point an iteration. Rollouts sample at the training temperature, on training tasks: "
        "these shares are not those of the evaluation above.",
        charts.curves(data.metrics, _PANELS),
    )


def _oracle(data: ReportData) -> str:
    return _section(
        "The oracle's branches",
        "From one visited state a task, the oracle plays on. The gate g is how much better it ends "
        "than the student did (0: nothing to learn, the branch has no loss); later steps weigh by "
        "the chance z that the student would follow the oracle up to them.",
        charts.curves(data.metrics, _ORACLE_PANELS),
    )


def _example(example: Example) -> str:
    before = _steps(example.steps[: example.root], 0, "")
    student = _steps(example.steps[example.root :], example.root, "root")
    oracle = _steps(example.branch.steps, example.root, "oracle")
    kind = escape(example.task_type.replace("_", " "))
    gate = f'<span class="tag">gate {example.branch.gate:.2f}</span>'
    detail = f" {escape(example.branch.detail)}" if example.branch.detail else ""
    return _section(
        "One episode and its branch",
        f"<b>{escape(example.goal)}</b> ({kind}). Up to step {example.root + 1} the student acts "
        "alone. From that state on: left, what it did; right, what the oracle did in a separate "
        f"environment, with the weight of each step in the loss.{detail}",
        f'<div class="before">{before}</div>' if example.root else "",
        f'<div class="sides"><div><h3>Student {_outcome(example.success)}</h3>{student}</div>'
        f"<div><h3>Oracle {_outcome(example.branch.success)}{gate}</h3>{oracle}</div></div>",
    )


def _outcome(success: bool) -> str:
    kind, text = ("good", "wins") if success else ("bad", "does not win")
    return f'<span class="tag {kind}">{text}</span>'


def _steps(steps: Sequence[Step], first: int, kind: str) -> str:
    """A list of steps; `first` is the number of the first one, counted from 0."""
    items = []
    for number, step in enumerate(steps, start=first + 1):
        marks = "" if step.command_valid else '<span class="tag bad">refused</span>'
        if step.weight is not None:
            percent = 100 * min(1.0, max(0.0, step.weight))
            marks += (
                f'<span class="weight"><i style="width:{percent:.0f}%"></i></span>'
                f'<span class="num">w {step.weight:.2f}</span>'
            )
        items.append(
            f'<li class="{kind}"><div class="seen">{escape(step.observation)}</div>'
            f'<div class="action"><span class="num">{number}</span> {escape(step.action)}{marks}'
            "</div></li>"
        )
    return f'<ol class="steps">{"".join(items)}</ol>'


def _phases(data: ReportData) -> str:
    totals = phase_totals(data.metrics)
    whole = sum(totals.values())
    rows = "".join(
        f'<tr><td>{escape(name)}</td><td class="n">{seconds:.1f}</td>'
        f'<td class="n">{seconds / len(data.metrics):.2f}</td>'
        f'<td class="n">{seconds / whole:.1%}</td></tr>'
        for name, seconds in totals.items()
    )
    if not rows:
        return ""
    return _section(
        "Where the time went",
        f"{whole:.0f} seconds in {len(data.metrics)} iterations.",
        charts.phase_bar(totals),
        '<table><tr><th>phase</th><th class="n">seconds</th><th class="n">an iteration</th>'
        f'<th class="n">share</th></tr>{rows}</table>',
    )


def _provenance(data: ReportData) -> str:
    if not data.provenance:
        return ""
    text = json.dumps(data.provenance, indent=2, ensure_ascii=False, default=str)
    return (
        "<section><h2>How to repeat this</h2><details><summary>versions, hashes and the resolved "
        f"configuration</summary><pre>{escape(text)}</pre></details></section>"
    )
