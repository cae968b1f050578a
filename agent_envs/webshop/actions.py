"""What a shopper can say: ``search[query]`` and ``click[text]``.

The rules are those of the original (princeton-nlp/WebShop), which matches ``(.+)\\[(.+)\\]`` at the
start of the action, both groups greedy: the name is case-sensitive, the argument is lower-cased,
whatever follows the last ``]`` is ignored, a line break ends the action.
"""

from __future__ import annotations

SEARCH = "search"
CLICK = "click"

ACTION_LIMIT = 1 << 12
"""Characters; longer actions are refused. The original's search engine fails on such queries."""

BACK_TO_SEARCH = "back to search"
PREVIOUS = "< prev"
NEXT = "next >"
BUY = "buy now"
SUB_PAGES = ("Description", "Features", "Reviews", "Attributes")
"""Pages below an item page; the last one has a button only if it is asked for."""

BUTTONS = frozenset(
    (SEARCH, BACK_TO_SEARCH, PREVIOUS, NEXT, BUY, *(name.lower() for name in SUB_PAGES))
)
"""Texts of clickables that are neither products nor options."""

SEARCH_TEMPLATE = "search[<query>]"


def parse(action: str) -> tuple[str, str] | None:
    """Name and argument of an action, None if it has not the form. Takes linear time.

    >>> parse("search[Red Shoes] please"), parse("search[]"), parse("search[a [b]]")
    (('search', 'Red Shoes'), None, ('search[a ', 'b]'))
    """
    line_end = action.find("\n")
    line = action if line_end < 0 else action[:line_end]
    close = line.rfind("]")
    # The last "[" with something before it, and something between it and the last "]".
    opened = line.rfind("[", 1, max(close - 1, 1))
    if opened < 0:
        return None
    return line[:opened], line[opened + 1 : close]


def click(text: str) -> str:
    """The action that clicks on `text`."""
    return f"{CLICK}[{text}]"


def is_sayable(text: str) -> bool:
    """Whether the original understands a click on `text`: not if it holds a ``[`` or a line
    break, say."""
    return text != SEARCH and text.lower() == text and parse(click(text)) == (CLICK, text)


def plain_argument(action: str) -> str | None:
    """What stands between ``click[`` and the last ``]``, for texts that `parse` cannot get at.

    >>> plain_argument("click[2 pack [blue]]")
    '2 pack [blue]'
    """
    if not action.startswith(f"{CLICK}["):
        return None
    start = len(CLICK) + 1
    close = action.rfind("]")
    return action[start:close] if close >= start else None
