"""Reads WebShop's text pages as a player sees them, and shortens them.

Works on what an observation says and on the links that the env lists; nothing else is known of
the shop. Texts of another form, such as the last page of an episode, stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from agent_envs.webshop.actions import BUTTONS

SEPARATOR = " [SEP] "
_LINK = re.compile(r"click\[(.*)\]", re.DOTALL)
_RESULTS = re.compile(r"Page (\d+) \(Total results: (\d+)\)")
_PRICE = "Price: "
_RATING = "Rating: "
"""Links that every page of a kind has: they are listed, not shown where they stand."""


class ShortPage(NamedTuple):
    """A page in few words, and the commands that its text spells out."""

    text: str
    commands: frozenset[str]


def after_task(observation: str, goal: str) -> str:
    """What a page says after the task, which is on every page; all of it where it is not found."""
    for separator in (SEPARATOR, "\n"):
        _, found, rest = observation.partition(f"{separator}{goal.strip()}{separator}")
        if found:
            return rest
    return observation


def short_page(
    observation: str,
    goal: str,
    admissible: Iterable[str],
    title_length: int,
    text_length: int,
) -> ShortPage:
    """A text page with its links written as the commands that follow them.

    A page of results has a line for each product: command, name, price. A product's page has its
    name and price, and a line for each group of options. Anything else: its texts, line by line.
    """
    rest = after_task(observation, goal)
    if rest == observation or SEPARATOR not in observation:
        return ShortPage(rest, frozenset())
    links = {match[1]: match[0] for a in admissible if (match := _LINK.fullmatch(a))}
    results = _RESULTS.search(rest)
    if results is not None:
        return _results(rest, links, results, title_length)
    return _item(rest, links, title_length, text_length)


def _results(
    rest: str, links: dict[str, str], heading: re.Match[str], title_length: int
) -> ShortPage:
    lines = [[f"page {heading[1]} of {heading[2]} results"]]
    used = set()
    products = rest[heading.end() :].split(SEPARATOR)
    for text in products:
        command = links.get(text.lower())
        if text.lower() in BUTTONS:
            continue
        if command is not None:
            used.add(command)
            lines.append([command])
        elif text.strip():
            lines[-1].append(cut(text, title_length))
    return ShortPage("\n".join(" ".join(line) for line in lines), frozenset(used))


def _item(rest: str, links: dict[str, str], title_length: int, text_length: int) -> ShortPage:
    lines: list[list[str]] = []
    used = set()
    texts = [text for text in rest.split(SEPARATOR) if text.strip()]
    if texts == ["Search"]:  # the first page's button, which is no link
        return ShortPage("", frozenset())
    is_item = any(text.startswith(_PRICE) for text in texts) and "buy now" in links
    for text in texts:
        command = links.get(text.lower())
        if text.startswith(_RATING) or (command is not None and text.lower() in BUTTONS):
            continue
        if command is not None and lines:
            used.add(command)
            if command not in lines[-1]:  # shops list some values twice
                lines[-1].append(command)
        elif is_item and text.startswith(_PRICE) and lines:
            lines[-1].append(text.removeprefix(_PRICE))
        else:
            lines.append([cut(text, title_length if is_item else text_length)])
    return ShortPage("\n".join(" ".join(line) for line in lines), frozenset(used))


def cut(text: str, length: int) -> str:
    """`text`, or as many of its first words as fit into `length` characters.

    >>> cut("men's slim fit dress shirt", 15)
    "men's slim fit"
    """
    if len(text) <= length:
        return text
    head = text[: length + 1]
    return head.rpartition(" ")[0].rstrip() or head[:length]
