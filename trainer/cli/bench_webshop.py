"""Measure WebShop beside the original on the same walks: steps, resets, snapshots, search.

With --original (a checkout of princeton-nlp/WebShop, run unmodified in a process of its own; extra
`webshop-reference`) both sides run in turn; without it the original's recorded speed is scaled to
this machine and the ratios are marked as estimated. Takes about a minute beside the original, some
seconds without it; --scale adds minutes. Exit code 1 when a threshold is missed or pages differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from rich.console import Console
from rich.table import Table

from trainer.cli.common import emit, machine, unset, versions


@dataclass(frozen=True, slots=True)
class Args:
    """Options of `sero bench webshop`."""

    data: Annotated[str | None, unset("DIR")] = None
    """A folder of the original's files, an imported store, or generated:standard?seed=1 (default:
    $SERO_WEBSHOP_DATA, else a generated shop)."""
    original: Annotated[str | None, unset("DIR")] = None
    """A checkout of princeton-nlp/WebShop to run beside ours."""
    goals: int = 200
    """On how many goals to walk."""
    steps: int = 15
    """Longest walk; a purchase ends it."""
    seed: int = 0
    """Seed of the choice of goals and of the walks."""
    scale: bool = False
    """Measure search also in 100,000 and 1.18 million recombined products."""
    json: bool = False
    """Print the figures as one JSON object on the last line."""


PACKAGES = ("rapidfuzz", "flask", "jinja2", "beautifulsoup4", "thefuzz", "bm25s")
"""What the figures depend on beside our own versions."""

ROWS = (
    ("step, queries never seen", "ratio_gym", "{step_us:.1f} µs", "{real_step_ms:.1f} ms"),
    ("step, queries seen before", "ratio_gym_warm", "{step_warm_us:.1f} µs", ""),
    ("step, most products new as well", "ratio_gym_first", "{step_first_us:.1f} µs", ""),
)


def run(args: Args) -> int:
    """Measure and print; 0 if every threshold is reached and no page differs."""
    from agent_envs.webshop.shop import load_shop
    from trainer.bench import webshop

    console = Console(highlight=False, markup=False, emoji=False)
    status = Console(stderr=True, highlight=False, markup=False, emoji=False)
    shop = load_shop(args.data)
    plan = webshop.Plan(args.goals, args.steps, args.seed)

    def progress(line: str) -> None:
        status.print(line, overflow="ellipsis", no_wrap=True)

    with webshop.opened(shop, args.data, args.original) as original:
        result: dict[str, Any] = webshop.measure(shop, plan, progress, original)
    progress("search")
    result |= webshop.search_figures(shop, args.scale, args.seed)
    result["machine"] = machine() | versions(PACKAGES)
    result["thresholds"] = {**webshop.AT_LEAST, **webshop.BELOW}
    result["missed"] = webshop.missed(result)

    said = "estimated" if result["estimated"] else "run beside ours"
    table = Table(
        title=f"ours, and the original ({said}): {result['goals']} goals, {result['source']}"
    )
    table.add_column("what")
    for column in ("ours", "original", "times faster", "at least"):
        table.add_column(column, justify="right")
    for label, name, ours, real in ROWS:
        about = "~" if result["estimated"] else ""
        table.add_row(
            label,
            ours.format(**result),
            about + real.format(**result) if real else "",
            f"{about}{result[name]:,.0f}",
            f"{webshop.AT_LEAST[name]:,.0f}" if name in webshop.AT_LEAST else "",
        )
    console.print(table)
    print_rest(console, result)
    for reason in result["missed"]:
        console.print(f"MISSED: {reason}", style="bold red")
    emit(result, args.json)
    return 1 if result["missed"] else 0


def print_rest(console: Console, result: dict[str, Any]) -> None:
    """Print what is not a ratio."""
    console.print(
        "{steps_per_s:,.0f} steps/s with queries never seen, {steps_per_s_warm:,.0f} with known "
        "ones; {total_steps} steps, {queries} queries, {purchases} purchases; {mismatches} pages "
        "differ.".format(**result)
    )
    console.print(
        "Engine: reset {reset_us:.1f} µs, snapshot {snapshot_us:.2f} µs, restore {restore_us:.2f} "
        "µs; reading a goal {goal_us:.0f} µs. Through Gymnasium: reset {gym_reset_us:.0f} µs, "
        "snapshot {gym_snapshot_us:.1f} µs, restore {gym_restore_us:.1f} µs. A walk leaves "
        "{cache_kib_per_goal:.0f} KiB in the caches, which are bounded.".format(**result)
    )
    for line in search_lines(result["search"]):
        console.print(line)
    console.print(", ".join(f"{k} {v}" for k, v in result["machine"].items()))


def search_lines(search: dict[str, dict[str, Any]]) -> list[str]:
    """Search by size of the catalogue, beside another engine where that was run."""
    lines = []
    for size, row in search.items():
        peer = row["bm25s"]
        lines.append(
            f"Search in {int(size):,} documents: p50 {row['p50_ms']:.3f} ms, p99 "
            f"{row['p99_ms']:.3f} ms; built in {row['build_s']:.1f} s, "
            f"{row['bytes'] / 2**20:.1f} MiB, opened in {row['open_ms']:.1f} ms, "
            f"{row['queries_mb'] or 0:.0f} MiB resident."
        )
        if peer is not None:
            lines[-1] += (
                f" bm25s: p50 {peer['p50_ms']:.3f} ms, {peer['overlap']:.0%} of our top 50."
            )
    return lines
