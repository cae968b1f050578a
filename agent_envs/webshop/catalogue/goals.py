"""The goals of a shop, numbered as the original numbers them after its shuffle.

A synthetic instruction stands for one goal per combination of option values, so what is stored is
the instruction; a goal is put together when it is asked for. The original keeps a dictionary per
goal, many millions of them for its full catalogue.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from random import Random
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from agent_envs.errors import CorruptData
from agent_envs.webshop.catalogue.catalogue import Catalogue
from agent_envs.webshop.catalogue.cleaning import Facts, Instruction, Reason
from agent_envs.webshop.catalogue.prices import draw_limit, goal_text, limit_text
from agent_envs.webshop.catalogue.records import RecordWriter
from agent_envs.webshop.catalogue.splits import (
    IN_ORDER,
    Split,
    SplitBy,
    deal_by_product,
    split_of,
    split_sizes,
)
from agent_envs.webshop.catalogue.store import Tables
from agent_envs.webshop.model import Goal, Product

Kind = Literal["synthetic", "human"]

KINDS: tuple[Kind, ...] = ("synthetic", "human")
SHUFFLE_SEED = 233
"""With which the original shuffles its goals, human and synthetic ones each on their own."""
GOALS_KEPT = 4096
"""Goals that a list keeps, the least recently used goes first (about 5 MB)."""
MAX_GOALS = 2**31 - 1
"""Of one kind; numbers are stored in 32 bits."""


class GoalWriter:
    """Collects the instructions of one kind, product by product."""

    def __init__(self, kind: Kind, records: RecordWriter) -> None:
        self.kind: Kind = kind
        self._records = records
        self._products, self._firsts = array("i"), array("q", [0])
        self._ids: dict[str, int] = {}
        self._counts: Counter[int] = Counter()
        self._attributes, self._ends = array("i"), array("q", [0])

    def add_synthetic(self, number: int, product: Product, facts: Facts) -> Reason | None:
        """Add the goals of one product; why there are none, where something is amiss."""
        if facts.instruction is None:
            return None
        if not facts.goal_attributes:
            return Reason.NO_GOAL_ATTRIBUTES
        goals = math.prod(len(values) for _, values in product.options)
        if not goals:
            return Reason.NO_COMBINATION
        self._add(number, product.asin, goals, facts.goal_attributes, [facts.instruction])
        return None

    def add_human(
        self, number: int, product: Product, place: int, instruction: Instruction
    ) -> Reason | None:
        """Add the goal of instruction `place` of a product; why there is none."""
        if not instruction.attributes:
            return Reason.NO_GOAL_ATTRIBUTES
        if instruction.text is None:
            return Reason.NO_INSTRUCTION
        record = [instruction.text, list(instruction.options), place]
        self._add(number, product.asin, 1, instruction.attributes, record)
        return None

    def _add(
        self, number: int, asin: str, goals: int, attributes: tuple[str, ...], record: list[Any]
    ) -> None:
        if self._firsts[-1] + goals > MAX_GOALS:
            raise CorruptData(
                f"With product {asin!r} there are more than {MAX_GOALS:,} {self.kind} goals (it "
                f"has {goals:,}: every combination of its options is one). Remove some of its "
                "options, or its instruction."
            )
        self._records.add([*record, list(attributes)])
        self._products.append(number)
        self._firsts.append(self._firsts[-1] + goals)
        for attribute in attributes:
            identity = self._ids.setdefault(attribute, len(self._ids))
            self._attributes.append(identity)
            self._counts[identity] += goals
        self._ends.append(len(self._attributes))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The tables that `GoalList` reads by."""
        products = np.array(self._products, dtype=np.int32)
        firsts = np.array(self._firsts, dtype=np.int64)
        order = shuffled_order(int(firsts[-1]))
        products_N = np.repeat(products, np.diff(firsts))[order]
        by_product, sizes = deal_by_product(products_N)
        arrays: dict[str, NDArray[Any]] = {
            "products": products,
            "firsts": firsts,
            "weights": self._weights(),
            "order": order,
            "by_product": by_product,
            "by_product_sizes": np.array(sizes, dtype=np.int64),
        }
        return {f"{self.kind}_{name}": values for name, values in arrays.items()}

    def _weights(self) -> NDArray[np.float64]:
        """Of each instruction: 1 if human, else the mean of 1 / goals with this attribute."""
        weights = np.ones(len(self._products), dtype=np.float64)
        if self.kind == "human":
            return weights
        for place in range(len(weights)):
            own = self._attributes[self._ends[place] : self._ends[place + 1]]
            total = 0.0
            for identity in own:  # one after the other: `sum` rounds otherwise from 3.12 on
                total += 1.0 / self._counts[identity]
            weights[place] = total / len(own)
        return weights


def shuffled_order(goals: int) -> NDArray[np.int32]:
    """Which goal, counted in the order of making, is number i after the original's shuffle."""
    order = array("i", range(goals))
    Random(SHUFFLE_SEED).shuffle(order)
    return np.array(order, dtype=np.int32)


class GoalList(Sequence[Goal]):
    """The goals of one kind: number i is the original's goal i.

    Goals are put together when asked for and kept in a bounded cache. Reads are safe for threads
    and after a fork.
    """

    def __init__(self, kind: Kind, tables: Tables, catalogue: Catalogue) -> None:
        self.kind = kind
        self._arrays = {
            name: tables.arrays[f"{kind}_{name}"]
            for name in ("products", "firsts", "weights", "order", "by_product")
        }
        self._by_product_sizes = tuple(tables.arrays[f"{kind}_by_product_sizes"].tolist())
        self._firsts, self._order = self._arrays["firsts"], self._arrays["order"]
        self._goal = lru_cache(GOALS_KEPT)(self._maker(tables, catalogue))

    def _maker(self, tables: Tables, catalogue: Catalogue) -> Callable[[int], Goal]:
        records, arrays, kind = tables.records(self.kind), self._arrays, self.kind
        products, firsts = arrays["products"], arrays["firsts"]
        weights, order = arrays["weights"], arrays["order"]

        def make(number: int) -> Goal:
            original = int(order[number])
            group = bisect_right(firsts, original) - 1
            place = int(products[group])
            product, price = catalogue[place], catalogue.price(place)
            if kind == "human":
                text, wanted, which, attributes = records[group]
                limit = draw_limit(catalogue.price_seed, kind, product.asin, which, price)
                options: Any = tuple(wanted)
                instruction = text.strip(".") + limit_text(limit)
            else:
                text, attributes = records[group]
                limit = draw_limit(catalogue.price_seed, kind, product.asin, 0, price)
                options = combination(product, original - int(firsts[group]))
                instruction = goal_text(text, options, limit)
            return Goal(
                asin=product.asin,
                category=product.category,
                query=product.query,
                name=product.title,
                product_category=product.product_category,
                instruction=instruction,
                attributes=tuple(attributes),
                price_upper=limit,
                options=options,
                weight=float(weights[group]),
            )

        return make

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, number: int) -> Goal: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Goal]: ...
    def __getitem__(self, number: int | slice) -> Goal | Sequence[Goal]:
        """The goal of that number, from 0 up.

        Raises:
            IndexError: no such number.
            CorruptData: the goal cannot be read.
        """
        if isinstance(number, slice):
            return [self[n] for n in range(*number.indices(len(self)))]
        if not 0 <= number < len(self._order):
            raise IndexError(f"There is no {self.kind} goal {number}; there are {len(self):,}.")
        return self._goal(number)

    def __iter__(self) -> Iterator[Goal]:
        return (self[number] for number in range(len(self)))

    def product_of(self, number: int) -> int:
        """The number of the product that goal `number` asks for."""
        group = bisect_right(self._firsts, int(self._order[number])) - 1
        return int(self._arrays["products"][group])

    @property
    def products(self) -> int:
        """How many products goals ask for."""
        return len(np.unique(self._arrays["products"]))

    @cached_property
    def weights(self) -> NDArray[np.float64]:
        """float64 (N,): the weight of each goal, with which the original draws goals."""
        repeated: NDArray[np.float64] = np.repeat(self._arrays["weights"], np.diff(self._firsts))[
            self._order
        ]
        repeated.flags.writeable = False
        return repeated

    def split_of(self, number: int, split_by: SplitBy = "goal") -> Split:
        """The split of a goal."""
        if not 0 <= number < len(self):
            raise IndexError(f"There is no {self.kind} goal {number}; there are {len(self):,}.")
        if split_by == "goal":
            return split_of(number, len(self))
        for split in IN_ORDER:
            numbers = self.numbers(split, split_by)
            place = bisect_left(numbers, number)  # numpy's would copy the array to another type
            if place < len(numbers) and numbers[place] == number:
                return split
        raise CorruptData(f"The {self.kind} goal {number} is in no split; make the store anew.")

    def numbers(self, split: Split, split_by: SplitBy = "goal") -> Sequence[int]:
        """The goals of a split in ascending order: a range or an int32 array, never a copy."""
        sizes = split_sizes(len(self)) if split_by == "goal" else self._by_product_sizes
        place = IN_ORDER.index(split)
        start = sum(sizes[:place])
        stop = start + sizes[place]
        if split_by == "goal":
            return range(start, stop)
        numbers: Any = self._arrays["by_product"][start:stop]
        return numbers  # type: ignore[no-any-return]

    def __copy__(self) -> GoalList:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> GoalList:
        return self

    def __repr__(self) -> str:
        return f"<GoalList of {len(self):,} {self.kind} goals>"


def combination(product: Product, place: int) -> tuple[tuple[str, str], ...]:
    """Combination `place` of all values of the groups sorted by name; the last varies fastest."""
    chosen: list[tuple[str, str]] = []
    for name, values in sorted(product.options, reverse=True):
        place, at = divmod(place, len(values))
        chosen.append((name, values[at]))
    return tuple(reversed(chosen))


def counts(tables: Tables, kind: Kind) -> Mapping[str, int]:
    """How many goals, and how many in each split, without putting any together."""
    goals = len(tables.arrays[f"{kind}_order"])
    return {"goals": goals, **dict(zip(IN_ORDER, split_sizes(goals), strict=True))}
