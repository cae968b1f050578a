"""What of a product is searched."""

from __future__ import annotations

from agent_envs.webshop.model import Product


def document_text(product: Product) -> str:
    """Title, description, first bullet and options, lower-cased: what the original indexes.

    Options read ``"color: red, blue, and size: s, m"``. The ASIN, the attributes, the category
    and the query under which the product was found are not searched.
    """
    options = ", and ".join(f"{group}: {', '.join(values)}" for group, values in product.options)
    bullet = product.bullets[0] if product.bullets else ""
    return " ".join((product.title, product.description, bullet, options)).lower()
