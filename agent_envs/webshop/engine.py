"""The rules of the shop: from page to page, and what is shown. Pure functions of values.

An `Engine` is a shop with a way to show it. It is immutable but for bounded caches, and shared by
everyone who asks for the same one. A `Session` is all that changes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

from agent_envs.errors import InvalidOption
from agent_envs.webshop import compat, rich_pages
from agent_envs.webshop.actions import (
    ACTION_LIMIT,
    CLICK,
    NEXT,
    SEARCH,
    SUB_PAGES,
    parse,
    plain_argument,
)
from agent_envs.webshop.model import Goal, Page, Purchase, Session
from agent_envs.webshop.nouns import nouns_named
from agent_envs.webshop.pages import (
    FIRST_SUB,
    LAYOUTS,
    NOTHING,
    RESULT_PAGES,
    TO_DONE,
    TO_INDEX,
    TO_NEXT,
    Pages,
    View,
)
from agent_envs.webshop.pages import PAGE_SIZE as PAGE_SIZE
from agent_envs.webshop.reward import score
from agent_envs.webshop.urls import page_url

if TYPE_CHECKING:
    from agent_envs.webshop.shop import Shop

SEARCH_RESULTS = 50
"""Products that a search finds at most."""

# Plain numbers: members of an IntEnum are no values that a snapshot can hold.
INDEX, RESULTS, ITEM, SUB, DONE = map(int, Page)
START = Session(INDEX)
"""The first page, and where a click on "Back to Search" leads."""

Draw = Callable[[], int]
"""A new key, at least 1, for random results."""


class Rules(NamedTuple):
    """What an engine can be asked for."""

    layout: str = "text"
    """Of texts: "text" or "text_rich"."""
    show_attributes: bool = False
    compat: bool = False
    nouns: str = "table"


class Engine:
    """The rules of one shop. Made by `engine_of`."""

    def __init__(self, shop: Shop, rules: Rules) -> None:
        self.shop = shop
        self.rules = rules
        self.layout: ModuleType = LAYOUTS[rules.layout]
        self._compat = rules.compat
        self._rich = rules.layout == "text_rich"
        self._nouns = nouns_named(rules.nouns)
        self._pages = Pages(shop, rules.layout, rules.show_attributes, rules.compat)
        self._results = lru_cache(maxsize=RESULT_PAGES)(self._make_results)
        self.checked: dict[int, Session] = {}
        """By identity, what `states.restored_session` found to be a session of this shop."""

    # ------------------------------------------------------------------ moving

    def advance(
        self, session: Session, view: View, action: str, name: str = "", draw: Draw | None = None
    ) -> Session | None:
        """The session after `action`; None if it is refused. Nothing is scored.

        Args:
            session: before the action.
            view: of the session.
            action: what is said, a plain `str`.
            name: of the session, which compat finds in addresses.
            draw: gives keys of random results; without it they all have the same.
        """
        target = view.targets.get(action)
        if target is None:
            if len(action) > ACTION_LIMIT:
                return None
            parts = parse(action)
            if parts is None:
                if self._compat:
                    return None
                parts = ("", "")
            verb, argument = parts
            if verb == SEARCH:
                return self._at_results(argument.lower(), 1, session.visited, draw)
            if verb != CLICK:
                inner = None if self._compat else plain_argument(action)
                if inner is None:
                    return None
                argument = inner
            target = view.targets.get(f"{CLICK}[{argument.lower()}]")
            if target is None:
                return None
        return self._clicked(session, view, target, name, draw)

    def _clicked(
        self, session: Session, view: View, target: int, name: str, draw: Draw | None
    ) -> Session:
        page, query, number, product, _, options, visited, _ = session
        if target >= 0:
            if page == RESULTS:
                if target not in visited:
                    visited = (*visited, target)
                return Session(ITEM, query, number, target, "", (), visited)
            group, value = view.options[target]
            if self._compat and value == NEXT and self._kind(name, session) == RESULTS:
                assert query is not None
                return self._at_results(query, number + 1, visited, draw)
            options = _selected(options, group, value)
            return Session(ITEM, query, number, product, "", options, visited)
        if target == TO_INDEX:
            return START
        if target == TO_DONE:
            return Session(DONE, query, number, product, "", options, visited)
        if target <= FIRST_SUB:
            sub = SUB_PAGES[FIRST_SUB - target]
            return Session(SUB, query, number, product, sub, options, visited)
        assert query is not None
        if target == TO_NEXT:
            return self._at_results(query, number + 1, visited, draw)
        # What is left is "< Prev".
        kind = self._kind(name, session) if self._compat else page
        if kind == RESULTS:
            return self._at_results(query, number - 1, visited, draw)
        if kind == ITEM:
            return self._at_results(query, number, visited, draw)
        return Session(ITEM, query, number, product, "", options, visited)

    def _kind(self, name: str, session: Session) -> int:
        """The page that the original takes this one for."""
        return compat.page_in(self.url(name, session))

    def _at_results(
        self, query: str, number: int, visited: tuple[int, ...], draw: Draw | None
    ) -> Session:
        key = 0
        if self._compat and compat.draws(query):
            key = 1 if draw is None else draw()
        return Session(RESULTS, query, number, -1, "", (), visited, key)

    # ------------------------------------------------------------------ looking

    def view(self, session: Session) -> View:
        """What is on the page of a session."""
        page = session.page
        if page == RESULTS:
            if session.draw:
                return self._make_results(session.query, session.number, session.draw)
            return self._results(session.query, session.number)
        if page == ITEM:
            return self._pages.item(session.product)
        if page == SUB:
            return self._pages.sub(session.product, session.sub)
        return NOTHING

    def hits(self, query: str | None, draw: int = 0) -> tuple[int, ...]:
        """What a query finds, by number, best first."""
        assert query is not None
        if self._compat:
            found = compat.magic_results(self.shop.catalogue, query, draw)
            if found is not None:
                return found
        numbers: tuple[int, ...] = self.shop.index.search(query, SEARCH_RESULTS)
        return numbers

    def _make_results(self, query: str | None, number: int, draw: int = 0) -> View:
        return self._pages.results(self.hits(query, draw), number)

    def text(self, session: Session, view: View, name: str, heading: str) -> str:
        """The text of a page other than the first and the last.

        Args:
            session: the session.
            view: of the session.
            name: of the session, which text_rich finds in addresses.
            heading: what the layout's `head` makes of the instruction.
        """
        if self._rich:
            marked = self._marked(session, view, name, heading)
            if marked is not None:
                return marked
        return heading + view.text

    def _marked(self, session: Session, view: View, name: str, heading: str) -> str | None:
        """The text of a page with something on it marked as clicked."""
        catalogue, page = self.shop.catalogue, session.page
        if page == RESULTS:
            visited = session.visited
            if visited and any(product in visited for product in view.products):
                rows = [rich_pages.row(*catalogue.card(p), p in visited) for p in view.products]
                return heading + rich_pages.results(session.number, view.total, rows)
        elif page == ITEM and (session.options or '"' in (session.query or "")):
            shows = self.rules.show_attributes
            product = catalogue[session.product]
            return rich_pages.clicked_item(product, shows, heading, self.url(name, session))
        return None

    def results_text(self, session: Session, heading: str, products: tuple[int, ...]) -> str:
        """The text of a page of results if it held these products instead."""
        total = self.view(session).total
        view = self._pages.results_of(products, session.number, total)
        return self.text(session, view, "", heading)

    def url(self, name: str, session: Session) -> str:
        """Address of the page."""
        number = session.product
        return page_url(name, session, self.shop.catalogue.asin(number) if number >= 0 else "")

    # ------------------------------------------------------------------ buying

    def purchase(self, goal: Goal, session: Session) -> Purchase:
        """What was bought in a session that is on the last page, and what it is worth."""
        number, options = session.product, session.options
        price = self.shop.catalogue.price(number)
        reward, info = score(goal, self.shop.catalogue[number], price, options, self._nouns)
        return Purchase(number, options, price, reward, info)


def _selected(
    options: tuple[tuple[str, str], ...], group: str, value: str
) -> tuple[tuple[str, str], ...]:
    """`options` with one more selected; a group keeps its place when its value changes."""
    for place, (name, _) in enumerate(options):
        if name == group:
            return (*options[:place], (group, value), *options[place + 1 :])
    return (*options, (group, value))


_engines: WeakValueDictionary[tuple[int, Rules], Engine] = WeakValueDictionary()


def engine_of(shop: Shop, rules: Rules = Rules()) -> Engine:  # noqa: B008 - a value
    """The engine of a shop: the same one for everybody who holds it.

    Raises:
        InvalidOption: an unknown layout or kind of nouns.
        MissingExtra: nouns that need a package which is not installed.
    """
    nouns_named(rules.nouns)  # before it is hashed
    if not isinstance(rules.layout, str) or rules.layout not in LAYOUTS:
        raise InvalidOption(f"layout must be one of {sorted(LAYOUTS)}, found {rules.layout!r}.")
    key = id(shop), rules  # of a living shop: the engine holds it
    engine = _engines.get(key)
    if engine is None:
        # No lock, which a fork could leave closed for ever: two threads may make one each.
        engine = _engines.setdefault(key, Engine(shop, rules))
    return engine


# ------------------------------------------------------------------ in one call each


def start() -> Session:
    """Where every episode starts."""
    return START


def step(
    shop: Shop,
    goal: Goal,
    session: Session,
    action: str,
    rules: Rules = Rules(),  # noqa: B008 - a value
    name: str = "",
    draw: Draw | None = None,
) -> tuple[Session, bool, Purchase | None]:
    """Carry out an action: the session after it, whether it was accepted, what it bought."""
    engine = engine_of(shop, rules)
    after = engine.advance(session, engine.view(session), action, name, draw)
    if after is None:
        return session, False, None
    return after, True, engine.purchase(goal, after) if after.page == DONE else None


def clickables(shop: Shop, session: Session, show_attributes: bool = False) -> tuple[str, ...]:
    """What can be clicked on a page, by the original's list and order, without "search"."""
    return engine_of(shop, Rules(show_attributes=show_attributes)).view(session).clickables


def hits(shop: Shop, session: Session, rules: Rules = Rules()) -> tuple[int, ...]:  # noqa: B008
    """The products on all pages of results of a session's query, `PAGE_SIZE` on each."""
    return engine_of(shop, rules).hits(session.query, session.draw)


def observe(
    shop: Shop,
    goal: Goal,
    session: Session,
    rules: Rules = Rules(),  # noqa: B008 - a value
    name: str = "",
) -> str:
    """The text of a page."""
    engine = engine_of(shop, rules)
    text: str
    if session.page == INDEX:
        text = engine.layout.index(goal.instruction)
        return text
    if session.page == DONE:
        bought = engine.purchase(goal, session)
        asin = shop.catalogue.asin(bought.product)
        text = engine.layout.done(asin, bought.options, bought.reward)
        return text
    heading = engine.layout.head(goal.instruction)
    return engine.text(session, engine.view(session), name, heading)
