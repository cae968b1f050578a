"""A web site and a browser in it, both for one environment and made when they are needed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import unquote

from agent_envs.webshop.browser import page
from agent_envs.webshop.browser.chromium import Chromium, wait_until
from agent_envs.webshop.browser.errors import BrowserError
from agent_envs.webshop.browser.page import Shown
from agent_envs.webshop.engine import INDEX, RESULTS, Rules
from agent_envs.webshop.model import Goal, Page, Purchase, Session
from agent_envs.webshop.site.addresses import BadAddress
from agent_envs.webshop.site.app import Site, Trouble
from agent_envs.webshop.site.server import SiteServer
from agent_envs.webshop.site.visits import Visit

if TYPE_CHECKING:
    from selenium.webdriver.remote.webdriver import WebDriver

    from agent_envs.webshop.shop import Shop

_MARK = "window.seroLeft = true;"
_IS_NEW = "return window.seroLeft !== true && document.readyState === 'complete';"
_FILL = """
const field = document.getElementById(arguments[0]);
field.value = arguments[1];
return field.value === arguments[1] && arguments[1].length <= field.maxLength;
"""


class Shopfront:
    """The shop as a shopper with a browser sees it.

    The site listens on a free port of this machine, for this browser alone. Both are started by
    the first call that needs them, and again after `close` or after a failure.

    Args:
        shop: the shop.
        rules: of the shop.
        timeout: seconds for the start of the browser, a page, and every single command.
        with_source: whether what is shown comes with the page as HTML.
    """

    def __init__(
        self, shop: Shop, rules: Rules, timeout: float, *, with_source: bool = False
    ) -> None:
        self._shop, self._rules, self._timeout = shop, rules, timeout
        self._with_source = with_source
        self._server: SiteServer | None = None
        self._browser: Chromium | None = None
        self._sid: str | None = None
        self._process = os.getpid()

    @property
    def is_open(self) -> bool:
        """Whether a browser was started, and has not failed."""
        browser = self._browser
        return self._process == os.getpid() and browser is not None and browser.is_open

    def close(self) -> None:
        """End site and browser. Returns when both are gone."""
        self._take_over()
        browser, server = self._browser, self._server
        self._browser = self._server = self._sid = None
        if browser is not None:
            browser.close()
        if server is not None:
            server.stop()

    def __deepcopy__(self, memo: dict[int, object]) -> Shopfront:
        """Another one with the same shop, not started."""
        return Shopfront(self._shop, self._rules, self._timeout, with_source=self._with_source)

    # ------------------------------------------------------------------ state

    @property
    def driver(self) -> WebDriver:
        """Selenium's driver of the browser; started if need be."""
        return self._open().driver

    @property
    def pids(self) -> tuple[int, ...]:
        """The process that all others of the browser are below of; none if none runs."""
        return () if self._browser is None else (self._browser.guard_pid,)

    def show(self, goal: Goal, session: Session, purchase: Purchase | None) -> Shown:
        """Go to the page of a session, with all that the site has to know of it.

        Raises:
            BrowserError: the browser fails.
            MissingExtra: something is not installed.
        """
        site = self._site()
        visits = site.visits
        sid = visits.begin(goal, "env").sid if self._sid is None else self._sid
        self._sid = sid
        opened = session.visited
        visits.put(Visit(sid, goal, "env", opened, opened, purchase))
        return self._go(site.path(sid, session), "show a page")

    def session(self, shown: Shown, before: Session) -> Session:
        """Where the browser is: what its address says, and what the site remembers.

        Args:
            shown: what it shows.
            before: where it was; the page after a purchase does not say what was searched for.

        Raises:
            BrowserError: at no page of the shop.
        """
        site, visit = self._site(), self._visit()
        name, _, rest = shown.path.removeprefix("/").partition("/")
        page_kinds = {
            "search_results": (Page.RESULTS, ("keywords", "page")),
            "item_page": (Page.ITEM, ("asin", "keywords", "page", "options")),
            "item_sub_page": (Page.SUB, ("asin", "keywords", "page", "sub", "options")),
            "done": (Page.DONE, ("asin", "options")),
        }
        try:
            if not shown.is_page:
                raise Trouble(500, "no page of the shop", "")
            if name == visit.sid and not rest:
                return Session(INDEX)
            kind, names = page_kinds[name]
            sid, *parts = map(unquote, rest.split("/"))
            if sid != visit.sid or len(parts) != len(names):
                raise BadAddress("another visit")
            found = site.at(visit, kind, **dict(zip(names, parts, strict=True)))
        except (KeyError, BadAddress, Trouble) as error:
            self.close()
            raise BrowserError(
                f"The browser is at {shown.path[:200]!r}, which is no page of this visit "
                f"({error}). It was ended; the next step, restore or reset starts another."
            ) from error
        if kind == Page.DONE:
            found = found._replace(query=before.query, number=before.number)
        return found._replace(visited=visit.visited)

    def purchase(self) -> Purchase | None:
        """What was bought."""
        return self._visit().purchase

    # ------------------------------------------------------------------ acting

    def search(self, shown: Shown, session: Session, query: str) -> Shown:
        """Search for `query`: in the search field, or by address where the page has none.

        The address also serves for what a field does not take, such as a carriage return.
        """
        site = self._site()
        target = Session(RESULTS, query, visited=session.visited)
        if shown.has_search and _is_typable(query):
            browser = self._open()
            with browser.talking("search") as driver:
                if driver.execute_script(_FILL, page.SEARCH_FIELD, query):
                    return self._click(browser, shown.keys["search"], "search")
        return self._go(site.path(self._visit().sid, target), "search")

    def click(self, shown: Shown, key: str) -> Shown:
        """Click on what is called `key`."""
        browser = self._open()
        return self._click(browser, shown.keys[key], "click")

    def screenshot(self) -> bytes:
        """What the browser shows, as a picture (PNG).

        Raises:
            BrowserError: the browser fails.
        """
        with self._open().talking("take a picture") as driver:
            picture: bytes = driver.get_screenshot_as_png()
            return picture

    # ------------------------------------------------------------------ inside

    def _go(self, path: str, about: str) -> Shown:
        assert self._server is not None
        browser = self._open()
        with browser.talking(about) as driver:
            driver.get(f"{self._server.url}{path}")
            return page.read(driver, self._with_source)

    def _click(self, browser: Chromium, where: tuple[str, int], about: str) -> Shown:
        from selenium.common.exceptions import (
            ElementClickInterceptedException,
            ElementNotInteractableException,
        )

        def is_new() -> bool:
            return bool(driver.execute_script(_IS_NEW))

        with browser.talking(about) as driver:
            # The mark is gone with the document: then another one is there.
            driver.execute_script(_MARK)
            target = page.element(driver, where)
            try:
                target.click()
            except (ElementNotInteractableException, ElementClickInterceptedException):
                # Radio inputs have no size, and the bar at the top may cover a link.
                driver.execute_script("arguments[0].click();", target)
            wait_until(is_new, self._timeout, f"the page after a {about}")
            return page.read(driver, self._with_source)

    def _visit(self) -> Visit:
        site = self._site()
        found = None if self._sid is None else site.visits.find(self._sid)
        if found is None:
            self.close()
            raise BrowserError("The site knows nothing of this visit (any more).")
        return found

    def _take_over(self) -> None:
        """After a fork, leave site and browser to the process that started them."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._browser = self._server = self._sid = None

    def _site(self) -> Site:
        self._take_over()
        if self._server is None:
            site = Site(self._shop, (), "env", self._rules)
            self._server = SiteServer(site).start()
        return self._server.site

    def _open(self) -> Chromium:
        self._take_over()
        if self._browser is not None and not self._browser.is_open:
            self._browser = None  # it failed
        if self._browser is None:
            self._browser = Chromium(self._timeout)
        return self._browser


def _is_typable(query: str) -> bool:
    """Whether a query can be sent to a browser as it is."""
    return not any("\ud800" <= character <= "\udfff" for character in query)
