"""Restores that are exact, and every way of being lossy, called by its name.

Promises:
1. A sound env is exact at every root, under wrappers too; every suffix is replayed.
2. An env that forgets anything that the record shows, at once or later, is found, and the first
   difference is named with its step, what was recorded and what was found.
3. Times come from the clock that is given; bins hold every root once.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import islice
from typing import Any

import gymnasium
import pytest
from gymnasium.wrappers import TimeLimit

from oracles.bench import restore_figures
from oracles.bench.fidelity import doubling_bins, restore_root, spread
from oracles.branches import EnvRecipe
from oracles.walks import PLAYERS, Walk, draw_roots, walks
from tests.oracles.bench.lamps import LOSSY, Clock, Lamp, Make, lights, played
from tests.support import full_count

SHOPS = ("SeroWebShop-v0", {"data": "generated:small", "max_steps": 8})
HOUSES = ("SeroALFWorld-v0", {"data": "generated:small?seed=3&train=12", "max_steps": 12})


def roots_of(make: Make, number: int) -> list[tuple[Walk, int]]:
    return list(draw_roots(played(make), number, 0).states)


@pytest.mark.parametrize("recipe", [HOUSES, SHOPS], ids=["alfworld", "webshop"])
def test_a_sound_env_is_exact_everywhere(recipe: tuple[str, dict[str, Any]]) -> None:
    make = EnvRecipe(*recipe)
    walked = list(islice(walks(make(), PLAYERS["random"], 3), full_count(4, 60)))
    roots = [(walk, t) for walk in walked for t in range(len(walk.snapshots))]
    figures, seconds = restore_figures(make, roots)
    assert figures.failures == ()
    assert (figures.share, figures.exact) == (1.0, len(roots))
    assert figures.suffixes_replayed == len(roots)
    assert seconds > 0
    assert figures.restores_per_s == pytest.approx(1 / seconds)


def test_wins_and_limits_of_wrappers_are_compared_too() -> None:
    def limited() -> gymnasium.Env[str, str]:
        return TimeLimit(Lamp(), 7)

    for make, player in ((Lamp, lights), (limited, PLAYERS["random"])):
        walked = list(islice(walks(make(), player, 0), 6))
        assert any(walk.success for walk in walked) or player is not lights
        roots = [(walk, t) for walk in walked for t in range(len(walk.snapshots))]
        figures, _ = restore_figures(make, roots)
        assert figures.failures == ()
    # the limit of the wrapper is compared: the same record without it goes on
    figures, _ = restore_figures(Lamp, roots)
    assert figures.exact == 0


@pytest.mark.parametrize(("env", "what"), LOSSY, ids=[env.__name__ for env, _ in LOSSY])
def test_a_lossy_env_is_found_and_what_differs_is_named(env: type[Lamp], what: str) -> None:
    roots = roots_of(env, 24)
    figures, _ = restore_figures(env, roots)
    assert figures.exact < figures.roots == 24
    assert figures.share == figures.exact / 24 < 1
    assert 0 < len(figures.failures) == min(10, 24 - figures.exact)
    for failure in figures.failures:
        assert re.search(what, failure.what, re.DOTALL), failure
        walk, t = next(r for r in roots if r[0].snapshots[r[1]].task_id == failure.task_id)
        assert walk.snapshots[t].task_id == failure.task_id
    assert {(f.task_id, f.t) for f in figures.failures} <= {
        (walk.snapshots[t].task_id, t) for walk, t in roots
    }


def test_what_is_lost_shows_only_where_it_matters() -> None:
    """Roots after which nothing depends on what was forgotten are exact, and not blamed."""
    lossy = {env.__name__: env for env, _ in LOSSY}["PaysTheFourthRoll"]
    found = set()
    for walk, t in roots_of(lossy, 40):
        before = sum(item.action == "roll" for item in walk.history[:t])
        after = sum(item.action == "roll" for item in walk.history[t:])
        # the fourth of the episode, or the fourth after the restore, pays
        shows = before > 0 and (0 < 4 - before <= after or after >= 4)
        exact = restore_root(lossy(), walk, t).what is None
        assert exact == (not shows), (before, after)
        found.add(exact)
    assert found == {True, False}


def test_a_damaged_record_is_no_exact_restore() -> None:
    walk, t = roots_of(Lamp, 1)[0]
    found = restore_root(Lamp(), walk, t)
    assert found.what is None
    assert found.size == len(walk.snapshots[t].to_bytes())
    other = next(w for w, _ in roots_of(Lamp, 9) if w.seen[0] != walk.seen[0])
    mixed = restore_root(Lamp(), other, 0)
    assert mixed.what is None
    swapped = replace(walk, snapshots=(other.snapshots[0], *walk.snapshots[1:]))
    assert str(restore_root(Lamp(), swapped, 0).what).startswith("the observation: recorded")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"rewards": (9.0,)}, "the reward: recorded 9.0"),
        ({"end": "Good night."}, "the observation: recorded 'Good night.'"),
        ({"success": True}, "the success: recorded True, found False"),
        ({"score": 0.125}, "the score: recorded 0.125"),
        ({"history": ()}, "the end of the episode: recorded True, found False"),
    ],
)
def test_every_part_of_the_record_is_compared(change: dict[str, Any], what: str) -> None:
    walk = roots_of(Lamp, 1)[0][0]
    last = len(walk.history) - 1
    for name, value in change.items():
        if isinstance(value, tuple):  # the last entry, or without it
            change = {name: (*getattr(walk, name)[:-1], *value)}
    if "history" in change:
        cut = last - 1
        change["end"] = walk.seen[last].observation
    else:
        cut = last
    found = restore_root(Lamp(), replace(walk, **change), 3)
    assert found.replayed
    assert f"step {cut} (" in str(found.what)
    assert what in str(found.what)
    assert restore_root(Lamp(), walk, 3).what is None


def test_times_come_from_the_clock_and_bins_hold_every_root_once() -> None:
    clock = Clock()

    class Slow(Lamp):
        def _resume(self, snap: Any) -> Any:
            clock.now += 0.002
            return super()._resume(snap)

        def _capture(self, wrappers: Any = ()) -> Any:
            clock.now += 0.001
            return super()._capture(wrappers)

    roots = roots_of(Slow, 30)
    figures, seconds = restore_figures(Slow, roots, clock=clock)
    assert seconds == pytest.approx(0.002, rel=0.01)
    assert figures.restores_per_s == pytest.approx(500, rel=0.01)
    assert sum(b.roots for b in figures.by_depth) == 30
    for one in figures.by_depth:
        inside = [(walk, t) for walk, t in roots if one.start <= t <= one.end]
        assert one.roots == len(inside) > 0
        assert one.restore_us is not None
        assert one.snapshot_us is not None
        assert one.bytes is not None
        assert one.restore_us.p50 == pytest.approx(2000, rel=0.01)
        assert one.snapshot_us.p95 == pytest.approx(1000, rel=0.01)
        sizes = [len(walk.snapshots[t].to_bytes()) for walk, t in inside]
        assert one.bytes.max == max(sizes)
        assert one.bytes.mean == pytest.approx(sum(sizes) / len(sizes))


def test_without_a_single_restore_there_are_no_times() -> None:
    broken = {env.__name__: env for env, _ in LOSSY}["CannotRestore"]
    figures, seconds = restore_figures(broken, roots_of(broken, 5))
    assert (figures.exact, figures.suffixes_replayed) == (0, 0)
    assert (figures.restores_per_s, seconds) == (0.0, 0.0)
    assert all(b.restore_us is b.snapshot_us is b.bytes is None for b in figures.by_depth)


def test_bins_and_samples() -> None:
    assert doubling_bins(range(20)) == [(0, 0), (1, 1), (2, 3), (4, 7), (8, 15), (16, 31)]
    assert doubling_bins([]) == []
    assert spread(256, 4) == [0, 64, 128, 192]
    assert spread(3, 4) == [0, 1, 2]
    assert len(set(spread(33, 32))) == 32
