"""Reading a page of the shop from a browser's DOM, by the identifiers and classes of the original.

Nothing here knows what the page ought to say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from agent_envs.webshop import text_pages
from agent_envs.webshop.actions import ACTION_LIMIT, click
from agent_envs.webshop.text_pages import SEPARATOR

if TYPE_CHECKING:
    from selenium.webdriver.remote.webdriver import WebDriver
    from selenium.webdriver.remote.webelement import WebElement

BUTTONS, LINKS, RADIOS = ".btn", ".product-link", "input[type='radio']"
SEARCH_FIELD = "search_input"

_READ = """
const kinds = {BUTTON: "button", LABEL: "label"};
const skipped = new Set(["STYLE", "SCRIPT", "HEAD", "TITLE", "META"]);
const texts = [];
const walker = document.createTreeWalker(document.documentElement, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const parent = walker.currentNode.parentElement;
  if (skipped.has(parent.tagName)) continue;
  const kind = kinds[parent.tagName] ?? (parent.className === "product-link" ? "link" : "");
  texts.push([walker.currentNode.data, kind]);
}
const all = (selector) => [...document.querySelectorAll(selector)];
const reward = document.querySelector("#reward pre");
return {
  path: location.pathname,
  texts,
  buttons: all(arguments[0]).map((e) => e.textContent),
  links: all(arguments[1]).map((e) => e.textContent),
  radios: all(arguments[2]).map((e) => e.value),
  has_search: document.getElementById(arguments[3]) !== null,
  reward: reward === null ? null : reward.textContent,
  is_page: document.getElementById("instruction-text") !== null || reward !== null,
};
"""


class Node(NamedTuple):
    """A text node."""

    text: str
    kind: str
    """Of its parent: "button", "label", "link" (to a product), or "" for any other."""


class Shown(NamedTuple):
    """What a page shows."""

    path: str
    nodes: tuple[Node, ...]
    keys: dict[str, tuple[str, int]]
    """What can be clicked: text -> selector and place among the elements of that selector."""
    has_search: bool
    """Whether there is a search field."""
    reward: float | None
    """On the page after a purchase."""
    is_page: bool
    """Whether it is a page of the shop at all, not an explanation of what went wrong."""
    source: str
    """The page as HTML, if it was asked for."""

    @property
    def commands(self) -> tuple[str, ...]:
        """A click on each thing, in the original's order: buttons, products, options."""
        if self.has_search:
            return ()  # its button sends the field, so it takes a query
        every = (click(key) for key in self.keys)
        return tuple(command for command in every if len(command) <= ACTION_LIMIT)


def read(driver: WebDriver, with_source: bool = False) -> Shown:
    """What the page that is loaded shows."""
    found: dict[str, Any] = driver.execute_script(_READ, BUTTONS, LINKS, RADIOS, SEARCH_FIELD)
    reward = found["reward"]
    return Shown(
        found["path"],
        tuple(Node(text, kind) for text, kind in found["texts"] if _is_shown(text)),
        _keys(found["buttons"], found["links"], found["radios"]),
        found["has_search"],
        None if reward is None else _number(reward),
        found["is_page"],
        driver.page_source if with_source else "",
    )


def _is_shown(text: str) -> bool:
    """Whether a text node counts. Blank ones are part of the layout if they break the line."""
    return text_pages.node(text) is not None


def _keys(
    buttons: Sequence[str], links: Sequence[str], radios: Sequence[str]
) -> dict[str, tuple[str, int]]:
    keys: dict[str, tuple[str, int]] = {}
    for place, value in enumerate(radios):
        keys[value.lower()] = RADIOS, place  # of equal values the last one counts
    named = {text.strip().lower(): (BUTTONS, place) for place, text in enumerate(buttons)}
    named |= {text.strip().lower(): (LINKS, place) for place, text in enumerate(links)}
    # Buttons and links come first, and win over an option of the same text.
    return {**named, **{key: where for key, where in keys.items() if key not in named}}


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"a reward of {text}")
    return value


def element(driver: WebDriver, where: tuple[str, int]) -> WebElement:
    """The element of a key."""
    from selenium.webdriver.common.by import By

    selector, place = where
    return driver.find_elements(By.CSS_SELECTOR, selector)[place]


def plain_text(shown: Shown) -> str:
    """The page as the observation mode ``text`` has it."""
    return SEPARATOR.join(node.text.strip() for node in shown.nodes)


def rich_text(shown: Shown, visited: Sequence[str], address: str) -> str:
    """The page as the observation mode ``text_rich`` has it.

    Args:
        shown: the page.
        visited: asins of the products that were opened.
        address: of the page as the original writes it, in which selected options are looked for.
    """
    lines, before = [], ""
    for text, kind in shown.nodes:
        if kind == "button":
            lines.append(f"[button] {text} [button_]\n")
        elif kind == "link":
            mark = "clicked button" if text in visited else "button"
            lines.append(f"\n[{mark}] {text} [{mark}_]\n")
        elif kind == "label":
            mark = "clicked button" if f'"{text}"' in address else "button"
            lines.append(f"  [{mark}] {text} [{mark}_]\n")
            if mark != "button":
                before = f"You have clicked {text}.\n{before}"
        else:
            lines.append(f"{text}\n")
    return before + "".join(lines)
