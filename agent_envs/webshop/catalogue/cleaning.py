"""From the raw entries of the original's files to products, as the original cleans them.

The rules are those of WebShop (Yao et al. 2022, arXiv:2207.01206); docs/catalogue.md lists them.
Where the original would stop with a bare exception, a missing value has a defined meaning here,
and a value of the wrong type is a `CorruptData` that names the product and the key.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from agent_envs.errors import CorruptData
from agent_envs.webshop.model import Product

MAX_ASIN = 10
DEFAULT_PRICE = 100.0
NO_ATTRIBUTES = ("DUMMY_ATTR",)
"""Attributes of a product that the attribute file does not know."""

_NOT_NUMERIC = re.compile(r"[^\d.]")


TITLE_LIMIT, TEXT_LIMIT = 20_000, 150_000
"""Most characters of a title, and of anything else that a page shows. The longest page of the
public set of 1,000 products takes 16,000."""
_BESIDE = 40  # characters that stand beside a text on a page, at most


class Reason(StrEnum):
    """Why a product or an instruction was left out, or what is odd about one that was kept."""

    NO_ASIN = "no_asin"
    NAN_ASIN = "nan_asin"
    LONG_ASIN = "long_asin"
    REPEATED_ASIN = "repeated_asin"
    LONG_TEXT = "long_text"
    NO_INSTRUCTION = "no_instruction"
    NO_GOAL_ATTRIBUTES = "no_goal_attributes"
    NO_COMBINATION = "no_option_values"
    UNKNOWN_PRODUCT = "unknown_product"
    OPTION_COLLISION = "option_collision"
    VALUE_COLLISION = "value_collision"
    UNREADABLE_PRICE = "unreadable_price"
    NOT_IN_ATTRIBUTES = "not_in_attributes"


class Facts(NamedTuple):
    """What the attribute file says of one product."""

    attributes: tuple[str, ...] | None = None
    instruction: str | None = None
    goal_attributes: tuple[str, ...] = ()


class Instruction(NamedTuple):
    """One instruction that a person wrote."""

    text: str | None
    attributes: tuple[str, ...]
    options: tuple[str, ...]


Note = tuple[Reason, str]
"""What is odd about a product, and what exactly."""


def fold(asin: str) -> str:
    """The form in which products are looked up: a click knows only lower case.

    >>> fold("b09rank0001")
    'B09RANK0001'
    """
    return asin.lower().upper()


def asin_of(raw: Any, number: int) -> tuple[str, Note | None]:
    """The asin of entry `number` of the product file, and why the entry is to be left out.

    Raises:
        CorruptData: the entry is no object, or its asin no text.
    """
    if not isinstance(raw, Mapping):
        raise CorruptData(
            f"Product {number:,} of the product file is {_kind(raw)}, expected an object with "
            "asin, name, pricing, ... Give the file items_shuffle.json of WebShop."
        )
    asin = raw.get("asin")
    if isinstance(asin, float) and math.isnan(asin):
        asin = "nan"
    if asin is None or asin == "":
        return "", (Reason.NO_ASIN, f"entry {number:,} has no asin")
    if not isinstance(asin, str):
        raise CorruptData(
            f"Product {number:,} of the product file has {_kind(asin)} as asin, expected a string."
        )
    if asin == "nan":
        return asin, (Reason.NAN_ASIN, f"entry {number:,} has the asin 'nan'")
    if len(asin) > MAX_ASIN:
        return asin, (Reason.LONG_ASIN, f"entry {number:,} has an asin of {len(asin)} characters")
    return asin, None


def clean_product(raw: Mapping[str, Any], facts: Facts | None) -> tuple[Product, list[Note]]:
    """The product in `raw`, and what is odd about it.

    A missing key or null counts as an empty text or an empty list.

    Args:
        raw: an entry of the product file whose asin is a text.
        facts: what the attribute file says; None if it does not know the product.

    Raises:
        CorruptData: a value of the wrong type.
    """
    asin: str = raw["asin"]
    notes: list[Note] = []
    prices = _prices(asin, raw.get("pricing"), notes)
    options, images = _options(asin, raw.get("customization_options"), notes)
    attributes = None if facts is None else facts.attributes
    if facts is None:
        notes.append((Reason.NOT_IN_ATTRIBUTES, "the attribute file does not know it"))
    return (
        Product(
            asin=asin,
            title=_text(asin, raw, "name"),
            description=_text(asin, raw, "full_description"),
            bullets=_bullets(asin, raw.get("small_description")),
            price_tag=price_tag(prices),
            price_range=prices,
            category=_text(asin, raw, "category"),
            query=_text(asin, raw, "query").lower().strip(),
            product_category=_text(asin, raw, "product_category"),
            options=options,
            attributes=NO_ATTRIBUTES if attributes is None else attributes,
            image=_first_image(asin, raw.get("images")),
            option_images=images,
        ),
        notes,
    )


def too_long(product: Product) -> str | None:
    """What of a product is too long for a page of `SeroWebShop-v0`; None: nothing is.

    Observations have a largest length, and a page of results holds ten titles.
    """
    values = [text for name, group in product.options for text in (name, *group)]
    lengths = {
        "title": (len(product.title), TITLE_LIMIT),
        "description": (len(product.description), TEXT_LIMIT),
        "bullet points": (sum(len(point) + _BESIDE for point in product.bullets), TEXT_LIMIT),
        "options": (sum(len(value) + _BESIDE for value in values), TEXT_LIMIT),
    }
    for name, (length, limit) in lengths.items():
        if length > limit:
            return f"its {name} take {length:,} characters, {limit:,} are allowed"
    return None


def clean_facts(asin: str, raw: Any) -> Facts:
    """What the attribute file says of `asin`.

    Raises:
        CorruptData: a value of the wrong type.
    """
    if not isinstance(raw, Mapping):
        raise _wrong(asin, "its entry of the attribute file", raw, "an object")
    attributes = raw.get("attributes")
    instruction = raw.get("instruction")
    if instruction is not None and not isinstance(instruction, str):
        raise _wrong(asin, "instruction", instruction, "a string")
    return Facts(
        None if attributes is None else _strings(asin, "attributes", attributes),
        instruction,
        _strings(asin, "instruction_attributes", raw.get("instruction_attributes")),
    )


def clean_instructions(asin: str, raw: Any) -> tuple[Instruction, ...]:
    """The instructions that people wrote for `asin`.

    Raises:
        CorruptData: a value of the wrong type.
    """
    if not isinstance(raw, list):
        raise _wrong(asin, "its entry of the human instruction file", raw, "a list")
    found = []
    for entry in raw:
        if not isinstance(entry, Mapping):
            raise _wrong(asin, "a human instruction", entry, "an object")
        text = entry.get("instruction")
        if text is not None and not isinstance(text, str):
            raise _wrong(asin, "instruction", text, "a string")
        found.append(
            Instruction(
                text,
                _strings(asin, "instruction_attributes", entry.get("instruction_attributes")),
                _strings(asin, "instruction_options", entry.get("instruction_options")),
            )
        )
    return tuple(found)


def price_tag(prices: Sequence[float]) -> str:
    """What pages show for one price or the two ends of a range.

    >>> price_tag((22.9,)), price_tag((3.0, 7.5))
    ('$22.9', '$3.0 to $7.5')
    """
    return " to ".join(f"${price}" for price in prices)


def read_prices(pricing: str) -> tuple[float, ...]:
    """The first two numbers that follow a dollar sign in `pricing`.

    What stands before the first dollar sign does not count; of the rest, digits and points do.

    >>> read_prices("$1,234.50 - $2,000")
    (1234.5, 2000.0)
    """
    found = []
    for piece in pricing.split("$")[1:]:
        try:
            price = float(_NOT_NUMERIC.sub("", piece))
        except ValueError:
            continue
        if math.isfinite(price):
            found.append(price)
    return tuple(found[:2])


def _prices(asin: str, pricing: Any, notes: list[Note]) -> tuple[float, ...]:
    if pricing is None or pricing == "":
        return (DEFAULT_PRICE,)
    if not isinstance(pricing, str):
        raise _wrong(asin, "pricing", pricing, "a string such as '$12.50'")
    found = read_prices(pricing)
    if not found:
        notes.append((Reason.UNREADABLE_PRICE, f"{pricing!r:.80} counts as ${DEFAULT_PRICE}"))
        return (DEFAULT_PRICE,)
    return found


Options = tuple[tuple[str, tuple[str, ...]], ...]


def _options(asin: str, raw: Any, notes: list[Note]) -> tuple[Options, tuple[tuple[str, str], ...]]:
    """Groups with their values, and the image of each value (the last one named counts)."""
    if not raw:
        return (), ()
    if not isinstance(raw, Mapping):
        raise _wrong(asin, "customization_options", raw, "an object of lists")
    groups: dict[str, tuple[str, ...]] = {}
    spelt: dict[str, str] = {}
    images: dict[str, str | None] = {}
    for raw_name, contents in raw.items():
        if contents is None:
            continue
        name = raw_name.lower()
        if name in groups:
            both = f"groups {spelt[name]!r:.80} and {raw_name!r:.80} are both {name!r:.80}"
            notes.append((Reason.OPTION_COLLISION, f"{both}; the latter's values are kept"))
        spelt[name] = raw_name
        groups[name] = _values(asin, raw_name, contents, images, notes)
    pictured = tuple((value, image) for value, image in images.items() if image)
    return tuple(groups.items()), pictured


def _values(
    asin: str, name: str, contents: Any, images: dict[str, str | None], notes: list[Note]
) -> tuple[str, ...]:
    if not isinstance(contents, list):
        if contents == "":
            return ()
        raise _wrong(asin, f"option group {name!r:.80}", contents, "a list")
    values: list[str] = []
    spelt: dict[str, str] = {}
    for content in contents:
        if not isinstance(content, Mapping):
            raise _wrong(asin, f"a value of option group {name!r:.80}", content, "an object")
        raw = content.get("value")
        if raw is None:
            continue
        image = content.get("image")
        for what, found in (("value", raw), ("image", image or "")):
            if not isinstance(found, str):
                raise _wrong(asin, f"{what} in option group {name!r:.80}", found, "a string")
        value = raw.strip().replace("/", " | ").lower()
        if spelt.setdefault(value, raw) != raw:
            both = f"{spelt[value]!r:.80} and {raw!r:.80} of group {name!r:.80}"
            notes.append((Reason.VALUE_COLLISION, f"{both} are both {value!r:.80}"))
        values.append(value)
        images[value] = image
    return tuple(values)


def _bullets(asin: str, raw: Any) -> tuple[str, ...]:
    return (raw,) if isinstance(raw, str) else _strings(asin, "small_description", raw)


def _first_image(asin: str, raw: Any) -> str:
    if not raw:
        return ""
    if not isinstance(raw, list):
        raise _wrong(asin, "images", raw, "a list of addresses")
    image = raw[0]
    if image is not None and not isinstance(image, str):
        raise _wrong(asin, "images[0]", image, "a string")
    return image or ""


def _text(asin: str, raw: Mapping[str, Any], key: str) -> str:
    value = raw.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _wrong(asin, key, value, "a string")
    return value


def _strings(asin: str, key: str, raw: Any) -> tuple[str, ...]:
    if raw is None:
        return ()
    if not isinstance(raw, list):
        raise _wrong(asin, key, raw, "a list of strings")
    for value in raw:
        if not isinstance(value, str):
            raise _wrong(asin, f"an entry of {key}", value, "a string")
    return tuple(raw)


def _wrong(asin: str, key: str, found: Any, expected: str) -> CorruptData:
    return CorruptData(
        f"Product {asin!r}: {key} is {_kind(found)} ({found!r:.60}), expected {expected}. "
        "Correct the file, or get it anew."
    )


def _kind(value: Any) -> str:
    names = {type(None): "null", bool: "a boolean", list: "a list", dict: "an object"}
    return names.get(type(value)) or f"a value of type {type(value).__name__}"
