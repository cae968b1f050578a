"""What kind of shop to generate: the specification and three presets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agent_envs.errors import InvalidOption

CATEGORIES = ("beauty", "electronics", "garden", "fashion", "grocery")
MAX_PRODUCTS = 10_000_000
MAX_GROUPS = 3
_SEED_DIGITS = 40


class InvalidSpec(InvalidOption):
    """A shop specification or source text that cannot be generated."""


@dataclass(frozen=True, slots=True)
class ShopSpec:
    """What a generated shop looks like. Product number i depends on everything but `products`.

    Raises:
        InvalidSpec: a number out of range, or an unknown style or category.
    """

    products: int = 1000
    seed: int = 0
    style: Literal["market", "plain"] = "market"
    """market: as long-winded as real shops. plain: a handful of words a product."""
    categories: tuple[str, ...] = CATEGORIES
    """Which of the five categories have products."""
    groups: int = MAX_GROUPS
    """Largest number of option groups (such as color and size) of a product, 0 to 3."""
    instructed: float | None = None
    """Share of products with a synthetic instruction. None: as in the public set of 1,000
    products (41.5 %, by category) for market, all for plain."""
    human: float = 0.3
    """Share of products with one or two human-like instructions."""

    def __post_init__(self) -> None:
        for name, low, high in (
            ("products", 1, MAX_PRODUCTS),
            ("seed", 0, 10**_SEED_DIGITS - 1),
            ("groups", 0, MAX_GROUPS),
        ):
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                raise InvalidSpec(
                    f"ShopSpec.{name} is {value!r}; give a whole number from {low} to "
                    f"{f'10^{_SEED_DIGITS} - 1' if name == 'seed' else high}."
                )
        for name in ("instructed", "human"):
            share = getattr(self, name)
            if share is None and name == "instructed":
                continue
            if type(share) not in (int, float) or not 0 <= share <= 1:
                raise InvalidSpec(f"ShopSpec.{name} is {share!r}; give a share from 0 to 1.")
            object.__setattr__(self, name, share + 0.0)  # -0.0 is 0.0, 1 is 1.0
        if self.style not in ("market", "plain"):
            raise InvalidSpec(f"ShopSpec.style is {self.style!r}; choose 'market' or 'plain'.")
        names = tuple(self.categories)
        unknown = [str(name) for name in names if name not in CATEGORIES]
        if not names or unknown or len(set(names)) < len(names):
            what = f"unknown: {', '.join(unknown)}" if unknown else "empty, or names one twice"
            raise InvalidSpec(
                f"ShopSpec.categories is wrong ({what}); choose one or more, once each, of "
                f"{', '.join(CATEGORIES)}."
            )
        ordered = tuple(name for name in CATEGORIES if name in names)
        object.__setattr__(self, "categories", ordered)


STANDARD = ShopSpec()
"""About as many products, options and goals as the public set of 1,000 products."""

SMALL = ShopSpec(products=128, style="plain", human=0.5)
"""Eight products each of 16 sorts, described in a few words, for learning on a CPU; an episode
takes three to five steps."""

LARGE = ShopSpec(products=100_000, instructed=0.1, human=0.08)
"""100,000 products, about 130,000 synthetic and 12,000 human-like goals."""

PRESETS = {"standard": STANDARD, "small": SMALL, "large": LARGE}
