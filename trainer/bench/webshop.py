"""Speed of the native WebShop beside the original, on the same walks in one run, on one core.

================== ============================================================================
`ratio_gym`        a step through `gymnasium.make`, with the actions of the page it leads to;
                   every search is for a query that this process has never seen; the original:
                   its `step` and its `get_available_actions`
`ratio_gym_warm`   the same walks again, with queries that were seen before
`ratio_gym_first`  like `ratio_gym`, but in a process that has just begun: on other goals, as many,
                   walked first; most products are shown for the first time and read from the data
`reset_us`         engine: the first page of a goal, its text and its actions; reading a goal for
                   the first time comes to `goal_us`, all of it through Gymnasium `gym_reset_us`
`snapshot_us`,     engine: the state that a snapshot keeps of the shop, and back to it; through
`restore_us`       the Gymnasium wrappers they are `gym_snapshot_us` and `gym_restore_us`
================== ============================================================================

The walks are those that the original's speed was recorded with (`webshop_walks`): at most 15 steps
a goal, chosen on our side from the pages as they come, and then replayed by the original: in turns
of `TURN` goals, so that both sides share good and bad moments of the machine, and yet neither finds
the processor's caches filled by the other at every goal. The original gets our
goals and prices, and the results of our searches from a table (its own engine needs Java), so both
sides show the same pages; `mismatches` counts the points where they do not. Everything is CPU time
of one process; resets are left out of the walks on both sides.

Without a checkout of the original its speed is estimated (`estimated` is true): recorded steps per
run of a calibration loop, over the seconds that the loop takes here. Good to about -13 % / +27 %.
"""

from __future__ import annotations

import gc
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium

from agent_envs.errors import DataError
from agent_envs.webshop.catalogue import VARIABLE, Shop, goal_to_dict
from agent_envs.webshop.catalogue.sources import origin_of
from agent_envs.webshop.generated.source import NAME
from agent_envs.webshop.original.peer import (
    OriginalShop,
    Reply,
    check_checkout,
    check_packages,
)
from agent_envs.webshop.original.raw_files import write_raw_files
from agent_envs.webshop.search import document_text
from trainer.bench import webshop_engine, webshop_search
from trainer.bench.webshop_walks import Page, Shopper, Walk, texts

AT_LEAST = {"ratio_gym": 500.0, "ratio_gym_warm": 1000.0}
"""The smallest ratios with which the benchmark passes."""
BELOW = {
    "reset_us": 20.0,
    "snapshot_restore_us": 5.0,
    "search_open_ms": 500.0,
    "search_resident_mb": 150.0,
}
"""What has to stay below a number; the last two are of the largest catalogue, where measured."""

STEPS_PER_CALIBRATION = 11.0
"""Steps of the original, with listing the actions of every page, in the CPU time of one run of
`calibrate`: the median of 25 repeats of 612 steps on an AMD EPYC (9.7 to 14.0)."""

TURN = 50
"""Goals walked by one side before the other has its turn."""
REPEATS = 3
"""How often our side repeats a walk with known queries; it takes a tenth of a millisecond."""
_UNCOUNTED = 5
"""Walks of the original before those that count."""
SAMPLE = 1000
"""Products whose texts are recombined to measure search in larger catalogues."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured.

    Attributes:
        goals: on how many goals to walk.
        steps: longest walk; a purchase ends it.
        seed: of the choice of goals and of the walks.
    """

    goals: int = 200
    steps: int = 15
    seed: int = 0


@dataclass(slots=True)
class Times:
    """CPU seconds; the walks with one entry a goal."""

    first: list[float] = field(default_factory=list)
    cold: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)  # mean over the repeats
    reset: list[float] = field(default_factory=list)
    real: list[float] = field(default_factory=list)
    real_reset: list[float] = field(default_factory=list)
    calibration: list[float] = field(default_factory=list)


def calibrate() -> int:
    """A loop that measures the machine: about 0.15 s. Only its time matters.

    Never change it: `STEPS_PER_CALIBRATION` was recorded with exactly this loop.
    """
    d: dict[int, int] = {}
    for i in range(1_000_000):
        k = i * 2654435761 % 65536
        d[k] = d.get(k, 0) + (k ^ i) % 7
    return sum(d.values())


def choose_goals(number: int, available: int, seed: int) -> list[int]:
    """`number` different goals of `available`, drawn with `seed`.

    Raises:
        DataError: there are fewer.
    """
    if number > available:
        raise DataError(
            f"The benchmark needs {number} goals, this shop has {available}. "
            "Ask for fewer with --goals, or give more data."
        )
    return random.Random(seed).sample(range(available), number)


def choose_others(chosen: Sequence[int], available: int, seed: int) -> list[int]:
    """As many goals again, none of them in `chosen` as long as there are others."""
    taken = set(chosen)
    rest = [number for number in range(available) if number not in taken] or list(chosen)
    return random.Random(f"others {seed}").choices(rest, k=len(chosen))


def walk(
    env: Any, task_id: str, steps: int, rng: random.Random, seen: set[str]
) -> tuple[Walk, float]:
    """Walk on a goal with queries that are not in `seen`; CPU seconds of the steps alone.

    Each step is timed for itself, since the next one is chosen in between; what reading the clock
    takes is left out.
    """
    clock = time.process_time
    reading = clock_seconds()
    observation, info = env.reset(seed=0, options={"task_id": task_id})
    shopper = Shopper(info["goal"], rng, seen)
    done, seconds = Walk(task_id, pages=[_page(observation, 0.0, False, info)]), 0.0
    for _ in range(steps):
        page = done.pages[-1]
        action = shopper.choose(page.has_search_bar, page.clickables)
        begin = clock()
        observation, reward, ended, _, info = env.step(action)
        seconds += clock() - begin - reading
        done.actions.append(action)
        done.pages.append(_page(observation, reward, ended, info))
        if ended:
            break
    return done, seconds


@cache
def clock_seconds() -> float:
    """CPU seconds from one reading of the clock to the next."""
    clock = time.process_time
    return statistics.median(-clock() + clock() for _ in range(1001))


def walk_again(env: Any, done: Walk) -> tuple[float, float]:
    """CPU seconds of a reset, and of all steps of a walk, done once more."""
    clock = time.process_time
    begin = clock()
    env.reset(seed=0, options={"task_id": done.task_id})
    middle = clock()
    for action in done.actions:
        env.step(action)
    return middle - begin, clock() - middle


def walk_original(shop: Shop, real: OriginalShop, goal: Any, done: Walk) -> list[Reply]:
    """The same walk in the original, with our goal, prices and search results."""
    catalogue = shop.catalogue
    queries = {action[7:-1] for action in done.actions if action.startswith("search[")}
    found = {query: shop.index.search(query) for query in queries}
    real.teach(
        {query: [catalogue[number].asin for number in numbers] for query, numbers in found.items()}
    )
    numbers = {number for numbers in found.values() for number in numbers}
    real.set_prices({catalogue[number].asin: catalogue.price(number) for number in numbers})
    return [real.reset(goal_to_dict(goal)), *(real.step(action) for action in done.actions)]


def mismatches(done: Walk, replies: Sequence[Reply]) -> int:
    """At how many points of a walk, its start included, the two sides differ."""
    return sum(page != _real_page(reply) for page, reply in zip(done.pages, replies, strict=True))


def measure(
    shop: Shop, plan: Plan, progress: Progress, original: OriginalShop | None = None
) -> dict[str, object]:
    """Run the whole comparison and return its figures (see the module's table).

    Args:
        shop: the catalogue, the same on both sides.
        plan: how much is measured.
        progress: called with a line of text as the measurement goes on.
        original: the original on the same catalogue; None to estimate its speed.
    """
    goals = shop.goals("synthetic")
    chosen = choose_goals(plan.goals, len(goals), plan.seed)
    times, walks, wrong = Times(), [], 0
    seen: set[str] = set()
    shop.index.find("")  # the index is opened when it is first asked for
    with closing(make_env(shop, plan.steps)) as env:
        first_steps = 0
        for number in choose_others(chosen, len(goals), plan.seed):
            rng = random.Random(f"first/{plan.seed}/{number}")
            done, seconds = walk(env, f"synthetic-{number}", plan.steps, rng, seen)
            times.first.append(seconds)
            first_steps += len(done.actions)
            if original is not None and len(times.first) <= _UNCOUNTED:
                walk_original(shop, original, goals[number], done)
        # What loading and the first pages left behind would be looked through at some chance step.
        gc.collect()
        for start in range(0, len(chosen), TURN):
            turn = chosen[start : start + TURN]
            times.calibration.append(cpu_seconds(calibrate))
            now: list[Walk] = []
            for number in turn:
                rng = random.Random(f"{plan.seed}/{number}")
                done, seconds = walk(env, f"synthetic-{number}", plan.steps, rng, seen)
                now.append(done)
                times.cold.append(seconds)
            for done in now:
                again = [walk_again(env, done) for _ in range(REPEATS)]
                times.reset.extend(reset for reset, _ in again)
                times.warm.append(statistics.fmean(steps for _, steps in again))
            if original is not None:
                for number, done in zip(turn, now, strict=True):
                    replies = walk_original(shop, original, goals[number], done)
                    times.real_reset.append(replies[0].step_s + replies[0].list_s)
                    times.real.append(sum(r.step_s + r.list_s for r in replies[1:]))
                    wrong += mismatches(done, replies)
            times.calibration.append(cpu_seconds(calibrate))
            walks += now
            progress(f"{len(walks)}/{len(chosen)} goals")
        small = webshop_engine.measure(env, walks)
    return {
        **figures(times, sum(len(done.actions) for done in walks), first_steps),
        **small,
        "mismatches": wrong,
        "queries": len(seen),
        "purchases": sum(done.pages[-1].done for done in walks),
        **asdict(plan),
        "source": shop.source,
        "revision": shop.revision,
        "products": len(shop.catalogue),
    }


def figures(times: Times, steps: int, first_steps: int) -> dict[str, object]:
    """Reduce measured seconds to the named figures.

    Args:
        times: what was measured.
        steps: length of all walks that both sides made.
        first_steps: length of the walks before these.
    """
    cold, warm = sum(times.cold) / steps, sum(times.warm) / steps
    first = sum(times.first) / first_steps
    calibration = statistics.fmean(times.calibration)
    estimated = not times.real
    real = calibration / STEPS_PER_CALIBRATION if estimated else sum(times.real) / steps
    return {
        "ratio_gym": real / cold,
        "ratio_gym_warm": real / warm,
        "ratio_gym_first": real / first,
        "estimated": estimated,
        "total_steps": steps,
        "steps_per_s": 1 / cold,
        "steps_per_s_warm": 1 / warm,
        "step_us": 1e6 * cold,
        "step_warm_us": 1e6 * warm,
        "step_first_us": 1e6 * first,
        "gym_reset_us": 1e6 * statistics.median(times.reset),
        "real_step_ms": 1e3 * real,
        "real_steps_per_s": 1 / real,
        "real_reset_ms": None if estimated else 1e3 * statistics.median(times.real_reset),
        "calibration_s": calibration,
    }


def missed(result: dict[str, Any]) -> list[str]:
    """Why the benchmark does not pass: thresholds missed, disagreements found. Empty: it does."""
    reasons = [
        f"{name} is {result[name]:,.0f}, the threshold is {least:,.0f}"
        for name, least in AT_LEAST.items()
        if not result[name] >= least
    ]
    reasons += [
        f"{name} is {result[name]:.1f}, it has to stay under {most:.0f}"
        for name, most in BELOW.items()
        if name in result and not result[name] < most
    ]
    if result["mismatches"]:
        reasons.append(f"{result['mismatches']} pages differ between ours and the original's")
    return reasons


def cpu_seconds(function: Callable[[], object]) -> float:
    """CPU seconds that a call took."""
    begin = time.process_time()
    function()
    return time.process_time() - begin


def make_env(shop: Shop, steps: int) -> gymnasium.Env[str, str]:
    """The environment as anybody gets it."""
    return gymnasium.make("SeroWebShop-v0", data=shop, split=None, max_steps=steps)


@contextmanager
def opened(shop: Shop, data: str | None, checkout: str | None) -> Iterator[OriginalShop | None]:
    """The original on the products of `shop`; None without a checkout of it.

    Args:
        shop: what `load_shop` made of `data`.
        data: where these are the original's own files, the original loads them itself.
        checkout: folder of the original.
    """
    if checkout is None:
        yield None
        return
    check_checkout(checkout)
    check_packages()
    origin = origin_of(data or os.environ.get(VARIABLE) or NAME)
    with TemporaryDirectory() as folder:
        files = origin.raw or write_raw_files(shop, Path(folder))
        with OriginalShop(checkout, files) as original:
            yield original


def search_figures(shop: Shop, scale: bool, seed: int) -> dict[str, Any]:
    """How search does by number of documents: `search`, and what is asked of the largest size.

    Args:
        shop: its first products are recombined to catalogues of each size.
        scale: all of `webshop_search.SIZES`; else the smallest.
        seed: of documents and queries.
    """
    documents = [document_text(product) for product in islice(shop.catalogue, SAMPLE)]
    sizes = webshop_search.SIZES if scale else webshop_search.SIZES[:1]
    found = webshop_search.search_scale(documents, sizes, seed=seed)
    if not scale:
        return {"search": found}
    largest = found[str(max(sizes))]
    return {
        "search": found,
        "search_open_ms": largest["open_ms"],
        "search_resident_mb": largest["queries_mb"],
    }


def _page(observation: str, reward: float, done: bool, info: dict[str, Any]) -> Page:
    bar = bool(info["action_templates"])
    return Page(observation, reward, done, bar, texts(info["admissible_actions"]))


def _real_page(reply: Reply) -> Page:
    clickables = tuple(text for text in reply.clickables if text != "search")
    return Page(reply.observation, reply.reward, reply.done, reply.has_search_bar, clickables)
