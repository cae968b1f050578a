"""Pages in words: texts, marks and addresses, written down by hand."""

from __future__ import annotations

import pytest

from agent_envs.webshop import rich_pages, text_pages
from agent_envs.webshop.engine import DONE, ITEM, RESULTS, START, SUB
from agent_envs.webshop.model import Product, Session
from agent_envs.webshop.urls import page_url
from tests.agent_envs.webshop.shops import BARE, DESKS, ODD, shop

ASK = "buy a desk"


def product(asin: str) -> Product:
    number = shop().catalogue.number_of(asin)
    assert number is not None
    return shop().catalogue[number]


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("", None),
        ("a", "a"),
        (" a ", " a "),
        ("\n", None),
        ("  ", " "),
        (" \t\r\f", " "),
        (" \n\t", None),
        ("\xa0", "\xa0"),  # blank, but no ASCII: kept as it is
        ("\u2028\n", "\u2028\n"),
        ("\x0b", "\x0b"),
    ],
)
def test_blank_texts_shrink_as_in_a_parser_of_html(text: str, node: str | None) -> None:
    assert text_pages.node(text) == node


def test_first_page() -> None:
    assert text_pages.index(ASK) == "WebShop [SEP] Instruction: [SEP] buy a desk [SEP] Search"
    assert rich_pages.index(ASK) == (
        "WebShop\nInstruction: \nbuy a desk\n[button] Search [button_]\n"
    )
    assert text_pages.index(" ") == "WebShop [SEP] Instruction: [SEP]  [SEP] Search"
    assert text_pages.head("") == "Instruction: [SEP] Back to Search"


def test_item_page_with_awkward_options() -> None:
    assert text_pages.item(product(ODD), False) == (
        " [SEP] < Prev [SEP] color [SEP] red [SEP] blue [SEP] red [SEP] 2 pack [blue]"
        " [SEP] a | b [SEP] size [SEP] blue [SEP] buy now [SEP] attributes [SEP] search"
        " [SEP] next > [SEP] two\nlines [SEP] Odd <b>“Lamp”</b> & Co™ [SEP] Price: $10.0"
        " [SEP] Rating: N.A. [SEP] Description [SEP] Features [SEP] Reviews [SEP] Buy Now"
    )
    assert text_pages.item(product(BARE), True) == (
        " [SEP] < Prev [SEP] Bare Shelf [SEP] Price: $3.0 to $7.5 [SEP] Rating: N.A."
        " [SEP] Description [SEP] Features [SEP] Reviews [SEP] Attributes [SEP] Buy Now"
    )


@pytest.mark.parametrize(
    ("asin", "name", "shown"),
    [
        (ODD, "Description", " [SEP] "),
        # An empty bullet is a blank one, as there is a blank before each; one with a line feed
        # is not shown.
        (ODD, "Features", " [SEP]  [SEP] One & only [SEP] <i>x</i>"),
        (ODD, "Reviews", ""),
        (
            ODD,
            "Attributes",
            " [SEP] easy clean [SEP] desk 01 [SEP] electronics [SEP] lamps",
        ),
        (BARE, "Description", ""),
        (BARE, "Features", ""),
        (
            BARE,
            "Attributes",
            " [SEP] easy clean [SEP] desk 01 [SEP] garden [SEP] shelves"
            " [SEP] Home › Furniture › Desks",
        ),
    ],
)
def test_pages_below_an_item_page(asin: str, name: str, shown: str) -> None:
    assert text_pages.sub(product(asin), name) == f" [SEP] < Prev{shown}"


def test_rich_pages_keep_blanks() -> None:
    assert rich_pages.sub(product(ODD), "Features") == (
        "[button] < Prev [button_]\n \n One & only\n  <i>x</i> \n"
    )
    assert rich_pages.row(*_card(product(ODD))) == (
        "\n[button] B0ODD00001 [button_]\n  Odd <b>“Lamp”</b> & Co™ \n$10.0\n"
    )
    assert rich_pages.row(*_card(product(ODD)), clicked=True).startswith(
        "\n[clicked button] B0ODD00001 [clicked button_]\n"
    )


def test_rich_item_page_marks_what_its_address_has_in_quotes() -> None:
    desk = product(DESKS[0])
    address = '.../{"color": "navy blue", "size": "m"}'
    page = rich_pages.clicked_item(desk, False, "HEAD\n", address)
    assert page.startswith("You have clicked m.\nYou have clicked navy blue.\nHEAD\n")
    assert "  [clicked button] navy blue [clicked button_]\n" in page
    assert "  [button] red [button_]\n" in page
    # Not as a person would mark them: JSON writes neither of these as it is.
    address = '.../{"color": "caf\\u00e9", "other": "7\\" x 9\'"}'
    page = rich_pages.clicked_item(desk, False, "", address)
    assert "clicked" not in page


def test_results() -> None:
    rows = [text_pages.row(*_card(product(BARE)))]
    assert text_pages.results(1, 1, rows) == (
        " [SEP] Page 1 (Total results: 1) [SEP] Next > [SEP] B0BARE0001 [SEP] Bare Shelf"
        " [SEP] $3.0 to $7.5"
    )
    assert text_pages.results(2, 1, []) == (
        " [SEP] Page 2 (Total results: 1) [SEP] < Prev [SEP] Next >"
    )
    assert rich_pages.results(2, 1, []) == (
        "Page 2 (Total results: 1)\n[button] < Prev [button_]\n[button] Next > [button_]\n"
    )


def test_last_page() -> None:
    options = (("size", "m"), ("color", "it's <red> & café"))
    assert text_pages.done("B0BARE0001", options, 0.1) == (
        "Thank you for shopping with us! [SEP] Your code: [SEP] None [SEP] "
        "(Paste it in your MTurk interface.) [SEP] Purchased [SEP] asin [SEP] B0BARE0001 [SEP] "
        'options [SEP] {"color": "it\\u0027s \\u003cred\\u003e \\u0026 caf\\u00e9", "size": "m"}'
        " [SEP] attrs [SEP] None [SEP] category [SEP] None [SEP] query [SEP] None [SEP] "
        "product category [SEP] None [SEP] Target [SEP] asin [SEP] options [SEP] attrs [SEP] "
        "price upper [SEP] instuction text [SEP] category [SEP] product category [SEP] query "
        "[SEP] Goal [SEP] None [SEP] Reward [SEP] Your score (min 0.0, max 1.0) [SEP] 0.1 "
        "[SEP] Reward Details [SEP] None"
    )


def test_addresses() -> None:
    base = "http://127.0.0.1:3000"
    options = (("color", "café"), ("size", '7"'))
    item = Session(ITEM, "red  desk", 2, 0, "", options, (0,))
    assert page_url("7", START, "") == f"{base}/7"
    results = Session(RESULTS, "red  desk", 2)
    assert page_url("7", results, "") == f"{base}/search_results/7/red++desk/2"
    assert page_url("7", item, "B0") == (
        f'{base}/item_page/7/B0/red++desk/2/{{"color": "caf\\u00e9", "size": "7\\""}}'
    )
    sub = item._replace(page=SUB, sub="Features")
    assert page_url("7", sub, "B0") == (
        f"{base}/item_sub_page/7/B0/red++desk/2/Features/{{'color': 'café', 'size': '7\"'}}"
    )
    done = item._replace(page=DONE, options=())
    assert page_url("7", done, "B0") == f"{base}/done/7/B0/{{}}"


def _card(product: Product) -> tuple[str, str, str]:
    return product.asin, product.title, product.price_tag
