"""Pages as the observation mode ``text`` shows them: visible texts, joined by `SEPARATOR`.

The original renders HTML, parses it and collects the texts; `shown` says what comes out of that.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from agent_envs.webshop.model import Product

SEPARATOR = " [SEP] "
_ASCII_SPACES = " \n\t\f\r"


def node(text: str) -> str | None:
    """The text node that an HTML parser makes of `text` between two tags, None for none.

    Blank ASCII text shrinks to a line feed, which is not shown, or to a blank, which is.
    """
    if not text:
        return None
    if text.isspace() and not text.strip(_ASCII_SPACES):
        return None if "\n" in text else " "
    return text


def nodes(texts: Iterable[str]) -> list[str]:
    """The nodes of several texts, each between two tags."""
    return [found for text in texts if (found := node(text)) is not None]


def shown(texts: Iterable[str]) -> str:
    """Texts on a page, each after a separator."""
    return "".join([f"{SEPARATOR}{found.strip()}" for found in nodes(texts)])


def index(instruction: str) -> str:
    """The first page."""
    return f"WebShop{shown(('Instruction: ', instruction, 'Search'))}"


def head(instruction: str) -> str:
    """What all pages but the first and the last begin with."""
    return f"Instruction:{shown((instruction, 'Back to Search'))}"


def row(asin: str, title: str, price_tag: str) -> str:
    """A product among results."""
    return shown((asin, title, price_tag))


def results(number: int, total: int, rows: Sequence[str]) -> str:
    """A page of results, after its head."""
    buttons = ("< Prev", "Next >") if number > 1 else ("Next >",)
    return shown((results_line(number, total), *buttons)) + "".join(rows)


def results_line(number: int, total: int) -> str:
    """What a page of results says of itself."""
    return f"Page {number} (Total results: {total})"


def item(product: Product, show_attributes: bool) -> str:
    """An item page, after its head. What is selected does not show."""
    return shown(
        (
            "< Prev",
            *(text for group, values in product.options for text in (group, *values)),
            *details(product),
            *sub_buttons(show_attributes),
            "Buy Now",
        )
    )


def details(product: Product) -> tuple[str, str, str]:
    """Title, price and rating on an item page. The original loads no ratings."""
    return product.title, f"Price: {product.price_tag}", "Rating: N.A."


def sub_buttons(show_attributes: bool) -> tuple[str, ...]:
    """Buttons that lead from an item page to the pages below it."""
    return ("Description", "Features", "Reviews", *(("Attributes",) if show_attributes else ()))


def sub(product: Product, name: str) -> str:
    """A page below an item page, after its head."""
    return shown(("< Prev", *sub_texts(product, name)))


def sub_texts(product: Product, name: str) -> tuple[str, ...]:
    """What a page below an item page is for. The original loads no reviews."""
    if name == "Description":
        return (product.description,)
    if name == "Features":
        return tuple(f" {bullet}" for bullet in product.bullets)
    if name == "Attributes":
        own = tuple(f" {attribute}" for attribute in product.attributes)
        return (*own, product.category, product.query, product.product_category)
    return ()


def done(asin: str, options: Sequence[tuple[str, str]], reward: float) -> str:
    """The page after a purchase."""
    return SEPARATOR.join(text.strip() for text in done_texts(asin, options, reward))


def done_texts(asin: str, options: Sequence[tuple[str, str]], reward: float) -> tuple[str, ...]:
    """The texts of the page after a purchase. Most of it is empty in the original, too."""
    return (
        "Thank you for shopping with us!",
        "Your code: ",
        "None",
        " (Paste it in your MTurk interface.)",
        *("Purchased", "asin", asin, "options", json_in_html(dict(options))),
        *("attrs", "None", "category", "None", "query", "None", "product category", "None"),
        *("Target", "asin", "options", "attrs", "price upper", "instuction text", "category"),
        *("product category", "query", "Goal ", "None", "Reward"),
        "Your score (min 0.0, max 1.0)",
        str(reward),
        *("Reward Details ", "None"),
    )


def json_in_html(value: object) -> str:
    """JSON as Flask's filter ``tojson`` writes it: keys sorted, ASCII, safe inside of HTML."""
    text = json.dumps(value, sort_keys=True)
    for character, code in (("<", "003c"), (">", "003e"), ("&", "0026"), ("'", "0027")):
        text = text.replace(character, f"\\u{code}")
    return text
