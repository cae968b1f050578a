"""Pages as HTML say what the pages as text say, and nothing else."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import pytest

from agent_envs.webshop.catalogue import Shop
from agent_envs.webshop.engine import Rules, clickables, engine_of, observe, start, step
from agent_envs.webshop.model import Goal, Page, Purchase, Session
from agent_envs.webshop.site.markup import page_html
from tests.agent_envs.webshop import shops
from tests.agent_envs.webshop.site.reading import Read
from tests.support import full_count

RULES = Rules(show_attributes=True)
SECRET_GOAL = Goal(
    asin="SECRETASIN",
    category="secret category",
    query="secret query",
    name="secret name",
    product_category="secret › path",
    instruction='buy <i>this</i> & "that" at 5\'s',
    attributes=("secret attribute",),
    price_upper=12345.0,
    options=(("secret group", "secret value"),),
)


def links(session: Session) -> str:
    """Addresses with all that could hurt in an attribute."""
    return f"/to?{tuple(session)!r}\"'<>&"


def html(shop: Shop, goal: Goal, session: Session, bought: Purchase | None) -> str:
    return page_html(shop, goal, session, bought, links, rules=RULES)


def walk(shop: Shop, goal: Goal, rng: Random, steps: int) -> list[tuple[Session, Any]]:
    """Sessions that a shopper goes through, and what was bought."""
    session, bought, seen = start(), None, []
    for _ in range(steps):
        seen.append((session, bought))
        listed = clickables(shop, session, show_attributes=True)
        action = f"search[{rng.choice((*shops.QUERIES, goal.instruction))}]"
        if listed and rng.random() < 0.85:
            action = f"click[{rng.choice(listed)}]"
        session, _, bought = step(shop, goal, session, action, RULES)
        if session.page == Page.DONE:
            seen.append((session, bought))
            session, bought = start(), None
    return seen


def check(shop: Shop, goal: Goal, seen: list[tuple[Session, Any]]) -> set[int]:
    for session, bought in seen:
        page = Read(html(shop, goal, session, bought))
        assert page.shown == observe(shop, goal, session, RULES)
        if session.page == Page.INDEX:
            assert page.clickables == ("search",)
        else:
            assert page.clickables == clickables(shop, session, show_attributes=True)
    return {session.page for session, _ in seen}


def test_the_texts_of_a_page_are_the_observation() -> None:
    shop = shops.shop()
    engine = engine_of(shop, RULES)  # kept, so that its caches are
    seen = walk(shop, SECRET_GOAL, Random(3), 400)
    assert check(shop, SECRET_GOAL, seen) == set(map(int, Page))
    assert any(session.options for session, _ in seen)
    assert any(session.sub == "Attributes" for session, _ in seen)
    del engine


def test_the_texts_of_the_real_pages_are_the_observations(real_shop: Shop) -> None:
    engine = engine_of(real_shop, RULES)
    goals = real_shop.goals("synthetic")
    for number in range(full_count(5, 60)):
        check(real_shop, goals[number], walk(real_shop, goals[number], Random(number), 25))
    del engine


def test_every_product_of_the_real_shop_is_shown_exactly(real_shop: Shop) -> None:
    engine = engine_of(real_shop, RULES)
    sample = range(0, len(real_shop.catalogue), full_count(10, 1))
    for number in sample:
        item = Session(Page.ITEM, "x", 1, number, "", (), (number,))
        below = [
            item._replace(page=Page.SUB, sub=name)
            for name in ("Description", "Features", "Attributes")
        ]
        check(real_shop, SECRET_GOAL, [(session, None) for session in (item, *below)])
    del engine


def test_nothing_of_the_goal_but_its_sentence_is_in_a_page() -> None:
    shop = shops.shop()
    for session, bought in walk(shop, SECRET_GOAL, Random(5), 150):
        source = html(shop, SECRET_GOAL, session, bought)
        assert "secret" not in source.lower()
        assert "12345" not in source


def test_everything_is_escaped() -> None:
    shop = shops.shop()
    for session, bought in walk(shop, SECRET_GOAL, Random(6), 150):
        source = html(shop, SECRET_GOAL, session, bought)
        page = Read(source)
        tags = {element.tag for element in page.elements}
        assert not tags & {"b", "i", "iframe", "object", "style", "base"}
        scripts = [e for e in page.elements if e.tag == "script"]
        assert [e.attributes["src"] for e in scripts] == ["/static/shop.js"]
        assert all(e.text == "" for e in scripts)
        for element in page.elements:
            assert not [name for name in element.attributes if name.startswith("on")]
            assert "style" not in element.attributes
            # Nothing is fetched from outside: where the photograph is, is only noted.
            for name in ("src", "href", "action"):
                assert not re.match(r"\s*(\w+:|//)", element.attributes.get(name, ""))


def test_carriage_returns_and_what_html_cannot_hold() -> None:
    goal = SECRET_GOAL._replace(instruction="one\rtwo\x00three\ud800four")
    source = html(shops.shop(), goal, start(), None)
    assert "one&#13;two\ufffdthree\ufffdfour" in source
    source.encode()


@pytest.mark.parametrize("number", [0, 2])
def test_the_item_page_keeps_the_original_s_names(number: int) -> None:
    """What agents and scripts for the original's site look for."""
    shop = shops.shop()
    selected = (("color", "navy blue"),)
    session = Session(Page.ITEM, "desk", 1, number, "", selected, (number,))
    page = Read(html(shop, SECRET_GOAL, session, None))
    assert page.named("instruction-text").text.strip().startswith("Instruction:")
    assert page.named("product-image").attributes["src"] == "/static/garden.svg"
    assert page.named("product-image").attributes["data-image"].startswith("https://images.")
    groups = {"color": list(shops.COLOURS), "size": ["s", "m"]}
    told = [(e.attributes["name"], e.attributes["value"]) for e in page.radios]
    assert told == [(group, value) for group, values in groups.items() for value in values]
    checked = [e.attributes["value"] for e in page.radios if "checked" in e.attributes]
    assert checked == ["navy blue"]
    labels = {e.attributes["for"]: e.text for e in page.elements if e.tag == "label"}
    assert [labels[e.attributes["id"]] for e in page.radios] == [value for _, value in told]
    by_value = {e.attributes["value"]: e.attributes["data-url"] for e in page.radios}
    assert by_value["red"] == links(session._replace(options=(("color", "red"),)))
    assert by_value["m"] == links(session._replace(options=(*selected, ("size", "m"))))


def test_results_and_sub_pages_keep_the_original_s_names() -> None:
    shop = shops.shop()
    results = Read(html(shop, SECRET_GOAL, Session(Page.RESULTS, "desk"), None))
    assert len(results.having("searched-product")) == 10
    for name in ("product-asin", "product-title", "product-price"):
        assert len(results.having(name)) == 10
    links_ = results.having("product-link")
    assert [e.text for e in links_] == [e.text.strip() for e in results.having("product-asin")]
    sub = Session(Page.SUB, "desk", 1, 0, "Attributes", (), (0,))
    page = Read(html(shop, SECRET_GOAL, sub, None))
    assert [e.text for e in page.having("attribute")] == [" easy clean", " desk 00"]
    assert page.having("product-category")[0].text == "garden"
    assert page.having("product-query")[0].text == "desks"
    assert page.having("product-product_category")[0].text == "Home › Furniture › Desks"
    features = Read(html(shop, SECRET_GOAL, sub._replace(sub="Features"), None))
    assert [e.text for e in features.having("product-info")] == [" Sturdy", " Easy to clean"]


def test_the_reward_stands_where_the_original_has_it() -> None:
    shop = shops.shop()
    goal = shop.goals("human")[0]
    session = Session(Page.DONE, "desk", 1, 0, "", (("size", "s"), ("color", "red")), (0,))
    bought = engine_of(shop, RULES).purchase(goal, session)
    page = Read(html(shop, goal, session, bought))
    assert re.sub(r"\s", "", page.named("reward").text).endswith(str(bought.reward))
    assert float(page.named("reward").text.split()[-1]) == bought.reward
    assert page.named("options").text == 'options{"color": "red", "size": "s"}'
    assert page.named("asin").text == f"asin{shops.DESKS[0]}"
