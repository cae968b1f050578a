"""Promises about snapshots: what they cover, what they withstand."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from gymnasium.wrappers import TimeLimit

import agent_envs
from agent_envs import Snapshot
from agent_envs.errors import SnapshotError, SnapshotFormatError
from agent_envs.testing.report import Broken, promise
from agent_envs.testing.subject import (
    NONSENSE,
    Env,
    Subject,
    Taken,
    Unchecked,
    actions_in,
    difference,
    follow,
    short,
    start_difference,
    take,
)

_CAUSE = (
    "something that decides how the episode goes on is not in the snapshot: look at _engine_state, "
    "_set_engine_state and attributes that neither of them names"
)
_LEAVES = 40
"""Values of the engine state that are forged, one at a time."""
_FAR = 1 << 20
"""A number that is no place, thing or choice of any world."""


@promise("After a restore the episode goes on exactly as it did from the snapshot.")
def check_snapshot_replay(subject: Subject) -> None:
    """O14: observations, rewards, flags and infos, on seeded walks and on prefixes of `plan`."""
    env = subject.env
    for number in range(subject.walks):
        _, last = subject.point(env, number, refused=number % 2 == 1)
        snap = agent_envs.snapshot(env)
        expected = subject.walk(env, last[1], number + 100)
        for _ in range(2):
            _compare_start("restore", last, agent_envs.restore(env, snap))
            _compare("after the restore", expected, follow(env, actions_in(expected)))
    if subject.plan is None:
        return
    env.reset(seed=subject.seed)
    plan = list(subject.plan(env))
    for place in range(0, len(plan), max(1, len(plan) // 10)):
        env.reset(seed=subject.seed)
        taken = follow(env, plan[:place])
        snap = agent_envs.snapshot(env)
        expected = follow(env, plan[place:])
        _, info = agent_envs.restore(env, snap)
        subject.walk(env, info, place, 5)
        agent_envs.restore(env, snap)
        found = follow(env, plan[place:])
        _compare(f"the plan from step {len(taken)}, after a detour", expected, found)


@promise("After a restore, the next reset() starts the episode that it would have started.")
def check_next_episode(subject: Subject) -> None:
    """The generator and the place in the order of tasks are part of the point."""
    env = subject.env
    for number in range(subject.walks):
        subject.point(env, number)
        snap = agent_envs.snapshot(env)
        expected = env.reset()
        subject.walk(env, expected[1], number, 3)
        env.reset()
        agent_envs.restore(env, snap)
        found = start_difference(expected, env.reset())
        if found is not None:
            raise Broken(
                f"reset() after a restore: {found[0]}",
                found[1],
                "the generator, or whatever orders the tasks, is not in the snapshot",
            )


@promise("snapshot, restore, snapshot gives equal values, hashes included.")
def check_snapshot_equal(subject: Subject) -> None:
    """O14: a point is a value."""
    env = subject.env
    for number in range(subject.walks):
        _, (_, info) = subject.point(env, number, refused=number % 2 == 1)
        snap = agent_envs.snapshot(env)
        for where, wander in (("at once", 0), ("after a detour", 5)):
            subject.walk(env, info, number, wander)
            agent_envs.restore(env, snap)
            again = agent_envs.snapshot(env)
            if again != snap or hash(again) != hash(snap):
                raise Broken(
                    f"restored {where}: {_field_of(snap, again)}",
                    "an equal snapshot",
                    "restoring makes something new that equals nothing, or forgets a part",
                )


@promise("Taking snapshots and asking for the remaining steps changes nothing.")
def check_asking_changes_nothing(subject: Subject) -> None:
    """An episode that is watched goes on as one that is not."""
    env = subject.env
    for number in range(subject.walks):
        start = env.reset(seed=subject.seed + number)
        expected = subject.walk(env, start[1], number)
        env.reset(seed=subject.seed + number)
        found = []
        for action in actions_in(expected):
            for _ in range(2):
                agent_envs.snapshot(env)
                agent_envs.remaining_steps(env)
            found.append(take(env, action))
            if found[-1].over:
                break
        unequal = difference(expected, found)
        if unequal is not None:
            raise Broken(
                f"with snapshots in between, {unequal[0]}",
                unequal[1],
                "_engine_state draws random numbers or changes what it reads",
            )


@promise("A snapshot survives its bytes: equal, the same bytes each time, and as good to restore.")
def check_snapshot_bytes(subject: Subject) -> None:
    """For a file, or another process."""
    env = subject.env
    for number in range(subject.walks):
        _, last = subject.point(env, number)
        snap = agent_envs.snapshot(env)
        data = snap.to_bytes()
        again = Snapshot.from_bytes(data)
        if again != snap or again.to_bytes() != data or snap.to_bytes() != data:
            raise Broken(
                f"from the bytes: {_field_of(snap, again)}",
                "an equal snapshot with equal bytes",
                "the engine state holds values that equal nothing, such as NaN",
            )
        expected = subject.walk(env, last[1], number)
        _compare_start("restore from bytes", last, agent_envs.restore(env, again))
        _compare("after a restore from bytes", expected, follow(env, actions_in(expected)))


@promise("Damaged bytes and forged snapshots are typed errors and leave the episode as it is.")
def check_hostile_snapshots(subject: Subject) -> None:
    """Everything is checked before anything changes."""
    env = subject.env
    trace, (_, info) = subject.point(env, 1)
    snap = agent_envs.snapshot(env)
    for what, damaged in _damaged(snap.to_bytes()):
        try:
            Snapshot.from_bytes(damaged)
        except SnapshotFormatError:
            continue
        except Exception as error:
            raise Broken(
                f"{what}: {type(error).__name__}: {error}", "SnapshotFormatError", _UNCHECKED
            ) from error
        raise Broken(f"{what}: accepted", "SnapshotFormatError", "the digest is not checked")
    for what, forged in _forged(snap):
        try:
            agent_envs.restore(env, forged)
        except SnapshotError:
            pass
        except Exception as error:
            raise Broken(
                f"{what}: {type(error).__name__}: {short(str(error))}",
                "SnapshotMismatch",
                _UNCHECKED,
            ) from error
        else:
            raise Broken(f"{what}: restored", "SnapshotMismatch", _UNCHECKED)
        if agent_envs.snapshot(env) != snap:
            raise Broken(
                f"after {what}: {_field_of(snap, agent_envs.snapshot(env))}",
                "the episode as it was",
                "_set_engine_state assigns before it has checked the whole state",
            )
    found = subject.walk(env, info, 1)
    env.reset(seed=subject.seed + 1)
    follow(env, actions_in(trace))
    _compare("after hostile snapshots", follow(env, actions_in(found)), found)
    for what, forged in _impossible(snap):
        try:
            _, shown = agent_envs.restore(env, forged)
            subject.walk(env, shown, 2, 3)
        except SnapshotError:
            pass
        except Exception as error:
            raise Broken(
                f"{what}: restored, then {type(error).__name__}: {short(str(error))}",
                "SnapshotMismatch, or an episode that can be played",
                "_set_engine_state does not check that numbers are in range",
            ) from error


_UNCHECKED = "_set_engine_state does not check each value; it may come from anywhere"


def _damaged(data: bytes) -> Iterator[tuple[str, bytes]]:
    yield "no bytes", b""
    yield "a pickle", b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00K\x01."
    yield "a further byte", data + b" "
    yield "another format", data.replace(b"sero-snapshot ", b"sero-snapshot 9", 1)
    for tenth in range(10):
        place = tenth * len(data) // 10
        yield f"cut after {place} bytes", data[:place]
        changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        yield f"byte {place} changed", changed


def _forged(snap: Snapshot) -> Iterator[tuple[str, Snapshot]]:
    def forge(**changes: Any) -> Snapshot:
        return dataclasses.replace(snap, **changes)

    yield "another env's id", forge(env_id=snap.env_id + "x")
    yield "an unknown task", forge(task_id="no such task: " + snap.task_id)
    yield "another data revision", forge(data_revision=snap.data_revision + "x")
    yield "another budget", forge(steps_left=(snap.steps_left or 0) + 1)
    yield "another stack of wrappers", forge(wrappers=(*snap.wrappers, ("no:Wrapper", ())))
    yield "no generator", forge(rng_state=())
    yield "no state", forge(state=())
    engine, *rest = snap.state
    yield "no engine state", forge(state=((), *rest)) if engine else forge(state=())
    for path, leaf in list(_leaves(engine))[:_LEAVES]:
        value = -1 if isinstance(leaf, str) else "x\uffff"
        state = (_put(engine, path, value), *rest)
        yield f"{value!r} for {short(leaf)} at {path} of the engine state", forge(state=state)


def _impossible(snap: Snapshot) -> Iterator[tuple[str, Snapshot]]:
    """Snapshots with one number of the engine state far from what it was."""
    engine, *rest = snap.state
    numbers = [(path, leaf) for path, leaf in _leaves(engine) if type(leaf) is int]
    for path, leaf in numbers[:_LEAVES]:
        for value in (-1, _FAR):
            state = (_put(engine, path, value), *rest)
            what = f"{value} for {leaf} at {path} of the engine state"
            yield what, dataclasses.replace(snap, state=state)


def _leaves(value: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Any]]:
    if isinstance(value, tuple):
        for place, part in enumerate(value):
            yield from _leaves(part, (*path, place))
    elif value is not None:  # where None stands, a text may be right as well
        yield path, value


def _put(value: Any, path: tuple[int, ...], leaf: Any) -> Any:
    """`value` as plain tuples, with `leaf` at `path`."""
    if not isinstance(value, tuple):
        return leaf if not path else value
    return tuple(
        _put(part, path[1:], leaf) if path and path[0] == place else part
        for place, part in enumerate(value)
    )


@promise("A snapshot restores into an env that was never reset.")
def check_fresh_restore(subject: Subject) -> None:
    """As in another process: the wrappers included, and nothing taken from an earlier episode."""
    env = subject.env
    for number in range(subject.walks):
        _, last = subject.point(env, number)
        snap = agent_envs.snapshot(env)
        expected = subject.walk(env, last[1], number)
        fresh = subject.fresh()
        _compare_start(
            "restore into a fresh env",
            last,
            agent_envs.restore(fresh, Snapshot.from_bytes(snap.to_bytes())),
        )
        again = agent_envs.snapshot(fresh)
        if again != snap:
            raise Broken(f"the fresh env's {_field_of(snap, again)}", "an equal snapshot", _CAUSE)
        found = follow(fresh, actions_in(expected))
        _compare("after a restore into a fresh env", expected, found)


@promise("A restore brings back the budget, the env's own and that of every TimeLimit.")
def check_budget_restored(subject: Subject) -> None:
    """O14: a search does not shorten the episode it searches from."""
    cause = "the count of steps is not in the snapshot, or the restore does not put it back"
    _restored_budget(subject.env, subject, cause)
    try:
        limited = TimeLimit(subject.fresh(), 10)
    except Unchecked:
        return
    _restored_budget(limited, subject, cause)


def _restored_budget(env: Env, subject: Subject, cause: str) -> None:
    env.reset(seed=subject.seed)
    total = agent_envs.remaining_steps(env)
    follow(env, [NONSENSE] * (2 if total is None else min(2, total - 1)))
    snap, left = agent_envs.snapshot(env), agent_envs.remaining_steps(env)
    follow(env, [NONSENSE] * 5)
    agent_envs.restore(env, snap)
    if agent_envs.remaining_steps(env) != left:
        raise Broken(f"remaining_steps {agent_envs.remaining_steps(env)}", str(left), cause)
    if left is None or left > 1000:
        return
    taken = follow(env, [NONSENSE] * (left + 1))
    if len(taken) != left or not taken[-1].truncated:
        ended = "truncated" if taken[-1].truncated else "not truncated"
        raise Broken(f"{ended} after {len(taken)} more steps", f"truncated after {left}", cause)


def _compare(what: str, expected: list[Taken], found: list[Taken]) -> None:
    unequal = difference(expected, found)
    if unequal is not None:
        raise Broken(f"{what}, {unequal[0]}", unequal[1], _CAUSE)


def _compare_start(what: str, expected: Any, found: Any) -> None:
    unequal = start_difference(expected, found)
    if unequal is not None:
        raise Broken(f"{what} returns {unequal[0]}", unequal[1], _CAUSE)


def _field_of(one: Snapshot, other: Snapshot) -> str:
    """The first field in which two snapshots differ."""
    for field in dataclasses.fields(one):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if mine != theirs:
            return f"{field.name} {short(theirs)} instead of {short(mine)}"
    return "snapshot with another hash or other bytes"
