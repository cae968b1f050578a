"""What an env checks of a snapshot, apart from the engine state, before it restores anything."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np

from agent_envs.errors import DataError, SnapshotMismatch, TaskNotFound
from agent_envs.hooks import SUCCESS
from agent_envs.schedule import Schedule
from agent_envs.snapshots import FORMAT, Snapshot

STEP_LIMIT = "step_limit"
"""The stop reason of an episode that ran out of steps."""

RNG_NAME = "PCG64"  # what `gymnasium.utils.seeding.np_random` makes

_LIMIT_128 = 1 << 128
_LIMIT_32 = 1 << 32

RngState = tuple[int, int, int, int, int]
"""PCG64's state and increment, its buffered half and whether there is one, the env's seed."""


class Expectation(NamedTuple):
    """What a snapshot must agree with."""

    env_id: str
    task_revision: Callable[[str], str]
    max_steps: int | None
    max_observation_length: int
    n_tasks: int
    ends: frozenset[str]


class Resumed(NamedTuple):
    """The checked values of a snapshot."""

    engine: tuple[Any, ...]
    observation: str
    taken: int
    command_valid: bool
    success: bool
    score: float
    stop_reason: str | None
    schedule: Schedule
    rng: RngState


def check_snapshot(snap: Snapshot, expected: Expectation) -> Resumed:
    """The values of `snap`, which may be hostile; `SnapshotMismatch` unless all can be restored."""
    _check_origin(snap, expected)
    if type(snap.state) is not tuple or len(snap.state) != 8:
        raise mismatch(snap, "its state has the wrong shape")
    engine, observation, taken, valid, success, score, stop_reason, schedule_state = snap.state
    if not isinstance(engine, tuple):
        raise mismatch(snap, "its engine state is no tuple")
    if not isinstance(observation, str) or len(observation) > expected.max_observation_length:
        raise mismatch(snap, "its observation is not in the observation space")
    if type(taken) is not int or taken < 0:
        raise mismatch(snap, f"{taken!r} is no number of steps")
    left = None if expected.max_steps is None else expected.max_steps - taken
    if left != snap.steps_left or type(left) is not type(snap.steps_left):
        raise mismatch(
            snap,
            f"it has {snap.steps_left!r} steps left after {taken}, an env with max_steps="
            f"{expected.max_steps} has {left}; use the same max_steps",
        )
    good = type(valid) is bool and type(success) is bool and type(score) in (float, int)
    good = good and math.isfinite(score) and success is (stop_reason == SUCCESS)
    if type(stop_reason) is str and stop_reason in expected.ends:
        good = good and taken > 0
    else:
        good = good and stop_reason == (STEP_LIMIT if left == 0 else None)
    if not good or (left is not None and left < 0):
        raise mismatch(snap, "its counters and flags contradict each other")
    try:
        schedule = Schedule.from_state(schedule_state)
        rng = checked_rng_state(snap.rng_state)
    except (TypeError, ValueError) as error:
        raise mismatch(snap, str(error)) from error
    if schedule.n_tasks != expected.n_tasks:
        # The same task within another selection of tasks, say a single game: the place in the
        # order means nothing here, so a schedule of this env starts, with the same key.
        schedule = schedule.for_tasks(expected.n_tasks)
    return Resumed(engine, observation, taken, valid, success, score, stop_reason, schedule, rng)


def check_maker(snap: Snapshot, env_id: str) -> None:
    """`SnapshotMismatch` unless this version made `snap`, of an env `env_id`."""
    if snap.format != FORMAT:
        raise mismatch(snap, f"its format is {snap.format!r}, this version reads {FORMAT}")
    if snap.env_id != env_id:
        raise mismatch(snap, f"it was made by {snap.env_id!r}, this env is {env_id!r}")


def _check_origin(snap: Snapshot, expected: Expectation) -> None:
    check_maker(snap, expected.env_id)
    if type(snap.task_id) is not str:
        raise mismatch(snap, "its task id is no string")
    try:
        revision = expected.task_revision(snap.task_id)
    except (TaskNotFound, DataError) as error:
        raise mismatch(snap, f"this env cannot load the task ({error})") from error
    if revision != snap.data_revision:
        raise mismatch(
            snap,
            f"it was made with data revision {snap.data_revision!r}, this env has {revision!r}; "
            "load the former or take a new snapshot",
        )


def mismatch(snap: Snapshot, why: str) -> SnapshotMismatch:
    """The error for a snapshot that cannot be restored here."""
    return SnapshotMismatch(
        f"Cannot restore task {snap.task_id!r}: {why}. The running episode is unchanged."
    )


def rng_to_state(rng: np.random.Generator, seed: int) -> tuple[str | int, ...]:
    """The generator of an env as plain values."""
    if type(rng.bit_generator) is not np.random.PCG64:
        raise SnapshotMismatch(
            f"Cannot take a snapshot with np_random over {type(rng.bit_generator).__name__}; only "
            f"{RNG_NAME}, Gymnasium's own, is supported."
        )
    full = cast(dict[str, Any], rng.bit_generator.state)
    inner = full["state"]
    return RNG_NAME, inner["state"], inner["inc"], full["has_uint32"], full["uinteger"], seed


def checked_rng_state(rng_state: object) -> RngState:
    """The numbers of `rng_to_state`; `ValueError` if no PCG64 can have them."""
    if not isinstance(rng_state, tuple) or len(rng_state) != 6 or rng_state[0] != RNG_NAME:
        raise ValueError(f"its generator is not {RNG_NAME}")
    numbers = rng_state[1:]
    for number in numbers:
        if type(number) is not int:
            raise ValueError("its generator holds something that is no integer")
    state, inc, has_uint32, uinteger, seed = numbers
    good = 0 <= state < _LIMIT_128 and 0 <= inc < _LIMIT_128 and inc & 1
    # Gymnasium gives a generator that was assigned the seed -1.
    if not good or not (0 <= has_uint32 <= 1 and 0 <= uinteger < _LIMIT_32 and seed >= -1):
        raise ValueError("its generator holds impossible numbers")
    return numbers


def set_rng(rng: np.random.Generator | None, numbers: RngState) -> np.random.Generator:
    """A generator with the state `numbers`: `rng` itself where possible."""
    state, inc, has_uint32, uinteger, seed = numbers
    if rng is None or type(rng.bit_generator) is not np.random.PCG64:
        rng = np.random.Generator(np.random.PCG64(0))
    elif rng_to_state(rng, seed)[1:] == numbers:
        return rng  # reading costs less than half of writing, and most episodes draw nothing
    rng.bit_generator.state = {
        "bit_generator": RNG_NAME,
        "state": {"state": state, "inc": inc},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }
    return rng


def copy_rng(rng: np.random.Generator) -> np.random.Generator:
    """An independent generator in the same state."""
    if type(rng.bit_generator) is not np.random.PCG64:
        return copy.deepcopy(rng)
    new = np.random.Generator(np.random.PCG64(0))  # several times faster than `copy.deepcopy`
    new.bit_generator.state = rng.bit_generator.state
    return new
