"""Generated ALFWorld households: valid game files of all six task types, from a seed alone.

Used where the public game files are absent, and for small rooms that a tiny model can learn on a
CPU. A game is a function of (seed, split, index, specification): its bytes are the same in every
process. Games of `train` and `valid_seen` share their rooms but not their placements; the rooms
of `valid_unseen` (scene number and receptacle inventory) occur in no other split. Every game can
be won, is not won at the start, and carries a shortest plan as its walkthrough.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any, NamedTuple

from agent_envs.alfworld.compile import domain_text, grammar_text
from agent_envs.alfworld.games.game_archives import GAME_NAME, TRAJECTORY_NAME
from agent_envs.alfworld.games.game_set import GameSet
from agent_envs.alfworld.households.class_tables import (
    class_tables_text,
    room_figures,
    room_figures_text,
)
from agent_envs.alfworld.households.furnishing import draw_real_task, furnish_like_real
from agent_envs.alfworld.households.house import (
    ROOMS,
    ROOMS_EACH,
    UNSEEN_FROM,
    Layout,
    make_layout,
)
from agent_envs.alfworld.households.placement import Household, Task, draw_task, furnish
from agent_envs.alfworld.households.problem_writer import payload, sentence, traj_data
from agent_envs.alfworld.households.shortest import shortest_plan
from agent_envs.alfworld.households.source import PREFIX, Source, read_source
from agent_envs.alfworld.households.spec import (
    ROOMS_FOR,
    SMALL,
    SPLITS,
    STANDARD,
    HouseholdSpec,
    InvalidSpec,
)
from agent_envs.alfworld.households.tree import write_games
from agent_envs.alfworld.model import TaskType
from agent_envs.draws import Draws

__all__ = [
    "GENERATOR_VERSIONS",
    "SMALL",
    "SPLITS",
    "STANDARD",
    "GeneratedGame",
    "HouseholdSpec",
    "InvalidSpec",
    "default_game_set",
    "generate_game",
    "generate_game_set",
    "parse_source",
    "task_id",
    "write_tree",
]

GENERATOR_VERSIONS = {"plain": 1, "real-like": 2}
"""Part of every stream's key; changes whenever the same seed would give other games of a style."""
_TRIES = 200


class GeneratedGame(NamedTuple):
    """One generated game: its id and the two JSON objects of its folder."""

    task_id: str
    payload: dict[str, Any]
    traj_data: dict[str, Any]


def _version(extras: bool) -> int:
    return GENERATOR_VERSIONS["real-like" if extras else "plain"]


@lru_cache(maxsize=512)
def _layout(seed: int, room: str, number: int, receptacles: int | None, extras: bool) -> Layout:
    scene = ROOMS[room] + number

    def draw(attempt: int) -> Layout:
        key = ("layout", seed, receptacles, extras, scene, attempt)
        draws = Draws(_version(extras), *key)
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


class _Choice(NamedTuple):
    """Room and task of one game, and the stream that goes on to place its objects."""

    layout: Layout
    task: Task
    hidden: bool | None
    draws: Draws

    def furnish(self, spec: HouseholdSpec) -> Household:
        furnisher = furnish_like_real if spec.extras else furnish
        return furnisher(self.layout, self.task, spec, self.draws, self.hidden)


def _choose(seed: int, index: int, split: str, spec: HouseholdSpec) -> _Choice:
    draws = Draws(_version(spec.extras), "game", seed, spec.key, split, index)
    task_type = spec.task_types[index % len(spec.task_types)]
    rooms = {room: n for room, n in _rooms(task_type, spec.extras).items() if room in spec.rooms}
    hidden = None if spec.depth is None else draws.chance(spec.depth)
    for _ in range(_TRIES):
        room = draws.from_counts(rooms) if spec.extras else draws.choice(tuple(rooms))
        if split == "valid_unseen":
            number = UNSEEN_FROM + draws.below(ROOMS_EACH + 1 - UNSEEN_FROM)
        else:
            number = 1 + draws.below(UNSEEN_FROM - 1)
        layout = _layout(seed, room, number, spec.receptacles, spec.extras)
        task = (draw_real_task if spec.extras else draw_task)(layout, task_type, draws, hidden)
        if task is not None:
            return _Choice(layout, task, hidden, draws)
    raise InvalidSpec(
        f"None of {_TRIES} rooms ({', '.join(rooms)}) can host {str(task_type)!r} under {spec}. "
        "Ask for more receptacles, more kinds of room or fewer task types."
    )


@lru_cache(maxsize=16)
def _rooms(task_type: TaskType, extras: bool) -> dict[str, int]:
    """Kinds of room that host a task type, and how often."""
    often = room_figures().tasks[task_type].rooms if extras else {}
    return {room: often.get(room, 1) for room in ROOMS_FOR[task_type]}


@lru_cache(maxsize=64)
def _digest(seed: int, split: str, spec: HouseholdSpec) -> str:
    key = repr((_version(spec.extras), seed, spec.key, split))
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
    choice = _choose(seed, index, split, spec)
    return _id(choice.layout, choice.task, split, _trial(seed, index, split, spec))


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
    choice = _choose(seed, index, split, spec)
    layout, task, draws = choice.layout, choice.task, choice.draws
    trial = _trial(seed, index, split, spec)
    words = sentence(task, draws.below(2))
    for _ in range(_TRIES):
        household = choice.furnish(spec)
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


def generate_game_set(
    seed: int = 0, counts: Mapping[str, int] | None = None, spec: HouseholdSpec = STANDARD
) -> GameSet:
    """A set of generated games. Only their ids are made; a game is made when it is asked for.

    Args:
        seed: names the world.
        counts: games of each split; None: 2,000 train, 500 valid_seen, 500 valid_unseen. A split
            that is left out gets none. More games of a split leave the first ones as they are.
        spec: what the households look like.

    Raises:
        InvalidSpec: as `generate_game`, or an unknown split or negative number in `counts`.
    """
    source = Source(seed, counts, spec)
    return GameSet.from_games(
        (
            (task_id(seed, index, split, spec), split, partial(_payload, seed, index, split, spec))
            for split, index in _indices(source)
        ),
        source=str(source),
        manifest_hash=_manifest_hash(source),
    )


def _indices(source: Source) -> Iterator[tuple[str, int]]:
    for split, count in source.counts:
        for index in range(count):
            yield split, index


def _payload(seed: int, index: int, split: str, spec: HouseholdSpec) -> dict[str, Any]:
    return generate_game(seed, index, split, spec).payload


def _manifest_hash(source: Source) -> str:
    """SHA-256 (hex) over everything that decides the games, which need not exist yet."""
    extras = source.spec.extras
    made_by = (_version(extras), source.seed, source.counts, source.spec.key)
    parts = [repr(made_by), domain_text(), grammar_text(), class_tables_text()]
    parts += [room_figures_text()] if extras else []
    return sha256("\0".join(parts).encode()).hexdigest()


@lru_cache(maxsize=1)
def default_game_set() -> GameSet:
    """The games that are played where no data is given: `STANDARD` households of seed 0."""
    return generate_game_set()


def parse_source(text: str) -> GameSet | None:
    """The set that a source text such as ``"generated:small?seed=1&train=4000"`` names.

    The preset (``small``, ``standard``) may be followed by ``seed``, the number of games of each
    split, and fields of `HouseholdSpec`, several values joined by commas. One set per text is
    made in a process. `GameSet.source` of a generated set is such a text.

    Returns:
        The set, or None if the text does not start with ``generated:``.

    Raises:
        InvalidSpec: an unknown preset, key or value.
    """
    return _from_text(text) if text.startswith(PREFIX) else None


@lru_cache(maxsize=16)
def _from_text(text: str) -> GameSet:
    source = read_source(text)
    return generate_game_set(source.seed, dict(source.counts), source.spec)


def write_tree(
    out: str | os.PathLike[str],
    *,
    seed: int = 0,
    counts: Mapping[str, int] | None = None,
    spec: HouseholdSpec = STANDARD,
    on_game: Callable[[bool], None] | None = None,
) -> int:
    """Write generated games as ALFWorld's own tree, and return their number.

    Below `out`: ``json_2.1.1/<split>/<task>/<trial>/{game.tw-pddl,traj_data.json}``. The arguments
    are those of `generate_game_set`, and `GameSet.from_path(out)` has the same games. A tree of
    the same seed and specification is completed: games that are there stay as they are, so an
    interrupted call can be repeated, also with more games. At no time is there half a game.

    Args:
        on_game: called after each game, with whether it had to be written.

    Raises:
        InvalidSpec: as `generate_game_set`.
        FileExistsError: `out` holds another tree already; nothing is written.
    """
    source = Source(seed, counts, spec)

    def files(index: int, split: str) -> dict[str, Any]:
        game = generate_game(seed, index, split, spec)
        return {GAME_NAME: game.payload, TRAJECTORY_NAME: game.traj_data}

    return write_games(
        Path(out),
        (
            (task_id(seed, index, split, spec), partial(files, index, split))
            for split, index in _indices(source)
        ),
        (GAME_NAME, TRAJECTORY_NAME),
        source=str(source),
        content=_manifest_hash(Source(seed, {}, spec)),
        on_game=on_game,
    )
