"""The web site: routes of the original (WebShop, Yao et al. 2022), answered by our engine.

All of a visit but its goal, the products opened and the purchase is in the addresses, so any
number of tabs may be open. Pages are shown on GET; forms are posted, as in the original, and
answered with a redirection to the page, so that reloading and going back ask nothing.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from agent_envs.webshop.actions import ACTION_LIMIT, SUB_PAGES
from agent_envs.webshop.catalogue.goal_dicts import goal_to_dict
from agent_envs.webshop.engine import Rules, engine_of
from agent_envs.webshop.model import Goal, Page, Purchase, Session
from agent_envs.webshop.site import addresses
from agent_envs.webshop.site.addresses import BadAddress, page_path
from agent_envs.webshop.site.log import SessionLog
from agent_envs.webshop.site.markup import page_html, parts_of, picture, render
from agent_envs.webshop.site.needs import needed
from agent_envs.webshop.site.visits import Visit, Visits, fixed_goal

if TYPE_CHECKING:
    from flask import Flask, Response

    from agent_envs.webshop.shop import Shop

QUERY_LIMIT = ACTION_LIMIT - len("search[]")
"""Characters of a query; the env refuses longer ones, too."""
BODY_LIMIT = 64 << 10
"""Bytes of a posted form."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; img-src 'self'; style-src 'self'; "
    "script-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # session ids are in the addresses
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

_HOST = re.compile(r"(\[[^]]*\]|[^:]*)(?::[0-9]*)?")
"""A name, or an IPv6 address in brackets, and maybe a port."""


class Trouble(Exception):
    """A request that gets a page of explanation instead of what it asks for."""

    def __init__(self, status: int, heading: str, text: str, *ways: tuple[str, str]) -> None:
        super().__init__(heading)
        self.status, self.heading, self.text = status, heading, text
        self.ways = ways or (("Begin a new errand", "/"),)


class Site:
    """What stands behind the routes: the shop, its goals, and who is visiting.

    Args:
        shop: the shop.
        goals: the errands that are handed out; their numbers are those of ``fixed_<n>``.
        kind: of goals, for the log: "human" or "synthetic".
        rules: of the shop.
        log: where to write down what visitors do; None for nowhere.
        visits: who is visiting.
        draw: a random number below its argument, for the goal of a new visitor.
    """

    def __init__(
        self,
        shop: Shop,
        goals: Sequence[Goal],
        kind: str,
        rules: Rules = Rules(),  # noqa: B008 - a value
        log: SessionLog | None = None,
        visits: Visits | None = None,
        draw: Callable[[int], int] = secrets.randbelow,
    ) -> None:
        self.shop, self.goals, self.kind, self.rules = shop, goals, kind, rules
        self.visits = Visits() if visits is None else visits
        self._engine = engine_of(shop, rules)
        self._log, self._draw = log, draw

    # ------------------------------------------------------------------ visitors

    def new_visit(self) -> Visit:
        """A visitor with a goal drawn evenly from all."""
        if not self.goals:
            raise Trouble(404, "There are no errands here", "This shop has no goals to hand out.")
        number = self._draw(len(self.goals))
        return self.visits.begin(self.goals[number], f"{self.kind}-{number}")

    def visit(self, sid: str) -> Visit:
        """The visit of a session id; an id of the form ``fixed_<n>`` is begun if it is new.

        Raises:
            Trouble: there is none.
        """
        found = self.visits.find(sid)
        if found is not None:
            return found
        number = fixed_goal(sid)
        if number is None:
            raise Trouble(
                404,
                "There is no such visit",
                "Its address is mistyped, or it was not used for hours and is forgotten. "
                "Begin a new one; /fixed_0 is a visit with goal number 0.",
            )
        if number >= len(self.goals):
            raise Trouble(
                404,
                "There is no such goal",
                f"This shop has {len(self.goals):,} goals, numbered from 0 up.",
            )
        return self.visits.begin_if_new(self.goals[number], f"{self.kind}-{number}", sid)

    # ------------------------------------------------------------------ pages

    def path(self, sid: str, session: Session) -> str:
        """The address of a page."""
        number = session.product
        return page_path(sid, session, self.shop.catalogue.asin(number) if number >= 0 else "")

    def html(self, visit: Visit, session: Session) -> str:
        """A page, as `visit` sees it."""
        seen = session._replace(visited=visit.visited)

        def links(target: Session) -> str:
            return self.path(visit.sid, target)

        return page_html(self.shop, visit.goal, seen, visit.purchase, links, rules=self.rules)

    def hits(self, session: Session) -> tuple[int, ...]:
        """The products that a page of results is one of."""
        return self._engine.hits(session.query, session.draw)

    def at(self, visit: Visit, page: Page, /, **parts: str) -> Session:
        """The page that the parts of an address name.

        Raises:
            Trouble: there is no such page.
        """
        catalogue = self.shop.catalogue
        session = Session(page=int(page))
        home = ("Back to the first page", f"/{visit.sid}")
        try:
            if "keywords" in parts:
                query = addresses.query_of(parts["keywords"]).lower()
                self.check_query(query, visit.sid)
                number = addresses.page_number(parts["page"])
                session = session._replace(query=query, number=number)
            if "options" in parts:
                session = session._replace(options=addresses.options_of(parts["options"]))
            if "asin" in parts:
                found = catalogue.number_of(addresses.text_of(parts["asin"]))
                if found is None:
                    raise Trouble(
                        404, "There is no such product", "No product here has this number.", home
                    )
                offered = catalogue[found].options
                wrong = addresses.checked_options(session.options, offered)
                if wrong is not None:
                    raise Trouble(404, "There is no such option", wrong, home)
                session = session._replace(product=found)
            if "sub" in parts:
                session = session._replace(sub=addresses.text_of(parts["sub"]))
        except BadAddress as error:
            raise Trouble(400, "This address makes no sense", str(error), home) from error
        known = SUB_PAGES if self.rules.show_attributes else SUB_PAGES[:-1]
        if page == Page.SUB and session.sub not in known:
            raise Trouble(404, "There is no such page", f"Products have {', '.join(known)}.", home)
        return session

    def check_query(self, query: str, sid: str) -> None:
        """Raises `Trouble` for a query that is too long."""
        if len(query) > QUERY_LIMIT:
            raise Trouble(
                413,
                "That is too much to search for",
                f"{len(query):,} characters; at most {QUERY_LIMIT:,} can be searched for. "
                "A few words find more.",
                ("Search again", f"/{sid}"),
            )

    def buy(self, visit: Visit, session: Session) -> Purchase:
        """The purchase that ends the errand.

        Raises:
            Trouble: nothing was bought, as the product was never opened.
        """
        if visit.purchase is not None:
            return visit.purchase
        if session.product not in visit.opened:
            raise Trouble(
                409,
                "Nothing was bought",
                "A product is bought on its own page: open it, choose its options, and press "
                "Buy Now there.",
                ("Back to the first page", f"/{visit.sid}"),
            )
        purchase = self.visits.buy(visit.sid, self._engine.purchase(visit.goal, session))
        if purchase is None:
            raise Trouble(404, "There is no such visit", "It was forgotten. Begin a new one.")
        return purchase

    def note(self, visit: Visit, page: Page, url: str, **fields: Any) -> None:
        """Write a line into the log, if there is one."""
        if self._log is not None:
            names = ("index", "search_results", "item_page", "item_sub_page", "done")
            told = goal_to_dict(visit.goal)
            self._log.write(
                visit.sid, names[page], url=url, goal=told, task_id=visit.task, **fields
            )


def create_app(site: Site, hosts: Collection[str] | None = None) -> Flask:
    """The WSGI application.

    Args:
        site: what it serves.
        hosts: names that requests may give as the host they want; None for any. A site for this
            machine alone accepts only its own names, so that no page of another site can have
            itself answered by it.

    Raises:
        MissingExtra: Flask is not installed.
    """
    flask = needed("flask")
    from agent_envs.webshop.site.routes import add_routes

    class App(flask.Flask):  # type: ignore[misc, name-defined]
        def log_exception(self, exc_info: Any) -> None:
            # The address as a literal: what a visitor sends must not forge lines of a log.
            path = ascii(flask.request.path[:2000])
            self.logger.error(
                "Failed to answer %s %s", flask.request.method, path, exc_info=exc_info
            )

    names = None if hosts is None else {name.lower() for name in hosts}
    app: Flask = App("agent_envs.webshop.site")
    app.url_map.merge_slashes = False  # two slashes in a row may be a part of a query
    app.config["MAX_CONTENT_LENGTH"] = BODY_LIMIT
    app.config["PROPAGATE_EXCEPTIONS"] = False
    add_routes(app, site)

    @app.before_request
    def check_host() -> None:
        host = _HOST.fullmatch(flask.request.host.lower())
        if names is not None and (host is None or host[1] not in names):
            raise Trouble(400, "This is another site", "It answers under its own name only.")

    @app.after_request
    def protect(response: Response) -> Response:
        response.headers.update(HEADERS)
        if not flask.request.path.startswith("/static/"):
            response.headers["Cache-Control"] = "no-store"
        return response

    return app


def summary(site: Site, visit: Visit) -> str:
    """The page that explains a score.

    Raises:
        Trouble: there is no score yet.
    """
    purchase = visit.purchase
    if purchase is None:
        raise Trouble(
            404,
            "There is no score yet",
            "It is made up after the purchase, and explained then.",
            ("Back to the first page", f"/{visit.sid}"),
        )
    product = site.shop.catalogue[purchase.product]
    parts, total = parts_of(visit.goal, purchase)
    return render(
        "score.html",
        kind="told",
        title="How your score is made up",
        home=f"/{visit.sid}",
        goal=visit.goal,
        product=product,
        picture=picture(product),
        price=purchase.price,
        options=purchase.options,
        parts=parts,
        sum=total,
        total=f"{purchase.reward:.4g}",
    )
