"""Entries and files in the original's raw form."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_envs.webshop.catalogue import Shop
from agent_envs.webshop.catalogue.importing import RawFiles

Raw = dict[str, Any]


def raw_product(asin: str = "B000000001", **changes: Any) -> Raw:
    """An ordinary product; a key with the value `...` is left out."""
    raw: Raw = {
        "asin": asin,
        "name": f"Thing {asin}",
        "full_description": "A thing.",
        "small_description": ["light ", "red "],
        "pricing": "$12.50",
        "images": ["https://example.org/1.jpg", "https://example.org/2.jpg"],
        "category": "garden",
        "query": " Console Tables ",
        "product_category": "Home & Kitchen › Furniture",
        "customization_options": "",
        "average_rating": 4.5,
        "page": 3,
        **changes,
    }
    return {key: value for key, value in raw.items() if value is not ...}


def options(**groups: Sequence[str]) -> Raw:
    """`customization_options` with these values."""
    return {name: [{"value": value} for value in values] for name, values in groups.items()}


def raw_facts(*attributes: str, instruction: str | None = "Find me a thing") -> Raw:
    """An entry of the attribute file; without an instruction if that is None."""
    facts: Raw = {"attributes": [*attributes, "extra"]}
    if instruction is not None:
        facts |= {"instruction": instruction, "instruction_attributes": list(attributes)}
    return facts


def raw_human(text: str = "i want a thing.", attributes: Sequence[str] = ("light",)) -> Raw:
    """A human instruction."""
    return {
        "instruction": text,
        "instruction_attributes": list(attributes),
        "instruction_options": ["red"],
        "worker_id": "W",
    }


def asin(number: int) -> str:
    return f"B{number:09d}"


def small_raw(products: int = 30) -> tuple[list[Raw], Raw, Raw]:
    """Products with up to six combinations of options, half with an instruction, some human."""
    items, facts, humans = [], {}, {}
    for number in range(products):
        groups = {
            "Size": ["S", "M", "L"][: number % 4],
            "Color": ["Red", "Sky/Blue"][: number % 3],
        }
        custom = options(**{name: values for name, values in groups.items() if values})
        pricing = ("$5.99", "$20.00 - $35.50", "", "$1,250.00")[number % 4]
        name = asin(number)
        items.append(raw_product(name, pricing=pricing, customization_options=custom or ""))
        text = f"Find me thing {number}" if number % 2 else None
        facts[name] = raw_facts(f"quality {number % 5}", "light", instruction=text)
        if number % 7 == 0:
            humans[name] = [raw_human(f"i want thing {number}."), raw_human("another", [])]
    return items, facts, humans


def small_shop(products: int = 30, price_seed: int = 0) -> Shop:
    return Shop.from_raw(*small_raw(products), price_seed=price_seed)


def write_raw(
    folder: Path,
    products: Any,
    attributes: Mapping[str, Any],
    humans: Mapping[str, Any] | None = None,
    *,
    ending: str = ".json",
) -> RawFiles:
    """The files under the original's names."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for start, content in (
        ("items_shuffle", products),
        ("items_ins_v2", attributes),
        ("items_human_ins", humans),
    ):
        if content is None:
            continue
        path = folder / f"{start}{ending}"
        path.write_text(json.dumps(content), encoding="utf-8")
        paths.append(path)
    return RawFiles(*paths)
