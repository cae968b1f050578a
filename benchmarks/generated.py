"""Generated households beside the public games: writes benchmarks/results/generated.json.

    python benchmarks/generated.py --games path/to/json_2.1.1    # or $SERO_TEST_DATA

Measures the real games at hand and as many generated ones of each task type, from several seeds,
and prints both side by side, with the figures known of all 3,827 public games. Fails if the mean
plan length of a task type differs by more than 15 % from either.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import record
from rich.console import Console
from rich.table import Table

from agent_envs.alfworld.compile import compile_game
from agent_envs.alfworld.engine import admissible, step
from agent_envs.alfworld.games import GameSet
from agent_envs.alfworld.households.generator import GENERATOR_VERSIONS, STANDARD, generate_game
from agent_envs.alfworld.model import Game, PrivilegedView, TaskType, bits
from agent_envs.alfworld.text import intro
from oracles.alfworld_planner import ALFWorldPlanner
from trainer.cli.common import machine

BAND = 0.15
WALK = 20
OPENABLE = ("cabinet", "drawer", "safe", "microwave", "fridge")
PUBLIC: dict[str, float] = {  # over all 3,827 games
    "receptacles": 23.5,
    "objects": 41.7,
    "locations": 30.1,
    "shared_spot": 2830 / 3827,
    "listed_twice": 1479 / 3827,
    "location_differs": 266 / 3827,
    "won_early": 99 / 3827,
    "dead_end": 987 / 3827,
    "openable_cabinet": 0.82,
    "openable_drawer": 0.84,
    "openable_safe": 0.87,
    "openable_microwave": 1.0,
    "openable_fridge": 1.0,
}
PUBLIC_PLANS = {
    TaskType.LOOK: 3.6,
    TaskType.PICK: 4.2,
    TaskType.CLEAN: 6.3,
    TaskType.HEAT: 6.2,
    TaskType.COOL: 6.2,
    TaskType.TWO: 8.3,
}
TREATED = (TaskType.CLEAN, TaskType.HEAT, TaskType.COOL)
PLANNER = ALFWorldPlanner()


@dataclass(frozen=True, slots=True)
class Measured:
    """One game: counts and, for shares, 0 or 1."""

    type: TaskType
    plan: int
    same_length: bool
    """Whether the walkthrough in the file is as short as the planner's plan."""
    figures: dict[str, float]
    openable: tuple[tuple[str, bool], ...]


def measure(game: Game, name: str) -> Measured:
    """Everything the report says about one game."""
    start = game.start
    plan = PLANNER.plan(PrivilegedView(game, start, None)).actions
    where = [[r for r, m in enumerate(start.contents) if m >> i & 1] for i in range(len(game.objs))]
    spots = [{at for at, m in enumerate(start.at) if m >> i & 1} for i in range(len(game.objs))]
    placed = [i for i, places in enumerate(where) if places]
    somewhere = 0
    for held in game.can_hold:
        somewhere |= held
    wanted = [i for i in bits(game.goal.objects) if where[i]]
    behind = [all(game.openable >> r & 1 for r in where[i]) for i in wanted]
    drawn = random.Random(name)
    figures = {
        "receptacles": len(game.recs),
        "objects": len(game.objs),
        "objects_in_receptacles": len(placed),
        "locations": len(game.locs),
        "wanted_objects": len(wanted),
        "wanted_behind_doors": mean(behind),
        "first_observation_chars": len(intro(game, start)),
        "admissible_on_plan": _admissible(game, plan),
        "admissible_on_walk": _admissible(game, [None] * WALK, drawn.choice),
        "shared_spot": any(len(here) > 1 for here in game.recs_at),
        "receptacles_sharing": sum(len(here) for here in game.recs_at if len(here) > 1),
        "listed_twice": any(len(places) > 1 for places in where),
        "objects_listed_twice": sum(len(places) > 1 for places in where),
        "location_differs": any(not spots[i] & {game.rec_loc[r] for r in where[i]} for i in placed),
        "won_early": game.task_type in TREATED and not plan[-1].startswith("move"),
        "dead_end": any(game.pickupable & ~somewhere & 1 << i for i in placed),
        "cool_at_start": bool(start.cool),
        "objects_in_objects": any(game.inner),
    }
    shipped = game.walkthrough or ()
    doors = tuple(
        (cls, bool(game.openable >> r & 1))
        for r, cls in enumerate(game.rec_class) if cls in OPENABLE
    )  # fmt: skip
    return Measured(game.task_type, len(plan), len(shipped) == len(plan), figures, doors)


def _admissible(
    game: Game,
    commands: Sequence[str | None],
    draw: Callable[[Sequence[str]], str] | None = None,
) -> float:
    """Mean number of admissible commands along a plan, or along a walk that `draw` draws."""
    state, numbers = game.start, []
    for command in commands:
        options = admissible(game, state)
        numbers.append(len(options))
        state = step(game, state, draw(options) if draw else command or "look")[0]
    return mean(numbers)


def summarise(games: list[Measured]) -> dict[str, Any]:
    """Means over games of equal weight; openable shares are over receptacles."""
    out: dict[str, Any] = {
        key: round(mean(g.figures[key] for g in games), 3) for key in games[0].figures
    }
    for cls in OPENABLE:
        found = [open_ for g in games for name, open_ in g.openable if name == cls]
        out[f"openable_{cls}"] = round(mean(found), 3) if found else None
    out["walkthroughs_not_shortest"] = sum(not g.same_length for g in games)
    out["plans"] = {}
    for kind in TaskType:
        lengths = [g.plan for g in games if g.type is kind]
        if lengths:
            out["plans"][str(kind)] = {
                "games": len(lengths),
                "mean": round(mean(lengths), 3),
                "lengths": dict(sorted(Counter(lengths).items())),
            }
    return out


def generated(counts: Counter[TaskType], seeds: int) -> tuple[list[Measured], float]:
    """As many standard games of each type; also the milliseconds that one took to generate."""
    out, seconds = [], 0.0
    for kind, number in sorted(counts.items()):
        spec = replace(STANDARD, task_types=(kind,))
        for i in range(number):
            begin = time.process_time()
            made = generate_game(i % seeds, i // seeds, "train", spec)
            seconds += time.process_time() - begin
            out.append(measure(compile_game(made.payload), made.task_id))
    return out, 1000 * seconds / len(out)


def off(value: float, expected: float) -> float:
    """Relative difference."""
    return value / expected - 1


def missed(ours: dict[str, Any], real: dict[str, Any]) -> list[str]:
    """Task types whose plans are not as long as they should be."""
    return [
        str(kind)
        for kind, public in PUBLIC_PLANS.items()
        if str(kind) in ours["plans"]
        and max(
            abs(off(ours["plans"][str(kind)]["mean"], expected))
            for expected in (public, real["plans"][str(kind)]["mean"])
        )
        > BAND
    ]


def show(ours: dict[str, Any], real: dict[str, Any]) -> None:
    """Print both side by side."""
    console = Console(highlight=False)
    table = Table(
        "plans", "generated", "real", "all public", "off real", "lengths, generated / real"
    )
    for kind in TaskType:
        mine, theirs = ours["plans"].get(str(kind)), real["plans"].get(str(kind))
        if mine and theirs:
            table.add_row(
                str(kind), f"{mine['mean']:.2f}", f"{theirs['mean']:.2f}",
                f"{PUBLIC_PLANS[kind]:.1f}", f"{off(mine['mean'], theirs['mean']):+.0%}",
                f"{_shares(mine)}\n{_shares(theirs)}",
            )  # fmt: skip
    console.print(table)
    table = Table("mean or share of games", "generated", "real", "all public")
    for key, value in ours.items():
        if key != "plans":
            known = f"{PUBLIC[key]:.3f}" if key in PUBLIC else ""
            table.add_row(key.replace("_", " "), f"{value}", f"{real[key]}", known)
    console.print(table)


def _shares(plans: dict[str, Any]) -> str:
    return " ".join(f"{n}:{k / plans['games']:.0%}" for n, k in plans["lengths"].items())


def main() -> int:
    """Measure, print, keep; 0 if every task type is within the band."""
    parser = argparse.ArgumentParser(description=__doc__)
    data = os.environ.get("SERO_TEST_DATA")
    default = str(Path(data) / "alfworld_games.tar.xz") if data else None
    parser.add_argument("--games", default=default, help="real games: a tree or an archive")
    parser.add_argument("--seeds", type=int, default=20, help="worlds to generate from")
    args = parser.parse_args()
    if args.games is None:
        parser.error("name the real games with --games, or set SERO_TEST_DATA")
    source = GameSet.from_path(args.games)
    theirs = [measure(source.load(name), name) for name in source.task_ids()]
    mine, milliseconds = generated(Counter(game.type for game in theirs), args.seeds)
    ours, real = summarise(mine), summarise(theirs)
    show(ours, real)
    failed = missed(ours, real)
    print(f"{len(mine)} generated games, {milliseconds:.1f} ms each; {len(theirs)} real games")
    print(f"plan lengths off by more than {BAND:.0%}: {', '.join(failed) or 'none'}")
    record.write(
        "generated",
        {
            "games": len(theirs),
            "source": Path(args.games).name,
            "manifest_hash": source.manifest_hash,
            "seeds": args.seeds,
            "walk_steps": WALK,
            "generator_versions": GENERATOR_VERSIONS,
            "generate_ms": round(milliseconds, 2),
            "generated": ours,
            "real": real,
            "public": {
                **{key: round(value, 3) for key, value in PUBLIC.items()},
                "plans": {str(kind): value for kind, value in PUBLIC_PLANS.items()},
            },
            "band": BAND,
            "missed": failed,
            "machine": machine(),
        },
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
