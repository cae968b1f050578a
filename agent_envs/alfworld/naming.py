"""Names of things: which number each gets, and other numbers for the same game.

ALFWorld's ``domain_randomization`` shuffles the ids of a game before it numbers them: "mug 1" is
then another mug than in the game file, while lists keep the order of the ids. Here the shuffle is
a key, so that one integer in a snapshot brings it back in any process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace

from agent_envs.alfworld.generations import GENERATIONS
from agent_envs.alfworld.model import Game
from agent_envs.alfworld.words import make_words, shared

KEY_LIMIT = 1 << 63
"""Keys of a shuffle are in ``range(KEY_LIMIT)``."""


def number_names(ids: Iterable[str]) -> dict[str, str]:
    """Names for the ids that have a class. Numbers run against the order of the ids.

    >>> number_names(["mug_bar_a", "mug_bar_b", "sink_bar_a_bar_sinkbasin"])
    {'mug_bar_a': 'mug 2', 'mug_bar_b': 'mug 1', 'sink_bar_a_bar_sinkbasin': 'sinkbasin 1'}
    """
    members: dict[str, list[str]] = {}
    for name in ids:
        head, bar, _ = name.partition("_bar_")
        if bar:
            members.setdefault(head + "basin" if "basin" in name else head, []).append(name)
    return {
        name: shared(f"{kind} {len(names) - position}")
        for kind, names in members.items()
        for position, name in enumerate(names)
    }


def shuffled(ids: Iterable[str], key: int) -> list[str]:
    """The ids in an order that depends on `key` and on nothing else: no generator, no version.

    >>> shuffled(["a", "b", "c", "d"], 1) == shuffled("dcba", 1) != shuffled("abcd", 2)
    True
    """

    def place(name: str) -> tuple[bytes, str]:
        return hashlib.blake2b(f"{key} {name}".encode(), digest_size=16).digest(), name

    return sorted(ids, key=place)


def renamed(game: Game, key: int) -> Game:
    """`game` with its things numbered in the order of `shuffled`. Ids, indices, rules: the same."""
    ids = {*game.obj_ids, *game.rec_ids, *game.locs}
    return with_names(game, number_names(shuffled(ids, key)))


def with_names(game: Game, names: Mapping[str, str]) -> Game:
    """`game` with other names: a name for every id of an object, receptacle or location."""
    objs = tuple(names[name] for name in game.obj_ids)
    recs = tuple(names[name] for name in game.rec_ids)
    spots = None
    generation = GENERATIONS[game.generation]
    if generation.arrives_at_location:  # a receptacle without a place cannot be gone to
        spots = tuple(names[game.locs[loc]] if loc >= 0 else "" for loc in game.rec_loc)
    walkthrough = None
    if game.walkthrough is not None:
        new = dict(zip((*game.recs, *game.objs), (*recs, *objs), strict=True))
        walkthrough = tuple(_respelled(command, new) for command in game.walkthrough)
    return replace(
        game,
        recs=recs,
        objs=objs,
        walkthrough=walkthrough,
        obj_index={name: index for index, name in enumerate(objs)},
        rec_index={name: index for index, name in enumerate(recs)},
        words=make_words(generation, objs, recs, spots, game.rec_loc, game.recs_at),
    )


def _respelled(command: str, new: Mapping[str, str]) -> str:
    """A command with the new names: every two words that are a name, from the left."""
    words = command.split(" ")
    spelled: list[str] = []
    while words:
        pair = " ".join(words[:2])
        if pair in new:
            spelled.append(new[pair])
            del words[:2]
        else:
            spelled.append(words.pop(0))
    return " ".join(spelled)
