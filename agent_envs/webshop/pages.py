"""What is shown of a page, and what can be clicked on it, made once for all who come by.

A page's text is kept without the instruction, which stands before it, and without marks of what
was clicked; both differ between visitors. All caches are bounded, so that a catalogue of a million
products costs no more than a small one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from agent_envs.webshop import rich_pages, text_pages
from agent_envs.webshop.actions import (
    ACTION_LIMIT,
    BACK_TO_SEARCH,
    BUY,
    NEXT,
    PREVIOUS,
    SUB_PAGES,
    click,
    is_sayable,
)
from agent_envs.webshop.model import Product

if TYPE_CHECKING:
    from agent_envs.webshop.shop import Shop

PAGE_SIZE = 10
"""Products on a page of results."""

RESULT_PAGES = 4096
"""Pages of results kept, some 4 kB each."""
ITEM_PAGES = 4096
"""Item pages kept, some 4 kB each; up to 100 kB with hundreds of options."""
SUB_PAGES_KEPT = 2048
"""Pages below item pages kept, some 2 kB each."""
ROWS = 16384
"""Products as they stand among results, some 0.6 kB each."""

# Targets of clicks: numbers from 0 up are products, or options of the page, in order.
TO_INDEX, TO_PREVIOUS, TO_NEXT, TO_DONE, FIRST_SUB = -1, -2, -3, -4, -5


class View(NamedTuple):
    """A page, but for the instruction and for marks."""

    text: str
    clickables: tuple[str, ...]
    """Texts of buttons, then of products, then of options: the original's list and order."""
    commands: tuple[str, ...]
    """A click on each of them, as far as it is understood."""
    targets: dict[str, int]
    """Where each command leads."""
    options: tuple[tuple[str, str], ...] = ()
    """(group, value) of the option targets."""
    products: tuple[int, ...] = ()
    """Products shown, by number."""
    total: int = 0
    """Number of results on all pages."""


class _Row(NamedTuple):
    """A product among results."""

    text: str
    link: str
    command: str


LAYOUTS: dict[str, ModuleType] = {"text": text_pages, "text_rich": rich_pages}

NOTHING = View("", (), (), {})
"""The first page, whose only button takes a query, and the page after a purchase."""

_BUTTONS = (BACK_TO_SEARCH, PREVIOUS)
_SUB_TARGETS = {click(BACK_TO_SEARCH): TO_INDEX, click(PREVIOUS): TO_PREVIOUS}


class Pages:
    """Views of the pages of one shop. Changes nothing that callers could notice.

    Args:
        shop: the shop.
        layout: name of one of `LAYOUTS`.
        show_attributes: whether item pages have the button Attributes.
        compat: whether clicks are understood as the original does.
    """

    def __init__(self, shop: Shop, layout: str, show_attributes: bool, compat: bool) -> None:
        self._catalogue = shop.catalogue
        self._layout = LAYOUTS[layout]
        self._show_attributes = show_attributes
        self._compat = compat
        self._row = lru_cache(maxsize=ROWS)(self._make_row)
        self.sub = lru_cache(maxsize=SUB_PAGES_KEPT)(self._make_sub)
        """View of a page below an item page, by number of the product and name."""
        self.item = lru_cache(maxsize=ITEM_PAGES)(self._make_item)
        """View of the item page of a product, by number."""

    def results(self, products: Sequence[int], number: int) -> View:
        """View of page `number` of results that are `products`; there may be nothing on it."""
        shown = tuple(products[(number - 1) * PAGE_SIZE : number * PAGE_SIZE])
        return self.results_of(shown, number, len(products))

    def results_of(self, shown: tuple[int, ...], number: int, total: int) -> View:
        """View of a page of results with these products on it."""
        buttons, places = _RESULTS if number > 1 else _FIRST_RESULTS
        texts, names, commands = zip(*map(self._row, shown), strict=True) if shown else ((), (), ())
        text = self._layout.results(number, total, texts)
        links = (*buttons, *names)
        targets = dict(places)
        targets.update(zip(commands, shown, strict=True))
        if len(targets) != len(links):  # a product called like a button is one with it
            links = tuple(dict.fromkeys(links))
            if not self._compat:
                targets.update(places)
        return View(text, links, tuple(targets), targets, (), shown, total)

    def _make_row(self, number: int) -> _Row:
        asin, title, price_tag = self._catalogue.card(number)
        link = asin.lower()
        return _Row(self._layout.row(asin, title, price_tag), link, click(link))

    def _make_sub(self, number: int, name: str) -> View:
        text = self._layout.sub(self._catalogue[number], name)
        return View(text, _BUTTONS, _SUB_COMMANDS, _SUB_TARGETS)

    def _make_item(self, number: int) -> View:
        product = self._catalogue[number]
        buttons, options = self._clickables(product)
        targets: dict[str, int] = {}
        pairs: list[tuple[str, str]] = []
        clickables = tuple(dict.fromkeys((*buttons, *options)))
        for text in clickables:
            command = click(text)
            if len(command) > ACTION_LIMIT or (self._compat and not is_sayable(text)):
                continue
            # The original goes by the text of what is clicked, so a button wins over an option
            # of the same text; even one that is not there, as Attributes may be.
            target = _NAMED.get(text)
            if target is not None and (text in buttons or self._compat):
                targets[command] = target
            else:
                targets[command] = len(pairs)
                pairs.append((options[text], text))
        page = self._layout.item(product, self._show_attributes)
        return View(page, clickables, tuple(targets), targets, tuple(pairs))

    def _clickables(self, product: Product) -> tuple[tuple[str, ...], dict[str, str]]:
        """Texts of the buttons of an item page, and option values with their groups: of a value
        that several groups have, only the last one can be clicked."""
        subs = SUB_PAGES if self._show_attributes else SUB_PAGES[:-1]
        buttons = (*_BUTTONS, *(name.lower() for name in subs), BUY)
        return buttons, {value: group for group, values in product.options for value in values}


_NAMED = {
    BACK_TO_SEARCH: TO_INDEX,
    PREVIOUS: TO_PREVIOUS,
    BUY: TO_DONE,
    **{name.lower(): FIRST_SUB - place for place, name in enumerate(SUB_PAGES)},
}
_SUB_COMMANDS = tuple(_SUB_TARGETS)
# Buttons of pages of results, and where they lead.
_FIRST_RESULTS = (
    (BACK_TO_SEARCH, NEXT),
    {click(BACK_TO_SEARCH): TO_INDEX, click(NEXT): TO_NEXT},
)
_RESULTS = (
    (BACK_TO_SEARCH, PREVIOUS, NEXT),
    {click(BACK_TO_SEARCH): TO_INDEX, click(PREVIOUS): TO_PREVIOUS, click(NEXT): TO_NEXT},
)
