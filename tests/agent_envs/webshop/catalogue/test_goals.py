"""Goals: which there are, in which order, with which weights, and what they say."""

from __future__ import annotations

import gzip
import itertools
import json
import random
from collections import defaultdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent_envs.errors import CorruptData, InvalidOption
from agent_envs.webshop.catalogue import Shop, goal_from_dict, goal_to_dict, goals
from agent_envs.webshop.catalogue.cleaning import clean_facts, clean_product
from agent_envs.webshop.catalogue.prices import limit_candidates
from agent_envs.webshop.model import NO_LIMIT, Goal
from tests.agent_envs.webshop.catalogue.raws import (
    asin,
    options,
    raw_facts,
    raw_human,
    raw_product,
    small_raw,
    small_shop,
)
from tests.support import run_python

# SHA-256 over the lines "asin, options as JSON" of the original's goals, in its own order after
# its shuffle, taken from a run of the original (64fa2a5) on the 1,000 products.
ORIGINALS_ORDER = {
    "synthetic": "dfd6a3a5b2462b03b26b230c2a533ab8c357dc04463d6ee20e739c6dad18308c",
    "human": "836827e04e664d19d14136fa764ffe832ef2be73480489723778f0a2fa7342c5",
}


def base_text(instruction: str) -> str:
    return instruction.split(", and price lower than ")[0]


def order_digest(told: list[dict[str, Any]]) -> str:
    lines = (f"{goal['asin']}, {json.dumps(goal['goal_options'] or [])}\n" for goal in told)
    return sha256("".join(lines).encode()).hexdigest()


def slow_goals(
    products: list[Any], facts: dict[str, Any], humans: dict[str, Any], kind: str
) -> list[dict[str, Any]]:
    """The rules, goal by goal: all of a kind without price limits, shuffled as the original."""
    made: list[dict[str, Any]] = []
    seen: set[str] = set()
    for raw in products:
        name = raw["asin"]
        if name in seen or name == "nan" or len(name) > 10:
            continue
        seen.add(name)
        product, _ = clean_product(raw, clean_facts(name, facts.get(name, {})))
        common = {
            "asin": name,
            "category": product.category,
            "query": product.query,
            "name": product.title,
            "product_category": product.product_category,
        }
        if kind == "human":
            for one in humans.get(name, ()):
                if one["instruction_attributes"]:
                    made.append(
                        common
                        | {
                            "instruction_text": one["instruction"].strip("."),
                            "attributes": one["instruction_attributes"],
                            "goal_options": one["instruction_options"],
                            "weight": 1.0,
                        }
                    )
        elif facts.get(name, {}).get("instruction") is not None:
            groups = sorted(product.options)
            for values in itertools.product(*(values for _, values in groups)):
                chosen = dict(zip((group for group, _ in groups), values, strict=True))
                said = ", and ".join(f"{group}: {value}" for group, value in chosen.items())
                text = facts[name]["instruction"] + (f" with {said}" if said else "")
                wanted = facts[name]["instruction_attributes"]
                made.append(
                    common
                    | {"instruction_text": text, "attributes": wanted, "goal_options": chosen}
                )
    if kind == "synthetic":
        counts: dict[str, int] = defaultdict(int)
        for goal in made:
            for attribute in goal["attributes"]:
                counts[attribute] += 1
        for goal in made:
            shares = [1 / counts[attribute] for attribute in goal["attributes"]]
            goal["weight"] = sum(shares) / len(shares)
    random.Random(233).shuffle(made)
    return made


def assert_same(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    assert len(ours) == len(theirs)
    for mine, its in zip(ours, theirs, strict=True):
        assert base_text(mine["instruction_text"]) == base_text(its["instruction_text"])
        assert abs(mine["weight"] - its["weight"]) <= 1e-12
        assert (mine["goal_options"] or []) == (its["goal_options"] or [])
        for key in ("asin", "category", "query", "name", "product_category", "attributes"):
            assert mine[key] == its[key]


# ---------------------------------------------------------------------------- the public set


def test_counts_of_the_public_set(real_shop: Shop) -> None:
    assert len(real_shop.catalogue) == 1000
    synthetic, human = real_shop.goals("synthetic"), real_shop.goals("human")
    assert (len(synthetic), synthetic.products) == (6910, 415)
    assert (len(human), human.products) == (13, 13)
    unlimited = {g.asin for g in synthetic if g.price_upper == NO_LIMIT}
    dear = [n for n in range(1000) if real_shop.catalogue.price(n) >= 980]
    assert len(dear) == 15
    assert unlimited <= {real_shop.catalogue.asin(n) for n in dear}


@pytest.mark.parametrize("kind", ["synthetic", "human"])
def test_goals_of_the_public_set_stand_in_the_originals_order(real_shop: Shop, kind: Any) -> None:
    told = [goal_to_dict(goal) for goal in real_shop.goals(kind)]
    assert order_digest(told) == ORIGINALS_ORDER[kind]


@pytest.mark.parametrize("kind", ["synthetic", "human"])
def test_goals_of_the_public_set_equal_a_slow_loop(
    real_shop: Shop, real_data: Path, kind: Any
) -> None:
    folder = real_data / "webshop_1k"
    files = [
        json.loads((folder / name).read_text(encoding="utf-8"))
        for name in (
            "items_shuffle_1000.json",
            "items_ins_v2_1000.json",
            "items_human_ins_1k.json",
        )
    ]
    told = [goal_to_dict(goal) for goal in real_shop.goals(kind)]
    assert_same(told, slow_goals(*files, kind))


@pytest.mark.parametrize(
    ("name", "kind", "episodes"),
    [
        ("text_synthetic", "synthetic", 220),
        ("text_rich_synthetic", "synthetic", 60),
        ("text_human", "human", 40),
    ],
)
def test_every_goal_of_the_transcripts_is_ours(
    real_shop: Shop, real_data: Path, name: str, kind: Any, episodes: int
) -> None:
    """But for the price limit, which the original draws anew each time."""
    with gzip.open(real_data / f"transcripts/webshop_{name}.jsonl.gz", "rt") as file:
        prices = json.loads(next(file))["meta"]["prices"]
        theirs = [json.loads(line)["goal"] for line in file]
    assert len(theirs) == episodes
    shop = real_shop.with_prices(prices)
    ours = {
        (told["asin"], base_text(told["instruction_text"]), json.dumps(told["goal_options"])): told
        for told in map(goal_to_dict, shop.goals(kind))
    }
    matched = []
    for goal in theirs:
        chosen = json.dumps(goal["goal_options"] or [])
        matched.append(ours[goal["asin"], base_text(goal["instruction_text"]), chosen])
        candidates = limit_candidates(prices[goal["asin"]])[1:] or (NO_LIMIT,)
        assert goal["price_upper"] in candidates
        assert matched[-1]["price_upper"] in candidates
    assert_same(matched, theirs)


def test_prices_of_the_transcripts_are_ours_or_in_our_ranges(
    real_shop: Shop, real_data: Path
) -> None:
    with gzip.open(real_data / "transcripts/webshop_text_synthetic.jsonl.gz", "rt") as file:
        prices = json.loads(next(file))["meta"]["prices"]
    drawn = 0
    for number, product in enumerate(real_shop.catalogue):
        low, high = min(product.price_range), max(product.price_range)
        assert low <= prices[product.asin] <= high
        assert low <= real_shop.catalogue.price(number) <= high
        drawn += len(product.price_range) > 1
    assert drawn == 93


# ---------------------------------------------------------------------------- hand-worked


def two_products() -> Shop:
    """Red is in 3 goals, light in 2 + 3 of them, soft in 2."""
    products = [
        raw_product(asin(1), customization_options=options(Size=["S", "L"])),
        raw_product(asin(2), customization_options=options(Shape=["a"], Color=["x", "y", "y"])),
        raw_product(asin(3)),
    ]
    facts = {
        asin(1): raw_facts("light", "soft", instruction="Find one"),
        asin(2): raw_facts("light", "red", instruction="Find two"),
        asin(3): raw_facts(instruction=None),
    }
    return Shop.from_raw(products, facts)


def test_synthetic_goals_hand_worked() -> None:
    """Groups sorted by name, the last varying fastest, repeated values as often as they come."""
    shop = two_products()
    made = list(shop.goals("synthetic"))
    order = list(range(5))
    random.Random(233).shuffle(order)
    unshuffled = [made[order.index(i)] for i in range(5)]
    assert [base_text(goal.instruction) for goal in unshuffled] == [
        "Find one with size: s",
        "Find one with size: l",
        "Find two with color: x, and shape: a",
        "Find two with color: y, and shape: a",
        "Find two with color: y, and shape: a",
    ]
    assert unshuffled[2].options == (("color", "x"), ("shape", "a"))
    assert [goal.weight for goal in unshuffled] == pytest.approx(
        [(1 / 5 + 1 / 2) / 2] * 2 + [(1 / 5 + 1 / 3) / 2] * 3, abs=1e-15
    )
    assert shop.goals("synthetic").weights.tolist() == [goal.weight for goal in made]
    assert len({goal.price_upper for goal in unshuffled[:2]}) == 1


def test_human_goals_hand_worked() -> None:
    humans = {
        asin(1): [raw_human("...i want it, e.g. red..."), raw_human("no", []), raw_human("again")]
    }
    shop = Shop.from_raw([raw_product(asin(1), pricing="$2,000")], {}, humans)
    made = shop.goals("human")
    assert sorted(goal.instruction for goal in made) == ["again", "i want it, e.g. red"]
    assert {(goal.options, goal.weight, goal.price_upper) for goal in made} == {
        (("red",), 1.0, NO_LIMIT)
    }
    assert shop.report.skip_counts() == {"no_goal_attributes": 1}


@pytest.mark.parametrize("kind", ["synthetic", "human"])
@pytest.mark.parametrize("products", [1, 7, 60])
def test_goals_equal_a_slow_loop(kind: Any, products: int) -> None:
    raw = small_raw(products)
    told = [goal_to_dict(goal) for goal in Shop.from_raw(*raw).goals(kind)]
    assert_same(told, slow_goals(*raw, kind))


def test_instructions_that_make_no_goal() -> None:
    products = [
        raw_product(asin(1)),
        raw_product(asin(2), customization_options={"Size": []}),
        raw_product(asin(3)),
        raw_product(asin(4)),
        raw_product(asin(5)),
    ]
    facts = {
        asin(1): {"attributes": ["a"], "instruction": "Find", "instruction_attributes": []},
        asin(2): raw_facts("light"),
        asin(3): {"attributes": ["a"], "instruction": "Find"},
        asin(4): raw_facts("light", instruction=""),
        "elsewhere": raw_facts("light"),
    }
    humans = {
        asin(1): [{"instruction_attributes": ["x"]}],
        asin(9): [raw_human(), raw_human()],
    }
    shop = Shop.from_raw(products, facts, humans)
    assert [base_text(goal.instruction) for goal in shop.goals("synthetic")] == [""]
    assert len(shop.goals("human")) == 0
    assert shop.report.skip_counts() == {
        "no_goal_attributes": 2,
        "no_instruction": 1,
        "no_option_values": 1,
        "unknown_product": 2,
    }
    assert shop.report.note_counts() == {"not_in_attributes": 1}


def test_a_product_of_too_many_combinations_is_named() -> None:
    groups = {f"G{i}": [str(v) for v in range(100)] for i in range(5)}
    products = [raw_product(asin(8), customization_options=options(**groups))]
    with pytest.raises(CorruptData, match=r"B000000008.*10,000,000,000"):
        Shop.from_raw(products, {asin(8): raw_facts("light")})


def test_numbers_beyond_the_list_are_errors() -> None:
    made = small_shop().goals("synthetic")
    for wrong in (-1, len(made), 10**30):
        with pytest.raises(IndexError):
            made[wrong]
        with pytest.raises(IndexError):
            made.split_of(wrong)
    with pytest.raises(InvalidOption):
        small_shop().goals("people")  # type: ignore[arg-type]


def test_goals_kept_are_bounded() -> None:
    made = small_shop(60).goals("synthetic")
    assert [made[n] is made[n] for n in range(len(made))] == [True] * len(made)
    assert made._goal.cache_info().maxsize == goals.GOALS_KEPT


# ---------------------------------------------------------------------------- keys of draws


SHOP_OF = """
import json, random, sys
from agent_envs.webshop.shop import load_shop
random.seed(int(sys.argv[1]))
before = random.getstate()
shop = load_shop(sys.argv[2], price_seed=int(sys.argv[3]))
goals = {k: [(g.instruction, g.price_upper) for g in shop.goals(k)] for k in ("human", "synthetic")}
prices = [shop.catalogue.price(n) for n in range(len(shop.catalogue))]
assert random.getstate() == before
print(json.dumps([goals, prices, shop.revision]))
"""


def test_o10_a_goal_number_means_the_same_in_every_process(real_data: Path) -> None:
    source = str(real_data / "webshop_1k")
    told = [run_python(SHOP_OF, *args) for args in (("1", source, "0"), ("2", source, "0"))]
    assert told[0] == told[1]
    other = json.loads(run_python(SHOP_OF, "1", source, "7"))
    first = json.loads(told[0])
    assert other[2] != first[2]
    assert [text for text, _ in other[0]["synthetic"]] != [
        text for text, _ in first[0]["synthetic"]
    ]
    assert [base_text(text) for text, _ in other[0]["synthetic"]] == [
        base_text(text) for text, _ in first[0]["synthetic"]
    ]


def test_o10_building_a_shop_leaves_the_global_random_numbers_alone() -> None:
    random.seed(3)
    np.random.seed(3)
    before, numpy_before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[union-attr]
    shop = small_shop()
    list(shop.goals("synthetic"))
    assert random.getstate() == before
    assert np.random.get_state()[1].tolist() == numpy_before  # type: ignore[union-attr]


def test_limits_follow_given_prices() -> None:
    shop = small_shop()
    dear = shop.with_prices({product.asin: 985.0 for product in shop.catalogue})
    assert {goal.price_upper for goal in dear.goals("synthetic")} == {NO_LIMIT}
    assert dear.revision != shop.revision
    assert dear.index is shop.index
    assert shop.with_prices({}).revision == shop.revision
    assert dear.with_price_seed(1).catalogue.price(0) == 985.0


# ---------------------------------------------------------------------------- as dictionaries


def test_dictionaries_round_trip(real_shop: Shop) -> None:
    for kind in ("synthetic", "human"):
        for goal in itertools.islice(real_shop.goals(kind), 300):  # type: ignore[arg-type]
            assert goal_from_dict(goal_to_dict(goal)) == goal
            assert goal_from_dict(json.loads(json.dumps(goal_to_dict(goal)))) == goal


def test_missing_keys_have_defined_values() -> None:
    assert goal_from_dict({"instruction_text": "find it"}) == Goal(
        "", "", "", "", "", "find it", (), NO_LIMIT, (), 1.0
    )
    goal = goal_from_dict({"instruction_text": "find it", "price_upper": None, "weight": 0})
    assert (goal.price_upper, goal.weight) == (None, 0.0)
    assert goal_to_dict(goal)["price_upper"] is None


@pytest.mark.parametrize(
    ("told", "part"),
    [
        ([], "a dict"),
        ({}, "missing"),
        ({"instruction_text": ""}, "empty"),
        ({"instruction_text": 3}, "instruction_text"),
        ({"instruction_text": "x", "asin": None}, "asin"),
        ({"instruction_text": "x", "attributes": "red"}, "attributes"),
        ({"instruction_text": "x", "attributes": [1]}, "attributes"),
        ({"instruction_text": "x", "goal_options": {"a": 1}}, "goal_options"),
        ({"instruction_text": "x", "goal_options": "red"}, "goal_options"),
        ({"instruction_text": "x", "price_upper": "20"}, "price_upper"),
        ({"instruction_text": "x", "price_upper": True}, "price_upper"),
        ({"instruction_text": "x", "price_upper": float("nan")}, "price_upper"),
        ({"instruction_text": "x", "weight": None}, "weight"),
        ({"instruction_text": "x", "price": 3}, "'price'"),
    ],
)
def test_dictionaries_of_another_shape_are_refused(told: Any, part: str) -> None:
    with pytest.raises(InvalidOption, match=part):
        goal_from_dict(told)


def test_numbers_of_a_goal_that_no_float_holds() -> None:
    for key in ("price_upper", "weight"):
        for wrong in (10**400, 10**5000):
            with pytest.raises(InvalidOption, match=f"`{key}` of a goal"):
                goal_from_dict({"instruction_text": "x", key: wrong})
    for told in ([10**5000], {10**5000: 1}, {"instruction_text": "x", "query": [10**5000]}):
        with pytest.raises(InvalidOption):
            goal_from_dict(told)  # type: ignore[arg-type]
