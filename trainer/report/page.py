"""Lays the report out as one HTML page without any outside asset.

Everything that comes from games, models or configs is escaped. Style and charts are inside.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from trainer.cli.common import printable
from trainer.metrics import wilson
from trainer.report import charts
from trainer.report.charts import Panel
from trainer.report.data import Evaluation, Example, ReportData, Step
from trainer.report.methods import auxiliaries
from trainer.report.parts import panels, section, table, words
from trainer.report.speed import speed
from trainer.runs.outputs import write_text

_PANELS = (
    Panel("Episodes won in training", (("success_rate", "share of rollouts"),), share=True),
    Panel(
        "Share of turns",
        (("command_valid_share", "accepted by the game"), ("format_valid_share", "well-formed")),
        share=True,
    ),
    Panel("Groups with mixed outcomes", (("mixed_group_share", "share of groups"),), share=True),
    Panel("Entropy, nats a token", (("entropy", "entropy"),)),
    Panel("Loss", (("loss/policy", "policy"), ("loss/auxiliary", "auxiliary, weighted"))),
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
        (("sero/z", "z: all states of a branch"), ("sero/z_root", "z root: at its first state")),
        share=True,
    ),
    Panel("Effective depth, steps", (("sero/effective_depth", "sum of a branch's weights"),)),
)


def write_report(data: ReportData, path: Path) -> Path:
    """Write the page to `path` (its folder is made) and return the path.

    Raises:
        OutputError: it cannot be written.
    """
    write_text(path, render(data))
    return path


def render(data: ReportData) -> str:
    """The page as text."""
    data = _visible(data)
    style = resources.files(__package__).joinpath("style.css").read_text(encoding="utf-8")
    body = "\n".join(
        part
        for part in (
            _header(data),
            _success(data),
            _curves(data),
            _example(data.example) if data.example is not None else "",
            _oracle(data),
            auxiliaries(data, {name for panel in _ORACLE_PANELS for name, _ in panel.lines}),
            speed(data),
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


def _visible(value: Any) -> Any:
    """`value` with control characters and halves of characters in its texts made visible."""
    if isinstance(value, str):
        return printable(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return dataclasses.replace(value, **{n: _visible(getattr(value, n)) for n in names})
    if isinstance(value, Mapping):
        return {_visible(key): _visible(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_visible(part) for part in value]
    return value


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
        before = f"<small>{_share(group[0])} → </small>" if len(group) > 1 else ""
        tiles.append(
            f'<div class="tile"><div class="name">success, {escape(words(split))}</div>'
            f'<div class="value">{before}{_share(last)}</div>'
            f'<div class="detail">{last.successes} of {last.tasks} tasks, '
            f"95 % interval {_interval(last)}</div></div>"
        )
    named = [*data.facts, *([("run", data.stop)] if data.stop else [])]
    facts = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in named
    )
    return (
        f'<header><h1>{escape(data.title)}</h1><p class="lead">{escape(data.lead)}</p>'
        + (f'<div class="tiles">{"".join(tiles)}</div>' if tiles else "")
        + (f'<dl class="facts">{facts}</dl>' if facts else "")
        + "</header>"
    )


_SPLITS = {
    "train": "tasks that training also draws",
    "valid_train": "tasks that training also draws",
    "valid_seen": "new tasks in rooms that training also has",
    "valid_unseen": "new tasks in rooms that training never has",
    "val": "goals that training never has",
    "test": "goals that training never has",
}
_COLUMNS = ("evaluation", "won", "share", "95 % interval")


def _success(data: ReportData) -> str:
    parts = []
    graded = any(e.is_graded for e in data.evaluations)
    for split, group in splits(data.evaluations):
        rows = "".join(
            f'<tr><td>{escape(e.label)}</td><td class="n">{e.successes} of {e.tasks}</td>'
            f'<td class="n">{_share(e)}</td><td class="n">{_interval(e)}</td>'
            + (f'<td class="n">{_score(e)}</td>' if graded else "")
            + "</tr>"
            for e in group
        )
        what = f" <small>{_SPLITS[split]}</small>" if split in _SPLITS else ""
        some = charts.drawn(group)
        left_out = (
            f'<p class="note">Drawn: the first and the last {len(some) - 1} of {len(group)} '
            "evaluations.</p>"
            if len(some) < len(group)
            else ""
        )
        parts.append(
            f"<div><h3>{escape(words(split))}{what}</h3>{charts.success_by_type(group)}{left_out}"
            + table((*_COLUMNS, "mean score") if graded else _COLUMNS, rows)
            + "</div>"
        )
    return section(
        "Success by task type",
        "Held-out tasks, each played once, the same list every time. Lines are 95 % Wilson "
        "intervals: where they overlap widely, the difference may be chance.",
        f'<div class="sides">{"".join(parts)}</div>' if parts else "",
    )


def _score(evaluation: Evaluation) -> str:
    return "–" if evaluation.score is None else f"{evaluation.score:.3f}"


def _interval(evaluation: Evaluation) -> str:
    if not evaluation.tasks:
        return "–"
    low, high = wilson(evaluation.successes, evaluation.tasks)
    return f"{100 * low:.1f}–{high:.1%}"


def _curves(data: ReportData) -> str:
    return section(
        "Training",
        "One point an iteration. Rollouts sample at the training temperature, on training tasks: "
        "these shares are not those of the evaluation above.",
        panels(data.metrics, _PANELS),
        "".join(f'<p class="note"><b>{escape(line)}</b></p>' for line in (*data.notes, *data.idle)),
    )


def _oracle(data: ReportData) -> str:
    return section(
        "The oracle's branches",
        "From one visited state a task, the oracle plays on. The gate g is how much better it ends "
        "than the student did (0: nothing to learn, the branch has no loss); later steps weigh by "
        "the chance z that the student would follow the oracle up to them (z: its probability of a "
        "token of the oracle's command; z root: at the branch's first state). The sum of a "
        "branch's weights is its effective depth: how many of its steps count.",
        panels(data.metrics, _ORACLE_PANELS),
    )


def _example(example: Example) -> str:
    before = _steps(example.steps[: example.root], 0, "")
    student = _steps(example.steps[example.root :], example.root, "root")
    oracle = _steps(example.branch.steps, example.root, "oracle")
    kind = escape(words(example.task_type))
    alone = (
        "From the first step on"
        if not example.root
        else "Step 1 is the student's alone. From the state after it"
        if example.root == 1
        else f"Steps 1 to {example.root} are the student's alone. From the state after them"
    )
    gate = f'<span class="tag">gate {example.branch.gate:.2f}</span>'
    detail = f" {escape(example.branch.detail)}" if example.branch.detail else ""
    return section(
        "One episode and its branch",
        f"<b>{escape(example.goal)}</b> ({kind}). {alone}: what it did, and what the oracle did in "
        f"a separate environment, with the weight w of each step in the loss.{detail}",
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
                f'<span class="weight"><i class="all"><i style="width:{percent:.0f}%"></i></i>'
                f'<span class="num">w {step.weight:.2f}</span></span>'
            )
        items.append(
            f'<li class="{kind}"><div class="seen">{escape(step.observation)}</div>'
            f'<div class="action"><span class="num">{number}</span> {escape(step.action)}{marks}'
            "</div></li>"
        )
    return f'<ol class="steps">{"".join(items)}</ol>'


def _provenance(data: ReportData) -> str:
    if not data.provenance:
        return ""
    text = json.dumps(data.provenance, indent=2, ensure_ascii=False, default=str)
    return (
        "<section><h2>How to repeat this</h2><details><summary>versions, hashes and the resolved "
        f"configuration</summary><pre>{escape(text)}</pre></details></section>"
    )
