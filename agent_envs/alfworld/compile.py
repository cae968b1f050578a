"""From a ``game.tw-pddl`` file to the immutable tables of a `Game`.

Such a file holds the PDDL domain and the text grammar next to its problem. The engine implements
two pairs of them by hand (`agent_envs.alfworld.generations`), so a file is accepted only if both
are the very texts of one pair; the task sentence alone may differ.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from agent_envs.alfworld.generations import (
    GENERATIONS,
    SLOT,
    Generation,
    domain_text,
    grammar_ends,
    grammar_text,
    text_hash,
)
from agent_envs.alfworld.goals import parse_goal
from agent_envs.alfworld.model import Game
from agent_envs.alfworld.pddl import read_problem
from agent_envs.alfworld.tables import Tables
from agent_envs.errors import CorruptGame, UnsupportedGame

__all__ = [
    "compile_game",
    "domain_text",
    "generation_of",
    "grammar_text",
    "read_payload",
    "read_sentence",
    "revision",
    "text_hash",
]

SENTENCE = re.compile(r'[^;|"<>\[\]#{}\\\x00-\x1f\ud800-\udfff]+')
"""A task sentence: without characters that have a meaning in the grammar's own syntax, on which the
original engine fails."""


def read_payload(payload: Mapping[str, Any] | bytes | str) -> Mapping[str, Any]:
    """The JSON object of a game file, with the three texts that it must hold.

    Raises:
        CorruptGame: not JSON, not an object, or a text is missing.
    """
    if isinstance(payload, bytes | str):
        try:
            payload = json.loads(payload)
        except (ValueError, RecursionError) as error:
            raise CorruptGame(f"The game file is not JSON: {error}.") from error
    if not isinstance(payload, Mapping):
        raise CorruptGame(f"A game file holds a JSON object, found {type(payload).__name__}.")
    for key in ("pddl_domain", "grammar", "pddl_problem"):
        text = payload.get(key)
        if not isinstance(text, str):
            raise CorruptGame(f"The game file has no text under {key!r}.")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:  # JSON can spell half of a character
            raise CorruptGame(f"The text under {key!r} is no Unicode: {error}.") from error
    return payload


def generation_of(domain: str, grammar: str) -> Generation | None:
    """Which generation a game's domain and grammar are of; None if of none that is known."""
    for generation in GENERATIONS.values():
        before, after = grammar_ends(generation.name)
        if (
            domain == domain_text(generation.name)
            and grammar.startswith(before)
            and grammar.endswith(after)
            and len(grammar) >= len(before) + len(after)
        ):
            return generation
    return None


def read_sentence(domain: str, grammar: str) -> tuple[str, Generation]:
    """The task sentence of a game and its generation, told from its domain and grammar.

    Raises:
        UnsupportedGame: another domain or grammar (the message names both by hash), or a
            sentence that means something else to the grammar than its letters.
    """
    generation = generation_of(domain, grammar)
    if generation is None:
        raise _unknown(domain, grammar)
    before, after = grammar_ends(generation.name)
    raw = grammar[len(before) : len(grammar) - len(after)]
    try:
        sentence = json.loads(f'"{raw}"')
    except ValueError as error:
        raise CorruptGame(f"The task sentence {raw!r} is not a JSON string.") from error
    if not isinstance(sentence, str) or not SENTENCE.fullmatch(sentence):
        raise UnsupportedGame(
            f"The task sentence {sentence!r} is empty or holds a character with a meaning in "
            "the grammar's syntax (one of ;|\"<>[]#{}\\ or a control character), or half of one."
        )
    return sentence + ".", generation


def _unknown(domain: str, grammar: str) -> UnsupportedGame:
    known = ", or ".join(
        f"domain {one.domain_md5} with grammar {one.grammar_md5} (generation {name!r})"
        for name, one in GENERATIONS.items()
    )
    return UnsupportedGame(
        "This game's rules or wording are not ones that the native engine knows: domain "
        f"{text_hash(domain)}, grammar with its task sentence blanked "
        f"{text_hash(_blank_sentence(grammar))}. Known are: {known}. "
        "Play it with engine='textworld': the original engine (extra `reference`)."
    )


def _blank_sentence(grammar: str) -> str:
    return re.sub(r'("Your task is to: )[^\n]*?(\.?")', rf"\g<1>{SLOT}\g<2>", grammar, count=1)


def revision(payload: Mapping[str, Any]) -> str:
    """SHA-256 (hex) of domain, grammar and problem text: two games of one revision are equal."""
    parts = (payload["pddl_domain"], payload["grammar"], payload["pddl_problem"])
    return hashlib.sha256("\0".join(parts).encode("utf-8")).hexdigest()


def compile_game(payload: Mapping[str, Any] | bytes | str) -> Game:
    """Compile a game file (its bytes, its text, or its JSON object).

    Raises:
        CorruptGame: not a game file, or one that contradicts itself.
        UnsupportedGame: rules, wording or goal that this engine does not implement.
    """
    payload = read_payload(payload)
    sentence, generation = read_sentence(payload["pddl_domain"], payload["grammar"])
    problem = read_problem(payload["pddl_problem"])
    tables = Tables(problem.objects, problem.facts)
    terms = parse_goal(problem.goal)
    walkthrough = payload.get("walkthrough")
    if walkthrough is not None:
        if not isinstance(walkthrough, list) or not all(isinstance(c, str) for c in walkthrough):
            raise CorruptGame("The game file's 'walkthrough' is not a list of commands.")
        walkthrough = tuple(walkthrough)
    return tables.game(
        revision=revision(payload),
        generation=generation,
        sentence=sentence,
        terms=terms,
        walkthrough=walkthrough,
        solvable=bool(payload.get("solvable", False)),
    )
