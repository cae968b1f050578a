"""Generated shops, one product at a time or as the original's three files.

    read_source("generated:small?seed=1")  ->  ShopSpec  ->  products, files

Product number i is a function of the specification (its number of products aside) and of i: the
same bytes in every process, whatever else was generated, and more products leave the first ones
as they are. Nothing is read from or written to a global random state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agent_envs.webshop.generated import market, plain
from agent_envs.webshop.generated.product import VERSION
from agent_envs.webshop.generated.raw import RawProduct
from agent_envs.webshop.generated.source import read_source
from agent_envs.webshop.generated.spec import ShopSpec

GENERATOR_VERSIONS = {"market": VERSION, "plain": plain.VERSION}
"""By style. A cache of generated data is good for one version."""

Files = tuple[list[dict[str, Any]], dict[str, dict[str, Any]], dict[str, list[dict[str, Any]]]]
"""Products, attributes by asin, human-like instructions by asin."""


def make_product(spec: ShopSpec, index: int) -> RawProduct:
    """Product number `index`, from 0 up."""
    make = plain.make_product if spec.style == "plain" else market.make_product
    return make(spec, index)


def generate(spec: ShopSpec) -> Iterator[RawProduct]:
    """All products of a shop, in order and in bounded memory."""
    for index in range(spec.products):
        yield make_product(spec, index)


def generated_files(shop: ShopSpec | str) -> Files:
    """What the original's three files would hold.

    >>> products, attributes, human = generated_files("generated:small")
    >>> len(products), set(attributes) == {product["asin"] for product in products}
    (128, True)

    Raises:
        InvalidSpec: a text that is not understood.
    """
    products: list[dict[str, Any]] = []
    attributes: dict[str, dict[str, Any]] = {}
    human: dict[str, list[dict[str, Any]]] = {}
    for made in generate(read_source(shop) if isinstance(shop, str) else shop):
        products.append(made.product)
        attributes[made.asin] = made.attributes
        if made.human:
            human[made.asin] = made.human
    return products, attributes, human
