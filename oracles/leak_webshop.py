"""Which commands of a branch in WebShop give away what the goal was made from.

The shopper reads the instruction and the pages. Counted as leaked are

* ``query_beyond_instruction``: a search with a word that neither the instruction nor any page read
  so far has;
* ``product_not_shown``: a click on a product that the page read does not list;
* ``product_not_apparent``: a first click on a listed product although another one, listed since
  the search and not opened either, not above the price limit, has more of the instruction's words
  in its title. The first one listed that was not opened is always a sensible pick;
* ``option_not_mentioned``: a click on an option value that has no word in common with the
  instruction.

Words are runs of letters and digits, in lower case; a search is compared in all of them. For titles
and options the request itself ("find me", the price limit) and small words do not count.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from agent_envs.webshop.actions import BUTTONS, BUY, CLICK, SEARCH, click, parse
from agent_envs.webshop.text_pages import SEPARATOR
from oracles.branch import Branch
from oracles.leak_audit import Leak

QUERY = "query_beyond_instruction"
NOT_SHOWN = "product_not_shown"
NOT_APPARENT = "product_not_apparent"
OPTION = "option_not_mentioned"
"""Kinds of leaks."""

_BREAK = re.compile(re.escape(SEPARATOR) + r"|\n")
_BUTTON = re.compile(r"\[(?:clicked )?button\] (.*) \[(?:clicked )?button_\]")
_RESULTS = re.compile(r"Page \d+ \(Total results: \d+\)")
_LIMIT = re.compile(r",? and price lower than ([\d.]+) dollars\W*$", re.IGNORECASE)
_WORD = re.compile(r"[^\W_]+")
_GENITIVE = re.compile("['\u2019]s\\b")
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_SMALL = frozenset(
    _WORD.findall(
        "a am an and are color find for from i in is it like looking me my need of on or size that "
        "the to want with would"
    )
)


class _Row(NamedTuple):
    """A product among results: number of the instruction's words in its title, lowest price."""

    asin: str
    score: int
    price: float | None


class _Shopper:
    """What was read and done so far."""

    def __init__(self, instruction: str) -> None:
        limit = _LIMIT.search(instruction)
        self.cap = float(limit[1]) if limit else None
        self.wanted = _words(_LIMIT.sub("", instruction)) - _SMALL
        self.read = _words(instruction)
        self.rows: dict[str, _Row] = {}
        """Listed since the last search, in the order in which they were read."""
        self.opened: set[str] = set()
        self.page: tuple[_Row, ...] = ()
        """Of the results in sight."""

    def reads(self, observation: str) -> None:
        """Take in a page."""
        self.read |= _words(observation)
        self.page = self._listed(observation)
        for row in self.page:
            self.rows.setdefault(row.asin, row)

    def does(self, command: str, valid: bool) -> None:
        """Take in a command."""
        verb, argument = parse(command) or ("", "")
        if valid and verb == SEARCH:
            self.rows = {}
        elif valid and verb == CLICK and argument.lower() in self.rows:
            self.opened.add(argument.lower())

    def judge(self, command: str, admissible: tuple[str, ...]) -> tuple[str, str] | None:
        """Kind and reason if nothing read leads to `command`."""
        verb, argument = parse(command) or ("", "")
        text = argument.lower()
        if verb == SEARCH:
            beyond = sorted(_words(argument) - self.read)
            return (QUERY, f"never read: {', '.join(beyond)}") if beyond else None
        if verb != CLICK or text in BUTTONS:
            return None
        if click(BUY) in admissible:
            words = _words(text) - _SMALL or _words(text)
            if words & self.wanted:
                return None
            return OPTION, f"the instruction says nothing of {text!r}"
        return self._judged_product(text)

    def _judged_product(self, asin: str) -> tuple[str, str] | None:
        if asin not in [row.asin for row in self.page]:
            return NOT_SHOWN, f"{asin!r} is not on the page"
        if asin in self.opened:
            return None  # its own page was read
        fresh = [row for row in self.rows.values() if row.asin not in self.opened]
        if fresh[0].asin == asin:
            return None
        score = self.rows[asin].score
        better = [row for row in fresh if row.score > score and self._affordable(row)]
        if not better:
            return None
        best = max(better, key=lambda row: row.score)
        return NOT_APPARENT, (
            f"its title has {score} words of the instruction, that of {best.asin!r}, which was "
            f"not opened, has {best.score}"
        )

    def _affordable(self, row: _Row) -> bool:
        return self.cap is None or row.price is None or row.price <= self.cap

    def _listed(self, observation: str) -> tuple[_Row, ...]:
        texts = _texts(observation)
        if "Next >" not in texts or not any(map(_RESULTS.fullmatch, texts)):
            return ()
        rows = texts[texts.index("Next >") + 1 :]
        found = []
        for asin, title, price in zip(rows[::3], rows[1::3], rows[2::3], strict=False):
            number = _NUMBER.search(price)
            lowest = float(number[0].replace(",", "")) if number else None
            found.append(_Row(asin.lower(), len(_words(title) & self.wanted), lowest))
        return tuple(found)


def leaks(branch: Branch) -> list[Leak] | None:
    """The leaked commands of a branch; None if its observations are no pages of text."""
    shopper = _Shopper(branch.goal)
    for item in branch.history:
        shopper.reads(item.observation)
        shopper.does(item.action, item.command_valid)
    found = []
    for k, step in enumerate(branch.steps):
        if not _texts(step.observation):
            return None
        shopper.reads(step.observation)
        judged = shopper.judge(step.action, step.admissible)
        if judged is not None:
            found.append(Leak(k, *judged))
        shopper.does(step.action, step.command_valid)
    return found


def _texts(observation: str) -> list[str]:
    """The texts of the last page of an observation; none if it is no page."""
    parts = [part.strip() for part in _BREAK.split(observation)]
    texts = [match[1] if (match := _BUTTON.fullmatch(part)) else part for part in parts]
    starts = [place for place, text in enumerate(texts) if text == "Instruction:"]
    return [text for text in texts[starts[-1] :] if text] if starts else []


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(_GENITIVE.sub("", text.lower())))
