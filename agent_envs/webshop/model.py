"""The values that everything in WebShop is made of: products, goals, sessions, purchases.

All of them are immutable. A `Session` is what changes from step to step; it refers to products
by their number in the catalogue.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

NO_LIMIT = 1_000_000.0
"""Price cap of a goal whose text names none."""


class Product(NamedTuple):
    """One product, cleaned as the original cleans it."""

    asin: str
    title: str
    description: str
    bullets: tuple[str, ...]
    price_tag: str
    """What pages show: ``"$12.5"`` or ``"$3.0 to $7.5"``."""
    price_range: tuple[float, ...]
    """One price, or the two ends of a range."""
    category: str
    """One of five: beauty, electronics, fashion, garden, grocery."""
    query: str
    """The search phrase under which the product was found, lower-cased."""
    product_category: str
    """A path such as ``"Home & Kitchen › Furniture › Tables"``."""
    options: tuple[tuple[str, tuple[str, ...]], ...]
    """Groups in page order, each with its values in page order, lower-cased."""
    attributes: tuple[str, ...]
    image: str = ""
    option_images: tuple[tuple[str, str], ...] = ()
    """Option value -> image."""


class Goal(NamedTuple):
    """What a shopper is asked to buy. Only `instruction` is ever shown."""

    asin: str
    category: str
    query: str
    name: str
    product_category: str
    instruction: str
    """The sentence that the shopper reads, price limit included."""
    attributes: tuple[str, ...]
    price_upper: float | None
    """Largest allowed price; `NO_LIMIT` or None where there is none."""
    options: tuple[str, ...] | tuple[tuple[str, str], ...]
    """Human goals: values. Synthetic goals: (group, value) pairs, in the order of the goal."""
    weight: float = 1.0


class Page(IntEnum):
    """Kinds of pages."""

    INDEX = 0
    RESULTS = 1
    ITEM = 2
    SUB = 3
    DONE = 4


class Session(NamedTuple):
    """Where a shopper is. A value of ints, strings and tuples: what a snapshot holds."""

    page: int = Page.INDEX
    query: str | None = None
    """The lower-cased text of the last search; None on the first page."""
    number: int = 1
    """Which page of results, from 1 up."""
    product: int = -1
    """Number of the open product in the catalogue, -1 for none."""
    sub: str = ""
    """Which sub page: Description, Features, Reviews or Attributes."""
    options: tuple[tuple[str, str], ...] = ()
    """Selected values by group, in the order in which groups were first selected."""
    visited: tuple[int, ...] = ()
    """Products opened since the last visit of the first page, in the order of first visits."""
    draw: int = 0
    """Key of the products that a page of random results shows; 0 on every other page."""


@dataclass(frozen=True, slots=True)
class RewardInfo:
    """The parts of a reward, with the original's names; option parts are None for goals
    without options."""

    r_type: float
    r_att: float
    w_att: float
    query_match: float
    category_match: float
    title_score: float
    r_price: float
    w_price: float
    r_option: float | None = None
    w_option: float | None = None


@dataclass(frozen=True, slots=True)
class Purchase:
    """What was bought, and what it is worth."""

    product: int
    options: tuple[tuple[str, str], ...]
    price: float
    reward: float
    info: RewardInfo


@dataclass(frozen=True, slots=True)
class PrivilegedShop:
    """What an oracle sees: shop and goal, the session, and the budget. See `oracles.webshop_goal`.

    `shop` is the `agent_envs.webshop.shop.Shop`, immutable to its readers.
    """

    shop: object
    goal: Goal
    session: Session
    steps_left: int | None
    rules: object = None
    """The `agent_envs.webshop.engine.Rules` by which the env plays; None: the default ones."""
