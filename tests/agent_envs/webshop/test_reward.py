"""The reward rule on small products, by hand, and beside a slow loop written from the rule.

1. Every part has the value that the published rule gives, oddities included.
2. Where the original fails, the value is the one that docs/webshop_reward.md names.
3. What is remembered between calls changes nothing.

On the recorded purchases of the original it is tested in test_reward_transcripts.py.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_envs.webshop import reward
from agent_envs.webshop.model import NO_LIMIT, Goal, Product, RewardInfo
from agent_envs.webshop.reward import colours, first_colour, options_met, score

MUG = Product(
    asin="B000000001",
    title="Blue Ceramic Mug, 350 ml",
    description="Keeps TEA warm.",
    bullets=("Dishwasher safe.", "Made in Delft"),
    price_tag="$12.5",
    price_range=(12.5,),
    category="garden",
    query="mugs",
    product_category="Home & Kitchen › Dining › Mugs",
    options=(("color", ("sky blue", "white")), ("size", ("small", "large"))),
    attributes=("hand painted", "bpa free"),
)
GOAL = Goal(
    asin=MUG.asin,
    category="garden",
    query="mugs",
    name=MUG.title,
    product_category=MUG.product_category,
    instruction="find me a mug",
    attributes=("hand painted", "dishwasher safe"),
    price_upper=20.0,
    options=(("color", "sky blue"), ("size", "small")),
)


def words(title: str) -> Sequence[str]:
    """All words are nouns here."""
    return tuple(title.lower().replace(",", "").split())


def total(goal: Goal, product: Product = MUG, price: float = 12.5, *values: str) -> float:
    return score(goal, product, price, [(str(i), v) for i, v in enumerate(values)], words)[0]


def test_all_parts_of_a_perfect_purchase() -> None:
    options = (("color", "sky blue"), ("size", "small"))
    assert score(GOAL, MUG, 12.5, options, words) == (
        1.0,
        RewardInfo(
            r_type=1.0,
            r_att=1.0,
            w_att=2 / 5,
            query_match=1.0,
            category_match=1.0,
            title_score=1.0,
            r_price=1.0,
            w_price=1 / 5,
            r_option=1.0,
            w_option=2 / 5,
        ),
    )


def test_each_part_is_lost_alone() -> None:
    # 2 attributes + 2 options + 1 price
    assert total(GOAL, MUG, 12.5, "sky blue", "small") == 1.0
    assert total(GOAL, MUG, 20.0, "sky blue", "small") == 1.0  # the cap is allowed
    assert total(GOAL, MUG, 20.01, "sky blue", "small") == 4 / 5
    assert total(GOAL, MUG, 12.5, "small") == 4 / 5
    assert total(GOAL, MUG, 12.5) == 3 / 5
    assert total(GOAL._replace(attributes=("hand painted", "wooden"))) == 2 / 5
    assert total(GOAL._replace(attributes=("steel", "wooden")), MUG, 99.0) == 0.0


@pytest.mark.parametrize(
    ("attribute", "met"),
    [
        ("paint", False),  # 59 of 100: similar is not part of
        ("painted hand", True),  # one set of words
        ("hand-painted", True),  # punctuation is a space
        ("free bpa mug", True),  # the words of "bpa free" are all in it
        ("ceramic mug", True),  # in the title
        ("safe. made", True),  # across two bullets
        ("tea warm", True),  # in the description, lower-cased
        ("Dishwasher", False),  # the goal's own case is kept
        ("", True),  # part of every text
        ("hand paintes", True),  # 92
    ],
)
def test_attributes(attribute: str, met: bool) -> None:
    assert reward.attributes_met(GOAL._replace(attributes=(attribute,)), MUG) == (met,)


@pytest.mark.parametrize(
    ("wanted", "value", "met"),
    [
        ("navy blue", "sky blue", True),  # both are blue
        ("navy", "sky blue", False),
        (("color", "navy blue"), "sky blue", True),  # blue is among the pair's words
        (("color", "navy blue"), "navy", True),
        (("color", "sky blue"), "navy", False),
        (("shape", "rectangular"), "rectangular", False),  # the value becomes tan, the pair stays
        ("rectangular", "rectangular", True),
        (("color", "red"), "dark red", False),  # dark comes first in the list; the pair is red
        (("color", "red"), "reduced", True),
        (("color", "red"), "color", False),  # a pair with a colour in it is that colour alone
        (("color", "scarlet"), "color", True),  # else the group's name counts too
        (("red", "small"), "small", False),
        (("size", "6 x 9"), "9 x 6", True),
        (("size", "x-large"), "xx-large", False),  # 84: 'size x large' against 'xx large'
        (("size", "größe 1"), "gre 1", True),  # letters of Latin-1 are dropped
        (("size", "5'"), "5", True),
        (("a", "b"), "", False),
    ],
)
def test_options(wanted: str | tuple[str, str], value: str, met: bool) -> None:
    assert options_met((wanted,), [value]) == (met,)


def test_groups_of_selected_options_are_ignored() -> None:
    assert total(GOAL, MUG, 12.5, "small", "sky blue") == 1.0
    both = GOAL._replace(options=(("a", "small"), ("b", "small")))
    assert total(both, MUG, 12.5, "small") == 1.0  # one value, two options


def test_pairs_are_compared_as_python_writes_them() -> None:
    # repr escapes the no-break space, and "xa0" is then a word of the option
    assert options_met((("size", "one\xa0two"),), ["two"]) == (False,)
    assert options_met((("size", "one two"),), ["two"]) == (True,)


def test_rounding_decides_at_the_border(monkeypatch: pytest.MonkeyPatch) -> None:
    for exact, met in ((85.49, False), (85.5, True), (86.0, True), (85.0, False)):
        monkeypatch.setattr(reward, "token_set_ratio", lambda *_, exact=exact, **__: exact)
        assert options_met((("a", "b"),), ["c"]) == (met,)


OTHER = MUG._replace(query="cups", product_category="Home & Kitchen › Cups", asin="B000000002")


@pytest.mark.parametrize(
    ("title", "query", "category", "r_type", "title_score"),
    [
        ("one", "mugs", "", 0.0, 0.0),  # nothing in common beats the same query
        ("a", "cups", "", 0.5, 0.2),  # at 0.2 the titles alone do not match
        ("a", "mugs", "", 1.0, 0.2),
        ("a b", "cups", "", 1.0, 0.4),
        ("a", "cups", "Home & Kitchen ›Mugs", 1.0, 0.2),  # two steps in common, in any order
        ("a", "cups", "Mugs › Home & Kitchen", 1.0, 0.2),
        ("a", "cups", "Mugs › Mugs", 0.5, 0.2),
    ],
)
def test_type(title: str, query: str, category: str, r_type: float, title_score: float) -> None:
    goal = GOAL._replace(name="a b c d e")
    product = OTHER._replace(title=title, query=query, product_category=category)
    value, info = score(goal, product, 12.5, (), words)
    assert (info.r_type, info.title_score) == (r_type, title_score)
    assert (info.query_match, info.category_match) == (query == "mugs", "Home" in category)
    assert value == 3 / 5 * r_type


def test_a_low_title_score_beats_query_and_category() -> None:
    goal = GOAL._replace(name="a b c d e f g h i j k")
    value, info = score(goal, MUG._replace(title="a"), 12.5, (), words)
    assert (info.query_match, info.category_match, info.title_score) == (1.0, 1.0, 1 / 11)
    assert info.r_type == 0.1
    assert value == 3 / 5 * 0.1


def test_nouns_of_the_goal_count_once_each_but_divide_by_all() -> None:
    goal = GOAL._replace(name="mug mug mug tea")
    assert score(goal, MUG._replace(title="mug"), 1.0, (), words)[1].title_score == 1 / 4


def test_no_price_cap() -> None:
    for cap in (None, NO_LIMIT):
        value, info = score(GOAL._replace(price_upper=cap), MUG, 999.0, (), words)
        assert (value, info.r_price) == (3 / 5, 1.0)
    for cap in (0.0, -1.0):  # the original fails here
        assert score(GOAL._replace(price_upper=cap), MUG, 1.0, (), words)[1].r_price == 0.0


def test_goals_that_ask_for_little() -> None:
    bare = GOAL._replace(attributes=(), options=())
    value, info = score(bare, MUG, 12.5, (("size", "small"),), words)
    assert value == 1.0
    assert (info.r_att, info.w_att, info.w_price) == (1.0, 0.0, 1.0)
    assert (info.r_option, info.w_option) == (None, None)
    assert score(bare, MUG, 30.0, (), words)[0] == 0.0
    assert total(bare._replace(options=("small",)), MUG, 30.0, "small") == 1 / 2


def test_titles_without_nouns() -> None:
    def none(title: str) -> Sequence[str]:
        return words(title) if title == MUG.title else ()

    nameless = GOAL._replace(name="")
    assert score(nameless, MUG, 12.5, (), none)[1].title_score == 0.2
    assert score(nameless, MUG, 12.5, (), none)[1].r_type == 1.0  # by query or category
    assert score(nameless, OTHER, 12.5, (), none)[1].r_type == 0.5
    empty = MUG._replace(title="")
    assert score(GOAL, empty, 12.5, (), none)[0] == 0.0
    assert score(nameless, empty, 12.5, (), none)[1].r_type == 1.0


def test_the_same_asin_with_other_content_is_another_product() -> None:
    assert total(GOAL._replace(attributes=("wooden",)), MUG) == 1 / 4
    assert (
        total(GOAL._replace(attributes=("wooden",)), MUG._replace(attributes=("wooden",))) == 1 / 2
    )
    assert total(GOAL._replace(attributes=("wooden",)), MUG) == 1 / 4


def test_colours_are_the_published_list() -> None:
    assert len(colours()) == len(set(colours())) == 102
    assert colours()[:3] == ("alabaster", "apricot", "aqua")
    assert colours()[-3:] == ("white", "wine", "yellow")
    assert colours() == tuple(sorted(colours()))
    assert first_colour("dark green") == "dark"
    assert first_colour("Blue") == "Blue"  # case counts; values are lower-cased before


WORDS = (
    "red|blue|navy|sky|rectangular|small|x-large|5'|é|ü|/|(|"
    'color|size|shape|tan|one\xa0|dark|\\|"|ß|®'
)
TOKENS = st.sampled_from([*WORDS.split("|"), "|"])
PHRASE = st.lists(TOKENS, min_size=1, max_size=4).map(" ".join)
OPTION = st.one_of(PHRASE, st.tuples(PHRASE, PHRASE))


@given(PHRASE, OPTION)
def test_options_as_thefuzz_judges_them(value: str, wanted: str | tuple[str, str]) -> None:
    fuzz = pytest.importorskip("thefuzz.fuzz", reason="extra webshop-reference is not installed")

    def shade(text: str | tuple[str, str]) -> str | tuple[str, str]:
        for colour in colours():
            if colour in text:
                return colour
        return text

    assert options_met((wanted,), [value]) == (
        fuzz.token_set_ratio(shade(value), shade(wanted)) > 85,
    )


def test_ten_thousand_pairs_as_thefuzz_judges_them() -> None:
    """Random words of a small alphabet, so that scores fall on both sides of the border."""
    fuzz = pytest.importorskip("thefuzz.fuzz", reason="extra webshop-reference is not installed")
    draw = random.Random(5)
    letters = "aabcde éß'’-1 /"
    near = 0
    for _ in range(10_000):
        one, other = (
            "".join(draw.choice(letters) for _ in range(draw.randrange(3, 14))) for _ in range(2)
        )
        if draw.random() < 0.5:
            other = one + draw.choice(letters) + draw.choice(letters)
        published = fuzz.token_set_ratio(one, other)
        found = reward._has_similar([reward._processed(one)], reward._processed(other))
        assert found == (published > 85)
        near += 80 <= published <= 92
    assert near > 500


def test_what_is_remembered_is_bounded() -> None:
    assert reward._fixed_parts.cache_info().maxsize == 1024
    for cached in (reward._processed, reward._value_form, reward._option_form):
        assert cached.cache_info().maxsize is not None
    value, info = score(GOAL, MUG, 12.5, (), words)
    reward._fixed_parts.cache_clear()
    assert score(GOAL, MUG, 12.5, (), words) == (value, info)
