"""A site of the small shop, with goals that are easy to tell apart."""

from __future__ import annotations

from typing import Any

import pytest

from agent_envs.webshop.engine import Rules
from tests.agent_envs.webshop import shops
from tests.agent_envs.webshop.site.reading import Read

pytest.importorskip("flask")

from agent_envs.webshop.site.app import Site, create_app


@pytest.fixture
def site() -> Site:
    """A site that hands out human goals in turn."""
    shop = shops.shop()
    turn = iter(range(10**6))
    goals = shop.goals("human")
    return Site(shop, goals, "human", Rules(show_attributes=True), draw=lambda n: next(turn) % n)


@pytest.fixture
def client(site: Site) -> Any:
    """A visitor."""
    return create_app(site).test_client()


def page(client: Any, path: str, **form: str) -> Read:
    """The page at `path`, after redirections."""
    if form:
        response = client.post(path, data=form, follow_redirects=True)
    else:
        response = client.get(path, follow_redirects=True)
    assert response.status_code == 200, response.text
    return Read(response.text)
