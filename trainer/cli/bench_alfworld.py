"""Measure the ALFWorld engine beside the original one, on the same games in one run.

Needs the extra `reference` (the original engine). Takes about fifteen minutes: nearly all of it is
the original's time, so fewer --walks take less. Exit code 1 when a ratio misses its threshold or
the engines disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from rich.console import Console
from rich.table import Table

from trainer.cli.common import emit, game_set, machine, unset


@dataclass(frozen=True, slots=True)
class Args:
    """Options of `sero bench alfworld`."""

    games: Annotated[str | None, unset("GAMES")] = None
    """An ALFWorld tree, a folder, an archive, or generated:standard?seed=1 (default:
    $SERO_ALFWORLD_DATA, $ALFWORLD_DATA, else generated households)."""
    walks: int = 100
    """On how many games to step and reset."""
    replays: int = 12
    """On how many of them to walk a second time and to restore, which the original does slowly."""
    planner_games: int = 30
    """On how many games to plan."""
    steps: int = 50
    """Length of a walk, and the depth at which restoring is measured."""
    seed: int = 0
    """Seed of the choice of games and of the walks."""
    planner_limit: float = 60.0
    """Seconds after which a plan of the original is given up and counted with them."""
    index: int = 3553
    """Games of a generated tree whose opening is timed; 0: none."""
    live: int = 1000
    """Environments that run at once while memory is measured, on 100 games; 0: none."""
    json: bool = False
    """Print the figures as one JSON object on the last line."""


ROWS = (
    ("step, through Gymnasium", "ratio_gym", "{step_us:.1f} µs", "{real_step_ms:.1f} ms"),
    ("step, engine, new states", "ratio_engine_cold", "{engine_cold_us:.1f} µs", ""),
    ("step, engine, known states", "ratio_engine_warm", "{engine_warm_us:.1f} µs", ""),
    ("load a cached game, reset", "ratio_reset", "{reset_ms:.2f} ms", "{real_reset_s:.2f} s"),
    ("load a new game, reset", "ratio_reset_first", "{reset_first_ms:.1f} ms", ""),
    (
        "back to depth {steps}",
        "ratio_restore",
        "{snapshot_us:.1f} + {restore_us:.1f} µs",
        "{real_replay_s:.2f} s",
    ),
    ("plan from the start", "ratio_planner", "{plan_ms:.2f} ms", "{real_plan_s:.2f} s"),
)


def run(args: Args) -> int:
    """Measure and print; 0 if every threshold is reached and the engines agree."""
    from trainer.bench import alfworld, footprint

    console = Console(highlight=False, markup=False, emoji=False)
    status = Console(stderr=True, highlight=False, markup=False, emoji=False)
    games = game_set(args.games)
    plan = alfworld.Plan(
        args.walks,
        min(args.replays, args.walks),
        args.planner_games,
        args.steps,
        args.seed,
        args.planner_limit,
    )
    result: dict[str, Any] = alfworld.measure(
        games, plan, lambda line: status.print(line, overflow="ellipsis", no_wrap=True)
    )
    result |= footprint.measure(games, args.seed, args.live, args.index)
    result["machine"] = machine()
    result["thresholds"] = alfworld.THRESHOLDS
    result["missed"] = alfworld.missed(result)

    table = Table(title=f"ours beside the original, {result['games']} games, {result['source']}")
    table.add_column("what")
    for column in ("ours", "original", "times faster", "at least"):
        table.add_column(column, justify="right")
    for label, name, ours, real in ROWS:
        least = alfworld.THRESHOLDS.get(name)
        table.add_row(
            label.format(**result),
            ours.format(**result),
            real.format(**result),
            f"{result[name]:,.0f}",
            "" if least is None else f"{least:,.0f}",
        )
    console.print(table)
    console.print(
        f"{result['steps_per_s']:,.0f} steps/s, compile {result['compile_ms']:.1f} ms; "
        f"{result['unseen_share']:.0%} of the steps reach a state not seen before; "
        f"{result['mismatches']} mismatches. Plans: means over games; the rest: medians. "
        f"{result['original_plans_given_up']} of the original's plans were given up after "
        f"{args.planner_limit:.0f} s and count as that."
    )
    console.print(
        f"A compiled game takes {result['game_kib']:.0f} KiB, its cache of command lists at most "
        f"{result['memo_kib']:.0f} KiB ({result['memo_limit']} lists)."
    )
    if args.live:
        console.print(
            f"{args.live} running environments on {result['live_games']} games take "
            f"{result['live_mb']:.1f} MiB beyond the games."
        )
    if args.index:
        console.print(
            f"A tree of {args.index} games opens in {result['index_first_s']:.1f} s, "
            f"from the cache in {result['index_s']:.2f} s."
        )
    console.print(", ".join(f"{k} {v}" for k, v in result["machine"].items()))
    for reason in result["missed"]:
        console.print(f"MISSED: {reason}", style="bold red")
    emit(result, args.json)
    return 1 if result["missed"] else 0
