"""Which function answers which address. Flask is imported when routes are added."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from agent_envs.webshop.model import Page, Session
from agent_envs.webshop.pages import PAGE_SIZE
from agent_envs.webshop.site.addresses import BadAddress
from agent_envs.webshop.site.app import Site, Trouble, summary
from agent_envs.webshop.site.markup import render

if TYPE_CHECKING:
    from flask import Flask, Request
    from werkzeug.exceptions import HTTPException

Answer = Any
"""What Flask makes a response of."""
SEE_OTHER = 303

_TEXTS = {
    400: ("This request makes no sense", "Go back and try again."),
    404: ("There is no such page", "The address is mistyped, or it is not one of this shop."),
    405: ("That cannot be done here", "Pages are fetched with GET, forms are sent with POST."),
    413: ("That is too much", "A form of this shop holds a few words."),
    414: ("That address is too long", "Search with fewer words."),
    500: ("Something went wrong", "This is a fault of the shop, written to its log. Go back."),
}
_NEW = (("Begin a new errand", "/"),)


def add_routes(app: Flask, site: Site) -> None:
    """Add all pages of `site` to `app`."""
    _add_pages(app, site)
    _add_explanations(app, site)
    _add_messages(app)


def _add_pages(app: Flask, site: Site) -> None:
    from flask import redirect, request

    @app.get("/")
    def begin() -> Answer:
        return redirect(f"/{site.new_visit().sid}", SEE_OTHER)

    @app.route("/<sid>", methods=["GET", "POST"])
    def index(sid: str) -> Answer:
        visit = site.visit(sid)
        if request.method == "POST":
            query = _one_line(request.form.get("search_query", "")).lower()
            if not query:
                return redirect(f"/{sid}", SEE_OTHER)
            site.check_query(query, sid)
            wanted = Session(page=int(Page.RESULTS), query=query)
            return redirect(site.path(sid, wanted), SEE_OTHER)
        if _only_looks(request):
            return site.html(visit, Session()) if request.method == "HEAD" else ("", 204)
        site.visits.at_first_page(sid)
        site.note(visit, Page.INDEX, request.url)
        return site.html(site.visit(sid), Session())

    def page(kind: Page, rule: str) -> None:
        """A page that is wholly in its address; a posted form is sent on to it."""

        def show(sid: str, **parts: str) -> Answer:
            visit = site.visit(sid)
            session = site.at(visit, kind, **parts)
            if request.method == "POST":
                return redirect(site.path(sid, session), SEE_OTHER)
            if kind == Page.ITEM:
                site.visits.at_product(sid, session.product)
            site.note(visit, kind, request.url, content=_content(site, session))
            return site.html(site.visit(sid), session)

        app.add_url_rule(rule, kind.name, show, methods=["GET", "POST"])

    results = "<path:keywords>/<page>"
    page(Page.RESULTS, f"/search_results/<sid>/{results}")
    page(Page.ITEM, f"/item_page/<sid>/<asin>/{results}/<options>")
    page(Page.SUB, f"/item_sub_page/<sid>/<asin>/{results}/<sub>/<options>")

    @app.route("/done/<sid>/<asin>/<options>", methods=["GET", "POST"])
    def done(sid: str, asin: str, options: str) -> Answer:
        visit = site.visit(sid)
        session = site.at(visit, Page.DONE, asin=asin, options=options)
        # Scripts buy with GET, as the original lets them.
        if visit.purchase is None and _only_looks(request):
            return "", 204
        purchase = site.buy(visit, session)
        if visit.purchase is None:
            site.note(
                visit,
                Page.DONE,
                request.url,
                content={**_content(site, session), "price": purchase.price},
                reward=purchase.reward,
                reward_info=asdict(purchase.info),
            )
        bought = session._replace(product=purchase.product, options=purchase.options)
        if request.method == "POST" or bought != session:
            return redirect(site.path(sid, bought), SEE_OTHER)
        # Not the visit as it is by now: another tab may have begun the errand anew.
        return site.html(replace(visit, purchase=purchase), session)


def _add_explanations(app: Flask, site: Site) -> None:
    @app.get("/about")
    def about() -> Answer:
        return render(
            "about.html",
            kind="told",
            title="How this shop works",
            home="/",
            goals=f"{len(site.goals):,}",
            products=f"{len(site.shop.catalogue):,}",
        )

    @app.get("/score/<sid>")
    def score(sid: str) -> Answer:
        return summary(site, site.visit(sid))


def _add_messages(app: Flask) -> None:
    from flask import make_response
    from werkzeug.exceptions import HTTPException

    def message(status: int, heading: str, text: str, ways: Any) -> Answer:
        page = render(
            "message.html",
            kind="told",
            title=heading,
            home="/",
            status=status,
            heading=heading,
            text=text,
            ways=ways,
        )
        return page, status

    def trouble(error: Trouble) -> Answer:
        return message(error.status, error.heading, error.text, error.ways)

    def bad_address(error: BadAddress) -> Answer:
        return message(414, *_TEXTS[414], _NEW)

    def http_error(error: HTTPException) -> Answer:
        status = error.code or 500
        if status < 400:
            return error  # a redirection
        known = _TEXTS.get(status, _TEXTS[400 if status < 500 else 500])
        response = make_response(message(status, *known, _NEW))
        response.headers.extend([(k, v) for k, v in error.get_headers() if k == "Allow"])
        return response

    app.register_error_handler(Trouble, trouble)
    app.register_error_handler(BadAddress, bad_address)
    app.register_error_handler(HTTPException, http_error)


def _only_looks(request: Request) -> bool:
    """Whether a visitor only asks if a page is there, or fetches it ahead: this changes nothing."""
    return request.method == "HEAD" or "prefetch" in request.headers.get("Sec-Purpose", "")


def _one_line(text: str) -> str:
    """A query as the search field of a page would give it."""
    return text.replace("\r", " ").replace("\n", " ")


def _content(site: Site, session: Session) -> dict[str, object]:
    """What the original's logs say of a page."""
    content: dict[str, object] = {}
    if session.query is not None:
        content = {"keywords": session.query.split(" "), "page": session.number}
    catalogue = site.shop.catalogue
    if session.page == Page.RESULTS:
        first = (session.number - 1) * PAGE_SIZE
        shown = site.hits(session)[first : first + PAGE_SIZE]
        content["search_result_asins"] = [catalogue.asin(number) for number in shown]
    else:
        content["asin"] = catalogue.asin(session.product)
        content["options"] = dict(session.options)
    return content
