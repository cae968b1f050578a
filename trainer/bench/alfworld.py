"""Speed of the native ALFWorld engine beside the original one, on the same games in one run.

Every ratio says how many times faster ours is:

==================== ==========================================================================
`ratio_gym`          a step with admissible commands and goal check through `gymnasium.make`,
                     in states never seen before; the original: `step` of its engine, asked for
                     `won` and `admissible_commands` only (its Gymnasium layer is not counted)
`ratio_engine_cold`  the same on our engine's functions, no Gymnasium on either side
`ratio_engine_warm`  the same walk a second time, on both sides
`ratio_reset`        from the game file to the first observation, with the game in the cache of
                     compiled games on disk; the original: loading it and `reset`
`ratio_reset_first`  the same where the cache does not have the game: read, compiled, reset
`ratio_restore`      back to a state at depth 50: snapshot + restore through the Gymnasium
                     wrappers; the original has neither, so it resets and replays the commands
`ratio_planner`      a plan from the first state; the original: its own planner, given up (and
                     counted with the limit) where it takes longer than a limit
==================== ==========================================================================

Planners are means over games, everything else is a median over games (our side: over games and
`REPEATS` repetitions, each on tables compiled anew). Steps are timed by whole walks, since one of
ours is too short for the clock; medians, since one pause of a busy machine is as long as a walk.
What needs the original to walk a second time (`ratio_engine_warm`, `ratio_restore`) is measured
on the first games only.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium
import numpy as np

import agent_envs
from agent_envs.alfworld import engine
from agent_envs.alfworld.compile import compile_game
from agent_envs.alfworld.games import GameSet
from agent_envs.alfworld.games.game_archives import GAME_NAME
from agent_envs.alfworld.goals import won
from agent_envs.alfworld.model import PrivilegedView
from agent_envs.alfworld.original.lockstep import Follower
from agent_envs.alfworld.original.textworld_engine import Reply, TextWorldGame
from agent_envs.disk_cache import CACHE_VARIABLE
from agent_envs.errors import DataError
from oracles.alfworld_planner import ALFWorldPlanner
from trainer.bench.walks import Walk, seeded_walk

THRESHOLDS = {
    "ratio_gym": 4000.0,
    "ratio_engine_cold": 7000.0,
    "ratio_engine_warm": 10000.0,
    "ratio_reset": 2000.0,
    "ratio_reset_first": 100.0,
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
    reset_first: list[float] = field(default_factory=list)
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


def measure_ours(tree: Path, task_id: str, walk: Walk, times: Times, again: bool) -> None:
    """Time our side of one game of a tree that was opened before, so that the cache has it.

    `again`: also time what the original needs a second walk for.
    """
    env, seconds = _reset_anew(tree, task_id, len(walk.commands))
    times.reset.append(seconds)
    seconds, _ = timed(lambda: [env.step(command) for command in walk.commands])
    times.gym_walk.append(seconds)

    payload = (tree / task_id / GAME_NAME).read_bytes()
    seconds, game = timed(lambda: compile_game(payload))
    times.compile.append(seconds)
    seconds, _ = timed(lambda: _engine_walk(game, walk.commands))
    times.cold_walk.append(seconds)
    with cache_at("off"):
        other, seconds = _reset_anew(tree, task_id, len(walk.commands))
    times.reset_first.append(seconds)
    other.close()
    if again:
        seconds, _ = timed(lambda: _engine_walk(game, walk.commands))
        times.warm_walk.append(seconds)
        _measure_restoring(env, times)
    env.close()


def _reset_anew(tree: Path, task_id: str, steps: int) -> tuple[gymnasium.Env[str, str], float]:
    """An env after its reset, and the seconds of that: on a set of games of its own, so that
    nothing compiled before is in its memory."""
    games = GameSet.from_path(tree)
    env = gymnasium.make("SeroALFWorld-v0", data=games, split=None, max_steps=steps + 1)
    seconds, _ = timed(lambda: env.reset(seed=0, options={"task_id": task_id}))
    return env, seconds


def _measure_restoring(env: gymnasium.Env[str, str], times: Times) -> None:
    for _ in range(50):
        begin = time.perf_counter()
        snap = agent_envs.snapshot(env)
        middle = time.perf_counter()
        agent_envs.restore(env, snap)
        times.restore.append(time.perf_counter() - middle)
        times.snapshot.append(middle - begin)


def measure_real(payload: bytes, walk: Walk, times: Times, again: bool) -> list[Reply]:
    """Time the original's side of one game; returns what it answered to the reset and each step.

    `again`: also time a second walk, and with it the way back to where the first one ended.
    """
    begin = time.perf_counter()
    real = TextWorldGame(payload)
    try:
        record = [real.reset()]
        times.real_reset.append(time.perf_counter() - begin)
        seconds, steps = timed(lambda: [real.step(command) for command in walk.commands])
        times.real_walk.append(seconds)
        record.extend(steps)
        if again:
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
        if seconds > limit_s:  # its answer overtook this process, which had to wait for a core
            seconds, length = limit_s, None
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


def mismatches(payload: bytes, walk: Walk, record: Sequence[Reply]) -> int:
    """How many points of `walk`, its start included, differ between the engines."""
    follower = Follower("", compile_game(payload))
    return sum(
        bool(follower.compare(command, reply))
        for command, reply in zip((None, *walk.commands), record, strict=True)
    )


@contextmanager
def cache_at(value: str) -> Iterator[None]:
    """Set `CACHE_VARIABLE` for a while: the caches of the person who measures stay out of it."""
    before = os.environ.get(CACHE_VARIABLE)
    os.environ[CACHE_VARIABLE] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[CACHE_VARIABLE]
        else:
            os.environ[CACHE_VARIABLE] = before


def lay_out(games: GameSet, task_ids: Sequence[str], tree: Path) -> None:
    """Write games as a tree, and load each once, so that the caches know them."""
    for task_id in task_ids:
        folder = tree / task_id
        folder.mkdir(parents=True)
        (folder / GAME_NAME).write_text(json.dumps(dict(games.payload(task_id))), encoding="utf-8")
    laid_out = GameSet.from_path(tree)
    for task_id in task_ids:
        laid_out.load(task_id)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured.

    Attributes:
        walks: on how many games to step and reset.
        replays: on how many of them the original walks twice.
        planner_games: on how many games to plan.
        steps: length of a walk, and the depth at which restoring is measured.
        seed: of the choice of games and of the walks.
        planner_limit_s: after so many seconds a plan of the original is given up and counted
            with them.
    """

    walks: int
    replays: int
    planner_games: int
    steps: int
    seed: int
    planner_limit_s: float


def measure(games: GameSet, plan: Plan, progress: Progress) -> dict[str, object]:
    """Run the whole comparison and return its figures (see the module's table).

    Args:
        games: where the games come from; the same are used on both sides.
        plan: how much is measured.
        progress: called with a line of text as the measurement goes on.
    """
    chosen = choose_games(games, max(plan.walks, plan.planner_games), plan.seed)
    with TemporaryDirectory() as folder, cache_at(str(Path(folder) / "cache")):
        tree = Path(folder) / "games"
        lay_out(games, chosen, tree)
        return {
            **_measure(tree, chosen, plan, progress),
            "games": len(chosen),
            **asdict(plan),
            "source": games.source,
            "manifest_hash": games.manifest_hash,
        }


def _measure(
    tree: Path, chosen: Sequence[str], plan: Plan, progress: Progress
) -> dict[str, object]:
    times = Times()
    unseen = wrong = longer = given_up = 0
    for i, task_id in enumerate(chosen):
        payload = (tree / task_id / GAME_NAME).read_bytes()
        if i < plan.walks:
            rng = np.random.default_rng([plan.seed, i])
            walk = seeded_walk(compile_game(payload), plan.steps, rng)
            unseen += walk.unseen
            for _ in range(REPEATS):
                measure_ours(tree, task_id, walk, times, again=i < plan.replays)
            record = measure_real(payload, walk, times, again=i < plan.replays)
            wrong += mismatches(payload, walk, record)
        if i < plan.planner_games:
            ours, real = measure_planners(payload, plan.planner_limit_s, times)
            given_up += real is None
            longer += real is not None and ours > real
        progress(f"{i + 1}/{len(chosen)} {task_id}")
    return {
        **figures(times, plan.steps),
        "unseen_share": unseen / (plan.walks * plan.steps),
        "mismatches": wrong,
        "plans_longer_than_original": longer,
        "original_plans_given_up": given_up,
    }


def figures(times: Times, steps: int) -> dict[str, object]:
    """Reduce measured seconds to the named figures. `steps` is the length of a walk."""
    middle = statistics.median
    return {
        "ratio_gym": middle(times.real_walk) / middle(times.gym_walk),
        "ratio_engine_cold": middle(times.real_walk) / middle(times.cold_walk),
        "ratio_engine_warm": middle(times.real_warm_walk) / middle(times.warm_walk),
        "ratio_reset": middle(times.real_reset) / middle(times.reset),
        "ratio_reset_first": middle(times.real_reset) / middle(times.reset_first),
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
        "reset_first_ms": 1e3 * middle(times.reset_first),
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
