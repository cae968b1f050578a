"""The generations of ALFWorld's game files: which rules and wording a file plays by.

ALFWorld 0.4 renamed *put* to *move*, let the arrival name the receptacle, and added ``help``.
Files of before and after are both around; everything that differs between them is in this table.
A file says itself what it is, since it holds the PDDL domain and the text grammar. Both are
compared to the character, as another text would mean other rules.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from agent_envs.errors import DataError

SLOT = "UNKNOWN GOAL"
"""What stands in a grammar where a game file has its task sentence."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One generation of game files."""

    name: str
    put: tuple[str, str]
    """Verb and preposition of the command that puts down the object held."""
    put_reply: tuple[str, str]
    """What is said then, before the object and between object and receptacle."""
    arrives_at_location: bool
    """Whether ``go to desk 1`` is answered by "You arrive at loc 12." instead of "... desk 1."."""
    has_help: bool
    domain_md5: str
    grammar_md5: str
    """Of the grammar with `SLOT` for the task sentence."""


MOVE = Generation(
    name="move",
    put=("move", "to"),
    put_reply=("You move the ", " to the "),
    arrives_at_location=False,
    has_help=True,
    domain_md5="574a98ddcfd0745755a35fbd9d73a583",
    grammar_md5="9c61a8239e6b95ed5aa1e7ea12f6a9f7",
)
"""ALFWorld 0.4."""

PUT = Generation(
    name="put",
    put=("put", "in/on"),
    put_reply=("You put the ", " in/on the "),
    arrives_at_location=True,
    has_help=False,
    domain_md5="e9f0f8b0c43ab77f7eab54b826b21243",
    grammar_md5="02dfb0c97c59699c75b0d0fcc1219d8b",
)
"""ALFWorld before 0.4: the files behind most published prompts and demonstrations."""

GENERATIONS = {generation.name: generation for generation in (MOVE, PUT)}
"""By `Generation.name`, which `Game.generation` repeats."""

# How the texts of before 0.4 differ from today's, which alone are kept as files.
_EARLIER_GRAMMAR = (
    ('"You arrive at {r.name}. ', '"You arrive at {lend.name}. '),
    ('"You move the {o.name} to the {r.name}."', '"You put the {o.name} in/on the {r.name}."'),
    ('template :: "move {o} to {r}";', 'template :: "put {o} in/on {r}";'),
)
_DOMAIN_HELP = "(:action help\n"
_GRAMMAR_HELP = "\naction help {\n"


@cache
def domain_text(generation: str = MOVE.name) -> str:
    """The PDDL domain of a generation, to the character.

    Raises:
        DataError: the package's own file was altered.
    """
    text = _data("move_domain.pddl")
    if generation == PUT.name:
        text = text.partition(_DOMAIN_HELP)[0] + ")\n"  # `help` is the last action
    return _checked(text, GENERATIONS[generation].domain_md5)


def grammar_text(task: str | None = None, generation: str = MOVE.name) -> str:
    """The text grammar of a generation, to the character; `task` put into its slot if given.

    `task` is written without the full stop that the grammar adds.

    Raises:
        DataError: the package's own file was altered.
    """
    text = _grammar(generation)
    return text if task is None else text.replace(SLOT, task)


@cache
def _grammar(generation: str) -> str:
    text = _data("move_grammar.twl2")
    if generation == PUT.name:
        text = text.partition(_GRAMMAR_HELP)[0]
        for now, before in _EARLIER_GRAMMAR:
            text = text.replace(now, before)
    return _checked(text, GENERATIONS[generation].grammar_md5)


@cache
def grammar_ends(generation: str) -> tuple[str, str]:
    """The grammar of a generation before and after its task sentence."""
    before, _, after = _grammar(generation).partition(SLOT)
    return before, after


def text_hash(text: str) -> str:
    """MD5 of a domain or grammar, the short name by which errors and documents call it."""
    return hashlib.md5(text.encode("utf-8"), usedforsecurity=False).hexdigest()


def _data(name: str) -> str:
    # bytes, not text: a translated line end would be another grammar
    return (resources.files(__package__) / "data" / name).read_bytes().decode("utf-8")


def _checked(text: str, md5: str) -> str:
    if text_hash(text) != md5:
        raise DataError(
            f"A rule text of the installed package has MD5 {text_hash(text)}, expected {md5}. "
            "A file in agent_envs/alfworld/data was altered; install the package anew."
        )
    return text
