"""Pages as the observation mode ``html`` shows them: those of the web site."""

from __future__ import annotations

from agent_envs.webshop.engine import Engine
from agent_envs.webshop.model import Goal, Purchase, Session

QUERY_IN_LINKS = 256
"""Characters of the query in addresses. A page has one for every option: a long query would blow
it up."""


def page(engine: Engine, goal: Goal, session: Session, bought: Purchase | None, name: str) -> str:
    """The source of the page that a session is on.

    Raises:
        MissingExtra: a package of the extra ``site`` is not installed.
    """
    from agent_envs.webshop.site.markup import page_html

    def links(there: Session) -> str:
        query = there.query and there.query[:QUERY_IN_LINKS]
        return engine.url(name, there._replace(query=query))

    return page_html(engine.shop, goal, session, bought, links, rules=engine.rules)
