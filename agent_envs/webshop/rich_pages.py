"""Pages as the observation mode ``text_rich`` shows them: one text a line, clickable ones marked.

A product that was opened, and an option that is selected, is marked as clicked. The original finds
out about options by looking for the quoted value anywhere in the page's address, so a quoted word
of the query counts as well, and a value with a quote or beyond ASCII never does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from agent_envs.webshop import text_pages
from agent_envs.webshop.model import Product
from agent_envs.webshop.text_pages import details, node, nodes, results_line, sub_buttons, sub_texts


def _lines(texts: Iterable[str]) -> str:
    return "".join([f"{found}\n" for found in nodes(texts)])


def _button(text: str) -> str:
    return f"[button] {text} [button_]\n"


def index(instruction: str) -> str:
    """The first page."""
    return f"WebShop\n{_lines(('Instruction: ', instruction))}{_button('Search')}"


def head(instruction: str) -> str:
    """What all pages but the first and the last begin with."""
    return f"{_lines(('Instruction:', instruction))}{_button('Back to Search')}"


def row(asin: str, title: str, price_tag: str, clicked: bool = False) -> str:
    """A product among results."""
    link = ""
    if node(asin) is not None:
        mark = "clicked button" if clicked else "button"
        link = f"\n[{mark}] {asin} [{mark}_]\n"
    return f"{link}{_lines((title, price_tag))}"


def results(number: int, total: int, rows: Sequence[str]) -> str:
    """A page of results, after its head."""
    previous = _button("< Prev") if number > 1 else ""
    return f"{results_line(number, total)}\n{previous}{_button('Next >')}{''.join(rows)}"


def item(product: Product, show_attributes: bool) -> str:
    """An item page with nothing selected, after its head."""
    return _item(product, show_attributes, ())


def clicked_item(product: Product, show_attributes: bool, heading: str, address: str) -> str:
    """An item page with its head, and with marks on what is selected.

    Args:
        product: whose page it is.
        show_attributes: whether there is a button to its attributes.
        heading: the head.
        address: of the page, which holds what is selected.
    """
    values = [value for _, offered in product.options for value in nodes(offered)]
    clicked = [value for value in values if f'"{value}"' in address]
    before = "".join([f"You have clicked {value}.\n" for value in reversed(clicked)])
    return f"{before}{heading}{_item(product, show_attributes, frozenset(clicked))}"


def _item(product: Product, show_attributes: bool, clicked: Collection[str]) -> str:
    parts = [_button("< Prev")]
    for group, values in product.options:
        parts.append(_lines((group,)))
        for value in nodes(values):
            mark = "clicked button" if value in clicked else "button"
            parts.append(f"  [{mark}] {value} [{mark}_]\n")
    parts.append(_lines(details(product)))
    parts += map(_button, (*sub_buttons(show_attributes), "Buy Now"))
    return "".join(parts)


def sub(product: Product, name: str) -> str:
    """A page below an item page, after its head."""
    return f"{_button('< Prev')}{_lines(sub_texts(product, name))}"


def done(asin: str, options: Sequence[tuple[str, str]], reward: float) -> str:
    """The page after a purchase."""
    return _lines(text_pages.done_texts(asin, options, reward))
