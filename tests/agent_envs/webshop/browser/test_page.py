"""What is read of a page, without a browser."""

from __future__ import annotations

import pytest

from agent_envs.webshop.browser.env import _understood
from agent_envs.webshop.browser.page import (
    BUTTONS,
    LINKS,
    RADIOS,
    Node,
    Shown,
    _keys,
    plain_text,
    rich_text,
)


def shown(*nodes: Node, keys: tuple[str, ...] = (), has_search: bool = False) -> Shown:
    places = {key: (BUTTONS, place) for place, key in enumerate(keys)}
    return Shown("/x", nodes, places, has_search, None, True, "")


def test_buttons_come_first_and_win_over_options_of_the_same_text() -> None:
    keys = _keys(["Back to Search", " Buy Now "], ["B01"], ["blue", "buy now", "red", "blue"])
    assert keys == {
        "back to search": (BUTTONS, 0),
        "buy now": (BUTTONS, 1),
        "b01": (LINKS, 0),
        "blue": (RADIOS, 3),  # the last of several
        "red": (RADIOS, 2),
    }
    assert list(keys) == ["back to search", "buy now", "b01", "blue", "red"]


def test_a_page_with_a_search_field_lists_no_clicks() -> None:
    assert shown(keys=("search",), has_search=True).commands == ()
    assert shown(keys=("< prev", "x" * 5000)).commands == ("click[< prev]",)


@pytest.mark.parametrize(
    ("action", "meaning"),
    [
        ("click[red]", ("click", "red")),
        ("click[RED]!", ("click", "red")),
        ("click[2 pack [blue]]", ("click", "2 pack [blue]")),
        ("click[2 PACK [blue]] x", ("click", "2 pack [blue]")),
        ("Click[red]", None),
        ("click[pink]", None),
        ("click[red", None),
        (" click[red]", None),
        ("search[Red Shoes]", ("search", "red shoes")),
        ("search[]", None),
        ("search[a\nb]", None),
        ("search[" + "x" * 4088 + "]", ("search", "x" * 4088)),
        ("search[" + "x" * 4089 + "]", None),
        ("", None),
    ],
)
def test_actions_are_understood(action: str, meaning: object) -> None:
    assert _understood(action, shown(keys=("red", "2 pack [blue]"))) == meaning


def test_the_button_of_the_search_field_is_no_click() -> None:
    page = shown(keys=("search",), has_search=True)
    assert _understood("click[search]", page) is None


def test_texts_are_joined() -> None:
    page = shown(Node("Instruction: ", ""), Node(" buy\nit ", ""), Node(" ", ""))
    assert plain_text(page) == "Instruction: [SEP] buy\nit [SEP] "


def test_rich_text_marks_what_was_clicked() -> None:
    page = shown(
        Node("Next >", "button"),
        Node("B01", "link"),
        Node("B02", "link"),
        Node("color", ""),
        Node("red", "label"),
        Node("blue", "label"),
    )
    assert rich_text(page, ["B02"], 'http://x/{"color": "red"}') == (
        "You have clicked red.\n"
        "[button] Next > [button_]\n"
        "\n[button] B01 [button_]\n"
        "\n[clicked button] B02 [clicked button_]\n"
        "color\n"
        "  [clicked button] red [clicked button_]\n"
        "  [button] blue [button_]\n"
    )
