"""A visit through the routes."""

from __future__ import annotations

from typing import Any

import pytest

from agent_envs.webshop.actions import ACTION_LIMIT
from agent_envs.webshop.engine import engine_of, observe
from agent_envs.webshop.model import Page, Purchase, Session
from agent_envs.webshop.site.app import QUERY_LIMIT, Site, create_app
from tests.agent_envs.webshop import shops
from tests.agent_envs.webshop.site.conftest import page
from tests.agent_envs.webshop.site.reading import Read

DESK = shops.DESKS[0]


def begin(client: Any) -> str:
    """A new visit: its id."""
    answer = client.get("/")
    assert answer.status_code == 303
    return str(answer.headers["Location"]).removeprefix("/")


def open_desk(client: Any, sid: str, options: str = "{}") -> Read:
    return page(client, f"/item_page/{sid}/{DESK}/desk/1/{options}")


def test_a_person_shops_by_links_and_forms_alone(site: Site, client: Any) -> None:
    """From the first page to the score, following only what is on the pages."""
    sid = begin(client)
    visit = site.visit(sid)
    first = page(client, f"/{sid}")
    assert visit.goal.instruction in first.shown
    (form,) = [e for e in first.elements if e.tag == "form"]
    assert (form.attributes["method"], form.attributes["action"]) == ("post", f"/{sid}")
    results = page(client, form.attributes["action"], search_query="writing desk")
    following = form_of(results, "Next >")
    second = Read(client.post(following, follow_redirects=True).text)
    assert "Page 2 (Total results: 1" in second.shown
    results = Read(client.post(form_of(second, "< Prev"), follow_redirects=True).text)
    link = next(e for e in results.having("product-link") if e.text == DESK)
    item = page(client, link.attributes["href"])
    for value in ("red", "m", "navy blue"):  # the last one takes the place of the first
        radio = next(e for e in item.radios if e.attributes["value"] == value)
        item = page(client, radio.attributes["data-url"])
    checked = [e.attributes["value"] for e in item.radios if "checked" in e.attributes]
    assert checked == ["navy blue", "m"]
    chosen = [e.attributes["aria-label"] for e in item.having("choose")]
    assert chosen == [e.attributes["value"] for e in item.radios]
    bought = client.post(form_of(item, "Buy Now"))
    assert bought.status_code == 303
    done = page(client, bought.headers["Location"])
    purchase = site.visit(sid).purchase
    assert purchase is not None
    assert purchase.options == (("color", "navy blue"), ("size", "m"))
    session = Session(Page.DONE, "writing desk", 1, purchase.product, "", purchase.options)
    assert done.shown == observe(site.shop, visit.goal, session)
    told = page(client, done.having("action")[0].attributes["href"])
    assert visit.goal.instruction in told.shown
    assert f"Score [SEP] {purchase.reward:.4g}" in told.shown


def form_of(read: Read, button: str) -> str:
    """Where the form of a button leads."""
    forms = [e for e in read.elements if e.tag == "form"]
    (found,) = [e.attributes["action"] for e in forms if e.text.strip() == button]
    return found


def test_the_site_gives_what_the_engine_gives(site: Site, client: Any) -> None:
    engine = engine_of(site.shop, site.rules)
    goal = site.goals[3]
    number = site.shop.catalogue.number_of(DESK) or 0
    item = Session(Page.ITEM, "desk", 1, number, "", (("size", "s"),), (number,))
    for session in (
        Session(),
        Session(Page.RESULTS, "desk"),
        Session(Page.RESULTS, "desk", 2),
        Session(Page.RESULTS, "desk", 7),
        Session(Page.RESULTS, "nothing of the kind"),
        item,
        *(
            item._replace(page=Page.SUB, sub=name)
            for name in ("Description", "Features", "Reviews", "Attributes")
        ),
    ):
        shown = page(client, site.path("fixed_3", session)).shown
        assert shown == observe(site.shop, goal, session, site.rules)
    del engine


def test_fixed_sessions_have_the_goal_of_their_number(site: Site, client: Any) -> None:
    for number, goal in enumerate(site.goals):
        assert goal.instruction in page(client, f"/fixed_{number}").shown
    answer = client.get(f"/fixed_{len(site.goals)}")
    assert answer.status_code == 404
    assert f"{len(site.goals)} goals" in answer.text


def test_every_new_visitor_has_a_visit_of_their_own(site: Site, client: Any) -> None:
    one, other = begin(client), begin(client)
    assert one != other
    assert site.visit(one).goal != site.visit(other).goal
    open_desk(client, one)
    assert site.visit(other).opened == ()


@pytest.mark.parametrize(
    "query",
    [
        "a/b c",
        "100% cotton",
        "%2F%2e%2e",
        "../../etc/passwd",
        "..",
        "search_results",
        "item_page/x/1 done",
        "café™ 🙂 İ",
        "[x]",
        "['a', 'b']",
        "{'a': 'b'}",
        "~2F~z~-",
        "back\\slash",
        "?a=b&c=d#e;f",
        "  blanks  ",
        " ",
        "tab\tand\x00null",
        "<script>alert(1)</script>",
        "{{ 7 * 7 }}",
        "x" * QUERY_LIMIT,
        "🙂" * QUERY_LIMIT,
    ],
)
def test_any_query_can_be_searched_for(site: Site, client: Any, query: str) -> None:
    shown = page(client, "/fixed_0", search_query=query)
    wanted = Session(Page.RESULTS, query.lower())
    assert shown.shown == observe(site.shop, site.goals[0], wanted)
    back = client.post(form_of(shown, "Next >"))
    assert Read(client.get(back.headers["Location"]).text).shown == observe(
        site.shop, site.goals[0], wanted._replace(number=2)
    )


def test_a_query_of_10_kb_gets_an_explanation(client: Any) -> None:
    answer = client.post("/fixed_0", data={"search_query": "desk " * 2_048})
    assert answer.status_code == 413
    assert f"{QUERY_LIMIT:,}" in answer.text
    assert len("search[]") + QUERY_LIMIT == ACTION_LIMIT
    assert client.get("/search_results/fixed_0/" + "w%20" * 5_000 + "/1").status_code == 413


def test_an_empty_query_leads_back(client: Any) -> None:
    for form in ({"search_query": ""}, {}, {"other": "x"}):
        answer = client.post("/fixed_0", data=form)
        assert (answer.status_code, answer.headers["Location"]) == (303, "/fixed_0")


def test_addresses_of_the_original_work(site: Site, client: Any) -> None:
    """As its own pages, and scripts that drive it, write them."""
    plain = page(client, "/search_results/fixed_0/['writing', 'desk']/1")
    assert plain.shown == page(client, "/search_results/fixed_0/writing desk/1").shown
    item = page(client, f"/item_page/fixed_0/{DESK}/['desk']/1/{{'color': 'red'}}")
    assert [e.attributes["value"] for e in item.radios if "checked" in e.attributes] == ["red"]
    assert item.shown == open_desk(client, "fixed_0").shown
    sub = page(client, f"/item_sub_page/fixed_0/{DESK}/['desk']/1/Features/{{'color': 'red'}}")
    assert "Sturdy" in sub.shown
    # Scripts buy with GET, and so does the original's site.
    done = page(client, f"/done/fixed_0/{DESK}/{{'color': 'red'}}")
    assert '"color": "red"' in done.shown


@pytest.mark.parametrize(
    "path",
    [
        "/nobody",
        "/search_results/nobody/desk/1",
        f"/item_page/nobody/{DESK}/desk/1/{{}}",
        f"/item_sub_page/nobody/{DESK}/desk/1/Features/{{}}",
        f"/done/nobody/{DESK}/{{}}",
        "/score/nobody",
        "/fixed_x",
        "/fixed_99999",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_unknown_session_is_told_what_to_do(client: Any, path: str, method: str) -> None:
    answer = client.open(path, method=method)
    if method == "POST" and path.startswith("/score"):
        assert answer.status_code == 405
        return
    assert answer.status_code == 404
    read = Read(answer.text)
    assert "Begin a new errand" in [e.text for e in read.having("action")]
    assert read.having("action")[0].attributes["href"] == "/"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/item_page/fixed_0/B00NOTHERE/desk/1/{}", 404),
        (f"/item_page/fixed_0/{DESK}/desk/0/{{}}", 400),
        (f"/item_page/fixed_0/{DESK}/desk/x/{{}}", 400),
        (f"/item_page/fixed_0/{DESK}/desk/1/[]", 400),
        (f"/item_page/fixed_0/{DESK}/desk/1/{{'color': 'pink'}}", 404),
        (f"/item_page/fixed_0/{DESK}/desk/1/{{'shape': 'red'}}", 404),
        (f"/item_page/fixed_0/{DESK}/desk/1", 404),
        (f"/item_sub_page/fixed_0/{DESK}/desk/1/Price/{{}}", 404),
        ("/search_results/fixed_0/desk/-1", 400),
        ("/search_results/fixed_0/~zAAAA/1", 400),
        ("/search_results/fixed_0/desk", 404),
        ("/search_results/fixed_0", 404),
        (f"/done/fixed_0/{DESK}/{{'color': 'pink'}}", 404),
        ("/static/", 404),
        ("/fixed_0/", 404),
    ],
)
def test_addresses_that_lead_nowhere_say_so(client: Any, path: str, status: int) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    assert Read(answer.text).having("message")


def test_a_purchase_needs_the_product_s_page(site: Site, client: Any) -> None:
    sid = begin(client)
    for method in ("GET", "POST"):
        answer = client.open(f"/done/{sid}/{DESK}/{{}}", method=method)
        assert answer.status_code == 409
        assert "Nothing was bought" in answer.text
    page(client, f"/search_results/{sid}/desk/1")  # to see it among others is not enough
    assert client.get(f"/done/{sid}/{DESK}/{{}}").status_code == 409
    open_desk(client, sid)
    assert client.get(f"/done/{sid}/{shops.DESKS[2]}/{{}}").status_code == 409
    assert site.visit(sid).purchase is None
    page(client, f"/done/{sid}/{DESK}/{{}}")
    assert site.visit(sid).purchase is not None


def test_looking_at_the_last_page_buys_nothing(site: Site, client: Any) -> None:
    sid = begin(client)
    open_desk(client, sid)
    path = f"/done/{sid}/{DESK}/{{}}"
    assert client.head(path).status_code == 204
    ahead = client.get(path, headers={"Sec-Purpose": "prefetch;prerender"})
    assert ahead.status_code == 204
    assert client.options(path).status_code == 200
    assert site.visit(sid).purchase is None


def test_looking_at_the_first_page_keeps_the_purchase(site: Site, client: Any) -> None:
    sid = begin(client)
    open_desk(client, sid)
    page(client, f"/done/{sid}/{DESK}/{{}}")
    before = site.visit(sid)
    assert before.purchase is not None
    assert client.head(f"/{sid}").status_code == 200
    ahead = client.get(f"/{sid}", headers={"Sec-Purpose": "prefetch;prerender"})
    assert ahead.status_code == 204  # a page kept for later would begin nothing anew
    assert client.options(f"/{sid}").status_code == 200
    assert site.visit(sid) == before
    page(client, f"/{sid}")
    assert site.visit(sid).purchase is None


def test_the_first_page_in_another_tab_does_not_disturb_a_purchase(
    site: Site, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins the errand anew between the purchase and the page that shows it."""
    sid = begin(client)
    open_desk(client, sid)
    buy = site.visits.buy

    def buy_and_begin_anew(name: str, purchase: Purchase) -> Purchase | None:
        bought = buy(name, purchase)
        site.visits.at_first_page(name)
        return bought

    monkeypatch.setattr(site.visits, "buy", buy_and_begin_anew)
    read = page(client, f"/done/{sid}/{DESK}/{{}}")
    assert f"asin [SEP] {DESK}" in read.shown
    assert site.visit(sid).purchase is None


def test_a_purchase_that_was_just_forgotten_is_not_made_anew(site: Site, client: Any) -> None:
    sid = begin(client)
    open_desk(client, sid)
    page(client, f"/done/{sid}/{DESK}/{{}}")
    visit = site.visit(sid)
    page(client, f"/{sid}")
    number = site.shop.catalogue.number_of(shops.BARE)
    assert number is not None
    assert site.buy(visit, Session(Page.DONE, product=number)) == visit.purchase
    assert site.visit(sid).purchase is None


def test_one_purchase_an_errand(site: Site, client: Any) -> None:
    sid = begin(client)
    open_desk(client, sid)
    page(client, f"/item_page/{sid}/{shops.BARE}/desk/1/{{}}")
    first = page(client, f"/done/{sid}/{DESK}/{{}}")
    purchase = site.visit(sid).purchase
    other = client.post(f"/done/{sid}/{shops.BARE}/{{}}")
    assert (other.status_code, other.headers["Location"]) == (303, f"/done/{sid}/{DESK}/%7B%7D")
    assert page(client, other.headers["Location"]).shown == first.shown
    assert site.visit(sid).purchase is purchase
    # The first page begins anew, with the same goal; the back button buys nothing again.
    goal = site.visit(sid).goal
    page(client, f"/{sid}")
    assert site.visit(sid).goal is goal
    assert client.get(f"/done/{sid}/{DESK}/{{}}").status_code == 409
    assert client.get(f"/score/{sid}").status_code == 404


def test_the_score_is_explained_after_the_purchase_only(site: Site, client: Any) -> None:
    number = next(n for n, goal in enumerate(site.goals) if goal.options == ("red",))
    goal, sid = site.goals[number], f"fixed_{number}"
    assert client.get(f"/score/{sid}").status_code == 404
    page(client, f"/item_page/{sid}/{goal.asin}/desk/1/{{}}")
    page(client, f"/done/{sid}/{goal.asin}/{{}}")
    told = page(client, f"/score/{sid}").shown
    # Right product and price, 1 of 1 attribute, 0 of 1 options: (1 + 0 + 1) / 3.
    for part in ("Properties [SEP] 1 of 1", "Options [SEP] 0 of 1", "Price [SEP] 1 of 1"):
        assert part in told
    assert "1 × (1 + 0 + 1) / 3 = 0.6667" in told


def test_attributes_are_shown_where_they_are_asked_for(site: Site) -> None:
    plain = create_app(Site(site.shop, site.goals, "human")).test_client()
    item = page(plain, f"/item_page/fixed_0/{DESK}/desk/1/{{}}")
    assert "attributes" not in item.clickables
    sub = plain.get(f"/item_sub_page/fixed_0/{DESK}/desk/1/Attributes/{{}}")
    assert sub.status_code == 404


def test_a_shop_without_goals_hands_out_none() -> None:
    client = create_app(Site(shops.shop(), (), "human")).test_client()
    assert client.get("/").status_code == 404
    assert client.get("/fixed_0").status_code == 404
    assert client.get("/about").status_code == 200


def test_no_page_asks_for_anything_outside(site: Site, client: Any) -> None:
    css = client.get("/static/shop.css").text
    assert "http" not in css
    assert "@import" not in css
    for path in ("/fixed_0", "/search_results/fixed_0/desk/1", "/about"):
        for element in page(client, path).elements:
            for name in ("src", "href"):
                value = element.attributes.get(name)
                if value is not None:
                    assert value.startswith("/")
                    assert client.get(value).status_code in (200, 303), value
