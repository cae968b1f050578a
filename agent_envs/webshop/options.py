"""Checks of the options of ``SeroWebShop-v0``, and what they select."""

from __future__ import annotations

import os
from collections.abc import Sequence

from agent_envs.errors import InvalidOption
from agent_envs.webshop.shop import Shop, load_shop

GOAL_SOURCES = ("synthetic", "human")
OBSERVATION_MODES = ("text", "text_rich", "html", "url")
HISTORY_LIMIT = 64
"""Pages and actions before that an observation can show."""


def check_choice(name: str, value: object, known: Sequence[str]) -> None:
    """Check that `value` is one of `known`.

    Raises:
        InvalidOption: it is not.
    """
    if not isinstance(value, str) or value not in known:
        raise InvalidOption(f"{name} must be one of {list(known)}, found {value!r}.")


def check_flags(**flags: object) -> None:
    """Check that all are True or False.

    Raises:
        InvalidOption: one is not.
    """
    for name, flag in flags.items():
        if type(flag) is not bool:
            raise InvalidOption(f"{name} must be True or False, found {flag!r}.")


def check_counts(**counts: object) -> None:
    """Check that all are whole numbers up to `HISTORY_LIMIT`.

    Raises:
        InvalidOption: one is not.
    """
    for name, count in counts.items():
        if type(count) is not int or not 0 <= count <= HISTORY_LIMIT:
            raise InvalidOption(
                f"{name} must be an int from 0 to {HISTORY_LIMIT}, found {count!r}."
            )


def open_shop(data: Shop | str | os.PathLike[str] | None, price_seed: int) -> Shop:
    """The shop that the options name; see `load_shop`.

    Raises:
        InvalidOption: a price seed beside a shop that has another one.
    """
    if isinstance(data, Shop) and price_seed not in (0, data.price_seed):
        raise InvalidOption(
            f"price_seed={price_seed!r}, but this shop has the price seed {data.price_seed}. "
            "Give shop.with_price_seed(...) instead."
        )
    return load_shop(data, price_seed=price_seed)
