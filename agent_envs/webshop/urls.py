"""Addresses of pages, as the original writes them: what the observation mode ``url`` shows."""

from __future__ import annotations

import json

from agent_envs.webshop.model import Page, Session

BASE = "http://127.0.0.1:3000"


def session_name(task_id: str) -> str:
    """What stands for a task in addresses: the number of a numbered goal, as it does in the
    original, else the whole id.

    >>> session_name("synthetic-12"), session_name("goal-00ff00ff00ff00ff")
    ('12', 'goal-00ff00ff00ff00ff')
    """
    kind, _, number = task_id.rpartition("-")
    return number if kind in ("synthetic", "human") else task_id


def page_url(name: str, session: Session, asin: str) -> str:
    """Address of the page that a session is on.

    Args:
        name: of the session, see `session_name`.
        session: the session.
        asin: of the open product; not used where there is none.
    """
    page, options = session.page, dict(session.options)
    words = "+".join((session.query or "").split(" "))
    if page == Page.RESULTS:
        return f"{BASE}/search_results/{name}/{words}/{session.number}"
    if page == Page.ITEM:
        place = f"{name}/{asin}/{words}/{session.number}"
        return f"{BASE}/item_page/{place}/{json.dumps(options)}"
    if page == Page.SUB:
        place = f"{name}/{asin}/{words}/{session.number}/{session.sub}"
        return f"{BASE}/item_sub_page/{place}/{options}"
    if page == Page.DONE:
        return f"{BASE}/done/{name}/{asin}/{options}"
    return f"{BASE}/{name}"
