"""Instructions: the synthetic sentence of a product, and sentences as people would write them.

The synthetic one is what the environment extends by options and a price limit; it is one sentence
without a full stop, in the words of the product's attributes and search phrase.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent_envs.draws import Draws

OPENINGS = (
    "i am looking for {thing}",
    "i need {thing}",
    "i would like to buy {thing}",
    "please get me {thing}",
    "i want {thing}",
    "help me find {thing}",
    "show me {thing}",
    "my sister asked for {thing}",
    "i have to replace mine, so i want {thing}",
    "shopping for {thing}",
    "what i need is {thing}",
)
CHOICES = (
    " in {values}",
    ", and choose {values}",
    "; take the one in {values}",
    ". it should come in {values}",
    ". i prefer {values}",
)


def option_text(value: str) -> str:
    """An option value as pages show it: the rule by which raw data is cleaned.

    >>> option_text(" 8 GB/256 GB ")
    '8 gb | 256 gb'
    """
    return value.strip().replace("/", " | ").lower()


def listed(names: Sequence[str], last: str = " and ") -> str:
    """Names in running text.

    >>> listed(["thin", "light", "soft"])
    'thin, light and soft'
    """
    return last.join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def sort_out(
    attributes: Sequence[str], parts: frozenset[str], materials: Sequence[str], uses: Sequence[str]
) -> tuple[list[str], list[str], list[str]]:
    """Attributes that stand before a noun, after "with" and after "for".

    Args:
        attributes: what is asked for.
        parts: attributes that follow "with".
        materials: those that follow "with" too.
        uses: those that follow "for".
    """
    follow_with = [name for name in attributes if name in parts or name in materials]
    follow_for = [name for name in attributes if name in uses and name not in follow_with]
    before = [name for name in attributes if name not in follow_with and name not in follow_for]
    return before, follow_with, follow_for


def synthetic_instruction(
    query: str, before: Sequence[str], follow_with: Sequence[str], follow_for: Sequence[str]
) -> str:
    """The sentence that asks for attributes and a search phrase.

    >>> synthetic_instruction("floor lamps", ["dimmable"], ["foot switch"], [])
    'Find me dimmable floor lamps with foot switch'
    """
    text = "Find me " + (f"{', '.join(before)} " if before else "") + query
    if follow_with:
        text += f" with {', '.join(follow_with)}"
    if follow_for:
        text += f" for {', '.join(follow_for)}"
    return text


def human_entry(
    asin: str,
    noun: str,
    some: str,
    kinds: tuple[Sequence[str], Sequence[str], Sequence[str]],
    attributes: Sequence[str],
    options: Mapping[str, str],
    draws: Draws,
) -> dict[str, Any]:
    """One human-like instruction, in the form of the original's file of them.

    Args:
        asin: of the product.
        noun: what a person would call it.
        some: what stands before the noun: "a", "some" or "a pair of".
        kinds: the attributes asked for, as `sort_out` gives them.
        attributes: all attributes of the product.
        options: the values asked for, by group, as pages show them.
        draws: a stream.
    """
    before, follow_with, follow_for = kinds
    thing = " ".join([", ".join(before), noun] if before else [noun])
    if some == "a" and noun.endswith("s") and not noun.endswith("ss"):
        some = "some"
    if some == "a" and thing[0] in "aeiou" and not thing.startswith(("eu", "uni", "usb", "uv")):
        some = "an"
    thing = f"{some} {thing}"
    if follow_with:
        thing += f" with {listed(follow_with)}"
    if follow_for:
        thing += f" for {listed(follow_for)}"
    text = draws.choice(OPENINGS).format(thing=thing)
    if options:
        text += draws.choice(CHOICES).format(values=listed(list(options.values())))
    return {
        "asin": asin,
        "instruction": text + ("." if draws.chance(0.5) else ""),
        "attributes": list(attributes),
        "options": [f"{group}: {value}" for group, value in options.items()],
        "instruction_attributes": [*before, *follow_with, *follow_for],
        "instruction_options": list(options.values()),
        "worker_id": "generated",
        "assignment_id": f"{asin}-{draws.below(16**8):08x}",
    }
