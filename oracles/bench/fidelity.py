"""Is a restored state the one that was visited? Restores every root and plays its record on.

A root is exact if, after its snapshot went through bytes and into another environment, the
observation, the admissible commands, the step budget and the random generator are those of the
record, and the policy's own commands from there bring the recorded observations, rewards and
admissible commands, and the same end at the same step. What a snapshot forgets often shows only
late; therefore the whole rest of the episode is compared, not the first state alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from traceback import format_exception_only
from typing import Any

import numpy as np

import agent_envs
from agent_envs import Snapshot
from oracles.bench.figures import (
    DepthBin,
    Extent,
    Probe,
    Quantiles,
    RestoreFailure,
    RestoreFigures,
)
from oracles.branch import FAILURES, BranchStatus
from oracles.branches import Env
from oracles.walks import Walk

__all__ = [
    "Clock",
    "Restored",
    "doubling_bins",
    "restore_figures",
    "restore_root",
    "spread",
    "with_branches",
]

Clock = Callable[[], float]
"""Seconds since some moment, such as `time.perf_counter`."""

_FRESH = 4
"""Roots that are restored once more, in environments that were never reset."""
_SHOWN = 10
_LONGEST = 160
_MICRO = 1e6


@dataclass(frozen=True, slots=True)
class Restored:
    """What came of one root."""

    task_id: str
    t: int
    what: str | None
    """The first difference; None: exact."""
    replayed: bool
    """Whether any of the policy's commands was run again."""
    restore_s: float | None = None
    """None: it could not be restored. The same for the next two."""
    snapshot_s: float | None = None
    size: int | None = None
    """Bytes."""


def restore_figures(
    make: Callable[[], Env],
    roots: Sequence[tuple[Walk, int]],
    *,
    clock: Clock = perf_counter,
) -> tuple[RestoreFigures, float]:
    """Fidelity and cost of restoring `roots`, and the mean seconds for one restore.

    Whatever the environment does wrong is in the figures and no exception, but for an environment
    that cannot be made or reset.

    Args:
        make: makes environments that no rollout uses.
        roots: walks and the step of the root in each; at least one.
    """
    env = make()
    try:
        env.reset(seed=0)
        found = [restore_root(env, walk, t, clock) for walk, t in roots]
        # Timed when every task has been loaded once, as it has in training by the rollouts; and
        # coming from another task, as there.
        timed = [restore_root(env, walk, t, clock, replay=False) for walk, t in roots]
    finally:
        env.close()
    failed = {place: one for place, one in enumerate(found) if one.what is not None}
    for place in spread(len(roots), _FRESH):
        if place not in failed:
            fresh = make()
            try:
                again = restore_root(fresh, *roots[place], clock)
            finally:
                fresh.close()
            if again.what is not None:
                failed[place] = replace(
                    again, what=f"in a new environment, never reset: {again.what}"
                )
    for place, again in enumerate(timed):
        if again.what is not None and place not in failed:
            failed[place] = replace(again, what=f"restored a second time: {again.what}")
    exact = len(found) - len(failed)
    seconds = [one.restore_s for one in timed if one.restore_s is not None]
    total = float(sum(seconds))
    figures = RestoreFigures(
        share=exact / len(found),
        roots=len(found),
        exact=exact,
        suffixes_replayed=sum(one.replayed for one in found),
        failures=tuple(
            RestoreFailure(one.task_id, one.t, str(one.what))
            for _, one in sorted(failed.items())[:_SHOWN]
        ),
        by_depth=tuple(
            _depth_bin(start, end, [one for one in timed if start <= one.t <= end])
            for start, end in doubling_bins([one.t for one in found])
        ),
        restores_per_s=len(seconds) / total if total > 0 else 0.0,
    )
    return figures, total / len(seconds) if seconds else 0.0


def with_branches(figures: RestoreFigures, probes: Sequence[Probe]) -> RestoreFigures:
    """`figures`, less the restores that failed before a branch although the others held."""
    failed = [probe for probe in probes if probe.branch.status is BranchStatus.NOT_STARTED]
    if not failed or figures.exact < figures.roots:
        return figures
    exact = figures.roots - len(failed)
    return replace(
        figures,
        share=exact / figures.roots,
        exact=exact,
        failures=tuple(
            RestoreFailure(
                probe.branch.root.task_id,
                probe.t,
                f"restored for the branch: {probe.branch.detail[: 2 * _LONGEST]}",
            )
            for probe in failed[:_SHOWN]
        ),
    )


def restore_root(
    env: Env, walk: Walk, t: int, clock: Clock = perf_counter, *, replay: bool = True
) -> Restored:
    """Restore the root before command `t` of `walk` in `env` and compare it and all that follows.

    `env` loses its episode. Never raises for what `env` does. Without `replay` only the root itself
    is compared.
    """
    recorded = walk.snapshots[t]
    task_id = recorded.task_id
    try:
        data = recorded.to_bytes()
        snap = Snapshot.from_bytes(data)
    except FAILURES as error:
        return Restored(task_id, t, f"the snapshot as bytes: {_words(error)}", replayed=False)
    if snap != recorded:
        return Restored(task_id, t, "the snapshot is another one after bytes", replayed=False)
    try:
        began = clock()
        observation, info = agent_envs.restore(env, snap)
        restore_s = clock() - began
        began = clock()
        again = agent_envs.snapshot(env)
        snapshot_s = clock() - began
    except FAILURES as error:
        return Restored(task_id, t, f"the restore: {_words(error)}", replayed=False)
    replayed = False
    try:
        what = _root_difference(walk, t, observation, info, again)
        if what is None and replay:
            replayed = True
            what = _rest_difference(env, walk, t)
    except FAILURES as error:
        what = f"after the restore: {_words(error)}"
    return Restored(task_id, t, what, replayed, restore_s, snapshot_s, len(data))


def doubling_bins(values: Sequence[int]) -> list[tuple[int, int]]:
    """Bins 0, 1, 2-3, 4-7, 8-15, ... as far as there are values; empty ones are left out.

    >>> doubling_bins([0, 5, 2, 9])
    [(0, 0), (2, 3), (4, 7), (8, 15)]
    """
    kept = {value.bit_length() for value in values if value >= 0}
    return [((1 << bits) >> 1, (1 << bits) - 1) for bits in sorted(kept)]


def spread(n: int, most: int) -> list[int]:
    """At most `most` of the numbers below `n`, evenly spread, the first included.

    >>> spread(9, 4), spread(2, 4)
    ([0, 2, 4, 6], [0, 1])
    """
    return sorted({i * n // most for i in range(most)}) if n > most else list(range(n))


def _root_difference(
    walk: Walk, t: int, observation: str, info: Any, again: Snapshot
) -> str | None:
    seen, recorded = walk.seen[t], walk.snapshots[t]
    if observation != seen.observation:
        return _differs("the observation", seen.observation, observation)
    if tuple(info["admissible_actions"]) != tuple(seen.admissible):
        return _differs("the admissible commands", seen.admissible, info["admissible_actions"])
    if info.get("stop_reason") is not None:
        return _differs("the end of the episode", None, info["stop_reason"])
    if again.steps_left != recorded.steps_left:
        return _differs("the step budget", recorded.steps_left, again.steps_left)
    if again.rng_state != recorded.rng_state:
        return _differs("the random generator", recorded.rng_state, again.rng_state)
    return None


def _rest_difference(env: Env, walk: Walk, t: int) -> str | None:
    """Run the policy's commands from step `t` on; the first difference."""
    last = len(walk.history) - 1
    for k in range(t, last + 1):
        item = walk.history[k]
        where = f"step {k} ({item.action!r:.60}): "
        try:
            observation, reward, terminated, truncated, info = env.step(item.action)
        except FAILURES as error:
            return where + _words(error)
        expected = walk.end if k == last else walk.seen[k + 1].observation
        if observation != expected:
            return where + _differs("the observation", expected, observation)
        if not _equal(float(reward), walk.rewards[k]):
            return where + _differs("the reward", walk.rewards[k], float(reward))
        if bool(info["command_valid"]) != item.command_valid:
            found = bool(info["command_valid"])
            return where + _differs("whether it is accepted", item.command_valid, found)
        over = bool(terminated or truncated)
        if over != (k == last):
            return where + _differs("the end of the episode", k == last, over)
        if k < last:
            listed = tuple(walk.seen[k + 1].admissible)
            if tuple(info["admissible_actions"]) != listed:
                found = info["admissible_actions"]
                return where + _differs("the admissible commands", listed, found)
        elif bool(info["success"]) != walk.success:
            return where + _differs("the success", walk.success, bool(info["success"]))
        elif not _equal(float(info["score"]), walk.score):
            return where + _differs("the score", walk.score, float(info["score"]))
    return None


def _equal(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def _differs(what: str, recorded: Any, found: Any) -> str:
    return f"{what}: recorded {_short(recorded)}, found {_short(found)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _words(error: BaseException) -> str:
    return "".join(format_exception_only(error)).strip()[: 2 * _LONGEST]


def _depth_bin(start: int, end: int, restored: Sequence[Restored]) -> DepthBin:
    sizes = [one.size for one in restored if one.size is not None]
    return DepthBin(
        start,
        end,
        len(restored),
        _quantiles([one.snapshot_s for one in restored if one.snapshot_s is not None]),
        _quantiles([one.restore_s for one in restored if one.restore_s is not None]),
        Extent(sum(sizes) / len(sizes), max(sizes)) if sizes else None,
    )


def _quantiles(seconds: Sequence[float]) -> Quantiles | None:
    if not seconds:
        return None
    p50, p95 = np.quantile(seconds, [0.5, 0.95]) * _MICRO
    return Quantiles(float(p50), float(p95))
