"""From page to page: what each click does, what is refused, what is remembered."""

from __future__ import annotations

from random import Random

import pytest

from agent_envs.errors import InvalidOption
from agent_envs.webshop import compat, engine
from agent_envs.webshop.actions import click
from agent_envs.webshop.engine import DONE, INDEX, ITEM, RESULTS, START, SUB, Rules, engine_of
from agent_envs.webshop.model import Session
from tests.agent_envs.webshop.shops import DESKS, ODD, shop

PLAIN, ATTRIBUTES, COMPAT = Rules(), Rules(show_attributes=True), Rules(compat=True)


def number(asin: str) -> int:
    found = shop().catalogue.number_of(asin)
    assert found is not None
    return found


def follow(*actions: str, rules: Rules = PLAIN, session: Session = START) -> Session:
    """The session after actions that are all accepted."""
    for action in actions:
        goal = shop().goals("synthetic")[0]
        session, accepted, _ = engine.step(shop(), goal, session, action, rules, "7")
        assert accepted, action
    return session


def refused(session: Session, *actions: str, rules: Rules = PLAIN) -> bool:
    """Whether all of the actions are refused, and leave the session as it is."""
    goal = shop().goals("synthetic")[0]
    answers = [engine.step(shop(), goal, session, action, rules, "7") for action in actions]
    return all(answer == (session, False, None) for answer in answers)


def at_desk(*more: str) -> Session:
    return follow("search[Desk]", click(DESKS[0].lower()), *more)


def test_a_search_is_taken_on_every_page() -> None:
    for session in (
        START,
        follow("search[lamp]"),
        at_desk(),
        at_desk("click[features]"),
        at_desk("click[buy now]"),
    ):
        after = follow("search[Red SHOES]", session=session)
        assert after == Session(RESULTS, "red shoes", 1, -1, "", (), session.visited)


def test_the_argument_is_lowered_and_the_name_is_not() -> None:
    assert follow("click[B0DESK0000]", session=follow("search[desk]")).product == number(DESKS[0])
    results = follow("search[desk]")
    assert refused(results, "CLICK[next >]", "Search[desk]", "click[next]", " click[next >]")
    assert refused(results, "", "click", "click[]", "search[]", "search[\n]", "say search[desk]")
    assert refused(START, "click[search]", "click[back to search]", "search[a [b]]")
    assert follow("click[next >] please", session=results).number == 2


def test_an_action_that_is_too_long_is_refused() -> None:
    assert refused(START, f"search[{'a' * 5000}]")
    assert follow(f"search[{'a' * 4000}]").page == RESULTS


def test_results_can_be_turned_past_the_end() -> None:
    session = follow("search[desk]", "click[next >]", "click[next >]")
    assert session.number == 3
    assert engine.clickables(shop(), session) == ("back to search", "< prev", "next >")
    text = engine.observe(shop(), shop().goals("synthetic")[0], session)
    assert text.endswith("Page 3 (Total results: 13) [SEP] < Prev [SEP] Next >")
    assert follow("click[< prev]", session=session).number == 2
    assert refused(follow("search[desk]"), "click[< prev]")


def test_a_search_that_finds_nothing() -> None:
    session = follow("search[zyzzyva]")
    text = engine.observe(shop(), shop().goals("synthetic")[0], session)
    assert text.endswith("Page 1 (Total results: 0) [SEP] Next >")
    assert engine.clickables(shop(), session) == ("back to search", "next >")


def test_the_page_of_results_is_found_again() -> None:
    session = follow("search[desk]", "click[next >]")
    shown = engine_of(shop()).view(session).products
    assert len(shown) == 3
    link = click(shop().catalogue.asin(shown[1]).lower())
    item = follow(link, "click[description]", session=session)
    assert (item.page, item.sub, item.product, item.number) == (SUB, "Description", shown[1], 2)
    back = follow("click[< prev]", "click[< prev]", session=item)
    assert back == session._replace(visited=(shown[1],))


def test_options_of_a_group_replace_each_other_and_keep_their_place() -> None:
    session = at_desk("click[red]", "click[m]", "click[café]")
    assert session.options == (("color", "café"), ("size", "m"))
    assert follow("click[features]", "click[< prev]", session=session) == session
    assert follow("click[café]", session=session) == session
    # Leaving for the results forgets them.
    assert follow("click[< prev]", session=session).options == ()
    assert follow("search[desk]", session=session).options == ()


def test_visits_are_remembered_until_the_first_page() -> None:
    one, two = (click(asin.lower()) for asin in DESKS[:2])
    session = follow("search[desk]", one, "click[< prev]", two, "click[< prev]", one)
    assert session.visited == (number(DESKS[0]), number(DESKS[1]))
    assert follow("search[lamp]", session=session).visited == session.visited
    assert follow("click[back to search]", session=session) == START


def test_a_purchase() -> None:
    goals = shop().goals("synthetic")
    goal = next(goal for goal in goals if goal.asin == DESKS[0] and goal.options[0][1] == "red")
    wanted = [click(value) for _, value in goal.options]
    session, accepted, bought = engine.step(shop(), goal, at_desk(*wanted), "click[buy now]")
    assert accepted
    assert bought is not None
    assert (session.page, bought.reward, bought.price) == (DONE, 1.0, 20.5)
    assert bought.options == session.options
    assert engine.clickables(shop(), session) == ()
    assert refused(session, "click[buy now]", "click[back to search]")


def test_clickables_are_the_original_s_list() -> None:
    assert engine.clickables(shop(), START) == ()
    odd = follow("search[odd lamp]", click(ODD.lower()))
    buttons = ("back to search", "< prev", "description", "features", "reviews")
    values = ("red", "blue", "2 pack [blue]", "a | b")
    # "buy now" is button and option, "blue" an option of both groups: each is listed once.
    more = ("attributes", "search", "next >", "two\nlines", "")
    assert engine.clickables(shop(), odd) == (*buttons, "buy now", *values, *more)
    assert engine.clickables(shop(), odd, show_attributes=True) == (
        *buttons,
        "attributes",
        "buy now",
        *values,
        *more[1:],
    )
    sub = follow("click[reviews]", session=odd)
    assert engine.clickables(shop(), sub) == ("back to search", "< prev")


def test_every_listed_command_is_accepted() -> None:
    for rules in (PLAIN, ATTRIBUTES, COMPAT):
        shared, rng = engine_of(shop(), rules), Random(0)
        for _ in range(40):
            session = follow("search[odd desk lamp]", rules=rules)
            for _ in range(rng.randrange(6)):
                commands = shared.view(session).commands
                session = follow(rng.choice(commands), rules=rules, session=session)
                if session.page in (INDEX, DONE):
                    break
            for command in shared.view(session).commands:
                assert shared.advance(session, shared.view(session), command, "7") is not None


def test_options_out_of_the_original_s_reach_can_be_selected() -> None:
    odd = follow("search[odd lamp]", click(ODD.lower()))
    cases = [
        ("2 pack [blue]", "color"),
        ("two\nlines", "size"),
        ("attributes", "size"),
        ("search", "size"),
        ("", "size"),
    ]
    for value, group in cases:
        assert follow(click(value), session=odd).options == ((group, value),)
    assert follow("click[2 Pack [BLUE]]", session=odd).options == (("color", "2 pack [blue]"),)
    assert refused(odd, "click[2 pack [red]]", "click[blue] click[red]")
    # A button wins, and of a value that two groups have the last one counts, as in the original.
    assert follow("click[buy now]", session=odd).page == DONE
    assert follow("click[blue]", session=odd).options == (("size", "blue"),)


def test_attributes_are_a_page_only_where_there_is_a_button() -> None:
    odd = follow("search[odd lamp]", click(ODD.lower()))
    shown = follow("click[attributes]", session=odd, rules=ATTRIBUTES)
    assert (shown.page, shown.sub) == (SUB, "Attributes")
    assert refused(at_desk(), "click[attributes]")


def test_compat_brings_back_what_the_original_cannot_click() -> None:
    odd = follow("search[odd lamp]", click(ODD.lower()), rules=COMPAT)
    assert refused(odd, "click[2 pack [blue]]", "click[two\nlines]", "click[search]", rules=COMPAT)
    assert refused(odd, "click[]", rules=COMPAT)
    listed = engine_of(shop(), COMPAT).view(odd)
    assert "2 pack [blue]" in listed.clickables
    assert "click[2 pack [blue]]" not in listed.commands
    # It goes by the text, so an option called like a page leads there, button or not.
    assert follow("click[attributes]", session=odd, rules=COMPAT).sub == "Attributes"


def test_compat_takes_a_page_for_what_its_address_says() -> None:
    words = {
        "desk search_results": RESULTS,  # and the page before the first one is empty
        "desk item_page": RESULTS,
        "desk done": ITEM,
    }
    for query, page in words.items():
        item = follow(f"search[{query}]", click(DESKS[0].lower()), rules=COMPAT)
        sub = follow("click[features]", session=item, rules=COMPAT)
        after = follow("click[< prev]", session=sub, rules=COMPAT)
        assert after.page == page
        assert after.number == (0 if "search_results" in query else 1)
        assert follow("click[< prev]", session=sub).page == ITEM
        if "search_results" in query:
            assert engine_of(shop(), COMPAT).view(after).products == ()
            assert follow("click[next >]", session=after, rules=COMPAT).number == 1


def test_compat_counts_on_where_an_option_is_called_next() -> None:
    odd = follow("search[odd lamp search_results]", click(ODD.lower()), rules=COMPAT)
    assert follow("click[next >]", session=odd, rules=COMPAT).number == 2
    assert follow("click[next >]", session=odd).options == (("size", "next >"),)


def test_magic_words_search_only_under_compat() -> None:
    names = {"<c> electronics": (ODD,), "<c> garden x": (*DESKS, "B0BARE0001"), "<q> lamps": (ODD,)}
    names["<a> desk 05"] = (DESKS[5],)
    names["<c>"] = ()
    for query, asins in names.items():
        session = follow(f"search[{query}]", rules=COMPAT)
        found = engine.hits(shop(), session, COMPAT)
        assert [shop().catalogue.asin(n) for n in found] == list(asins)
    query = "search[<a> easy clean]"
    assert len(engine.hits(shop(), follow(query, rules=COMPAT), COMPAT)) == 15
    assert engine.hits(shop(), follow(query)) == ()  # no page has these words


def test_random_results_follow_from_their_key_and_are_drawn_at_each_visit() -> None:
    keys = iter((11, 12, 13, 14))
    shared = engine_of(shop(), COMPAT)
    session = shared.advance(START, shared.view(START), "search[<r>]", "7", lambda: next(keys))
    assert session is not None
    assert session.draw == 11
    first = shared.hits(session.query, session.draw)
    assert sorted(first) == list(range(15))
    assert first == shared.hits("<r>", 11) != shared.hits("<r>", 12)
    assert shared.view(session).products == first[:10]
    link = shared.view(session).commands[2]
    item = shared.advance(session, shared.view(session), link, "7", lambda: next(keys))
    assert item is not None
    assert item.draw == 0
    back = shared.advance(item, shared.view(item), "click[< prev]", "7", lambda: next(keys))
    assert back is not None
    assert back.draw == 12
    assert follow("search[<r>]").draw == 0


def test_drawing_goals_by_weight_is_off_by_one() -> None:
    sums = compat.cumulated([3.0, 1.0, 2.0, 2.0])
    shares = [(place + 0.5) / 800 for place in range(800)]
    counts = [0] * 4
    for share in shares:
        counts[compat.drawn_goal(sums, share)] += 1
    assert counts == [0, 300, 100, 400]
    assert compat.drawn_goal(compat.cumulated([1.0]), 0.5) == 0


def test_one_engine_for_all_who_ask_for_the_same() -> None:
    assert engine_of(shop()) is engine_of(shop(), Rules())
    assert engine_of(shop()) is not engine_of(shop(), COMPAT)
    with pytest.raises(InvalidOption, match="text_rich"):
        engine_of(shop(), Rules(layout="pdf"))
    with pytest.raises(InvalidOption, match="table"):
        engine_of(shop(), Rules(nouns="none"))
    for unhashable in (Rules(nouns=["table"]), Rules(layout=["text"])):  # type: ignore[arg-type]
        with pytest.raises(InvalidOption, match="must be"):
            engine_of(shop(), unhashable)


def test_caches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from agent_envs.webshop import pages

    for name in ("ITEM_PAGES", "SUB_PAGES_KEPT", "ROWS"):
        monkeypatch.setattr(pages, name, 4)
    monkeypatch.setattr(engine, "RESULT_PAGES", 4)
    small = engine.Engine(shop(), PLAIN)
    for place in range(15):
        session = small.advance(START, small.view(START), f"search[desk {place}]")
        assert session is not None
        small.view(session)
        small.view(Session(ITEM, "desk", 1, place, "", (), (place,)))
        small.view(Session(SUB, "desk", 1, place, "Features", (), (place,)))
    caches = [small._results, small._pages.item, small._pages._row, small._pages.sub]
    assert [cache.cache_info().currsize for cache in caches] == [4] * 4
