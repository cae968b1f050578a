"""Generated ALFWorld households: valid game files of all six task types, from a seed alone.

Used where the public game files are absent, and for small rooms that a tiny model can learn on a
CPU. A game is a function of (seed, split, index, specification): its bytes are the same in every
process. Games of `train` and `valid_seen` share their rooms but not their placements; the rooms
of `valid_unseen` (scene number and receptacle inventory) occur in no other split. Every game can
be won, is not won at the start, and carries a shortest plan as its walkthrough.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

from agent_envs.alfworld.house import ROOMS, ROOMS_EACH, UNSEEN_FROM, Draws, Layout, make_layout
from agent_envs.alfworld.household_spec import (
    PRESETS,
    ROOMS_FOR,
    SMALL,
    STANDARD,
    HouseholdSpec,
    InvalidSpec,
)
from agent_envs.alfworld.placement import Task, draw_task, furnish
from agent_envs.alfworld.problem_writer import payload, sentence, traj_data
from agent_envs.alfworld.shortest import shortest_plan

GENERATOR_VERSION = 1
"""Part of every stream's key; changes whenever the same seed would give other games."""
SPLITS = ("train", "valid_seen", "valid_unseen")
_TRIES = 200


class GeneratedGame(NamedTuple):
    """One generated game: its id and the two JSON objects of its folder."""

    task_id: str
    payload: dict[str, Any]
    traj_data: dict[str, Any]


def _stream(*key: object) -> Draws:
    return Draws(GENERATOR_VERSION, *key)


@lru_cache(maxsize=512)
def _layout(seed: int, room: str, number: int, receptacles: int | None, extras: bool) -> Layout:
    scene = ROOMS[room] + number

    def draw(attempt: int) -> Layout:
        draws = _stream("layout", seed, receptacles, extras, scene, attempt)
        return make_layout(room, scene, receptacles, extras, draws)

    if number < UNSEEN_FROM:
        return draw(0)
    seen = {_layout(seed, room, n, receptacles, extras).inventory for n in range(1, UNSEEN_FROM)}
    for attempt in range(_TRIES):
        layout = draw(attempt)
        if layout.inventory not in seen:
            return layout
    raise InvalidSpec(
        f"No {room} of {receptacles} receptacles is left for valid_unseen: the rooms of train "
        "hold every inventory that was tried. Ask for more receptacles."
    )


def _choose(seed: int, index: int, split: str, spec: HouseholdSpec) -> tuple[Layout, Task, Draws]:
    """Room and task of one game, and the stream that goes on to place its objects."""
    draws = _stream("game", seed, spec.key, split, index)
    task_type = spec.task_types[index % len(spec.task_types)]
    rooms = [room for room in ROOMS_FOR[task_type] if room in spec.rooms]
    for _ in range(_TRIES):
        room = draws.choice(rooms)
        if split == "valid_unseen":
            number = UNSEEN_FROM + draws.below(ROOMS_EACH + 1 - UNSEEN_FROM)
        else:
            number = 1 + draws.below(UNSEEN_FROM - 1)
        layout = _layout(seed, room, number, spec.receptacles, spec.extras)
        task = draw_task(layout, task_type, draws)
        if task is not None:
            return layout, task, draws
    raise InvalidSpec(
        f"None of {_TRIES} rooms ({', '.join(rooms)}) can host {str(task_type)!r} under {spec}. "
        "Ask for more receptacles, more kinds of room or fewer task types."
    )


@lru_cache(maxsize=64)
def _digest(seed: int, split: str, spec: HouseholdSpec) -> str:
    key = repr((GENERATOR_VERSION, seed, spec.key, split))
    return blake2b(key.encode(), digest_size=4).hexdigest()


def _trial(seed: int, index: int, split: str, spec: HouseholdSpec) -> str:
    return f"trial_g{_digest(seed, split, spec)}_{index:06d}"


def _check(seed: int, index: int, split: str) -> None:
    for name, value in (("seed", seed), ("index", index)):
        if type(value) is not int or value < 0:
            raise InvalidSpec(f"The {name} is {value!r}; give a whole number from 0 up.")
    if split not in SPLITS:
        raise InvalidSpec(f"Unknown split {split!r}; choose one of {', '.join(SPLITS)}.")


def task_id(seed: int, index: int, split: str, spec: HouseholdSpec = STANDARD) -> str:
    """The id that `generate_game` gives, without making the game (about 20 times cheaper)."""
    _check(seed, index, split)
    layout, task, _ = _choose(seed, index, split, spec)
    return _id(layout, task, split, _trial(seed, index, split, spec))


def _id(layout: Layout, task: Task, split: str, trial: str) -> str:
    return f"{split}/{task.type}-{task.object}-None-{task.target}-{layout.scene}/{trial}"


def generate_game(
    seed: int, index: int, split: str, spec: HouseholdSpec = STANDARD
) -> GeneratedGame:
    """Generate one game.

    Args:
        seed: names the world; games of one seed share their rooms.
        index: which game of the split, from 0; task types take turns.
        split: one of `SPLITS`.
        spec: what the household looks like.

    Raises:
        InvalidSpec: a seed, index or split out of range, or a specification that cannot be met.
    """
    _check(seed, index, split)
    layout, task, draws = _choose(seed, index, split, spec)
    trial = _trial(seed, index, split, spec)
    words = sentence(task, draws.below(2))
    for _ in range(_TRIES):
        household = furnish(layout, task, spec, draws)
        plan = shortest_plan(household)
        if plan:
            number = draws.below(2**32)
            return GeneratedGame(
                _id(layout, task, split, trial),
                payload(household, plan, words, trial),
                traj_data(household, plan, trial, number),
            )
    raise InvalidSpec(
        f"No placement among {_TRIES} leaves {words!r} to be done in scene {layout.scene} under "
        f"{spec}. Ask for more receptacles or objects."
    )
