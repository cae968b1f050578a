"""Speed of the native ALFWorld engine beside the original one, on the same games in one run.

Every ratio says how many times faster ours is:

==================== ==========================================================================
`ratio_gym`          a step with admissible commands and goal check through `gymnasium.make`,
                     in states never seen before; the original: `step` of its engine, asked for
                     `won` and `admissible_commands` only (its Gymnasium layer is not counted)
`ratio_engine_cold`  the same on our engine's functions, no Gymnasium on either side
`ratio_engine_warm`  the same walk a second time, on both sides
`ratio_reset`        from the game file's content to the first observation
`ratio_restore`      back to a state at depth 50: snapshot + restore through the Gymnasium
                     wrappers; the original has neither, so it resets and replays the commands
`ratio_planner`      a plan from the first state; the original: its own planner, given up (and
                     counted with the limit) where it takes longer than a limit
==================== ==========================================================================

Planners are means over games, everything else is a median over games (our side: over games and
`REPEATS` repetitions, each on tables compiled anew). Steps are timed by whole walks, since one of
ours is too short for the clock; medians, since one pause of a busy machine is as long as a walk.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import gymnasium
import numpy as np

import agent_envs
from agent_envs.alfworld import engine
from agent_envs.alfworld.compile import compile_game
from agent_envs.alfworld.games import GameSet
from agent_envs.alfworld.goals import won
from agent_envs.alfworld.model import PrivilegedView
from agent_envs.alfworld.text import intro
from agent_envs.alfworld.textworld_engine import TextWorldGame
from agent_envs.errors import DataError
from oracles.alfworld_planner import ALFWorldPlanner
from trainer.bench.walks import Walk, seeded_walk

THRESHOLDS = {
    "ratio_gym": 2000.0,
    "ratio_reset": 100.0,
    "ratio_restore": 10000.0,
    "ratio_planner": 1000.0,
}
"""The smallest ratios with which the benchmark passes."""

REPEATS = 5
"""How often our side is measured on each game; it takes milliseconds."""

Progress = Callable[[str], None]


@dataclass(slots=True)
class Times:
    """Seconds, by what was measured; ours with one entry a game and repetition."""

    compile: list[float] = field(default_factory=list)
    reset: list[float] = field(default_factory=list)
    gym_walk: list[float] = field(default_factory=list)
    cold_walk: list[float] = field(default_factory=list)
    warm_walk: list[float] = field(default_factory=list)
    snapshot: list[float] = field(default_factory=list)  # one entry a call
    restore: list[float] = field(default_factory=list)  # one entry a call
    plan: list[float] = field(default_factory=list)
    real_reset: list[float] = field(default_factory=list)
    real_walk: list[float] = field(default_factory=list)
    real_warm_walk: list[float] = field(default_factory=list)
    real_replay: list[float] = field(default_factory=list)
    real_plan: list[float] = field(default_factory=list)


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds that a call took, and its result."""
    begin = time.perf_counter()
    result = function()
    return time.perf_counter() - begin, result


def choose_games(games: GameSet, number: int, seed: int) -> tuple[str, ...]:
    """`number` tasks of `games`, the task types in turn, drawn with `seed`."""
    rng = np.random.default_rng(seed)
    by_type: dict[str, list[str]] = {}
    for task_id in games.task_ids():
        by_type.setdefault(str(games.meta(task_id).task_type), []).append(task_id)
    piles = [list(rng.permutation(by_type[kind])) for kind in sorted(by_type)]
    chosen: list[str] = []
    while any(piles) and len(chosen) < number:
        chosen.extend(str(pile.pop()) for pile in piles if pile)
    if len(chosen) < number:
        raise DataError(
            f"The benchmark needs {number} games, {games.source} has {len(chosen)}. "
            "Ask for fewer with --walks and --planner-games, or give more games."
        )
    return tuple(chosen[:number])


def measure_ours(payload: bytes, task_id: str, split: str, walk: Walk, times: Times) -> None:
    """Time our side of one game. `payload` is the content of its game file."""
    seconds, game = timed(lambda: compile_game(payload))
    times.compile.append(seconds)
    for walks in (times.cold_walk, times.warm_walk):
        seconds, _ = timed(lambda: _engine_walk(game, walk.commands))
        walks.append(seconds)

    # A set of its own: nothing that was compiled or cached above is seen by the environment.
    fresh = GameSet.from_games([(task_id, split, payload)])
    steps = len(walk.commands)
    env = gymnasium.make("SeroALFWorld-v0", data=fresh, split=split, max_steps=steps + 1)
    seconds, _ = timed(lambda: env.reset(seed=0, options={"task_id": task_id}))
    times.reset.append(seconds)
    seconds, _ = timed(lambda: [env.step(command) for command in walk.commands])
    times.gym_walk.append(seconds)
    for _ in range(50):
        begin = time.perf_counter()
        snap = agent_envs.snapshot(env)
        middle = time.perf_counter()
        agent_envs.restore(env, snap)
        times.restore.append(time.perf_counter() - middle)
        times.snapshot.append(middle - begin)
    env.close()


def measure_real(payload: bytes, walk: Walk, times: Times) -> list[tuple[str, tuple[str, ...]]]:
    """Time the original's side of one game; returns its observations and admissible commands."""
    begin = time.perf_counter()
    real = TextWorldGame(payload)
    try:
        record = [real.reset()[:2]]
        times.real_reset.append(time.perf_counter() - begin)
        seconds, steps = timed(lambda: [real.step(command)[:2] for command in walk.commands])
        times.real_walk.append(seconds)
        record.extend(steps)
        back, _ = timed(real.reset)
        seconds, _ = timed(lambda: [real.step(command) for command in walk.commands])
        times.real_warm_walk.append(seconds)
        times.real_replay.append(back + seconds)
    finally:
        real.close()
    return record


def measure_planners(payload: bytes, limit_s: float, times: Times) -> tuple[int, int | None]:
    """Time both planners on one game; returns the lengths of our plan and of the original's.

    The original's planner can take many minutes and gigabytes, and cannot be interrupted, so it
    runs in a process of its own. After `limit_s` it is ended and counted with `limit_s`, which
    favours the original; its length is `None` then.
    """
    game = compile_game(payload)
    view = PrivilegedView(game, game.start, None)
    seconds, plan = timed(lambda: ALFWorldPlanner().plan(view))
    times.plan.append(seconds)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_plan_in_original, args=(payload, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        ours.recv()  # loaded; an end of the process before raises EOFError
        seconds, length = ours.recv() if ours.poll(limit_s) else (limit_s, None)
    except EOFError as error:
        raise DataError("The original's planner ended without an answer.") from error
    finally:
        process.kill()
        process.join()
    times.real_plan.append(seconds)
    return len(plan.actions), length


def _plan_in_original(payload: bytes, answers: Connection) -> None:
    real = TextWorldGame(payload)
    real.reset()
    answers.send(None)
    seconds, commands = timed(real.plan)
    answers.send((seconds, len(commands)))


def mismatches(payload: bytes, walk: Walk, record: Sequence[tuple[str, tuple[str, ...]]]) -> int:
    """How many steps of `walk` differ between the engines in text or admissible commands."""
    game = compile_game(payload)
    state, observation = game.start, intro(game, game.start)
    ours = [(observation, engine.admissible(game, state))]
    for command in walk.commands:
        state, observation, _ = engine.step(game, state, command)
        ours.append((observation, engine.admissible(game, state)))
    return sum(a != (b[0], tuple(b[1])) for a, b in zip(ours, record, strict=True))


def measure(
    games: GameSet,
    walks: int,
    planner_games: int,
    steps: int,
    seed: int,
    limit_s: float,
    progress: Progress,
) -> dict[str, object]:
    """Run the whole comparison and return its figures (see the module's table).

    Args:
        games: where the games come from; the same are used on both sides.
        walks: on how many games to step, reset and restore.
        planner_games: on how many games to plan.
        steps: length of a walk, and the depth at which restoring is measured.
        seed: of the choice of games and of the walks.
        limit_s: after so many seconds a plan of the original is given up and counted with them.
        progress: called with a line of text as the measurement goes on.
    """
    times = Times()
    chosen = choose_games(games, max(walks, planner_games), seed)
    unseen = wrong = longer = given_up = 0
    for i, task_id in enumerate(chosen):
        payload = json.dumps(dict(games.payload(task_id))).encode()
        if i < walks:
            rng = np.random.default_rng([seed, i])
            walk = seeded_walk(compile_game(payload), steps, rng)
            unseen += walk.unseen
            for _ in range(REPEATS):
                measure_ours(payload, task_id, games.meta(task_id).split, walk, times)
            record = measure_real(payload, walk, times)
            wrong += mismatches(payload, walk, record)
        if i < planner_games:
            ours, real = measure_planners(payload, limit_s, times)
            given_up += real is None
            longer += real is not None and ours > real
        progress(f"{i + 1}/{len(chosen)} {task_id}")
    return {
        **figures(times, steps),
        "games": len(chosen),
        "walks": walks,
        "planner_games": planner_games,
        "steps": steps,
        "seed": seed,
        "source": games.source,
        "manifest_hash": games.manifest_hash,
        "unseen_share": unseen / (walks * steps),
        "mismatches": wrong,
        "plans_longer_than_original": longer,
        "original_plans_given_up": given_up,
        "planner_limit_s": limit_s,
    }


def figures(times: Times, steps: int) -> dict[str, object]:
    """Reduce measured seconds to the named figures. `steps` is the length of a walk."""
    middle = statistics.median
    return {
        "ratio_gym": middle(times.real_walk) / middle(times.gym_walk),
        "ratio_engine_cold": middle(times.real_walk) / middle(times.cold_walk),
        "ratio_engine_warm": middle(times.real_warm_walk) / middle(times.warm_walk),
        "ratio_reset": middle(times.real_reset) / middle(times.reset),
        "ratio_restore": middle(times.real_replay)
        / (middle(times.snapshot) + middle(times.restore)),
        "ratio_planner": statistics.fmean(times.real_plan) / statistics.fmean(times.plan),
        "steps_per_s": steps / middle(times.gym_walk),
        "step_us": 1e6 * middle(times.gym_walk) / steps,
        "engine_cold_us": 1e6 * middle(times.cold_walk) / steps,
        "engine_warm_us": 1e6 * middle(times.warm_walk) / steps,
        "snapshot_us": 1e6 * middle(times.snapshot),
        "restore_us": 1e6 * middle(times.restore),
        "compile_ms": 1e3 * middle(times.compile),
        "reset_ms": 1e3 * middle(times.reset),
        "plan_ms": 1e3 * statistics.fmean(times.plan),
        "real_step_ms": 1e3 * middle(times.real_walk) / steps,
        "real_reset_s": middle(times.real_reset),
        "real_replay_s": middle(times.real_replay),
        "real_plan_s": statistics.fmean(times.real_plan),
    }


def missed(result: dict[str, Any]) -> list[str]:
    """Why the benchmark does not pass: thresholds missed, disagreements found. Empty: it does."""
    reasons = [
        f"{name} is {result[name]:,.0f}, the threshold is {least:,.0f}"
        for name, least in THRESHOLDS.items()
        if not result[name] >= least
    ]
    if result["mismatches"]:
        reasons.append(f"{result['mismatches']} steps differ between the two engines")
    if result["plans_longer_than_original"]:
        reasons.append(
            f"{result['plans_longer_than_original']} plans are longer than the original's"
        )
    return reasons


def _engine_walk(game: Any, commands: Sequence[str]) -> None:
    state = game.start
    for command in commands:
        state, _, _ = engine.step(game, state, command)
        engine.admissible(game, state)
        won(game, state)
