"""Speed of the ALFWorld planner on real games: writes benchmarks/results/planner.json.

    python benchmarks/planner.py --games path/to/json_2.1.1    # or $SERO_TEST_DATA

Plans once from each of 5,000 states, eight or so in each game, that random commands have led to.
Every plan is carried out, and has to win. Times are the process's own (CPU), so that a busy machine
does not decide, of one plan at a time, with the first plan of the process left out. Beside it:
several shortest plans, plans of what a student has seen, the walkthroughs' lengths, and (in
wall-clock time) how a search that is far too large ends at its budget. Exit code 0: all plans win,
walkthroughs are equalled, and the mean is below 500 microseconds.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from agent_envs.alfworld import engine
from agent_envs.alfworld.games import GameSet
from agent_envs.alfworld.goals import won
from agent_envs.alfworld.model import Game, PrivilegedView, State
from agent_envs.alfworld.text import intro
from benchmarks import record
from oracles.alfworld_as_seen import seen_so_far
from oracles.alfworld_planner import ALFWorldPlanner
from oracles.base import History, HistoryItem, Plan, PlanStatus
from tests.oracles.crowded import crowded
from trainer.cli.common import machine

LIMIT_US = 500.0
STEPS = 40
PLANS = 4
BUDGET_S = 0.2
PLANNER = ALFWorldPlanner(None)
AS_SEEN = ALFWorldPlanner(None, as_seen=True)
T = TypeVar("T")


def timed(work: Callable[[], T], times: list[float]) -> T:
    """The result of `work`; the microseconds that this process computed are added to `times`."""
    began = time.process_time_ns()
    result = work()
    times.append((time.process_time_ns() - began) / 1e3)
    return result


def walked(game: Game, rng: random.Random) -> tuple[State, str, History]:
    """State, observation and record after 1 to `STEPS` random commands, none of which wins."""
    state, text, history = game.start, intro(game, game.start), []
    for _ in range(rng.randint(1, STEPS)):
        command = rng.choice(engine.admissible(game, state))
        following, reply, accepted = engine.step(game, state, command)
        if not won(game, following):
            history.append(HistoryItem(text, command, accepted))
            state, text = following, reply
    return state, text, tuple(history)


def wins(game: Game, state: State, plan: Plan) -> bool:
    """Whether each command is listed and accepted, and the last one wins."""
    for command in plan.actions:
        if command not in engine.admissible(game, state):
            return False
        state, _, accepted = engine.step(game, state, command)
        if not accepted:
            return False
    return won(game, state)


def figures_of(times: Sequence[float]) -> dict[str, float]:
    """Count, mean and percentiles, in microseconds."""
    p50, p95, p99 = np.percentile(times, (50, 95, 99))
    return {
        "calls": len(times),
        "mean_us": round(mean(times), 1),
        "p50_us": round(float(p50), 1),
        "p95_us": round(float(p95), 1),
        "p99_us": round(float(p99), 1),
        "max_us": round(max(times), 1),
    }


def measure(games: GameSet, count: int) -> dict[str, Any]:
    """Plan from `count` states spread over `games`."""
    ids = games.task_ids()
    plan_us: list[float] = []
    several_us: list[float] = []
    seen_us: list[float] = []
    statuses: Counter[str] = Counter()
    seen_statuses: Counter[str] = Counter()
    lengths: list[int] = []
    numbers: list[int] = []
    lost = longer = 0
    warm = games.load(ids[0])
    PLANNER.plan(PrivilegedView(warm, warm.start, None))
    for number, task_id in enumerate(ids):
        game = games.load(task_id)
        rng = random.Random(f"planner/{number}")
        if game.walkthrough is not None:
            shortest = PLANNER.plan(PrivilegedView(game, game.start, None)).actions
            longer += len(shortest) != len(game.walkthrough)
        for _ in range(number, count, len(ids)):
            state, text, history = walked(game, rng)
            view = PrivilegedView(game, state, None)
            plan = timed(lambda view=view: PLANNER.plan(view), plan_us)  # type: ignore[misc]
            statuses[plan.status] += 1
            if plan.status is PlanStatus.FOUND:
                lost += not wins(game, state, plan)
                lengths.append(len(plan.actions))
            seen = seen_so_far(history, text)
            known = timed(lambda seen=seen: AS_SEEN.plan(seen), seen_us)  # type: ignore[misc]
            seen_statuses[known.status] += 1
        plans = timed(lambda view=view: PLANNER.plans(view, PLANS), several_us)  # type: ignore[misc]
        if plans[0].status is PlanStatus.FOUND:
            numbers.append(len(plans))
            lost += not all(wins(game, state, plan) for plan in plans)
    return {
        "plan": {
            **figures_of(plan_us),
            "mean_length": round(mean(lengths), 2),
            "statuses": dict(sorted(statuses.items())),
        },
        "plans": {**figures_of(several_us), "limit": PLANS, "mean_found": round(mean(numbers), 2)},
        "as_seen": {**figures_of(seen_us), "statuses": dict(sorted(seen_statuses.items()))},
        "plans_that_fail": lost,
        "walkthroughs_not_equalled": longer,
    }


def out_of_time() -> dict[str, Any]:
    """A search of some 64 million choices, given `BUDGET_S` seconds."""
    game = crowded(count=400).game()
    view = PrivilegedView(game, game.start, None)
    began = time.perf_counter()
    plan = PLANNER.plan(view, budget_s=BUDGET_S)
    took = time.perf_counter() - began
    return {"budget_s": BUDGET_S, "took_s": round(took, 4), "status": str(plan.status)}


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print, keep; 0 if every promise holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    data = os.environ.get("SERO_TEST_DATA")
    default = str(Path(data) / "alfworld_games.tar.xz") if data else None
    parser.add_argument("--games", default=default, help="real games: a tree or an archive")
    parser.add_argument("--states", type=int, default=5000, help="states to plan from")
    args = parser.parse_args(words)
    if args.games is None:
        parser.error("name the real games with --games, or set SERO_TEST_DATA")
    games = GameSet.from_path(args.games)
    if args.states < len(games):
        parser.error(f"--states is {args.states}; give at least one for each of {len(games)} games")
    found = measure(games, args.states)
    late = out_of_time()
    for name in ("plan", "plans", "as_seen"):
        print(f"{name:8} {found[name]}")
    print(f"out of time: {late}")
    good = (
        found["plan"]["mean_us"] < LIMIT_US
        and not found["plans_that_fail"]
        and not found["walkthroughs_not_equalled"]
    )
    record.write(
        "planner",
        {
            "games": len(games),
            "source": Path(args.games).name,
            "manifest_hash": games.manifest_hash,
            "states": args.states,
            "random_steps_at_most": STEPS,
            "limit_us": LIMIT_US,
            **found,
            "out_of_time": late,
            "machine": machine(),
        },
    )
    print("all promises hold" if good else "FAILED")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
