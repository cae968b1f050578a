"""Generated shops as one short text: ``generated:small?seed=1&n=200``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

from rapidfuzz import process

from agent_envs.webshop.generated.spec import PRESETS, InvalidSpec, ShopSpec

NAME = "generated"
_FIELDS = {
    "seed": "seed",
    "n": "products",
    "groups": "groups",
    "instructed": "instructed",
    "human": "human",
    "categories": "categories",
}
_REAL = "real"
"""Spelling of `instructed=None`: as in the public set."""


def is_generated(text: str) -> bool:
    """Whether a data source names a generated shop.

    >>> is_generated("generated"), is_generated("generated:small"), is_generated("./generated")
    (True, True, False)
    """
    return text == NAME or text.startswith((f"{NAME}:", f"{NAME}?"))


def read_source(text: str) -> ShopSpec:
    """Read a source text; the preset is standard where none is named.

    >>> read_source("generated:small?seed=1&n=200").products
    200
    >>> read_source("generated") == read_source("generated:standard?n=1000")
    True

    Raises:
        InvalidSpec: an unknown preset, key or value.
    """
    name, _, query = text.partition("?")
    preset = name.removeprefix(NAME).removeprefix(":") or "standard"
    if not is_generated(text) or preset not in PRESETS:
        raise InvalidSpec(
            f"Unknown generated shop {text!r}; choose {', '.join(PRESETS)}, as in "
            f"'{NAME}:small?seed=1'."
        )
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError as error:
        raise InvalidSpec(f"{text!r} is not of the form {NAME}:PRESET?key=value&...") from error
    fields: dict[str, Any] = {}
    for key, value in pairs:
        if key not in _FIELDS:
            near = process.extractOne(key, list(_FIELDS))
            raise InvalidSpec(
                f"Unknown key {key!r} in {text!r}; did you mean {near[0]!r}? Keys: "
                f"{', '.join(_FIELDS)}."
            )
        if _FIELDS[key] in fields:
            raise InvalidSpec(f"{key!r} is given twice in {text!r}; give it once.")
        fields[_FIELDS[key]] = _value(key, value, text)
    return replace(PRESETS[preset], **fields)


def source_text(spec: ShopSpec) -> str:
    """The text that `read_source` turns into an equal specification.

    >>> source_text(read_source("generated:small?n=200&seed=1"))
    'generated:small?seed=1&n=200'
    """
    preset = "small" if spec.style == "plain" else "standard"
    for name, known in PRESETS.items():
        if replace(known, seed=spec.seed, products=spec.products) == spec:
            preset = name
    words = [f"seed={spec.seed}", f"n={spec.products}"]
    for key, field in _FIELDS.items():
        value = getattr(spec, field)
        if key in ("seed", "n") or value == getattr(PRESETS[preset], field):
            continue
        if value is None:
            value = _REAL
        words.append(f"{key}={','.join(value) if isinstance(value, tuple) else value}")
    return f"{NAME}:{preset}?{'&'.join(words)}"


def _value(key: str, value: str, text: str) -> object:
    if key == "categories":
        return tuple(value.split(","))
    if key in ("instructed", "human"):
        if key == "instructed" and value == _REAL:
            return None
        try:
            return float(value)
        except ValueError:
            raise InvalidSpec(
                f"{key} is {value!r} in {text!r}; give a share from 0 to 1."
            ) from None
    if not (value.isascii() and value.isdigit()) or len(value) > 40:
        raise InvalidSpec(f"{key} is {value!r} in {text!r}; give a whole number.")
    return int(value)
