"""What an episode may change about its game: the numbers of things, the words of the task.

ALFWorld offers both. ``domain_randomization`` renumbers the things of training games, and
``alfworld-generate --goal_desc_human_anns_prob`` writes what a person said into the slot of the
task sentence, as it is written; the full stop that the grammar adds follows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from agent_envs.alfworld.compile import SENTENCE
from agent_envs.alfworld.generations import SLOT
from agent_envs.alfworld.model import Game
from agent_envs.alfworld.naming import KEY_LIMIT, renamed
from agent_envs.errors import InvalidOption, MissingData, SnapshotMismatch, UnsupportedGame

GOAL_SOURCES = ("template", "human")
MARK = "variant"
"""Begins the engine state of a varied game in a snapshot."""

_TASK = re.compile(r'("Your task is to: )(?:[^"\\]|\\.)*?(\.?")')


class Variant(NamedTuple):
    """How an episode differs from its game file."""

    naming: int | None = None
    """Key of the order in which things are numbered (`naming.shuffled`); None: the file's."""
    goal: int | None = None
    """Which of the game's annotations is the task sentence; None: the file's own sentence."""
    sentence: str = ""
    """That annotation, as it is written."""


PLAIN = Variant()


def usable(annotations: Sequence[str]) -> list[int]:
    """Which annotations can be a task sentence: those that the game's grammar can hold."""
    return [index for index, text in enumerate(annotations) if SENTENCE.fullmatch(text)]


def human_goal(annotations: Sequence[str], index: int | None, task_id: str) -> list[int]:
    """The annotations to choose from: the one that is asked for, or all that can be used.

    Raises:
        MissingData: the game has no annotations.
        InvalidOption: it has, but fewer than asked for.
        UnsupportedGame: the one asked for, or every one, holds what the grammar cannot.
    """
    if not annotations:
        raise MissingData(
            f"Game {task_id!r} has no human-annotated goals (turk_annotations in its "
            "traj_data.json). Play it with goal_source='template'."
        )
    good = usable(annotations)
    if index is None:
        if good:
            return good
        what = "none of its sentences"
    elif index >= len(annotations):
        raise InvalidOption(
            f"goal_index is {index}, but game {task_id!r} has {len(annotations)} human-annotated "
            "goals, counted from 0."
        )
    elif index in good:
        return [index]
    else:
        what = f"not {annotations[index]!r}"
    raise UnsupportedGame(
        f"The grammar of game {task_id!r} can hold {what}: a sentence may not be empty or have "
        'one of ;|"<>[]#{}\\ or a control character. Play it with another goal_index or with '
        "goal_source='template'."
    )


def varied(game: Game, variant: Variant) -> Game:
    """The compiled game as `variant` has it."""
    if variant.naming is not None:
        game = renamed(game, variant.naming)
    if variant.goal is not None:
        game = replace(game, task_sentence=variant.sentence + ".")
    return game


def varied_payload(payload: Mapping[str, Any], variant: Variant) -> Mapping[str, Any]:
    """The game file with the task sentence of `variant`; numbers are no part of a file.

    Raises:
        UnsupportedGame: the grammar shows no place for the sentence.
    """
    if variant.goal is None:
        return payload
    text = json.dumps(variant.sentence, ensure_ascii=False)[1:-1]
    grammar, places = _TASK.subn(lambda match: match[1] + text + match[2], payload["grammar"])
    if SLOT in payload["grammar"] or places != 1:
        raise UnsupportedGame(
            f"The grammar has {places} places for a task sentence, expected one. Play the game "
            "with goal_source='template'."
        )
    return {**payload, "grammar": grammar}


def to_plain(variant: Variant, state: tuple[Any, ...]) -> tuple[Any, ...]:
    """The engine state of a snapshot: `state` alone unless the game is varied."""
    return state if variant is PLAIN else (MARK, *variant, state)


def from_plain(value: tuple[Any, ...]) -> tuple[Variant, tuple[Any, ...]]:
    """Inverse of `to_plain` for a value that may be anything.

    Raises:
        SnapshotMismatch: there is no such variant.
    """
    if not value or value[0] != MARK:
        return PLAIN, value
    if len(value) == 5 and isinstance(value[4], tuple):
        variant = Variant(*value[1:4])
        if _possible(variant):
            return variant, value[4]
    raise SnapshotMismatch("The engine state holds no possible numbering and goal of a game.")


def _possible(variant: Variant) -> bool:
    naming, goal, sentence = variant
    if type(sentence) is not str or (naming is None and goal is None):
        return False
    if goal is None:
        fits = sentence == ""
    else:
        fits = type(goal) is int and goal >= 0 and SENTENCE.fullmatch(sentence) is not None
    return fits and (naming is None or (type(naming) is int and 0 <= naming < KEY_LIMIT))
