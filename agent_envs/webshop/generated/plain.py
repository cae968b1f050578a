"""Products in a handful of words, for policies of a million parameters or less.

A product has two of the five attributes of its family and says them in its title. As long as a
family has at most ten products, no two of them have the same pair, so each goal has one product.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

from agent_envs.draws import Draws
from agent_envs.webshop.generated.goals import human_entry, option_text, synthetic_instruction
from agent_envs.webshop.generated.product import FIRST
from agent_envs.webshop.generated.raw import PREFIX, RawProduct, raw_product
from agent_envs.webshop.generated.spec import CATEGORIES, InvalidSpec, ShopSpec
from agent_envs.webshop.generated.words import read

VERSION = 1
"""Raised whenever the same seed gives another plain shop."""
_DEAREST = 60


def make_product(spec: ShopSpec, index: int) -> RawProduct:
    """Product number `index` of a plain shop, a function of seed, knobs and index alone.

    Raises:
        InvalidSpec: none of the categories has a family.
    """
    data = read("small")
    families = [about for about in data["families"] if about["category"] in spec.categories]
    if not families:
        raise InvalidSpec(f"no family of {', '.join(spec.categories)}; choose {CATEGORIES}.")
    rank, number = divmod(index, len(families))
    family = families[number]
    attributes = _pair(spec.seed, family, rank)
    draws = Draws("plain shop", VERSION, spec.seed, index)
    brand = draws.choice(data["brands"])
    noun = family["noun"]
    options = [_values(group, data["options"][group], draws) for group in family["options"]]
    told = spec.instructed is None or draws.unit() < spec.instructed or index < FIRST
    asin = f"{PREFIX}{index:08d}"
    product = raw_product(
        asin=asin,
        name=f"{brand} {' '.join(attributes)} {noun}".title(),
        description=f"{attributes[0].capitalize()} and {attributes[1]} {noun}.",
        bullets=[name.capitalize() for name in attributes],
        pricing=f"${5 + draws.below(_DEAREST - 5)}",
        category=family["category"],
        query=family["query"],
        path=f"{family['category'].capitalize()} › {family['query'].capitalize()}",
        options=options[: spec.groups],
        rating="",
        page=1,
    )
    entry: dict[str, Any] = {"attributes": list(attributes)}
    if told:
        entry["instruction"] = synthetic_instruction(family["query"], attributes, [], [])
        entry["instruction_attributes"] = list(attributes)
    human = []
    if spec.human and (draws.chance(spec.human) or index < FIRST):
        chosen = {
            group.lower(): option_text(draws.choice(values))
            for group, values in options[: spec.groups]
        }
        some = "some" if noun in ("tea", "soap", "candy") else "a"
        kinds: tuple[list[str], list[str], list[str]] = (list(attributes), [], [])
        human.append(human_entry(asin, noun, some, kinds, attributes, chosen, draws))
    return RawProduct(asin, product, entry, human)


def _pair(seed: int, family: dict[str, Any], rank: int) -> tuple[str, str]:
    """The attributes of the product with this rank in its family; ten products take all pairs."""
    pairs = list(combinations(family["attributes"], 2))
    lap, place = divmod(rank, len(pairs))
    draws = Draws("pairs", VERSION, seed, family["query"], lap)
    first, second = draws.shuffled(pairs)[place]
    return (first, second)


def _values(group: str, values: list[str], draws: Draws) -> tuple[str, list[str]]:
    """Two or three values of a group."""
    number = min(len(values), 2 + draws.below(2))
    chosen = draws.shuffled(values)[:number]
    return group.capitalize(), sorted(chosen, key=values.index)
