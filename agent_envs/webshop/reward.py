"""What a purchase is worth: the reward of WebShop (Yao et al. 2022, arXiv:2207.01206, section 3).

.. math::
    r = r_type * (n_att + n_opt + [price <= cap]) / (|attributes| + |options| + 1)

The rule is that of the original (princeton-nlp/WebShop at 64fa2a5), oddities included; the cases
that it leaves open are defined here. docs/webshop_reward.md tells both in words.

Pure functions of their arguments. Nothing is drawn, and what is remembered between calls (bounded)
changes no result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from importlib.resources import files

from rapidfuzz.fuzz import token_set_ratio
from rapidfuzz.process import extractOne
from rapidfuzz.utils import default_process

from agent_envs.webshop.model import Goal, Product, RewardInfo

REWARD_VERSION = "princeton-64fa2a5.1"
"""Rule of the original at this commit; the number after the dot counts ours."""

Nouns = Callable[[str], Sequence[str]]
"""Title -> its nouns, lower-cased, in order, repetitions kept (`agent_envs.webshop.nouns`)."""
Option = str | tuple[str, str]
"""What a goal asks for: a value (human goals), or a group and a value (synthetic ones)."""

SIMILAR = 85
"""Two texts match if their token set ratio, rounded, is above this."""
TITLE_MATCH = 0.2
"""Share of the wanted title's nouns above which two products are of one type. Also the share
that a title without nouns counts as."""

_PAIRS = 1024  # goal kinds x products; each holds on to one product, some 10 kB
_TEXTS = 16384


def score(
    goal: Goal, product: Product, price: float, options: Iterable[tuple[str, str]], nouns: Nouns
) -> tuple[float, RewardInfo]:
    """Reward in [0, 1] of buying `product` at `price` with `options` selected, and its parts.

    Defined beyond the original: no price cap (None) is a cap that every price meets; a goal
    without attributes has them all (``r_att`` 1, weight 0).

    Args:
        options: selected (group, value) pairs. Groups are not looked at.
        nouns: hashable, and a function of the title alone.
    """
    wanted, total = len(goal.options), len(goal.attributes) + len(goal.options) + 1
    kind = (goal.query, goal.name, goal.product_category, goal.attributes)
    r_type, query_match, category_match, title_score, attributes = _fixed_parts(
        kind, product, nouns
    )
    found = sum(options_met(goal.options, [value for _, value in options]))
    in_price = price_met(goal, price)
    n_att = sum(attributes)
    info = RewardInfo(
        r_type=r_type,
        r_att=n_att / len(attributes) if attributes else 1.0,
        w_att=len(attributes) / total,
        query_match=float(query_match),
        category_match=float(category_match),
        title_score=title_score,
        r_price=float(in_price),
        w_price=1 / total,
        r_option=found / wanted if wanted else None,
        w_option=wanted / total if wanted else None,
    )
    return (n_att + found + in_price) / total * r_type, info


def price_met(goal: Goal, price: float) -> bool:
    """Whether the goal allows the price."""
    return goal.price_upper is None or price <= goal.price_upper


def attributes_met(goal: Goal, product: Product) -> tuple[bool, ...]:
    """Which of the goal's attributes the product has: similar to one of the product's own, or
    part of its title, its bullets or its description."""
    return _attributes_met(goal.attributes, product)


def options_met(wanted: Sequence[Option], values: Iterable[str]) -> tuple[bool, ...]:
    """Which of the wanted options some of the selected `values` match."""
    forms = [_value_form(value) for value in values]
    return tuple(_has_similar(forms, _option_form(option)) for option in wanted)


def first_colour(text: str) -> str:
    """The colour that stands for `text`: the first of the list that occurs in it, else `text`.

    First in the list, not in the text, and anywhere inside a word:

    >>> first_colour("sky blue"), first_colour("rectangular"), first_colour("xx-large")
    ('blue', 'tan', 'xx-large')
    """
    return next((colour for colour in colours() if colour in text), text)


@cache
def colours() -> tuple[str, ...]:
    """The original's 102 colours, in its order."""
    path = files("agent_envs.webshop") / "data" / "colours.txt"
    return tuple(path.read_text(encoding="utf-8").split())


@lru_cache(maxsize=_PAIRS)
def _fixed_parts(
    kind: tuple[str, str, str, tuple[str, ...]], product: Product, nouns: Nouns
) -> tuple[float, bool, bool, float, tuple[bool, ...]]:
    """What price and options do not change: r_type, query match, category match, title score and
    the attributes met."""
    query, name, category, attributes = kind
    query_match = product.query == query
    category_match = len(_steps(product.product_category) & _steps(category)) >= 2
    wanted = nouns(name)
    if wanted:
        title_score = len(set(wanted) & set(nouns(product.title))) / len(wanted)
    else:
        title_score = TITLE_MATCH
    r_type = 1.0 if query_match or category_match or title_score > TITLE_MATCH else 0.5
    # These two hold whatever query and category say.
    if title_score < 0.1:
        r_type = 0.1
    if title_score == 0.0:
        r_type = 0.0
    return r_type, query_match, category_match, title_score, _attributes_met(attributes, product)


def _steps(category: str) -> set[str]:
    return {step.strip() for step in category.split("›")}


def _attributes_met(attributes: tuple[str, ...], product: Product) -> tuple[bool, ...]:
    own = [_processed(attribute) for attribute in product.attributes]
    texts: list[str] | None = None
    met = []
    for attribute in attributes:
        form = _processed(attribute)
        found = _has_similar(own, form)
        if not found:
            if texts is None:
                texts = [product.title, " ".join(product.bullets), product.description]
                texts = [text.lower() for text in texts]
            found = any(attribute in text for text in texts)
        met.append(found)
    return tuple(met)


@lru_cache(maxsize=_TEXTS)
def _value_form(value: str) -> str:
    return _processed(first_colour(value))


@lru_cache(maxsize=_TEXTS)
def _option_form(option: Option) -> str:
    # The original hands pairs on as they are: a colour stands for a pair only if it *is* the
    # group or the value, and what is compared is the pair as Python writes it.
    form = next((colour for colour in colours() if colour in option), option)
    return _processed(form if isinstance(form, str) else repr(form))


@lru_cache(maxsize=_TEXTS)
def _processed(text: str) -> str:
    """As thefuzz does it: no Latin-1 supplement, only letters and digits, lower case."""
    return default_process(text.translate(_LATIN_1))


_LATIN_1 = dict.fromkeys(range(128, 256))


def _has_similar(forms: Sequence[str], wanted: str) -> bool:
    """Whether one of `forms` is similar to `wanted`."""
    # A ratio of SIMILAR + 0.5 or more rounds to above SIMILAR: to an even number where it is half.
    least = SIMILAR + 0.5
    return extractOne(wanted, forms, scorer=token_set_ratio, score_cutoff=least) is not None
