"""An evaluation result for people: a table by task type, and a summary as plain text."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainer.metrics import overflow_warning
from trainer.rollouts.data import CONTEXT_OVERFLOW

__all__ = ["headline", "notes", "overflowing", "summary", "table"]


def headline(result: Mapping[str, Any]) -> str:
    """Solved tasks of a result on one line."""
    low, high = result["interval_95"]
    share = f"{result['success']:.1%}"
    interval = f"95 % interval {low:.1%} to {high:.1%}"
    spread = result.get("over_seeds")
    if spread is None:
        return f"{result['split']}: {result['wins']} of {result['n']} tasks, {share} ({interval})"
    seeds = len(spread["seeds"])
    sd = spread["success"]["sd"]
    return (
        f"{result['split']}: {result['n']} tasks x {seeds} seeds, {share} +- {100 * sd:.1f} points "
        f"(sd over seeds; over tasks: {interval})"
    )


def table(result: Mapping[str, Any]) -> Table:
    """Success and score by task type, with the means over tasks (micro) and types (macro)."""
    spread = result.get("over_seeds")
    scored = _has_scores(result)
    made = Table(title=None, box=None, pad_edge=False)
    made.add_column("task type", no_wrap=True)
    made.add_column("tasks", justify="right")
    made.add_column("success %", justify="right")
    made.add_column("95 % interval", justify="right")
    if spread is not None:
        made.add_column("sd over seeds", justify="right")
    if scored:
        made.add_column("score x 100", justify="right")
        made.add_column("95 % interval", justify="right")

    def row(name: str, group: Mapping[str, Any], over: Mapping[str, Any] | None) -> None:
        cells = [name, str(group["n"]), _percent(group["success"]), _range(group["interval_95"])]
        if spread is not None:
            cells.append("" if over is None else _percent(over["success"]["sd"]))
        if scored:
            cells += [_percent(group["score"]), _range(group["score_interval_95"])]
        made.add_row(*map(_cell, cells))

    for kind, group in result["by_task_type"].items():
        row(kind, group, None if spread is None else spread["by_task_type"][kind])
    row("all tasks (micro)", result, spread)
    cells = ["mean of types (macro)", "", _percent(result["macro_success"]), ""]
    if spread is not None:
        cells.append(_percent(spread["macro_success"]["sd"]))
    if scored:
        cells += [_percent(result["macro_score"]), ""]
    made.add_row(*map(_cell, cells))
    return made


def notes(result: Mapping[str, Any]) -> list[str]:
    """Steps, ends, malformed and refused replies, and what a reader must not overlook."""
    stops = ", ".join(f"{name} {count}" for name, count in result["stop_reasons"].items())
    lines = []
    if result["mean_steps"] is not None:
        lines.append(f"mean steps {result['mean_steps']:.1f}; ends: {stops}")
    if result["admissible_share"] is not None:
        lines.append(
            f"malformed replies {result['invalid_format_share']:.1%}, refused commands "
            f"{1 - result['admissible_share']:.1%}"
        )
    warning = overflowing(result)
    if warning is not None:
        lines.append(f"WARNING: {warning} In `sero eval`: --max-prompt-tokens.")
    if result["trials"] > 1:
        solved = ", ".join(str(count) for count in result["attempts"]["solved_by_trial"])
        lines.append(
            f"up to {result['trials']} trials a task, solved after each: {solved}. Not comparable "
            "with single attempts."
        )
    if (result.get("model") or {}).get("kind") == "endpoint":
        lines.append("replies came as text from a server; token ids are not recorded")
    return lines


def summary(result: Mapping[str, Any]) -> str:
    """Headline, table, notes and what was measured, as plain text."""
    out = io.StringIO()
    console = Console(file=out, width=120, no_color=True, highlight=False)
    console.print(Text(headline(result)))
    console.print(table(result))
    for line in notes(result):
        console.print(Text(line))
    for name in ("env_id", "method", "trials", "prompt_template", "prompt_hash", "history_length",
                 "context", "max_prompt_tokens", "max_steps", "decoding", "tasks_hash",
                 "manifest_hash", "model", "engine", "versions"):  # fmt: skip
        console.print(Text(f"{name}: {result.get(name)}"), soft_wrap=True)
    return out.getvalue()


def overflowing(result: Mapping[str, Any]) -> str | None:
    """What to say where a prompt beyond the limit ended most episodes; None: nothing."""
    stops = result["stop_reasons"]
    plays = sum(stops.values())
    return overflow_warning(
        stops.get(CONTEXT_OVERFLOW, 0) / plays if plays else None,
        result.get("context_overflow_longest"),
        result.get("max_prompt_tokens"),
    )


def _cell(text: str) -> Text:
    """No markup, and no control characters: names of task types come from data files."""
    return Text("".join(c if c.isprintable() else "?" for c in text))


def _has_scores(result: Mapping[str, Any]) -> bool:
    return result["score"] is not None and result["score"] != result["success"]


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"


def _range(interval: list[float] | None) -> str:
    return "" if interval is None else f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f}"
