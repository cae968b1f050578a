"""The products of any shop as files that the original loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agent_envs.webshop.catalogue import RawFiles, Shop
from agent_envs.webshop.model import Product


def write_raw_files(shop: Shop, folder: Path) -> RawFiles:
    """Write the products of `shop` into `folder`, in their order.

    The goals stay with the shop, to be handed over one by one: `OriginalShop.reset` takes any.
    One product has an instruction nevertheless, since the original does not start without a goal.
    """
    files = RawFiles(folder / "items_shuffle.json", folder / "items_ins_v2.json")
    attributes: dict[str, dict[str, Any]] = {}
    with open(files.products, "w", encoding="utf-8") as file:
        for number, product in enumerate(shop.catalogue):
            file.write("[" if number == 0 else ",\n")
            json.dump(raw_product(product), file)
            attributes[product.asin] = {"attributes": list(product.attributes)}
        file.write("]")
    first = next(iter(attributes.values()))
    first |= {"instruction": "i want this", "instruction_attributes": ["this"]}
    files.attributes.write_text(json.dumps(attributes), encoding="utf-8")
    return files


def raw_product(product: Product) -> dict[str, Any]:
    """A raw product that the original cleans into `product`, its attributes apart."""
    images = dict(product.option_images)
    return {
        "asin": product.asin,
        "name": product.title,
        "full_description": product.description,
        "small_description": list(product.bullets),
        "pricing": " - ".join(f"${price}" for price in product.price_range),
        "images": [product.image],
        "category": product.category,
        "query": product.query,
        "product_category": product.product_category,
        "customization_options": {
            group: [{"value": value, "image": images.get(value)} for value in values]
            for group, values in product.options
        },
    }
