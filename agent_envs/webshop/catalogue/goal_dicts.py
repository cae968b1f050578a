"""Goals as the original's dictionaries, and back."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import Any

from agent_envs.errors import InvalidOption
from agent_envs.webshop.catalogue.shown import shown
from agent_envs.webshop.model import NO_LIMIT, Goal

_TEXTS = {
    "asin": "asin",
    "category": "category",
    "query": "query",
    "name": "name",
    "product_category": "product_category",
    "instruction_text": "instruction",
}
KEYS = (*_TEXTS, "attributes", "price_upper", "goal_options", "weight")
"""The original's keys, in its order."""


def goal_to_dict(goal: Goal) -> dict[str, Any]:
    """The goal under the original's keys; options as a dict if they have groups, else a list."""
    told: dict[str, Any] = {key: getattr(goal, field) for key, field in _TEXTS.items()}
    has_groups = bool(goal.options) and not isinstance(goal.options[0], str)
    told["attributes"] = list(goal.attributes)
    told["price_upper"] = goal.price_upper
    told["goal_options"] = dict(goal.options) if has_groups else list(goal.options)  # type: ignore[arg-type]
    told["weight"] = goal.weight
    return told


def goal_from_dict(told: Mapping[str, Any]) -> Goal:
    """The goal that a dictionary with the original's keys describes.

    Only `instruction_text` is needed. What is missing is empty; a missing `price_upper` is no
    limit, and so is None; a missing `weight` is 1.

    Raises:
        InvalidOption: no mapping, an unknown key, or a value of another kind than the original's.
    """
    if not isinstance(told, Mapping):
        raise InvalidOption(
            f"A goal is a dict with the keys {', '.join(KEYS)}; found {shown(told)}."
        )
    unknown = sorted(key if isinstance(key, str) else shown(key) for key in told if key not in KEYS)
    if unknown:
        raise InvalidOption(
            f"A goal has no key {unknown[0]!r:.80}; its keys are {', '.join(KEYS)}."
        )
    if not told.get("instruction_text"):
        raise InvalidOption(
            "A goal needs `instruction_text`, the sentence that the shopper reads; it is "
            + ("empty." if "instruction_text" in told else "missing.")
        )
    texts = {}
    for key, field in _TEXTS.items():
        value = told.get(key, "")
        if not isinstance(value, str):
            raise _wrong(key, value, "a string")
        texts[field] = value
    limit = told.get("price_upper", NO_LIMIT)
    return Goal(
        **texts,
        attributes=_strings("attributes", told.get("attributes", ())),
        price_upper=None if limit is None else _number("price_upper", limit),
        options=_options(told.get("goal_options", ())),
        weight=_number("weight", told.get("weight", 1.0)),
    )


def _options(value: Any) -> tuple[str, ...] | tuple[tuple[str, str], ...]:
    if not isinstance(value, Mapping):
        return _strings("goal_options", value)
    for name, option in value.items():
        if not isinstance(name, str) or not isinstance(option, str):
            raise _wrong("goal_options", value, "a dict of strings, or a list of strings")
    return tuple(value.items())


def _strings(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise _wrong(key, value, "a list of strings")
    return tuple(value)


def _number(key: str, value: Any) -> float:
    number = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):
            number = float(value)
    if math.isnan(number):
        raise _wrong(key, value, "a number")
    return number


def _wrong(key: str, found: Any, expected: str) -> InvalidOption:
    return InvalidOption(f"`{key}` of a goal is {shown(found)}, expected {expected}.")
