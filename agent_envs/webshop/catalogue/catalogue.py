"""All products of a shop, read-only and shared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from agent_envs.webshop.catalogue.cleaning import fold
from agent_envs.webshop.catalogue.prices import resolve_price
from agent_envs.webshop.catalogue.records import Records, decode_text, encode_text
from agent_envs.webshop.catalogue.store import Tables
from agent_envs.webshop.model import Product

PRODUCTS_KEPT = 2048
"""Decoded products that a catalogue keeps, the least recently used goes first (about 10 MB)."""
SCANS_KEPT = 16

_ASIN, _TITLE, _PRICE_TAG = map(Product._fields.index, ("asin", "title", "price_tag"))
_END = b"."  # closes each key in the table of asins: numpy drops zero bytes at the end


def encode_product(product: Product) -> list[Any]:
    """A product as a record."""
    return list(product)


def decode_product(record: Sequence[Any]) -> Product:
    """Inverse of `encode_product`, up to the types of sequences.

    >>> decode_product(encode_product(Product("A", "", "", (), "$1.0", (1.0,), "", "", "", (
    ...     ("size", ("s", "m")),), ()))).options
    (('size', ('s', 'm')),)
    """
    asin, title, text, bullets, tag, prices, category, query, path, options, attributes = record[
        :11
    ]
    return Product(
        asin,
        title,
        text,
        tuple(bullets),
        tag,
        tuple(prices),
        category,
        query,
        path,
        tuple((name, tuple(values)) for name, values in options),
        tuple(attributes),
        record[11],
        tuple((value, image) for value, image in record[12]),
    )


def asin_tables(asins: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The look-up tables of a catalogue: keys by number, and numbers in the order of keys."""
    keys = np.array([encode_text(fold(asin)) + _END for asin in asins] or [_END], dtype=bytes)
    keys = keys[: len(asins)]
    return {
        "products_keys": keys,
        "products_by_key": np.argsort(keys, kind="stable").astype(np.int32),
    }


class Catalogue(Sequence[Product]):
    """The products of a shop by number.

    Products are decoded when asked for and kept in a bounded cache. Reads are safe for threads
    and after a fork.
    """

    def __init__(
        self, tables: Tables, *, price_seed: int = 0, prices: Mapping[str, float] | None = None
    ) -> None:
        """`prices` takes precedence over the products' own and over drawn ones, by asin."""
        arrays = tables.arrays
        self._tables = tables
        self._keys, self._by_key = arrays["products_keys"], arrays["products_by_key"]
        self._ranges = arrays["products_prices"]
        self._is_plain = bool(tables.header["plain_asins"])
        self._records = tables.records("products")
        self.price_seed = price_seed
        self._given: dict[int, float] = {}
        for asin, price in sorted((prices or {}).items()):
            number = self.number_of(asin)
            if number is not None:
                self._given[number] = float(price)
        self.revision = tables.revision
        """SHA-256 (hex) of the content; prices that were given count."""
        if self._given:
            told = repr((self.revision, sorted(self._given.items())))
            self.revision = sha256(told.encode()).hexdigest()
        self._product = lru_cache(PRODUCTS_KEPT)(_decoder(self._records))
        self._scan = lru_cache(SCANS_KEPT)(_scanner(self._records))

    def __len__(self) -> int:
        return len(self._keys)

    @overload
    def __getitem__(self, number: int) -> Product: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Product]: ...
    def __getitem__(self, number: int | slice) -> Product | Sequence[Product]:
        """The product of that number, from 0 up.

        Raises:
            IndexError: no such number.
            CorruptData: the product cannot be read.
        """
        if isinstance(number, slice):
            return [self[n] for n in range(*number.indices(len(self)))]
        if not 0 <= number < len(self._keys):
            raise IndexError(
                f"There is no product {number} in this catalogue of {len(self):,} products."
            )
        return self._product(number)

    def __iter__(self) -> Iterator[Product]:
        """All products, decoded anew: a walk through a large catalogue leaves the cache alone."""
        return (decode_product(record) for record in self._records)

    def asin(self, number: int) -> str:
        """The asin of a product, without decoding it where possible."""
        if self._is_plain and 0 <= number < len(self._keys):
            return decode_text(bytes(self._keys[number])[: -len(_END)])
        return self[number].asin

    def card(self, number: int) -> tuple[str, str, str]:
        """Asin, title and price tag of a product, which is all that a list of results shows."""
        record = self._records[number]
        return record[_ASIN], record[_TITLE], record[_PRICE_TAG]

    def number_of(self, asin: str) -> int | None:
        """The number of the product with that asin; None if there is none.

        Upper and lower case are not told apart, nor do they have to be: no catalogue holds two
        asins that differ in nothing else.
        """
        key = encode_text(fold(asin)) + _END
        keys, by_key = self._keys, self._by_key
        low, high = 0, len(by_key)
        while low < high:
            middle = (low + high) // 2
            if keys[by_key[middle]] < key:
                low = middle + 1
            else:
                high = middle
        if low < len(by_key) and keys[by_key[low]] == key:
            return int(by_key[low])
        return None

    def price(self, number: int) -> float:
        """What the product costs; a price in a range is drawn by `price_seed` and asin."""
        given = self._given.get(number)
        if given is not None:
            return given
        low, high = self._ranges[number].tolist()
        if low == high:
            return float(low)
        return resolve_price(self.price_seed, self.asin(number), low, high)

    def numbers_in(self, category: str) -> tuple[int, ...]:
        """Products of a category, in order. Walks through the catalogue."""
        return self._scan("category", category)

    def with_query(self, query: str) -> tuple[int, ...]:
        """Products that were found under a search phrase, in order. Walks through the catalogue."""
        return self._scan("query", query)

    def with_attribute(self, attribute: str) -> tuple[int, ...]:
        """Products that have an attribute, in order. Walks through the catalogue."""
        return self._scan("attributes", attribute)

    def __copy__(self) -> Catalogue:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Catalogue:
        return self

    def __repr__(self) -> str:
        return f"<Catalogue of {len(self):,} products, revision {self.revision[:12]}>"


def _decoder(records: Records) -> Callable[[int], Product]:
    # A function of its own, not a method: a cached method would keep its catalogue alive.
    return lambda number: decode_product(records[number])


def _scanner(records: Records) -> Callable[[str, str], tuple[int, ...]]:
    fields = {name: Product._fields.index(name) for name in ("category", "query", "attributes")}

    def scan(field: str, wanted: str) -> tuple[int, ...]:
        place = fields[field]
        if field == "attributes":
            return tuple(n for n, record in enumerate(records) if wanted in record[place])
        return tuple(n for n, record in enumerate(records) if record[place] == wanted)

    return scan
