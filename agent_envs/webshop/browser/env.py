"""``SeroWebShopBrowser-v0``: shopping with a real browser, as a Gymnasium environment."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from agent_envs.errors import InvalidOption
from agent_envs.hooks import SUCCESS
from agent_envs.webshop.actions import ACTION_LIMIT, CLICK, SEARCH, click, parse, plain_argument
from agent_envs.webshop.browser.page import Shown, plain_text, rich_text
from agent_envs.webshop.browser.shopfront import Shopfront
from agent_envs.webshop.engine import DONE, START
from agent_envs.webshop.env import PURCHASE, TRAIN, WebShopEnv
from agent_envs.webshop.shop import Shop

TIMEOUT_S = 60.0
ENGINE = "sero-browser"


class WebShopBrowserEnv(WebShopEnv):
    """WebShop's web site, driven with Selenium and headless Chromium (extra ``browser``).

    Tasks, actions, observations, rewards, `info` and snapshots are those of ``SeroWebShop-v0``,
    but what is shown, what can be clicked and what a purchase is worth are read from the page. In
    the mode ``html`` an observation is what the browser makes of the page.

    Site and browser start with the first reset, on this machine and for this env alone, and end
    with `close`, with the env, and with the process, however it ends. A snapshot needs neither:
    after a `restore` the browser goes to the page when the next action is taken. The same holds
    for copies.

    Args:
        data, split, max_steps, render_mode: as for `WebShopEnv`.
        goal_source, split_by, observation_mode, num_prev_obs, num_prev_actions: likewise.
        show_attributes, nouns, price_seed, task_ids: likewise.
        timeout: seconds for the start of the browser, for a page, and for every single command.

    Raises:
        MissingExtra: Selenium or Flask is not installed; on the first reset, Chromium or
            ChromeDriver.
        BrowserError: by `reset` and `step`: the browser failed. The env is where it was before,
            and the next call starts another browser.
    """

    env_id: ClassVar[str] = "SeroWebShopBrowser-v0"

    def __init__(
        self,
        data: Shop | str | os.PathLike[str] | None = None,
        split: str | None = TRAIN,
        max_steps: int | None = 15,
        render_mode: str | None = None,
        *,
        goal_source: str = "synthetic",
        split_by: str = "goal",
        observation_mode: str = "text",
        num_prev_obs: int = 0,
        num_prev_actions: int = 0,
        show_attributes: bool = False,
        nouns: str = "table",
        price_seed: int = 0,
        task_ids: Iterable[str] | None = None,
        timeout: float = TIMEOUT_S,
    ) -> None:
        if type(timeout) not in (int, float) or not 0 < timeout < math.inf:
            raise InvalidOption(f"timeout is a number of seconds above 0, found {timeout!r}.")
        super().__init__(
            data,
            split,
            max_steps,
            render_mode,
            goal_source=goal_source,
            split_by=split_by,
            observation_mode=observation_mode,
            num_prev_obs=num_prev_obs,
            num_prev_actions=num_prev_actions,
            show_attributes=show_attributes,
            nouns=nouns,
            price_seed=price_seed,
            task_ids=task_ids,
        )
        from agent_envs.webshop.browser.chromium import selenium_modules
        from agent_envs.webshop.site.needs import needed

        selenium_modules()
        needed("flask")
        with_source = observation_mode == "html"
        self._front = Shopfront(
            self._engine.shop, self._engine.rules, float(timeout), with_source=with_source
        )
        self._dom: Shown | None = None
        """What the browser shows; None where it is not, or not known to be, at the session."""

    @property
    def front(self) -> Shopfront:
        """The site and the browser."""
        return self._front

    def screenshot(self) -> bytes:
        """The page as a picture (PNG).

        Raises:
            ResetNeeded: before the first reset.
            BrowserError: the browser fails.
        """
        self._demand_episode("take a picture of")
        self._at_page()
        return self._front.screenshot()

    def close(self) -> None:
        """End the episode, the browser and the site; `reset` starts others."""
        self._dom = None
        self._front.close()
        super().close()

    def __deepcopy__(self, memo: dict[int, Any]) -> WebShopBrowserEnv:
        new = super().__deepcopy__(memo)
        assert isinstance(new, WebShopBrowserEnv)
        new._dom = None  # its browser is not started yet
        return new

    # ------------------------------------------------------------------ hooks of TextEnv

    def _begin(self) -> str:
        assert self._task_id is not None
        given = self._given is not None and self._given[0] == self._task_id
        goal = self._given[1] if given and self._given else self._played.goals.goal(self._task_id)
        self._dom = None
        self._dom = self._front.show(goal, START, None)
        return super()._begin()

    def _apply(self, command: str) -> tuple[str, float, str | None, float, bool]:
        dom = self._at_page()
        wanted = _understood(command, dom)
        if wanted is None:
            score = 0.0 if self._bought is None else self._bought.reward
            return self._shown(command), 0.0, None, score, False
        self._dom = None  # until the browser has answered
        verb, text = wanted
        if verb == SEARCH:
            dom = self._front.search(dom, self._session, text)
        else:
            dom = self._front.click(dom, text)
        session = self._front.session(dom, self._session)
        bought = self._front.purchase() if session.page == DONE else None
        self._dom, self._session, self._bought, self._text = dom, session, bought, None
        self._view = self._engine.view(session)
        if dom.reward is None:
            return self._shown(command), 0.0, None, 0.0, True
        end = SUCCESS if dom.reward == 1.0 else PURCHASE
        return self._shown(command), dom.reward, end, dom.reward, True

    def _admissible(self) -> tuple[str, ...]:
        return super()._admissible() if self._dom is None else self._dom.commands

    def _set_engine_state(self, task_id: str, state: tuple[Any, ...]) -> None:
        super()._set_engine_state(task_id, state)
        self._dom = None

    def _info_static(self) -> Mapping[str, Any]:
        static = super()._info_static()
        return {**static, "provenance": {**static["provenance"], "engine": ENGINE}}

    # ------------------------------------------------------------------ inside

    def _at_page(self) -> Shown:
        """The page of the session, to which the browser goes if it is not there."""
        if self._dom is None or not self._front.is_open:
            assert self._goal is not None
            self._dom = self._front.show(self._goal, self._session, self._bought)
        return self._dom

    def _page_text(self) -> str:
        dom = self._at_page()
        if self._mode == "html":
            return dom.source
        if self._mode == "text":
            return plain_text(dom)
        address = self._engine.url(self._name, self._session)
        if self._mode == "url":
            return address
        catalogue = self._engine.shop.catalogue
        return rich_text(dom, [catalogue.asin(number) for number in self._session.visited], address)


def _understood(action: str, dom: Shown) -> tuple[str, str] | None:
    """What an action does on a page: search for a text or click on one; None if neither."""
    keys = {} if dom.has_search else dom.keys
    if action.startswith(f"{CLICK}["):
        for key in keys:
            if click(key) == action:
                return CLICK, key
    if len(action) > ACTION_LIMIT:
        return None
    verb, argument = parse(action) or ("", "")
    if verb == SEARCH:
        return SEARCH, argument.lower()
    if verb != CLICK:
        inner = plain_argument(action)
        if inner is None:
            return None
        argument = inner
    return (CLICK, argument.lower()) if argument.lower() in keys else None
