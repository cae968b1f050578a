"""Products as long-winded as on a marketplace: facts and texts in the original's raw form."""

from __future__ import annotations

from typing import Any

from agent_envs.draws import Draws
from agent_envs.webshop.generated.goals import (
    human_entry,
    option_text,
    sort_out,
    synthetic_instruction,
)
from agent_envs.webshop.generated.product import FIRST, VERSION, Facts, draw_facts
from agent_envs.webshop.generated.raw import RawProduct, asin_of, raw_product
from agent_envs.webshop.generated.spec import ShopSpec
from agent_envs.webshop.generated.texts import Writer, make_bullets, make_title
from agent_envs.webshop.generated.words import title, words

_DEEPER, _SHALLOWER = 0.4, 0.12
_TWO = 0.35
"""Share of products with human-like instructions that have two."""


def make_product(spec: ShopSpec, index: int) -> RawProduct:
    """Product number `index` of a market shop, a function of seed, knobs and index alone."""
    draws = Draws("shop", VERSION, spec.seed, index)
    facts = draw_facts(draws, spec, index)
    asin = asin_of(spec.seed, index)
    name = make_title(facts, draws)
    writer = Writer(facts, draws)
    product = raw_product(
        asin=asin,
        name=name,
        description=writer.description(),
        bullets=make_bullets(writer.bullets(), draws),
        pricing=" - ".join(f"${price}" for price in facts.prices),
        category=facts.line.category,
        query=facts.line.query,
        path=_path(facts, draws),
        options=facts.options,
        rating=round(1 + 4 * draws.unit() ** 0.35, 1) if draws.chance(0.64) else "",
        page=1 + draws.below(150),
    )
    return RawProduct(asin, product, _attributes(facts), _human(facts, asin, spec, index))


def _path(facts: Facts, draws: Draws) -> str:
    """The category path; three to five parts, as most public ones have."""
    path, depth = facts.line.path, draws.unit()
    if depth < _SHALLOWER:
        return path.rpartition(" › ")[0]
    if depth < _SHALLOWER + _DEEPER:
        return f"{path} › {facts.style} {title(facts.line.query)}"
    return path


def _kinds(facts: Facts, names: tuple[str, ...]) -> tuple[list[str], list[str], list[str]]:
    materials = [name.lower() for name in facts.materials] if facts.line.contains else []
    return sort_out(names, words().parts, materials, [name.lower() for name in facts.uses])


def _attributes(facts: Facts) -> dict[str, Any]:
    entry: dict[str, Any] = {"attributes": list(facts.attributes)}
    if facts.wanted:
        kinds = _kinds(facts, facts.wanted)
        entry["instruction"] = synthetic_instruction(facts.line.query, *kinds)
        entry["instruction_attributes"] = list(facts.wanted)
    return entry


def _human(facts: Facts, asin: str, spec: ShopSpec, index: int) -> list[dict[str, Any]]:
    """Instructions from a stream of their own: the knob leaves the products as they are."""
    draws = Draws("human", VERSION, spec.seed, index)
    # Others than those with a synthetic instruction have too few attributes to tell them apart.
    share = spec.human / 0.7 if facts.attributes else 0.0
    if not (draws.chance(share) or index < FIRST) or not facts.attributes or not spec.human:
        return []
    out = []
    for _ in range(1 + draws.chance(_TWO)):
        names = tuple(draws.shuffled(facts.wanted or facts.attributes)[: 1 + draws.below(3)])
        options = {
            group.lower(): option_text(draws.choice(values))
            for group, values in facts.options
            if draws.chance(0.75)
        }
        noun, some = facts.noun.lower(), facts.line.some
        out.append(
            human_entry(asin, noun, some, _kinds(facts, names), facts.attributes, options, draws)
        )
    return out
