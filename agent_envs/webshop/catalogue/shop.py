"""A shop: everything immutable that its environments share."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Mapping
from hashlib import sha256
from numbers import Real
from pathlib import Path
from types import MappingProxyType
from typing import Any

from agent_envs.errors import CorruptData, DataError, InvalidOption
from agent_envs.webshop.catalogue.catalogue import Catalogue
from agent_envs.webshop.catalogue.goals import KINDS, GoalList, Kind
from agent_envs.webshop.catalogue.importing import build_index, build_tables
from agent_envs.webshop.catalogue.report import Report
from agent_envs.webshop.catalogue.shown import shown
from agent_envs.webshop.catalogue.store import INDEX, Tables
from agent_envs.webshop.search import SearchIndex


def check_price_seed(price_seed: object) -> None:
    """Check that a price seed is a whole number of at most 64 bits.

    Raises:
        InvalidOption: it is none.
    """
    if isinstance(price_seed, bool) or not isinstance(price_seed, int):
        raise InvalidOption(f"price_seed is {shown(price_seed)}, expected a whole number.")
    if not -(2**63) <= price_seed < 2**63:
        raise InvalidOption(
            f"price_seed is {shown(price_seed)}, expected a whole number of at most 64 bits."
        )


def _checked_prices(prices: object) -> dict[str, float]:
    """Prices by asin.

    Raises:
        InvalidOption: they are no mapping, or what is no asin or no price is in it.
    """
    if not isinstance(prices, Mapping):
        raise InvalidOption(f"prices are {shown(prices)}, expected a dict of prices by asin.")
    checked = {}
    for asin, given in prices.items():
        if not isinstance(asin, str):
            raise InvalidOption(f"prices has the key {shown(asin)}, expected an asin.")
        price = math.nan
        if isinstance(given, Real) and not isinstance(given, bool):
            with contextlib.suppress(OverflowError):
                price = float(given)
        if not 0.0 <= price < math.inf:
            raise InvalidOption(
                f"The price of {asin!r:.80} is {shown(given)}, expected a finite number from 0 up."
            )
        checked[asin] = price
    return checked


class _Index:
    """The search index of a catalogue, opened or built when first asked for.

    Shops that differ in prices only share it. Two threads that ask at once may both build it,
    to the same effect; a lock could be held for ever after a fork.
    """

    def __init__(self, tables: Tables, is_cache: bool) -> None:
        self._tables, self._is_cache = tables, is_cache
        self._index: SearchIndex | None = None

    def get(self, catalogue: Catalogue) -> SearchIndex:
        if self._index is None:
            index = self._opened()
            if index is None:
                index = build_index(catalogue)
                self._repair(index)
            self._index = index
        return self._index

    def _repair(self, index: SearchIndex) -> None:
        """Write an index that the cache lost, so that only one process builds it anew."""
        if self._tables.folder is not None:
            with contextlib.suppress(OSError, DataError):  # a cache saves time and nothing else
                folder = self._tables.folder / INDEX
                folder.mkdir(exist_ok=True)
                index.save(folder)

    def _opened(self) -> SearchIndex | None:
        if self._tables.folder is None:
            return None
        folder = self._tables.folder / INDEX
        try:
            index = SearchIndex.open(folder)
            products = int(self._tables.header["products"])
            if len(index) != products:
                raise CorruptData(
                    f"The search index {folder} is of {len(index):,} products, the store has "
                    f"{products:,}. Make the store anew: `sero data import webshop RAW --out "
                    "STORE --force`."
                )
            return index
        except DataError:
            if self._is_cache:  # which saves time and nothing else
                return None
            raise


class Shop:
    """Products, search index and goals. Immutable to its readers; copies are the shop itself."""

    def __init__(
        self,
        tables: Tables,
        *,
        price_seed: int = 0,
        prices: Mapping[str, float] | None = None,
        source: str | None = None,
        origin: str | None = None,
        is_cache: bool = False,
    ) -> None:
        """Most callers want `load_shop` or `Shop.from_raw`.

        Args:
            tables: of the store, or in memory.
            price_seed: by which prices in a range and price limits are drawn.
            prices: by asin; they take precedence over all others.
            source: where the shop comes from, for people.
            origin: what `load_shop` makes the same shop from in another process.
            is_cache: whether the store of `tables` may be made anew without asking.

        Raises:
            InvalidOption: `price_seed` is no whole number of at most 64 bits, or a price is none.
        """
        check_price_seed(price_seed)
        self._tables, self._origin, self._is_cache = tables, origin, is_cache
        self._prices = _checked_prices({} if prices is None else prices)
        self.price_seed = price_seed
        self.source = source or str(tables.header["source"])
        """Where the shop comes from, for people."""
        self.catalogue = Catalogue(tables, price_seed=price_seed, prices=self._prices)
        self.revision = sha256(
            json.dumps([self.catalogue.revision, price_seed]).encode()
        ).hexdigest()
        """SHA-256 (hex) over products, goals and prices."""
        self.report = Report.from_dict(tables.header["report"])
        """What was left out, and why."""
        self._index = _Index(tables, is_cache)
        self._goals = {kind: GoalList(kind, tables, self.catalogue) for kind in KINDS}

    @classmethod
    def from_raw(
        cls,
        products: Iterable[Any],
        attributes: Mapping[str, Any],
        humans: Mapping[str, Any] | None = None,
        *,
        source: str = "memory",
        price_seed: int = 0,
    ) -> Shop:
        """A shop in memory from entries as the original's files have them.

        Args:
            products: the entries of items_shuffle.json.
            attributes: items_ins_v2.json, by asin.
            humans: items_human_ins.json, by asin.

        Raises:
            CorruptData: an entry is not what it should be.
            MissingData: there is no product.
        """
        tables = build_tables(
            products, attributes.items(), (humans or {}).items(), None, source=source
        )
        return cls(tables, price_seed=price_seed)

    @property
    def index(self) -> SearchIndex:
        """The search index; the numbers of its documents are those of the products."""
        return self._index.get(self.catalogue)

    @property
    def folder(self) -> Path | None:
        """Where the store of the shop lies; None for a shop in memory."""
        return self._tables.folder

    @property
    def header(self) -> Mapping[str, Any]:
        """What the store says of itself."""
        return MappingProxyType(dict(self._tables.header))

    def goals(self, kind: Kind) -> GoalList:
        """The goals of one kind; number i is the original's goal i.

        Raises:
            InvalidOption: another kind than "synthetic" or "human".
        """
        found = self._goals.get(kind)
        if found is None:
            raise InvalidOption(f"There are no {kind!r} goals; choose 'synthetic' or 'human'.")
        return found

    def with_prices(self, prices: Mapping[str, float]) -> Shop:
        """This shop with other prices, by asin; everything else is shared.

        Price limits follow from prices, so they change too.

        Raises:
            InvalidOption: a price is none.
        """
        return self._like(self.price_seed, {**self._prices, **_checked_prices(prices)})

    def with_price_seed(self, price_seed: int) -> Shop:
        """This shop with prices and limits drawn anew; everything else is shared."""
        return self._like(price_seed, self._prices)

    def _like(self, price_seed: int, prices: Mapping[str, float]) -> Shop:
        made = Shop(
            self._tables,
            price_seed=price_seed,
            prices=prices,
            source=self.source,
            origin=self._origin,
            is_cache=self._is_cache,
        )
        made._index = self._index
        return made

    def __repr__(self) -> str:
        goals = ", ".join(f"{len(self._goals[kind]):,} {kind}" for kind in KINDS)
        return f"<Shop {self.source!r}: {len(self.catalogue):,} products, goals: {goals}>"

    def __copy__(self) -> Shop:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Shop:
        """Copies share the shop; `gymnasium.make` copies its arguments."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        from agent_envs.webshop.catalogue.sources import reopened

        tables = self._tables if self._origin is None else None
        return reopened, (
            self._origin,
            tables,
            self.price_seed,
            self._prices,
            self.source,
            self.revision,
        )
