"""Pages as HTML: what the web site serves, and what the observation mode ``html`` shows.

The visible texts of a page, in their order, are those of the observation mode ``text``, and its
buttons, links and radio inputs are the clickables: whatever else a person sees of it is drawn by
the style sheet. Identifiers, classes and names of inputs are those of the original (WebShop, Yao
et al. 2022, arXiv:2207.01206). Nothing of the goal but its sentence is in a page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from agent_envs.errors import MissingExtra
from agent_envs.webshop import text_pages
from agent_envs.webshop.actions import ACTION_LIMIT
from agent_envs.webshop.engine import Rules, hits
from agent_envs.webshop.model import Goal, Page, Product, Purchase, Session
from agent_envs.webshop.pages import PAGE_SIZE

if TYPE_CHECKING:
    from jinja2 import Environment

    from agent_envs.webshop.shop import Shop

STATIC = "/static"
ABOUT = "/about"
CATEGORIES = frozenset(("beauty", "electronics", "fashion", "garden", "grocery"))
"""Categories with a picture of their own."""
TONES = 12

Links = Callable[[Session], str]
"""The address of the page that a session would be at."""


class Picture(NamedTuple):
    """What stands for the photograph of a product, which is outside of the site."""

    file: str
    tone: int


def page_html(
    shop: Shop,
    goal: Goal,
    session: Session,
    purchase: Purchase | None,
    links: Links,
    *,
    rules: Rules = Rules(),  # noqa: B008 - a value
) -> str:
    """The page that `session` is at.

    Args:
        purchase: what was bought, on the page after a purchase; else None.
        links: gives the address of each page that this one leads to.
        rules: of the shop: whether item pages lead to attributes, and what a search finds.

    Raises:
        MissingExtra: Jinja is not installed.
    """
    page = Page(session.page)
    values: dict[str, Any] = {"kind": page.name.lower(), "goal": goal, "href": links}
    values["home"] = links(Session())
    if page == Page.INDEX:
        values |= {"title": "WebShop", "query_limit": ACTION_LIMIT - len("search[]")}
    elif page == Page.RESULTS:
        values |= _results(shop, session, rules)
    elif page == Page.DONE:
        assert purchase is not None, "the page after a purchase needs one"
        values |= _done(shop, purchase, links)
    else:
        product = shop.catalogue[session.product]
        values |= _item(product, session, rules.show_attributes)
        if page == Page.SUB:
            values |= _sub(product, session)
    return render(f"{page.name.lower()}.html", **values)


def render(template: str, **values: Any) -> str:
    """One of the templates, with `values` escaped.

    Raises:
        MissingExtra: Jinja is not installed.
    """
    return _environment().get_template(template).render(static=STATIC, about=ABOUT, **values)


def picture(product: Product) -> Picture:
    """The drawing for a product: by category, on a background that differs by product."""
    name = product.category if product.category in CATEGORIES else "other"
    return Picture(f"{name}.svg", crc32(product.asin.encode("utf-8", "replace")) % TONES)


# ------------------------------------------------------------------ pages


def _results(shop: Shop, session: Session, rules: Rules) -> dict[str, Any]:
    found = hits(shop, session, rules)
    first = (session.number - 1) * PAGE_SIZE
    shown = found[first : first + PAGE_SIZE]
    products = [
        {
            "product": product,
            "picture": picture(product),
            "seen": number in session.visited,
            "target": _item_of(session, number),
        }
        for number, product in ((number, shop.catalogue[number]) for number in shown)
    ]
    line = text_pages.results_line(session.number, len(found))
    previous = session._replace(number=session.number - 1) if session.number > 1 else None
    return {
        "title": line,
        "line": line,
        "products": products,
        "back": Session(),
        "previous": previous,
        "following": session._replace(number=session.number + 1),
    }


def _item(product: Product, session: Session, show_attributes: bool) -> dict[str, Any]:
    item = session._replace(page=Page.ITEM, sub="")
    selected = dict(session.options)
    pictures = dict(product.option_images)
    shown = [pictures[value] for value in selected.values() if pictures.get(value)]
    return {
        "title": product.title,
        "picture": picture(product),
        "image": shown[-1] if shown else product.image,
        "back": Session(),
        "previous": session._replace(page=Page.RESULTS, product=-1, options=(), sub=""),
        "groups": list(_groups(product, item, selected)),
        "details": text_pages.details(product),
        "below": [
            (name, item._replace(page=Page.SUB, sub=name))
            for name in text_pages.sub_buttons(show_attributes)
        ],
        "buy": item._replace(page=Page.DONE),
    }


def _groups(
    product: Product, item: Session, selected: dict[str, str]
) -> Iterator[dict[str, object]]:
    for place, (group, offered) in enumerate(product.options):
        choices = []
        for number, value in enumerate(offered):
            chosen = item._replace(options=tuple({**selected, group: value}.items()))
            choices.append(
                {
                    "id": f"radio_{place}_{number}",
                    "value": value,
                    "selected": selected.get(group) == value,
                    "target": chosen,
                }
            )
        yield {"name": group, "choices": choices}


def _sub(product: Product, session: Session) -> dict[str, Any]:
    return {
        "name": session.sub,
        "texts": text_pages.sub_texts(product, session.sub),
        "previous": session._replace(page=Page.ITEM, sub=""),
    }


def _done(shop: Shop, purchase: Purchase, links: Links) -> dict[str, Any]:
    product = shop.catalogue[purchase.product]
    texts = text_pages.done_texts(product.asin, purchase.options, purchase.reward)
    bought = ("asin", "options", "purchased_attrs", "purchased-category", "purchased-query")
    asked = ("asin", "options", "attrs", "price", "instruction-text", "category", "pc", "query")
    purchased = zip((*bought, "purchased-pc"), texts[5:17:2], texts[6:17:2], strict=True)
    return {
        "title": texts[0],
        "texts": texts,
        "purchased": list(purchased),
        "target": list(zip((f"goal-{name}" for name in asked), texts[18:26], strict=True)),
        "share": f"{100 * purchase.reward:.2f}",
        "score": f"/score{links(Session())}",
        "again": "/",
    }


def _item_of(session: Session, number: int) -> Session:
    return session._replace(page=Page.ITEM, product=number, options=(), sub="")


# ------------------------------------------------------------------ Jinja

_UNSPEAKABLE = re.compile("[\x00\ud800-\udfff]")


@cache
def _environment() -> Environment:
    try:
        import jinja2
        from markupsafe import Markup, escape
    except ImportError as error:
        raise MissingExtra(
            "Pages as HTML need the package Jinja2, which is not installed. It comes with the "
            "extra 'site': pip install '.[site]' in a checkout of sero."
        ) from error

    def exact(value: object) -> object:
        """Text that a parser of HTML reads back as it is."""
        if not isinstance(value, str) or isinstance(value, Markup):
            return value
        # HTML has no NUL and UTF-8 no lone surrogate; a bare CR would be read as a line feed.
        escaped = str(escape(_UNSPEAKABLE.sub("\ufffd", value)))
        return Markup(escaped.replace("\r", "&#13;"))

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        finalize=exact,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )


def parts_of(goal: Goal, purchase: Purchase) -> tuple[Sequence[dict[str, str]], str]:
    """The parts of a reward for people: what was asked, whether it is met, and the sum."""
    info = purchase.info
    asked = len(goal.attributes) + len(goal.options) + 1
    kind = {
        "name": "The right kind of product",
        "met": f"{info.r_type:g}",
        "look": _look(info.r_type),
        "how": "same search phrase, same branch of the catalogue, or a similar name",
    }
    rows = [kind]
    sum_of = []
    for name, share, weight, number, how in (
        (
            "Properties",
            info.r_att,
            info.w_att,
            len(goal.attributes),
            "found among the product's attributes, or word for word in its texts",
        ),
        (
            "Options",
            info.r_option,
            info.w_option,
            len(goal.options),
            "the chosen options, compared loosely",
        ),
        ("Price", info.r_price, info.w_price, 1, "within the limit, if there is one"),
    ):
        if share is None or weight is None or number == 0:
            continue
        met = round(share * number)
        rows.append({"name": name, "met": f"{met} of {number}", "look": _look(share), "how": how})
        sum_of.append(str(met))
    total = f"{info.r_type:g} × ({' + '.join(sum_of)}) / {asked} = {purchase.reward:.4g}"
    return rows, total


def _look(share: float) -> str:
    return "good" if share == 1 else "bad" if share == 0 else "fair"
