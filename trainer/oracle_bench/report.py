"""The page of `sero bench oracle`: one HTML file without any outside asset.

Drawn from the object of `oracles.bench.figures.to_json` alone, so that a kept `oracle.json` can be
drawn again. Names, commands and texts of games are escaped, control characters made visible.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from trainer.cli.common import printable
from trainer.oracle_bench import plots
from trainer.oracle_bench.explained import sections, wins_from_visited
from trainer.oracle_bench.words import Section, microseconds, percent
from trainer.report.charts import phase_bar, phase_colour
from trainer.runs.outputs import write_text

__all__ = ["render", "write_report"]

Result = Mapping[str, Any]

_STYLE = """
.verdict { font-size: 30px; font-weight: 700; padding: 6px 18px; border-radius: 10px; display: inline-block; margin: 4px 0 14px; }
.verdict.good { color: var(--good); background: var(--good-wash); border: 1px solid var(--good-line); }
.verdict.bad { color: var(--bad); background: var(--bad-wash); border: 1px solid var(--bad-line); }
ul.reasons { margin: 0 0 18px; padding-left: 22px; } ul.reasons li { margin-bottom: 5px; max-width: 72ch; }
th { white-space: nowrap; }
dl.figures { margin: 18px 0 0; display: grid; grid-template-columns: minmax(150px, 210px) 1fr; gap: 0 22px; }
dl.figures dt { color: var(--muted); font-size: 14.5px; padding: 9px 0; border-top: 1px solid var(--line); }
dl.figures dd { margin: 0; padding: 9px 0; border-top: 1px solid var(--line); }
dl.figures dd b { font-weight: 600; font-variant-numeric: tabular-nums; }
dl.figures dd span { display: block; color: var(--muted); font-size: 14.5px; max-width: 72ch; }
.charts { margin: 4px 0 16px; grid-template-columns: repeat(auto-fill, minmax(min(380px, 100%), 1fr)); } figure { margin: 0; } .charts figure svg { max-width: 480px; }
figcaption { color: var(--muted); font-size: 13.5px; margin-top: 4px; max-width: 60ch; }
h3 { margin: 22px 0 6px; }
@media (max-width: 600px) {
  main { padding: 24px 12px 48px; } section { padding: 20px 16px; }
  th, th.n { white-space: normal; overflow-wrap: normal; } td + td { overflow-wrap: break-word; }
  dl.figures { grid-template-columns: 1fr; } dl.figures dt { padding-bottom: 0; }
  dl.figures dd { border-top: 0; padding-top: 0; }
}
"""  # noqa: E501


def write_report(result: Result, path: Path) -> Path:
    """Write the page to `path` (its folder is made) and return the path.

    Raises:
        OutputError: it cannot be written.
    """
    write_text(path, render(result))
    return path


def render(result: Result) -> str:
    """The page as text.

    Args:
        result: as `oracles.bench.figures.to_json` gives it, or as it is read from a file.
    """
    result = _visible(result)
    style = resources.files("trainer.report").joinpath("style.css").read_text(encoding="utf-8")
    title = f"{result['oracle']} on {result['env']}"
    body = "\n".join((_header(result), *(_section(s, result) for s in sections(result))))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}: {escape(result['verdict'])}</title>\n"
        f"<style>\n{style}{_STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n{_whole(result)}\n"
        "</main>\n</body>\n</html>\n"
    )


def _visible(value: Any) -> Any:
    """`value` with control characters and halves of characters in its texts made visible."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {_visible(key): _visible(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_visible(part) for part in value]
    return value


# ------------------------------------------------------------------------------ the head


def _header(result: Result) -> str:
    go = result["verdict"] == "GO"
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in result["reasons"])
    facts = "".join(
        f"<div><dt>{name}</dt><dd>{escape(str(value))}</dd></div>"
        for name, value in (
            ("environment", result["env"]),
            ("policy", result["policy"]),
            ("oracle", result["oracle"]),
            ("states", result["roots"]),
            ("compared by", result["target"]),
            ("seed", result["seed"]),
        )
    )
    return (
        f"<header><h1>Is {escape(result['oracle'])} worth adopting?</h1>"
        '<p class="lead">The policy played. From one state of each episode that it failed, a '
        "root, the oracle took over in a separate environment, in the steps that were left.</p>"
        f'<div class="verdict {"good" if go else "bad"}">{escape(result["verdict"])}</div>'
        f'<ul class="reasons">{reasons}</ul>'
        f'<div class="tiles">{_tiles(result)}</div><dl class="facts">{facts}</dl></header>'
    )


def _tiles(result: Result) -> str:
    gap, cost = result["gate"]["gap"], result["cost"]
    tiles = (
        (
            "restored exactly",
            percent(result["restore_fidelity"]),
            f"{result['restore']['exact']} of {result['restore']['roots']} states; GO needs all",
        ),
        (
            "gap to the policy",
            f"{gap['mean']:+.2f}",
            f"95 % interval {gap['low']:+.2f} to {gap['high']:+.2f}; GO needs it above 0",
        ),
        (
            "overhead",
            percent(result["overhead_share"]),
            f"of an iteration of {cost['iteration_s']:.0f} s, {cost['iteration_from']}; "
            "GO allows 25 %",
        ),
        (
            "oracle wins",
            percent(wins_from_visited(result)[2]),
            f"from visited states; the policy wins {percent(result['policy_success'])} of its "
            "episodes",
        ),
    )
    return "".join(
        f'<div class="tile"><div class="name">{name}</div><div class="value">{escape(value)}</div>'
        f'<div class="detail">{escape(detail)}</div></div>'
        for name, value, detail in tiles
    )


# ------------------------------------------------------------------------------ sections


def _section(section: Section, result: Result) -> str:
    more = _MORE.get(section.key)
    figures = "".join(
        f"<dt>{escape(figure.name)}</dt><dd><b>{escape(figure.value)}</b>"
        f"<span>{escape(figure.meaning)}</span></dd>"
        for figure in section.figures
    )
    return (
        f"<section><h2>{escape(section.title)}</h2>"
        f'<p class="note">{escape(section.question)}</p>'
        f'{more(result) if more else ""}<dl class="figures">{figures}</dl></section>'
    )


def _charts(*drawn: tuple[str, str]) -> str:
    """Charts with a sentence each; those that are empty are left out."""
    figures = "".join(
        f"<figure>{svg}<figcaption>{escape(sentence)}</figcaption></figure>"
        for svg, sentence in drawn
        if svg
    )
    return f'<div class="charts">{figures}</div>' if figures else ""


def _table(names: Sequence[str], rows: Sequence[Sequence[str]], numbers: bool = True) -> str:
    """A table whose first column is text; `numbers`: the others are numbers."""
    kind = " class=n" if numbers else ""
    head = "".join(f"<th{kind if i else ''}>{escape(name)}</th>" for i, name in enumerate(names))
    body = "".join(
        "<tr>"
        + "".join(f"<td{kind if i else ''}>{escape(cell)}</td>" for i, cell in enumerate(row))
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _restore(result: Result) -> str:
    restore = result["restore"]
    chart = _charts(
        (
            plots.restore_time(restore["by_depth"]),
            "Flat: a state is put back as a value. Rising: commands are played again.",
        )
    )
    rows = [
        (plots.bin_name(part), str(part["roots"]), *_times(part)) for part in restore["by_depth"]
    ]
    names = (
        "steps taken", "states", "snapshot, half within", "restore, half within",
        "restore, 95 % within", "bytes of a snapshot",
    )  # fmt: skip
    table = _table(names, rows) if rows else ""
    failures = [(f["task_id"], str(f["t"]), f["what"]) for f in restore["failures"]]
    if failures:
        table += "<h3>What differs after a restore</h3>" + _table(
            ("task", "step", "difference"), failures, numbers=False
        )
    return chart + table


def _times(part: Mapping[str, Any]) -> tuple[str, str, str, str]:
    taken, put_back, size = part["snapshot_us"], part["restore_us"], part["bytes"]
    return (
        microseconds(taken and taken["p50"]),
        microseconds(put_back and put_back["p50"]),
        microseconds(put_back and put_back["p95"]),
        f"{size['mean']:,.0f}" if size else "–",
    )


def _oracle(result: Result) -> str:
    oracle, policy = result["oracle_figures"], result["policy_success"]
    return _charts(
        (
            plots.success_by(
                oracle["by_depth"], "Oracle's success by depth", "share of the steps used", policy
            ),
            "Late states have few steps left. The line is the policy over all its episodes; from "
            "these states it failed.",
        ),
        (
            plots.success_by(
                oracle["by_steps_left"], "Oracle's success by steps left", "steps left", policy
            ),
            "How many steps the oracle needs to be of use.",
        ),
    )


_REASONS = (
    ("active", "better than the policy: teaches"),
    ("oracle_not_better", "no better: teaches nothing"),
    ("oracle_worse", "worse: teaches nothing"),
    ("invalid", "invalid branch: teaches nothing"),
)


def _gate(result: Result) -> str:
    gate = result["gate"]
    counts = {word: gate["by_reason"].get(key, 0) for key, word in _REASONS}
    whole = sum(counts.values())
    rows = "".join(
        f'<tr><td><i class="key" style="background:{phase_colour(i)}"></i>{escape(word)}</td>'
        f'<td class="n">{n}</td><td class="n">{percent(n / max(whole, 1))}</td></tr>'
        for i, (word, n) in enumerate(counts.items())
    )
    bar = phase_bar(counts).replace("share of the wall time by phase", "states by outcome")
    table = f'{bar}<div class="wide"><table>{rows}</table></div>' if whole else ""
    return (
        _charts(
            (
                plots.gap_histogram(gate["gap_histogram"]),
                "Right of the grey bar the oracle is better from the same state, left of it "
                "worse; an invalid branch counts as 0.",
            )
        )
        + table
    )


def _cost(result: Result) -> str:
    if result["cost"]["overhead_share"] < 0.001:
        return ""  # a chart without a bar
    return _charts(
        (
            plots.overhead_bar(result["cost"]),
            "What would have to get cheaper if the bar crosses the line.",
        )
    )


def _leaks(result: Result) -> str:
    rows = [
        (e["task_id"], str(e["k"]), e["command"], e["why"]) for e in result["leaks"]["examples"]
    ]
    names = ("task", "steps from the root", "command", "why")
    return _table(names, rows, numbers=False) if rows else ""


def _reach(result: Result) -> str:
    reach = result["reach"]
    return _charts(
        (
            plots.reach_by_depth(reach["z_by_depth"]),
            "z is the probability, per token, that the policy gives to the oracle's command at a "
            "step.",
        ),
        (
            plots.mean_weights(reach["weights"]),
            "A step weighs as much as the policy is likely to get there; the area is the "
            "effective depth.",
        ),
    )


def _scale(result: Result) -> str:
    weights = result["scale"]["weights"]
    rows = [
        tuple("–" if w[k] is None else f"{w[k]:.3g}" for k in ("weight", "ratio", "cosine_total"))
        for w in weights
    ]
    return _charts(
        (
            plots.gradient_ratio(weights),
            "Below the band the oracle is hardly felt, above it the base objective is. The last "
            "column of the table is 1 where the sum of both pulls as the base alone, 0 where it "
            "pulls across.",
        )
    ) + _table(("weight", "oracle by base", "cosine of base and sum"), rows)


def _sweep(result: Result) -> str:
    rows = result["sweep"]["rows"]
    return _charts(
        *(
            (plots.sweep_success(rows, split), "Lines are 95 % intervals; 0 is training without.")
            for split in dict.fromkeys(row["split"] for row in rows)
        )
    )


_MORE: dict[str, Callable[[Result], str]] = {
    "restore": _restore,
    "oracle": _oracle,
    "gate": _gate,
    "cost": _cost,
    "leaks": _leaks,
    "reach": _reach,
    "scale": _scale,
    "sweep": _sweep,
}


def _whole(result: Result) -> str:
    text = json.dumps(result, indent=2, ensure_ascii=False)
    return (
        "<section><h2>All figures</h2><details><summary>as one JSON object</summary>"
        f"<pre>{escape(text)}</pre></details></section>"
    )
